"""Views of predictions, of answers, and of what was recorded elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

from perfkit import units
from perfkit.records.lesson import Answer, Prediction, Recorded
from perfkit.render import timing
from perfkit.render.theme import MASK, STYLE, is_stable

__all__ = ["bundle"]

SIGNS = {"right": "✔", "wrong": "✘", "not attempted": "○"}


def bundle(record: Prediction | Answer | Recorded) -> dict[str, Any]:
    """All views by MIME type."""
    if isinstance(record, Recorded):
        return _recorded(record)
    line = _answer(record) if isinstance(record, Answer) else _prediction(record)
    return {
        "text/plain": line,
        "text/html": _box(line),
    }


def _recorded(record: Recorded) -> dict[str, Any]:
    """The other machine's report, under a line that says whose it is."""
    if record.timing is None:
        line = "no GPU here, and nobody has recorded these figures yet: make gpu does, on one"
        return {"text/plain": line, "text/html": _box(line)}
    line = f"recorded on {record.device}, {record.at}: not yours"
    views = timing.bundle(record.timing)
    return {
        "text/plain": f"{line}\n{views['text/plain']}",
        "text/html": _box(line) + views["text/html"],
    }


def _box(line: str) -> str:
    return f'<div style="{STYLE["box"]}"><strong>{escape(line)}</strong></div>'


def _answer(answer: Answer) -> str:
    line = f"{SIGNS[answer.status]} exercise {answer.question}: {answer.status}"
    return f"{line}. {answer.message}" if answer.message else line


def _prediction(prediction: Prediction) -> str:
    if prediction.value is None and prediction.measured is None:
        return "no prediction yet: write a number in place of None and run the cell again"
    unit = f" {prediction.unit}".rstrip()
    said = "nothing" if prediction.value is None else f"{prediction.value:.3g}{unit}"
    if prediction.measured is None:
        because = f", because {prediction.because}" if prediction.because else ""
        return f"you predict {said}{because}"
    measured = MASK if is_stable() else f"{prediction.measured:.3g}{unit}"
    return f"you predicted {said}; measured: {measured}{_factor(prediction)}"


def _factor(prediction: Prediction) -> str:
    if not prediction.value or not prediction.measured or is_stable():
        return ""
    factor = prediction.value / prediction.measured
    if factor < 0:
        return ", with the other sign"
    size = max(factor, 1 / factor)
    if size < 1.1:
        return ", within 10 %"
    return f", too {'high' if factor > 1 else 'low'} by {units.ratio(size)}"
