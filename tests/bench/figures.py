"""What the benchmarks share: print a figure beside the bound it is held to."""

from statistics import median, quantiles


def spread(values):
    """Median with its quartiles, as text."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return f"{median(values):.4g} [{low:.4g} .. {high:.4g}]"


def figure(name, value, bound, holds, note=""):
    """One line: what, how much, the bound, and whether it holds."""
    print(f"{'ok  ' if holds else 'MISS'}  {name}: {value}  (bound: {bound}) {note}".rstrip())
