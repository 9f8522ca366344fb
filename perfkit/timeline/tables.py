"""Tables over a whole trace: work by name, operators by self time, copies, compilations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.records.timeline import Compile, Copies, Kernel, Operator
from perfkit.timeline.columns import COPIES, NO_BYTES, Columns
from perfkit.timeline.launches import is_waited_for

if TYPE_CHECKING:
    import numpy as np

__all__ = ["compile_table", "copy_table", "kernel_table", "operator_table", "outermost"]

MOST_ROWS = 200
NESTING = ("op", "annotation", "step", "runtime", "wait", "compile")
"""What may lie inside an operator and is not its own time."""


def kernel_table(columns: Columns, device: str) -> tuple[Kernel, ...]:
    """Work of one device by name, most time first."""
    import numpy as np

    from perfkit.timeline.columns import KINDS

    work = columns.on_device(device)
    lasting_ns = (columns.end_ns - columns.start_ns)[work]
    key = columns.name[work].astype(np.int64) * len(KINDS) + columns.kind[work]
    distinct, index, count = np.unique(key, return_inverse=True, return_counts=True)
    total_ns = np.bincount(index, weights=lasting_ns)
    whole_ns = float(total_ns.sum())
    return tuple(
        Kernel(
            name=columns.names[int(distinct[i]) // len(KINDS)],
            device=device,
            kind=KINDS[int(distinct[i]) % len(KINDS)],
            count=int(count[i]),
            total_s=1e-9 * float(total_ns[i]),
            share=float(total_ns[i]) / whole_ns if whole_ns else 0.0,
        )
        for i in np.argsort(-total_ns, kind="stable")[:MOST_ROWS]
    )


def operator_table(columns: Columns) -> tuple[Operator, ...]:
    """Operators of the host by the time that is their own, most first.

    An operator's own time is its duration less that of what it calls, as the profiler of PyTorch
    counts it.
    """
    import numpy as np

    nested = columns.of_kind(*NESTING)
    is_op = columns.of_kind("op")
    own_ns = np.zeros(len(columns))
    for lane in np.unique(columns.lane[is_op]):
        rows = np.flatnonzero(nested & (columns.lane == lane))
        own_ns[rows] = _own_time(columns.start_ns[rows], columns.end_ns[rows])
    ops = np.flatnonzero(is_op)
    distinct, index, count = np.unique(columns.name[ops], return_inverse=True, return_counts=True)
    total_ns = np.bincount(index, weights=(columns.end_ns - columns.start_ns)[ops])
    self_ns = np.bincount(index, weights=own_ns[ops])
    return tuple(
        Operator(
            name=columns.names[int(distinct[i])],
            count=int(count[i]),
            total_s=1e-9 * float(total_ns[i]),
            self_s=1e-9 * max(0.0, float(self_ns[i])),
        )
        for i in np.argsort(-self_ns, kind="stable")[:MOST_ROWS]
    )


def _own_time(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Durations less those of the intervals directly inside. Sorted by start, longer first."""
    import numpy as np

    starts, ends = start_ns.tolist(), end_ns.tolist()
    own = [end - start for start, end in zip(starts, ends, strict=True)]
    open_: list[int] = []
    for row, start in enumerate(starts):
        while open_ and ends[open_[-1]] <= start:
            open_.pop()
        if open_:
            parent = open_[-1]
            # Overlap that is no nesting is taken off once, as far as it reaches.
            own[parent] -= min(ends[row], ends[parent]) - start
        open_.append(row)
    return np.array(own, dtype=float)


def outermost(columns: Columns, *kinds: str) -> np.ndarray:
    """Rows of the intervals of these kinds that lie in no other of them on the same lane."""
    import numpy as np

    rows = np.flatnonzero(columns.of_kind(*kinds))
    found = []
    for lane in np.unique(columns.lane[rows]):
        own = rows[columns.lane[rows] == lane]
        reach = np.maximum.accumulate(columns.end_ns[own])
        found.append(own[np.r_[True, columns.end_ns[own][1:] > reach[:-1]]])
    return np.sort(np.concatenate(found)) if found else rows


def compile_table(columns: Columns) -> tuple[Compile, ...]:
    """Compilations by name. One that lies inside another is part of it."""
    rows = outermost(columns, "compile")
    by_name: dict[str, list[int]] = {}
    for row in rows:
        by_name.setdefault(columns.names[columns.name[row]], []).append(int(row))
    table = [
        Compile(
            name=name,
            count=len(own),
            total_s=1e-9 * int((columns.end_ns[own] - columns.start_ns[own]).sum()),
            shapes=tuple(filter(None, (columns.details[columns.detail[row]] for row in own))),
        )
        for name, own in by_name.items()
    ]
    return tuple(sorted(table, key=lambda row: -row.total_s)[:MOST_ROWS])


def copy_table(columns: Columns, device: str) -> tuple[Copies, ...]:
    """Copies of one device by direction."""
    table = []
    for kind in COPIES:
        mask = columns.on_device(device) & columns.of_kind(kind)
        if not mask.any():
            continue
        nbytes = columns.nbytes[mask]
        table.append(
            Copies(
                direction=kind,  # type: ignore[arg-type]
                device=device,
                count=int(mask.sum()),
                nbytes=int(nbytes.sum()) if (nbytes != NO_BYTES).all() else None,
                seconds=1e-9 * int((columns.end_ns - columns.start_ns)[mask].sum()),
                blocking=int(is_waited_for(columns, mask).sum()),
            )
        )
    return tuple(table)
