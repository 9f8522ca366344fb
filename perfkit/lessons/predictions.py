"""Say a number before you measure it; see both when you have."""

from __future__ import annotations

import math
import warnings

import msgspec

from perfkit import ledger
from perfkit.errors import PerfkitError, UsageError
from perfkit.records.lesson import Prediction

__all__ = ["predict", "reveal"]

_said: dict[str, Prediction] = {}


def predict(key: str, value: float | None = None, *, unit: str, because: str = "") -> Prediction:
    """Keep what you expect under `key`, with your reason, in this session and in the ledger.

    Without a value (None) nothing is kept, so that a notebook runs through without its reader.
    Raises UsageError if the value is not a number.
    """
    if value is not None and not _is_number(value):
        raise UsageError(f"predict({key!r}): {value!r} is not a number: give one in {unit}")
    prediction = Prediction.of(
        key=key, value=None if value is None else float(value), unit=unit, because=because
    )
    _said[key] = prediction
    if value is not None:
        _keep(prediction)
    return prediction


def reveal(key: str, measured: float) -> Prediction:
    """Set what was measured beside what was predicted under `key`, here or in an earlier run."""
    if not _is_number(measured):
        raise UsageError(f"reveal({key!r}): {measured!r} is not a number that was measured")
    said = _said.get(key) or Prediction.of(key=key, unit="")
    if said.value is None:
        said = _from_ledger(key) or said
    revealed = msgspec.structs.replace(said, measured=float(measured))
    if said.value is not None:
        _keep(revealed)
    return revealed


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return False
    return math.isfinite(float(value))


def _keep(prediction: Prediction) -> None:
    try:
        ledger.add(prediction, f"predict {prediction.key}")
    except PerfkitError as error:
        # A lesson on a read-only folder goes on; its numbers last as long as the kernel.
        warnings.warn(str(error), stacklevel=3)


def _from_ledger(key: str) -> Prediction | None:
    found = None
    for entry in ledger.entries(f"predict {key}"):
        try:
            found = Prediction.from_json(bytes(entry.record))
        except msgspec.DecodeError:
            continue
    return found
