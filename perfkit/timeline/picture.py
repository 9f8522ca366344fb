"""The picture of a trace: lanes as bars, few enough to be kept with the report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from perfkit.intervals import merged
from perfkit.records.timeline import Picture
from perfkit.timeline.busy import Union
from perfkit.timeline.columns import DEVICE_KINDS, KINDS, NO_LINK, Columns
from perfkit.timeline.steps import steps_in

if TYPE_CHECKING:
    import numpy as np

__all__ = ["lane_order", "picture_of"]

THREAD_KINDS = ("wait", "compile", "runtime", "op", "python", "host")
"""What a thread does, the innermost first: a wait lies in a call, a call in an operator."""
LONGEST_NAME = 80
_DIGITS = re.compile(r"(\d+)")


class _Layer(NamedTuple):
    """Intervals of one kind, in order of start. `name`: codes into `names`."""

    kind: str
    start_ns: np.ndarray
    end_ns: np.ndarray
    name: np.ndarray
    names: Sequence[str]


def picture_of(
    columns: Columns, *, lanes_most: int = 12, bars_most: int = 400
) -> tuple[Picture, ...]:
    """At most `lanes_most` lanes of at most `bars_most` bars: first those of the devices, then the
    steps, the annotations, and threads of the host.

    Time is cut into `bars_most` cells. Of a cell that holds several intervals one bar is kept, of
    the kind that takes most of it, and as long as all of them together: a device that works a tenth
    of the time does so in the picture as well. Bars longer than a cell are exact.
    """
    import numpy as np

    if not len(columns):
        return ()
    length_ns = max(int(columns.end_ns.max()), 1)
    edges_ns = np.arange(bars_most + 1) * length_ns // bars_most
    layers = _layers(columns)
    marks = _marks(columns, layers)
    devices, threads = _chosen(columns, layers, lanes_most - len(marks))
    return tuple(
        Picture(device=device, lane=name, bars=_bars(found, edges_ns))
        for device, name, found in [
            *((*columns.lanes[lane], layers[lane]) for lane in devices),
            *(("", name, [layer]) for name, layer in marks),
            *((*columns.lanes[lane], layers[lane]) for lane in threads),
        ]
    )


def lane_order(columns: Columns) -> list[int]:
    """Codes of the lanes that hold anything: those of each device together, in natural order, then
    the threads, those that launch work before others and the busier first.
    """
    import numpy as np

    count = len(columns.lanes)
    used = np.bincount(columns.lane, minlength=count) > 0
    links = np.bincount(columns.lane[columns.link != NO_LINK], minlength=count)
    lasting_ns = np.bincount(
        columns.lane, weights=columns.end_ns - columns.start_ns, minlength=count
    )
    on_device = [lane for lane in range(count) if used[lane] and columns.lanes[lane].device]
    threads = [lane for lane in range(count) if used[lane] and not columns.lanes[lane].device]
    return [
        *sorted(on_device, key=lambda lane: [*map(_natural, columns.lanes[lane])]),
        *sorted(threads, key=lambda lane: (not links[lane], -lasting_ns[lane])),
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def _layers(columns: Columns) -> dict[int, list[_Layer]]:
    """What is drawn on each lane, by kind."""
    import numpy as np

    several = len(KINDS)
    small = len(columns.lanes) * several < 2**15
    # Sixteen bits are sorted in one sweep.
    key = columns.lane.astype(np.int16 if small else np.int64) * several + columns.kind
    order = np.argsort(key, kind="stable")
    groups, first = np.unique(key[order], return_index=True)
    layers: dict[int, list[_Layer]] = {}
    for group, rows in zip(groups.tolist(), np.split(order, first[1:]), strict=True):
        lane, kind = group // several, KINDS[group % several]
        layers.setdefault(lane, []).append(
            _Layer(
                kind,
                columns.start_ns[rows],
                columns.end_ns[rows],
                columns.name[rows],
                columns.names,
            )
        )
    return layers


def _marks(columns: Columns, layers: dict[int, list[_Layer]]) -> list[tuple[str, _Layer]]:
    """The rows of the steps, and of the annotations of the thread that has most of them."""
    import numpy as np

    rows = []
    steps = steps_in(columns)
    if len(steps):
        numbered = np.arange(len(steps))
        rows.append(("steps", _Layer("step", steps.start_ns, steps.end_ns, numbered, steps.names)))
    named = [layer for found in layers.values() for layer in found if layer.kind == "annotation"]
    if named:
        rows.append(("annotations", max(named, key=lambda layer: len(layer.name))))
    return rows


def _chosen(
    columns: Columns, layers: dict[int, list[_Layer]], room: int
) -> tuple[list[int], list[int]]:
    """Lanes of devices and of the host that are drawn; others of their layers are left out."""
    for lane, found in layers.items():
        kinds = DEVICE_KINDS if columns.lanes[lane].device else THREAD_KINDS
        layers[lane] = sorted(
            (layer for layer in found if layer.kind in kinds), key=lambda one: kinds.index(one.kind)
        )
    drawn = [lane for lane in lane_order(columns) if layers[lane]]
    devices = [lane for lane in drawn if columns.lanes[lane].device]
    threads = [lane for lane in drawn if not columns.lanes[lane].device]
    for_threads = max(room - len(devices), min(1, len(threads)))
    kept = _busiest(columns, layers, devices)[: room - for_threads]
    return [lane for lane in devices if lane in kept], threads[:for_threads]


def _busiest(columns: Columns, layers: dict[int, list[_Layer]], lanes: Sequence[int]) -> list[int]:
    """The busiest lane of each device first, then the second of each, and so on."""
    work_ns = {
        lane: sum(int((layer.end_ns - layer.start_ns).sum()) for layer in layers[lane])
        for lane in lanes
    }
    place: dict[int, int] = {}
    seen: dict[str, int] = {}
    for lane in sorted(lanes, key=lambda lane: -work_ns[lane]):
        device = columns.lanes[lane].device
        place[lane] = seen[device] = seen.get(device, 0) + 1
    return sorted(lanes, key=lambda lane: (place[lane], -work_ns[lane]))


# -- one lane --------------------------------------------------------------------------------------


def _bars(
    layers: Sequence[_Layer], edges_ns: np.ndarray
) -> tuple[tuple[float, float, str, str], ...]:
    """Layers of one lane as bars; where they overlap, what an earlier one covers is its own."""
    import numpy as np

    unions = [Union(*merged(layer.start_ns, layer.end_ns)) for layer in layers]
    whole = unions[0] if len(unions) == 1 else _together(unions)
    part_ns = np.diff(whole.until(edges_ns))
    if not part_ns.any():
        return ()
    own_ns = np.zeros((len(layers), len(part_ns)), dtype=np.int64)
    for own, union in zip(own_ns, unions, strict=True):
        own[:] = np.maximum(np.diff(union.until(edges_ns)) - own_ns.sum(axis=0), 0)
    cells = np.flatnonzero(part_ns)
    winner = own_ns.argmax(axis=0)[cells]
    names = [_largest(layer, edges_ns) for layer in layers]
    start_ns = np.maximum(
        whole.start_ns[np.searchsorted(whole.end_ns, edges_ns[cells], side="right")],
        edges_ns[cells],
    )
    bars = [
        (start, start + part, layers[layer].kind, layers[layer].names[names[layer][cell]])
        for start, part, layer, cell in zip(
            start_ns.tolist(), part_ns[cells].tolist(), winner.tolist(), cells.tolist(), strict=True
        )
    ]
    return tuple(_joined(bars))


def _together(unions: Sequence[Union]) -> Union:
    import numpy as np

    start_ns = np.concatenate([union.start_ns for union in unions])
    end_ns = np.concatenate([union.end_ns for union in unions])
    order = np.argsort(start_ns, kind="stable")
    return Union(*merged(start_ns[order], end_ns[order]))


def _largest(layer: _Layer, edges_ns: np.ndarray) -> np.ndarray:
    """By cell, the name of the interval that takes most of it; the innermost of equals."""
    import numpy as np

    cells, length_ns = len(edges_ns) - 1, int(edges_ns[-1])
    head = np.minimum(layer.start_ns * cells // length_ns, cells - 1)
    tail = np.minimum(np.maximum(layer.end_ns - 1, layer.start_ns) * cells // length_ns, cells - 1)
    name = np.zeros(cells, dtype=np.int64)
    for row in np.flatnonzero(tail > head + 1).tolist():
        name[head[row] + 1 : tail[row]] = layer.name[row]
    cell = np.concatenate((head, tail))
    lasting_ns = np.concatenate(
        (
            np.minimum(layer.end_ns, edges_ns[head + 1]) - layer.start_ns,
            layer.end_ns - np.maximum(edges_ns[tail], layer.start_ns),
        )
    )
    longest_ns = np.zeros(cells, dtype=np.int64)
    np.maximum.at(longest_ns, cell, lasting_ns)
    top = (lasting_ns == longest_ns[cell]) & (lasting_ns > 0)
    name[cell[top]] = np.concatenate((layer.name, layer.name))[top]
    return name


def _joined(
    bars: Sequence[tuple[int, int, str, str]],
) -> Iterator[tuple[float, float, str, str]]:
    """Bars of one name that touch, as one; seconds."""
    start_ns, end_ns, kind, name = bars[0]
    for bar in [*bars[1:], (-1, 0, "", "")]:
        if bar[0] == end_ns and bar[2:] == (kind, name):
            end_ns = bar[1]
            continue
        shown = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        yield 1e-9 * start_ns, 1e-9 * end_ns, kind, shown
        start_ns, end_ns, kind, name = bar
