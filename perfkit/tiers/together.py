"""Alone against together: what one reader of a file system has left when others read too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfkit import units
from perfkit.ranks import local
from perfkit.records.tiers import TierProbe
from perfkit.tiers.cluster import probe_together
from perfkit.tiers.files import check_path
from perfkit.tiers.turns import turn

__all__ = ["advice_together", "sentence_of"]


def advice_together(
    path: str | Path, count: int, *, quick: bool = True
) -> tuple[tuple[TierProbe, ...], str]:
    """Probes of rank 0 alone and of `count` processes at once, and a sentence on the difference.

    Raises what `probe_together` raises.
    """
    with turn(check_path(path)), local(count) as ranks:
        probes = probe_together(path, ranks, quick=quick)
    return probes, sentence_of(path, probes)


def sentence_of(path: str | Path, probes: Sequence[TierProbe]) -> str:
    """What the four probes of `probe_together` say, in plain words."""
    alone, together = probes[1], probes[3]
    path = together.target.path or path
    count = together.job.tasks or 1
    one = alone.bandwidth_Bps.median if alone.bandwidth_Bps else None
    all_of_them = together.bw_last_done_Bps
    if not one or not all_of_them:
        return f"{path}: {count} processes at once gave no figure to compare"
    first = units.bandwidth(together.bw_first_done_Bps)
    return (
        f"{path}: {count} processes together read {units.bandwidth(all_of_them)} until the last "
        f"was done ({first} until the first was), {units.ratio(all_of_them / one)} what one reads "
        f"alone; each has {units.share(all_of_them / count / one)} of that"
    )
