"""Show the output of a body that runs many times once."""

from __future__ import annotations

import io
import sys
from typing import Any

from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

__all__ = ["Muted"]


class Muted:
    """Swallows what is printed and displayed from `start` to `stop`."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._kept: tuple[Any, Any, Any, Any] | None = None

    def start(self) -> None:
        """Begin to swallow. Does nothing if it has begun."""
        if self._kept is None:
            self._kept = sys.stdout, sys.stderr, sys.displayhook, self._shell.display_pub
            sys.stdout, sys.stderr = _Silence(), _Silence()
            sys.displayhook = _show_nothing
            self._shell.display_pub = _NoDisplay()

    def stop(self) -> None:
        """Put the real streams back."""
        if self._kept is not None:
            sys.stdout, sys.stderr, sys.displayhook, self._shell.display_pub = self._kept
            self._kept = None


def _show_nothing(value: object) -> None:
    pass


class _Silence(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


class _NoDisplay(DisplayPublisher):
    def publish(self, *args: Any, **kwargs: Any) -> None:
        pass

    def clear_output(self, wait: bool = False) -> None:
        pass
