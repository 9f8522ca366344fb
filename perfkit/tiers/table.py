"""The tier table of this machine: plan, probe, and put the figures side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from perfkit.errors import PerfkitError
from perfkit.records.base import Quality, keep_last
from perfkit.records.tiers import PlannedPath, Target, Tier, TierPlan, TierProbe, TierTable
from perfkit.system.facts import machine
from perfkit.tiers import answers, rows
from perfkit.tiers.bandwidth import probe_bandwidth
from perfkit.tiers.device import probe_devices
from perfkit.tiers.latency import probe_latency
from perfkit.tiers.metadata import probe_metadata
from perfkit.tiers.plan import plan_tiers
from perfkit.tiers.reference import NAME, reference_tiers
from perfkit.tiers.storage import probe_reads
from perfkit.tiers.turns import turn

__all__ = ["TierSurvey", "probe_tiers"]

METADATA_SHARE = 0.15


def probe_tiers(
    paths: Sequence[str | Path] | None = None,
    *,
    quick: bool = True,
    budget_s: float | None = None,
) -> TierTable:
    """Measure this machine's tiers: memory, the file systems of `paths` and of the folders that
    machines are known to have (`perfkit.tiers.plan.WELL_KNOWN`), and the devices in use.

    `quick`: some 5 s for memory and 4 s for each file system; else minutes. `budget_s`: seconds for
    all of it. Files are written in these folders alone, and are gone afterwards.

    Raises UsageError for a folder that cannot be probed. What was seen before an interrupt is
    `perfkit.last()`.
    """
    survey = TierSurvey(plan_tiers(paths, quick=quick, budget_s=budget_s))
    return survey.run()


class TierSurvey:
    """One survey under way. `tick` is told what is measured, and which part of the plan is done."""

    def __init__(
        self,
        plan: TierPlan,
        *,
        label: str = "tiers",
        tick: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        self.plan = plan
        self._label, self._tick = label, tick
        self._probes: list[TierProbe] = []
        self._tiers: list[Tier] = []
        self._notes: list[str] = []
        self._waited_s = self._done_s = 0.0
        self._start_s = time.perf_counter()
        self.table: TierTable | None = None
        self.further: list[Callable[[], None]] = []
        """Steps that others add behind the planned ones."""
        self.extra: list[str] = []
        """Sentences that others add to the advice."""

    def run(self) -> TierTable:
        """Probe all that is planned. An interrupt leaves the rows so far in `perfkit.last()`."""
        stopped = "an error or an interrupt"
        try:
            for step in (self._memory, *self._storage_steps(), self._devices, *self.further):
                step()
            stopped = ""
        finally:
            self.table = self._table(stopped)
            keep_last(self.table)
        return self.table

    def add(self, probes: Sequence[TierProbe]) -> None:
        """Keep probes of others with the table's."""
        self._probes += probes

    # -- steps ---------------------------------------------------------------------------------

    def _say(self, words: str, part: float, of_s: float) -> None:
        total_s = max(self.plan.seconds, 1e-9)
        self._tick(words, min(1.0, (self._done_s + part * of_s) / total_s))

    def _memory(self) -> None:
        def waits(seconds: float) -> None:
            self._say(f"waiting for another probe of the memory: {seconds:.0f} s", 0.0, 0.0)

        # Its arrays are a part of the memory that is free: several at once would have more.
        with turn(Target(st_dev="memory"), waits) as waited_s:
            self._waited_s += waited_s
            self._memory_alone()

    def _memory_alone(self) -> None:
        plan = self.plan
        half_s = plan.memory_s / 2
        found = probe_bandwidth(
            quick=plan.quick,
            budget_s=half_s,
            tick=lambda words, part: self._say(words, part / 2, plan.memory_s),
        )
        self._probes += found
        latency = probe_latency(
            quick=plan.quick,
            budget_s=0.8 * half_s,
            tick=lambda words, part: self._say(words, 0.5 + part / 2, plan.memory_s),
        )
        self._probes.append(latency)
        self._tiers += rows.memory_rows(found, latency)
        self._done_s += plan.memory_s

    def _storage_steps(self) -> Iterator[Callable[[], None]]:
        for path in self.plan.paths:
            if path.refused:
                self._notes.append(path.refused)
            elif not path.same_as:
                yield partial(self._storage, path)

    def _storage(self, path: PlannedPath) -> None:
        def waits(seconds: float) -> None:
            self._say(f"waiting for another probe on {path.path}: {seconds:.0f} s", 0.0, 0.0)

        metadata_s = METADATA_SHARE * path.seconds
        quick, probes = self.plan.quick, list[TierProbe]()
        try:
            with turn(path.target, waits) as waited_s:
                self._waited_s += waited_s
                probes += probe_reads(
                    path.path,
                    quick=quick,
                    budget_s=path.seconds - metadata_s,
                    tick=lambda words: self._say(f"{path.name}: {words}", 0.3, path.seconds),
                )
                probes += probe_metadata(
                    path.path,
                    quick=quick,
                    budget_s=metadata_s,
                    tick=lambda words: self._say(f"{path.name}: {words}", 0.9, path.seconds),
                )
        except (PerfkitError, OSError) as error:
            # One folder that fails must not cost the others their figures.
            self._notes.append(str(error))
        finally:
            self._probes += [_named(probe, path.name) for probe in probes]
            if probes:
                self._tiers += rows.storage_rows(path, probes)
        self._done_s += path.seconds

    def _devices(self) -> None:
        self._say("devices", 0.0, 0.0)
        found = probe_devices(quick=self.plan.quick, tick=lambda words: self._say(words, 0.5, 0.5))
        self._probes += found
        self._tiers = [*rows.device_rows(found), *self._tiers]

    # -- the record ----------------------------------------------------------------------------

    def _table(self, stopped: str) -> TierTable:
        # Memory by another name stands above the disks.
        ordered = sorted(
            self._tiers,
            key=lambda tier: tier.kind == "storage" or bool(tier.kind == "cache" and tier.path),
        )
        tiers = tuple(answers.applied(tier) for tier in ordered)
        refused = [tier.name for tier in tiers if tier.quality.status == "refused"]
        reasons = [f"stopped by {stopped}"] if stopped else []
        reasons += [f"no valid figure: {', '.join(refused)}"] if refused else []
        same = [
            f"{p.path} is on the same file system as {p.same_as}"
            for p in self.plan.paths
            if p.same_as
        ]
        return TierTable.of(
            label=self._label,
            tiers=tiers,
            reference=reference_tiers(),
            reference_name=NAME,
            probes=tuple(self._probes),
            advice=(*rows.advice(tiers), *self.extra),
            plan=self.plan,
            spent_s=time.perf_counter() - self._start_s,
            waited_s=self._waited_s,
            stopped=stopped,
            notes=(*self._notes, *same),
            machine=machine(),
            quality=Quality(status="suspect" if reasons else "valid", reasons=tuple(reasons)),
        )


def _named(probe: TierProbe, name: str) -> TierProbe:
    """The probe under the tier's name, where it did not find another one itself."""
    if probe.tier:
        return probe
    import msgspec

    return msgspec.structs.replace(probe, tier=name)
