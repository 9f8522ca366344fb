"""What perfkit raises. Each text names the thing, the reason and what to do."""

__all__ = [
    "DeviceError",
    "IncomparableRecords",
    "MissingDependency",
    "NotSupportedHere",
    "PerfkitError",
    "UsageError",
]


class PerfkitError(Exception):
    """Any error that perfkit raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback: the one line that helps."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(PerfkitError, ValueError):
    """An option or argument is wrong. Cure: the form that the text shows.

    In a magic it becomes IPython's own UsageError: one line, no traceback.
    """


class MissingDependency(PerfkitError, ImportError):
    """A package is not installed. Cure: the pip line in the text."""


class NotSupportedHere(PerfkitError):
    """This machine or runtime cannot do what was asked. The text says what still works."""


class DeviceError(PerfkitError):
    """A device or one of its events was used in a way that has no answer."""


class IncomparableRecords(PerfkitError):
    """Two records differ in a key that must agree. The text names the key."""
