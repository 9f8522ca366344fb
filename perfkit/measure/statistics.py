"""When to stop sampling, and what the samples say about themselves.

The rules were compared on a machine with noisy neighbours: an interval of the median that takes
samples for independent held its own median in 17 to 62 % of runs at a nominal 95 %, so none is
used here. Medians of blocks are.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, median, quantiles
from typing import NamedTuple

__all__ = ["Findings", "examine", "is_settled", "spread", "warmup_length"]

SETTLED_SAMPLES = 20
BLOCKS = 10
BLOCK_TOLERANCE = 0.02
TREND_BLOCKS, TREND_SAMPLES, TREND_LEVEL, TREND_SIZE = 12, 24, 0.01, 0.03
CLUSTER_SAMPLES, CLUSTER_SHARE, CLUSTER_GAP = 60, 0.12, 0.05
HALVES_SIZE, HALVES_Z = 0.05, 3.0


class Findings(NamedTuple):
    """`trimmed` samples at the front belong to the warm-up; `words` say what is wrong."""

    trimmed: int
    words: tuple[str, ...]


def spread(values: Sequence[float]) -> float | None:
    """IQR over median; None below four values, or when the median is zero."""
    middle = median(values) if values else 0.0
    if len(values) < 4 or not middle:
        return None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def is_settled(values: Sequence[float]) -> bool:
    """Are the medians of ten successive blocks, the two extremes left out, within 2 %?"""
    if len(values) < SETTLED_SAMPLES:
        return False
    middle = median(values)
    blocks = sorted(_block_medians(values, BLOCKS))
    return max(blocks[-2] - middle, middle - blocks[1]) <= BLOCK_TOLERANCE * middle


def warmup_length(values: Sequence[float]) -> int:
    """How many values at the front still belong to the warm-up.

    Groups of five go while their median lies above the upper quartile of the rest and more than
    3 % over its median; at most half of the values.
    """
    length = 0
    while 2 * (length + 5) <= len(values):
        rest = values[length + 5 :]
        if len(rest) < 4:
            break
        group = median(values[length : length + 5])
        if group <= quantiles(rest, n=4, method="inclusive")[2]:
            break
        if group <= (1 + TREND_SIZE) * median(rest):
            break
        length += 5
    return length


def examine(values: Sequence[float], *, settled: bool = True) -> Findings:
    """Look for a warm-up, a drift, two clusters and instability, in this order.

    `settled` is whether the block rule held when sampling stopped.
    """
    trimmed = warmup_length(values) if len(values) >= SETTLED_SAMPLES else 0
    rest = values[trimmed:]
    if not values or median(values) <= 0:
        return Findings(0, ())
    if _is_falling(rest if len(rest) >= TREND_SAMPLES else values):
        return Findings(trimmed, ("still warming up: later samples are faster",))
    clusters = _two_clusters(rest)
    if clusters:
        return Findings(trimmed, (clusters,))
    if _halves_differ(rest) or not settled:
        return Findings(trimmed, ("unstable: parts of the run differ by more than the rest",))
    return Findings(trimmed, ())


def _block_medians(values: Sequence[float], blocks: int) -> list[float]:
    edges = [len(values) * i // blocks for i in range(blocks + 1)]
    return [median(values[a:b]) for a, b in pairwise(edges)]


def _is_falling(values: Sequence[float]) -> bool:
    """Mann-Kendall's test for a downward trend over block medians, p < 0.01, and the first
    third more than 3 % over the last.
    """
    if len(values) < TREND_SAMPLES:
        return False
    blocks = _block_medians(values, TREND_BLOCKS)
    n = len(blocks)
    score = sum((b > a) - (b < a) for i, a in enumerate(blocks) for b in blocks[i + 1 :])
    z = (score + 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    third = n // 3
    drop = median(blocks[:third]) / median(blocks[-third:])
    return z < NormalDist().inv_cdf(TREND_LEVEL / 2) and drop > 1 + TREND_SIZE


def _two_clusters(values: Sequence[float]) -> str:
    """The best split of the logarithms into two; a runs test then tells two modes side by side
    from one change of speed.
    """
    if len(values) < CLUSTER_SAMPLES or min(values) <= 0:
        return ""
    logs = sorted(math.log(value) for value in values)
    kept = logs[int(0.02 * len(logs)) : len(logs) - int(0.06 * len(logs))]
    cut = _best_split(kept)
    low, high = kept[:cut], kept[cut:]
    if min(len(low), len(high)) < CLUSTER_SHARE * len(kept):
        return ""
    gap = median(high) - median(low)
    if gap < math.log1p(CLUSTER_GAP) or gap < 2.5 * (_iqr(low) + _iqr(high)):
        return ""
    middle = [x for x in kept if median(low) + gap / 3 < x < median(high) - gap / 3]
    if len(middle) >= 0.08 * len(kept):
        return ""
    border = math.exp((low[-1] + high[0]) / 2)
    if _runs_z([value > border for value in values]) < -3:
        return "the speed changed during the run: two stretches of different speed"
    return f"two clusters: the slower one takes {math.exp(gap):.2f} times as long"


def _best_split(ordered: Sequence[float]) -> int:
    """Index that splits sorted values into two groups of least total squared deviation."""
    total, before, best, cut = sum(ordered), 0.0, -math.inf, 1
    for i in range(1, len(ordered)):
        before += ordered[i - 1]
        between = before**2 / i + (total - before) ** 2 / (len(ordered) - i)
        if between > best:
            best, cut = between, i
    return cut


def _iqr(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return high - low


def _runs_z(flags: Sequence[bool]) -> float:
    """Wald and Wolfowitz: how many standard deviations more runs than chance would give."""
    above = sum(flags)
    below = len(flags) - above
    n = len(flags)
    if not above or not below:
        return 0.0
    runs = 1 + sum(a != b for a, b in pairwise(flags))
    expected = 2 * above * below / n + 1
    variance = (expected - 1) * (expected - 2) / (n - 1)
    return (runs - expected) / math.sqrt(variance) if variance > 0 else 0.0


def _halves_differ(values: Sequence[float]) -> bool:
    """Do the halves' medians differ by more than 5 %, and their ranks by more than chance?"""
    half = len(values) // 2
    if half < SETTLED_SAMPLES // 2:
        return False
    first, second = values[:half], values[-half:]
    small, large = sorted((median(first), median(second)))
    if large <= (1 + HALVES_SIZE) * small:
        return False
    ordered = sorted(second)
    # Mann and Whitney's statistic: pairs in which the first half is slower, ties counted half.
    wins = sum((bisect_left(ordered, a) + bisect_right(ordered, a)) / 2 for a in first)
    z = (wins / half**2 - 0.5) * math.sqrt(12 * half * half / (2 * half + 1))
    return abs(z) > HALVES_Z
