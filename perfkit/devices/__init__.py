"""Where work runs: one runtime a file, behind the Protocol in `base`."""
