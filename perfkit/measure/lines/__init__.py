"""How a line profile is taken: statements, targets, line events, ticks, and what they add up to."""
