"""What a learner said before measuring, and how an exercise was answered."""

from __future__ import annotations

from typing import Literal

from perfkit.records.base import Record

__all__ = ["Answer", "Prediction"]


class Prediction(Record, frozen=True, kw_only=True):
    """A number that a learner expects, and why; None if they did not say."""

    key: str
    value: float | None = None
    unit: str
    because: str = ""
    measured: float | None = None


class Answer(Record, frozen=True, kw_only=True):
    """The outcome of one check. `message` says what was expected and what came."""

    question: str
    status: Literal["right", "wrong", "not attempted"]
    message: str = ""
