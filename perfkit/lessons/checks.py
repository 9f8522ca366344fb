"""Exercises that answer: right, wrong and why, or not attempted."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

from perfkit import ledger
from perfkit.errors import PerfkitError, UsageError
from perfkit.records.lesson import Answer

__all__ = ["Wrong", "check", "question"]

_LESSONS = {
    "00": "perfkit.lessons.start",
    "10": "perfkit.lessons.tiers",
    "11": "perfkit.lessons.caches",
    "13": "perfkit.lessons.quota",
    "21": "perfkit.lessons.precision",
    "30": "perfkit.lessons.lines",
    "31": "perfkit.lessons.stopwatch",
    "32": "perfkit.lessons.traces",
    "33": "perfkit.lessons.idle",
    "41": "perfkit.lessons.files",
}
"""Lesson number and the module that holds its questions."""
_questions: dict[str, Callable[[Any], str]] = {}


class Wrong(Exception):
    """Raised by a question: what was expected, what came, and what that means."""


def question(name: str) -> Callable[[Callable[[Any], str]], Callable[[Any], str]]:
    """Register a function that judges the answer to exercise `name`.

    It takes the learner's function, returns a sentence of praise that says what was shown, and
    raises Wrong otherwise.
    """

    def register(judge: Callable[[Any], str]) -> Callable[[Any], str]:
        _questions[name] = judge
        return judge

    return register


def check(name: str, fn: Callable[..., Any]) -> Answer:
    """Judge the answer `fn` to exercise `name`, for example "31.1", and keep the outcome.

    Raises UsageError for an exercise that does not exist; an error in `fn` is a wrong answer that
    names it.
    """
    judge = _judge(name)
    try:
        answer = Answer.of(question=name, status="right", message=judge(fn))
    except NotImplementedError:
        return Answer.of(question=name, status="not attempted")
    except Wrong as wrong:
        answer = Answer.of(question=name, status="wrong", message=str(wrong))
    except Exception as error:
        message = f"your code raised {type(error).__name__}: {error}"
        answer = Answer.of(question=name, status="wrong", message=message)
    try:
        ledger.add(answer, f"check {name}")
    except PerfkitError as error:
        warnings.warn(str(error), stacklevel=2)
    return answer


def _judge(name: str) -> Callable[[Any], str]:
    lesson = name.partition(".")[0]
    if lesson in _LESSONS:
        importlib.import_module(_LESSONS[lesson])
    if name not in _questions:
        alike = [each for each in sorted(_questions) if each.partition(".")[0] == lesson]
        known = ", ".join(alike) or ", ".join(f"{n}.1" for n in sorted(_LESSONS))
        raise UsageError(f"there is no exercise {name!r}: there are {known}")
    return _questions[name]
