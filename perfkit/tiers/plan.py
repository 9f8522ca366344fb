"""What a tier probe is going to do: which folders, how many bytes, how long."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from perfkit.devices.detect import devices_in_use
from perfkit.errors import UsageError
from perfkit.records.tiers import PlannedPath, Target, TierPlan
from perfkit.system.facts import last_level_cache_bytes
from perfkit.system.limits import read_limits
from perfkit.tiers.files import check_path
from perfkit.tiers.scratch import file_cap

__all__ = ["WELL_KNOWN", "plan_tiers"]

QUICK_MEMORY_S, FULL_MEMORY_S = 5.0, 25.0
QUICK_PATH_S, FULL_PATH_S = 3.2, 28.0
SMALL_FILES_BYTES = 4 * 2**20


class _Place(NamedTuple):
    """A folder that machines are known to have."""

    variable: str
    path: str
    name: str


WELL_KNOWN = (
    _Place("SLURM_TMPDIR", "", "local scratch"),
    _Place("PBS_LOCALDIR", "", "local scratch"),
    _Place("SGE_LOCALDIR", "", "local scratch"),
    _Place("TMPDIR", "", "temporary files"),
    _Place("BEEOND_MOUNT", "", "BeeOND"),
    _Place("BEEOND", "", "BeeOND"),
    _Place("", "/beeond", "BeeOND"),
    _Place("SCRATCH", "", "scratch"),
    _Place("HOME", "", "home"),
    _Place("", "/dev/shm", "shared memory"),
)


def plan_tiers(
    paths: Sequence[str | Path] | None = None,
    *,
    quick: bool = True,
    budget_s: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> TierPlan:
    """The folders that are named, and those that machines are known to have, each file system once.

    `budget_s`: seconds for all of it, shared out. Raises UsageError in one line for a named folder
    that cannot be probed.
    """
    if budget_s is not None and not 0 < budget_s < float("inf"):
        raise UsageError(f"budget is {budget_s!r}: give seconds above 0")
    rows: list[PlannedPath] = []
    devices: dict[str, str] = {}
    for path, name, why, must in _places(paths or (), os.environ if environ is None else environ):
        row = _planned(path, name, why, must, devices, quick)
        if row is not None and all(row.path != other.path for other in rows):
            rows.append(row)
    memory_s = QUICK_MEMORY_S if quick else FULL_MEMORY_S
    plan = TierPlan.of(
        quick=quick,
        budget_s=0.0,
        memory_bytes=_memory_bytes(),
        memory_s=memory_s,
        paths=tuple(rows),
        devices=tuple(device.name for device in devices_in_use() if device.name != "thread"),
    )
    return _within(plan, budget_s)


def _places(
    paths: Sequence[str | Path], environ: Mapping[str, str]
) -> Iterator[tuple[str, str, str, bool]]:
    for path in paths:
        yield str(path), "", "you named it", True
    for place in WELL_KNOWN:
        found = environ.get(place.variable, "") if place.variable else place.path
        if found:
            yield found, place.name, f"${place.variable}" if place.variable else "", False


def _planned(
    path: str, name: str, why: str, must: bool, devices: dict[str, str], quick: bool
) -> PlannedPath | None:
    try:
        target = check_path(path)
    except UsageError as error:
        if must:
            raise UsageError(" ".join(str(error).split())) from None
        if not _is_folder(path):
            return None
        return PlannedPath(path=path, name=name, why=why, target=Target(), refused=str(error))
    name = name or _name_of(target)
    same = devices.setdefault(target.st_dev, target.path)
    if same != target.path:
        return PlannedPath(path=target.path, name=name, why=why, target=target, same_as=same)
    return PlannedPath(
        path=target.path,
        name=name,
        why=why,
        target=target,
        write_bytes=file_cap(target) + SMALL_FILES_BYTES,
        seconds=QUICK_PATH_S if quick else FULL_PATH_S,
    )


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def _name_of(target: Target) -> str:
    if "beeond" in target.path or "beeond" in target.source:
        return "BeeOND"
    return target.path


def _memory_bytes() -> int:
    """Three arrays of four times the last-level cache, as far as the limit allows."""
    each = 4 * (last_level_cache_bytes() or 32 * 2**20)
    limit = read_limits().memory_bytes
    return 3 * int(min(each, 0.08 * limit) if limit else each)


def _within(plan: TierPlan, budget_s: float | None) -> TierPlan:
    """The same plan, its parts shortened in proportion if they would take too long."""
    factor = 1.0
    if budget_s:
        # What devices take is short and fixed.
        fixed_s = plan.seconds - plan.memory_s - sum(path.seconds for path in plan.paths)
        factor = min(1.0, max(0.1 * budget_s, budget_s - fixed_s) / (plan.seconds - fixed_s))
    replace = msgspec.structs.replace
    return replace(
        plan,
        memory_s=factor * plan.memory_s,
        paths=tuple(replace(path, seconds=factor * path.seconds) for path in plan.paths),
        budget_s=budget_s or plan.seconds,
    )
