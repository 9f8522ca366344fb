"""Samples of one figure, told apart by whether the thread that took them kept its core."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median, pstdev, quantiles
from typing import Any, TypeVar

from perfkit.records.base import Quality
from perfkit.records.tiers import Noise, Summary
from perfkit.system.facts import machine
from perfkit.system.limits import read_limits, read_throttling
from perfkit.system.noise import RunQueueWait, stalled_s

__all__ = ["Samples", "Surroundings", "Team", "Watch", "origin"]

LEAST_CLEAN = 20
MOST_CV = 0.25
WAIT_SHARE = 0.05

_T = TypeVar("_T")


def origin() -> dict[str, Any]:
    """When and where: the fields of a TierProbe that all probes fill alike."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"time": now, "host": machine().host, "limits": read_limits()}


class Watch:
    """Tells whether the calling thread kept its core. Make it on that thread; `close` it.

    `wait_share` is the part of its life that the thread stood ready without a core.
    """

    def __init__(self) -> None:
        self._queue = RunQueueWait()
        self._start_s = time.perf_counter()
        self._waited_at_start_s = self._queue.read_s()
        self._seen = (0, 0.0, 0.0)
        self.kept_core()

    def kept_core(self) -> bool:
        """Since the last call: no involuntary context switch, and no long wait for a core."""
        switches, waited_s, now_s = self._seen
        self._seen = (_switches(), self._queue.read_s() or 0.0, time.perf_counter())
        waited_s = self._seen[1] - waited_s
        # Whoever sleeps waits a little for a core when it wakes: that alone disturbs no sample.
        return self._seen[0] == switches and waited_s <= WAIT_SHARE * (self._seen[2] - now_s)

    @property
    def wait_share(self) -> float | None:
        """None where the kernel does not tell."""
        waited_s = self._queue.read_s()
        if waited_s is None or self._waited_at_start_s is None:
            return None
        lived_s = time.perf_counter() - self._start_s
        return max(0.0, waited_s - self._waited_at_start_s) / lived_s if lived_s > 0 else 0.0

    def close(self) -> None:
        """Close the file behind it. Safe to call twice."""
        self._queue.close()


def _switches() -> int:
    """Involuntary switches of this thread, or of the process where threads are not counted."""
    who = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return resource.getrusage(who).ru_nivcsw


class Samples:
    """Figures in any one unit. The clean ones count; the disturbed ones are kept beside them."""

    def __init__(self) -> None:
        self.clean: list[float] = []
        self.disturbed: list[float] = []

    def add(self, value: float, *, clean: bool) -> None:
        """Keep one figure."""
        (self.clean if clean else self.disturbed).append(value)

    def summary(self) -> Summary | None:
        """Of the clean samples; None without any."""
        if not self.clean:
            return None
        low, high = _between(self.clean, 4) if len(self.clean) >= 4 else (None, None)
        return Summary(
            median=median(self.clean),
            min=min(self.clean),
            max=max(self.clean),
            p25=low,
            p75=high,
            n=len(self.clean),
        )

    def all_median_over_clean(self) -> float | None:
        """Median of all samples over that of the clean ones; None without a clean one."""
        if not self.clean or not median(self.clean):
            return None
        return median(self.clean + self.disturbed) / median(self.clean)

    def quality(
        self,
        words: Callable[[float], str],
        *,
        wait_share: float | None = None,
        reasons: Sequence[str] = (),
    ) -> Quality:
        """Refused with fewer than 20 clean samples, or with a coefficient of variation over 0.25;
        suspect for `reasons`, or when less than half are clean. `words` writes a figure.
        """
        said = [*self._refusals(words)]
        status = "refused" if said else "valid"
        total = len(self.clean) + len(self.disturbed)
        if 2 * len(self.clean) < total:
            said.append(f"busy machine: {len(self.disturbed)} of {total} samples lost their core")
        said += reasons
        if said and status == "valid":
            status = "suspect"
        summary = self.summary()
        spread = summary.spread if summary else None
        asked = {"status": status, "reasons": tuple(said), "spread": spread}
        return Quality(**asked, wait_share=wait_share)  # type: ignore[arg-type]

    def _refusals(self, words: Callable[[float], str]) -> list[str]:
        found = len(self.clean)
        if found < LEAST_CLEAN:
            return [f"too noisy: {found} clean samples, at least {LEAST_CLEAN} are needed"]
        if self._cv() <= MOST_CV:
            return []
        low, high = _between(self.clean, 10)
        return [f"too noisy: p10-p90 of the clean samples is {words(low)} to {words(high)}"]

    def _cv(self) -> float:
        """Standard deviation over mean of all but the outer tenth: a pause that the hypervisor
        makes is in no count of the guest's, and one of them would speak for hundreds of samples.
        """
        cut = len(self.clean) // 20
        inner = sorted(self.clean)[cut : len(self.clean) - cut]
        return pstdev(inner) / fmean(inner) if fmean(inner) else 0.0


def _between(values: Sequence[float], parts: int) -> tuple[float, float]:
    """What the first and the last of `parts` equal groups of the sorted values end and begin at."""
    cuts = quantiles(values, n=parts, method="inclusive")
    return cuts[0], cuts[-1]


class Surroundings:
    """What goes on around a probe: made before it, asked after it."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._start_s = time.perf_counter()
        self._start = self._read()

    def noise(self, samples: Samples, *, wait_share: float | None = None) -> Noise:
        """What disturbed `samples`; None for what this kernel does not tell."""
        cpu_s, io_s, throttled = (
            None if now is None or then is None else max(0, now - then)
            for then, now in zip(self._start, self._read(), strict=True)
        )
        passed_s = max(time.perf_counter() - self._start_s, 1e-9)
        return Noise(
            clean=len(samples.clean),
            disturbed=len(samples.disturbed),
            all_median_over_clean=samples.all_median_over_clean(),
            wait_share=wait_share,
            psi_cpu_some=None if cpu_s is None else cpu_s / passed_s,
            psi_io_some=None if io_s is None else io_s / passed_s,
            nr_throttled=None if throttled is None else int(throttled),
            loadavg=os.getloadavg()[0],
        )

    def _read(self) -> tuple[float | None, float | None, int | None]:
        stops = read_throttling(self._root)
        waits = (stalled_s(resource, self._root) for resource in ("cpu", "io"))
        return next(waits), next(waits), stops and stops.throttled


class Team:
    """One thread on each of `cpus`, pinned where the system can; the caller's affinity stays.

    Work polls `stopped`. Leaving the context sets it and joins the threads, on errors too.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._threads = [ThreadPoolExecutor(1, "tiers", _pin, (cpu,)) for cpu in cpus]
        self.stopped = threading.Event()

    def run(self, work: Callable[[int], _T]) -> list[_T]:
        """`work(i)` on every thread at once; waits for all. Raises what `work` raised."""
        futures = [thread.submit(work, i) for i, thread in enumerate(self._threads)]
        return [future.result() for future in futures]

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.shutdown(wait=True)


def _pin(cpu: int) -> None:
    # Not on macOS; and a CPU may have left the mask since it was read.
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, {cpu})
