"""How it is measured: clock and devices are passed in, nothing is printed."""
