"""Where am I: processor, limits, noise. Reads /proc and /sys, starts nothing."""
