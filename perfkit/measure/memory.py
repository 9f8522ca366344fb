"""What a run keeps, and how high it goes: device memory by the runtime's count, and the host's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from perfkit.devices.base import Device, Memory
from perfkit.system.memory import HostPeak

__all__ = ["Held", "MemoryMeter"]

MOST_NAMES = 5


class Held(NamedTuple):
    """Bytes, None where untold. `kept`: names that now hold something new on a device."""

    device_peak_bytes: int | None = None
    device_retained_bytes: int | None = None
    host_peak_bytes: int | None = None
    kept: tuple[str, ...] = ()


class MemoryMeter:
    """Starts when it is made; `read` it when the devices are drained."""

    def __init__(self, devices: Sequence[Device], names: Mapping[str, object]) -> None:
        self._devices, self._names = devices, names
        self._telling = [device for device in devices if device.memory() is not None]
        self._used_bytes, self._peak_bytes = self._used(), self._peak()
        self._owned = self._owned_ids()
        self._host = HostPeak()

    def read(self) -> Held:
        """What changed since the meter was made."""
        host_peak_bytes = self._host.rise_bytes()
        used = self._used()
        retained = None
        if used is not None and self._used_bytes is not None:
            retained = used - self._used_bytes
        # A peak counts from the runtime's own start. Starting it anew would change what the user
        # reads later, so it is told only where this run has raised it.
        peak = self._peak()
        risen = peak if peak is not None and peak != self._peak_bytes else None
        kept = [name for name, key in self._owned_ids().items() if self._owned.get(name) != key]
        return Held(
            device_peak_bytes=risen,
            device_retained_bytes=retained,
            host_peak_bytes=host_peak_bytes,
            kept=tuple(kept[:MOST_NAMES]) if retained else (),
        )

    def _memories(self) -> list[Memory]:
        return [memory for device in self._devices if (memory := device.memory()) is not None]

    def _used(self) -> int | None:
        return _total(memory.used_bytes for memory in self._memories())

    def _peak(self) -> int | None:
        return _total(memory.peak_bytes for memory in self._memories())

    def _owned_ids(self) -> dict[str, int]:
        return {
            name: id(value)
            for name, value in list(self._names.items())
            if any(device.owns(value) for device in self._telling)
        }


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
