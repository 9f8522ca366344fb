"""Programs of XLA, as far as a trace holds them: what each operation is and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfkit.timeline.wire import Part, fields

__all__ = ["Operation", "operations"]


class Operation(NamedTuple):
    """`opcode`: "fusion", "all-reduce". `scope`: "jit(f)/forward/dot_general", which has the
    annotations of the program.
    """

    opcode: str
    scope: str


def operations(data: bytes, program: Part) -> dict[str, Operation]:
    """The operations of an HloProto by their names. Raises Damaged."""
    found = {}
    for module in _parts(data, program, 1):
        for computation in _parts(data, module, 3):
            for instruction in _parts(data, computation, 2):
                name, opcode, scope = "", "", ""
                for number, value in fields(data, instruction):
                    if isinstance(value, int):
                        continue
                    if number == 1:
                        name = _text(data, value)
                    elif number == 2:
                        opcode = _text(data, value)
                    elif number == 7:
                        scope = next((_text(data, p) for p in _parts(data, value, 2)), "")
                found[name] = Operation(opcode, scope)
    return found


def _parts(data: bytes, part: Part, wanted: int) -> Iterator[Part]:
    for number, value in fields(data, part):
        if number == wanted and isinstance(value, Part):
            yield value


def _text(data: bytes, part: Part) -> str:
    return data[part.begin : part.stop].decode(errors="replace")
