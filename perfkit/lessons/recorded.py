"""Cells that need an NVIDIA GPU: measured where there is one, else shown as recorded elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import msgspec

from perfkit.devices.cupy import CuPyDevice
from perfkit.errors import MissingDependency, NotSupportedHere
from perfkit.measure.timing import time_call
from perfkit.optional import require
from perfkit.records.lesson import Recorded
from perfkit.records.timing import Timing

__all__ = ["CELLS", "FILE_NAME", "on_gpu", "record_all"]

FILE_NAME = "recorded.json"


def _product(cupy: Any) -> Callable[[], object]:
    matrix = cupy.ones((4096, 4096), dtype="float32")
    return lambda: matrix @ matrix


def _tiny(cupy: Any) -> Callable[[], object]:
    array = cupy.ones(8, dtype="float32")
    return lambda: [cupy.add(array, 1, out=array) for _ in range(500)]


CELLS: dict[str, Callable[[Any], Callable[[], object]]] = {
    "31.product": _product,
    "31.tiny": _tiny,
}
"""Each cell's key, and what makes its body from the module `cupy`."""


def on_gpu(key: str) -> Timing | Recorded:
    """The timing of a cell on this machine's GPU, or a named machine's if there is none here."""
    try:
        return _measure(key)
    except (MissingDependency, NotSupportedHere):
        recorded = {record.key: record for record in _read()}
        return recorded.get(key) or Recorded.of(key=key)


def _measure(key: str) -> Timing:
    """Raises MissingDependency without CuPy, NotSupportedHere without a device."""
    cupy = require("cupy", f"cell {key}")
    probe = CuPyDevice().probe()
    if not probe.available:
        raise NotSupportedHere(probe.reason)
    return time_call(CELLS[key](cupy), repeat="auto", budget_s=2.0)


def record_all() -> list[Recorded]:
    """Measure every cell here. Raises MissingDependency or NotSupportedHere in one line."""
    timings = {key: _measure(key) for key in CELLS}
    device = CuPyDevice().probe().devices[0]
    at = datetime.now(UTC).date().isoformat()
    return [Recorded.of(key=k, device=device, at=at, timing=t) for k, t in timings.items()]


def _read() -> list[Recorded]:
    try:
        text = files("perfkit.lessons").joinpath(FILE_NAME).read_bytes()
        return msgspec.json.decode(text, type=list[Recorded])
    except (OSError, msgspec.DecodeError):
        return []
