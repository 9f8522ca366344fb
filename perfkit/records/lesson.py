"""What a learner said before measuring, how an exercise was answered, what others measured."""

from __future__ import annotations

from typing import Literal

from perfkit.records.base import Record, Seconds, Share
from perfkit.records.timing import Timing

__all__ = ["Answer", "Loop", "Prediction", "Recorded"]


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


class Loop(Record, frozen=True, kw_only=True):
    """A learner's own loop round an experiment: seconds of a run, runs a day, and what they had
    forgotten by the time it ended.
    """

    run_s: Seconds | None = None
    runs_per_day: Share | None = None
    forgot: str = ""


class Recorded(Record, frozen=True, kw_only=True):
    """A timing taken on another machine, for readers whose own has no such device. `timing` is
    None as long as nobody has recorded one.
    """

    key: str
    device: str = ""
    at: str = ""
    timing: Timing | None = None
