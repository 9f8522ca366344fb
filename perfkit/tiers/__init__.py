"""The memory and storage tiers of this machine, measured and proven."""
