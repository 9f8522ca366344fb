"""The machine a record was made on: enough to know whether two numbers may be compared."""

from __future__ import annotations

import msgspec

from perfkit.records.base import Bytes, Count, Record

__all__ = ["Limits", "Machine"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What this process may use, which in a container is less than the machine has.

    `quota_cpus`: CPU seconds per second that the control groups allow; None without a quota.
    `affinity_cpus`: logical CPUs in the affinity mask. `cpus`: the smaller of the two.
    `memory_bytes`: the tightest memory limit. `reason`: where the limits came from.
    """

    quota_cpus: float | None = None
    affinity_cpus: Count | None = None
    cpus: float | None = None
    memory_bytes: Bytes | None = None
    reason: str = ""


class Machine(Record, frozen=True, kw_only=True):
    """A small fingerprint. `host` is a salted hash: the same here, nothing about the name."""

    host: str
    system: str
    processor: str
    limits: Limits
    last_level_cache_bytes: Bytes | None = None
    python: str
    perfkit: str
