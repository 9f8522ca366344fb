"""Protocol Buffers' wire format: field by field, and many messages of one kind at once.

A message is fields; each begins with a number that holds its field's number and its wire type.
Positions are bytes into the whole data, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "FIXED32",
    "FIXED64",
    "PART",
    "VARINT",
    "Damaged",
    "Fields",
    "Part",
    "Wire",
    "fields",
    "varint",
]

VARINT, FIXED64, PART, FIXED32 = 0, 1, 2, 5
MOST_FIELDS = 4096
"""No message that is decoded with others has more."""
_ENDS, _SEVENS = 0x8080808080808080, 0x7F7F7F7F7F7F7F7F
_CLOSER = (
    (0x7F007F007F007F00, 0x007F007F007F007F, 1),
    (0x3FFF00003FFF0000, 0x00003FFF00003FFF, 2),
    (0x0FFFFFFF00000000, 0x000000000FFFFFFF, 4),
)
"""Bits to move, bits to keep, and how far: eight groups of 7 bits become one number."""


class Damaged(Exception):
    """The data are not what they should be. The text says what is wrong, and where."""


class Part(NamedTuple):
    """Where a text, some bytes or a message within another begins, and where it has ended."""

    begin: int
    stop: int


class Fields(NamedTuple):
    """The next field of each message that has one more.

    `message`: which one. `number`, `wire`: field and wire type. `value`: uint64, of a varint.
    `begin`, `stop`: where the field's content lies.
    """

    message: np.ndarray
    number: np.ndarray
    wire: np.ndarray
    value: np.ndarray
    begin: np.ndarray
    stop: np.ndarray


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number and the position behind it."""
    value = shift = 0
    for byte in data[at : at + 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + shift // 7
    raise Damaged(f"a number does not end, at byte {at}")


def fields(data: bytes, part: Part) -> Iterator[tuple[int, int | Part]]:
    """The fields of one message: number, and a number or where its content lies."""
    at, stop = part
    while at < stop:
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: int | Part
        if wire == VARINT:
            value, at = varint(data, at)
        elif wire == PART:
            size, at = varint(data, at)
            value = Part(at, at + size)
            at += size
        elif wire in (FIXED64, FIXED32):
            begin, at = at, at + (8 if wire == FIXED64 else 4)
            value = int.from_bytes(data[begin:at], "little")
        else:
            raise Damaged(f"there is no wire type {wire}, as at byte {at}")
        if number == 0 or at > stop:
            raise Damaged(f"a field does not fit into its message at byte {at}")
        yield number, value


class Wire:
    """Data of which many messages are decoded at once, with NumPy."""

    def __init__(self, data: bytes) -> None:
        import numpy as np

        self._data = data if len(data) >= 8 else data + bytes(8)
        self._last = len(self._data) - 8
        # Eight bytes from any position on: a strided view that needs no memory of its own.
        self._words = np.ndarray((self._last + 1,), "<u8", self._data, strides=(1,))

    def fields(self, begin: np.ndarray, stop: np.ndarray) -> Iterator[Fields]:
        """The fields of many messages: the first one of each, then the second one, and so on."""
        import numpy as np

        message = np.flatnonzero(begin < stop)
        at, stop = begin[message], stop[message]
        for _ in range(MOST_FIELDS):
            if not len(message):
                return
            tag, at = self._varints(at)
            wire = (tag & 7).astype(np.int8)
            value, behind = self._varints(at)
            begin = at
            if (wire != VARINT).any():
                parts = wire == PART
                begin = np.where(parts, behind, at)
                size = np.minimum(np.where(parts, value, 0), len(self._data)).astype(np.int64)
                size += np.choose(np.minimum(wire, 6), (0, 8, 0, 0, 0, 4, 0))
                behind = np.where(wire == VARINT, behind, begin + size)
            known = (wire < 3) | (wire == FIXED32)
            bad = (behind > stop) | (tag < 8) | ~known
            if bad.any():
                raise Damaged(f"a field does not fit into its message at byte {at[bad.argmax()]}")
            yield Fields(message, tag >> 3, wire, value, begin, behind)
            more = behind < stop
            message, at, stop = message[more], behind[more], stop[more]
        raise Damaged(f"a message has more than {MOST_FIELDS} fields at byte {at[0]}")

    def _varints(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers at these positions, and the positions behind them."""
        import numpy as np

        word = self._word(at)
        ends = ~word & _ENDS  # the highest bit of each byte that ends a number
        below = (ends & -ends) - 1
        size = (np.bitwise_count(below).astype(np.int64) + 1) >> 3
        value = word & below & _SEVENS
        for high, low, shift in _CLOSER:
            value = (value & high) >> shift | value & low
        if not ends.all():
            self._complete(np.flatnonzero(ends == 0), at, value, size)
        return value, at + size

    def _complete(
        self, long: np.ndarray, at: np.ndarray, value: np.ndarray, size: np.ndarray
    ) -> None:
        """Add the ninth and the tenth byte of numbers that have them."""
        import numpy as np

        word = self._word(at[long] + 8)
        ninth, tenth = word & 0xFF, word >> 8 & 0xFF
        last = ninth < 0x80
        if (~last & (tenth > 1)).any():
            raise Damaged(f"a number is too long at byte {at[long[(tenth > 1).argmax()]]}")
        value[long] |= (ninth & 0x7F) << 56 | np.where(last, 0, tenth << 63)
        size[long] = np.where(last, 9, 10)

    def _word(self, at: np.ndarray) -> np.ndarray:
        """Eight bytes from each position on; zeros behind the end."""
        import numpy as np

        inside = np.minimum(at, self._last)
        word: np.ndarray = self._words[inside]
        if len(at) and at.max() > self._last:
            beyond = np.minimum(at - inside, 8)
            word >>= (8 * np.minimum(beyond, 7)).astype("u8")
            word[beyond == 8] = 0  # a shift by all 64 bits is not defined
        return word
