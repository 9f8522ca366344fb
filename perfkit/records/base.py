"""What every record shares: a frozen struct, JSON both ways, a schema version, a Quality."""

from __future__ import annotations

import sys
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec

__all__ = [
    "Bytes",
    "Count",
    "Instant",
    "Part",
    "Quality",
    "Record",
    "Seconds",
    "Share",
    "keep_last",
    "last",
]

# The upper bound keeps infinity out and `ge=0` NaN: what cannot be known is None.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
Share = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
Instant = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Bytes = Annotated[int, msgspec.Meta(ge=0)]


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """How far a number can be trusted.

    `status`: valid, suspect (usable with the reasons in mind) or refused (not a measurement).
    `spread`: IQR over median of the samples; None below four samples.
    `wait_share`: part of the wall time the thread stood ready but had no core; None if unseen.
    `source`: what the headline number was read from.
    """

    status: Literal["valid", "suspect", "refused"] = "valid"
    reasons: tuple[str, ...] = ()
    spread: Share | None = None
    wait_share: Share | None = None
    source: str = "host clock"


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag=True):
    """Base of all records: keyword-only, never changed after it was made.

    Make one with `Type.of(...)`, which validates; the plain constructor does not.
    """

    SCHEMA: ClassVar[int] = 1
    schema: Count = 1

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Build and validate. Raises msgspec.ValidationError naming the wrong field."""
        asked = {"schema": cls.SCHEMA, "record": cls.__name__, **fields}
        # Down to plain values first: structs inside were made by constructors that do not check.
        return msgspec.convert(msgspec.to_builtins(asked), cls)

    def to_json(self) -> str:
        """The record as one line of JSON; `from_json` gives an equal record back."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote. Raises msgspec.ValidationError on anything else."""
        return msgspec.json.decode(text, type=cls)


_last: list[Record] = []


def keep_last(record: Record) -> None:
    """Make `record` the one that `last` gives."""
    _last[:] = [record]


def last() -> Record | None:
    """The record made last in this process; None before the first."""
    return _last[0] if _last else None
