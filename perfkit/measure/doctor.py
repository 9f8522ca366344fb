"""The examination: look everywhere, measure what is cheap, judge, and put right what is safe."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, TypeVar

import msgspec

from perfkit.measure.products import Tick, measure_products, thread_gain, threads_now
from perfkit.optional import loaded, require
from perfkit.records.base import keep_last
from perfkit.records.doctor import (
    Array,
    Change,
    Diagnosis,
    Gpu,
    GpuStack,
    Library,
    Processor,
    Surroundings,
    Switch,
    Weather,
)
from perfkit.system.advice import advise
from perfkit.system.advice.threads import threads_wanted, too_many
from perfkit.system.facts import machine
from perfkit.system.frameworks import denormals, read_frameworks
from perfkit.system.gpus import read_gpus
from perfkit.system.libraries import read_environment, read_libraries
from perfkit.system.limits import read_limits
from perfkit.system.places import read_file_systems
from perfkit.system.processor import read_processor
from perfkit.system.surroundings import read_surroundings
from perfkit.system.weather import read_weather

__all__ = ["diagnose"]

LEAST_BYTES = 2**20
MOST_ARRAYS = 5
LOOKED_AT = 2**16

_T = TypeVar("_T")

_NO_GPUS: tuple[GpuStack, tuple[Gpu, ...]] = (GpuStack(), ())
_NO_FRAMEWORKS: tuple[tuple[Library, ...], tuple[Switch, ...]] = ((), ())
_NO_ARRAYS: tuple[Array, ...] = ()
_NO_DENORMALS: tuple[str, float | None] = ("", None)


def diagnose(
    *,
    bench: bool = False,
    fix: bool = False,
    import_all: bool = False,
    arrays: Mapping[str, Any] | None = None,
    tick: Tick = lambda *_: None,
) -> Diagnosis:
    """What this machine really gives, which libraries are in use, and what should be put right.

    `bench` measures matrix products, for some 6 s. `fix` sets thread counts of this process to the
    CPUs that it may use, and nothing else. `import_all` imports every numeric package that is
    installed, otherwise only NumPy. `arrays`: names and values to look for float64 in. What cannot
    be read is missing, with the reason in its row.
    """
    start_s = time.perf_counter()
    seen = _look(import_all=import_all, arrays=arrays or {})
    changes: tuple[Change, ...] = ()
    if fix:
        changes = _apply(seen)
        seen = _reread(seen)
    if bench:
        tick("matrix products", 0)
        products, reasons = _tried((), "matrix products", lambda: _products(seen, tick))
        seen = msgspec.structs.replace(seen, products=products, reasons=(*seen.reasons, *reasons))
    seen = msgspec.structs.replace(seen, changes=changes)
    facts = msgspec.structs.asdict(seen)
    facts |= {"findings": advise(seen), "seconds": time.perf_counter() - start_s}
    diagnosis = Diagnosis.of(**{key: facts[key] for key in facts if key != "schema"})
    keep_last(diagnosis)
    return diagnosis


def _tried(default: _T, what: str, read: Callable[[], _T]) -> tuple[_T, tuple[str, ...]]:
    """What `read` gives; the default, and why, where it raises: the rest of the report comes."""
    try:
        return read(), ()
    except Exception as error:
        words = f"{what} n/a: {type(error).__name__}: {error}".splitlines()[0]
        return default, (words,)


def _look(*, import_all: bool, arrays: Mapping[str, Any]) -> Diagnosis:
    """All that needs no work of the processor to speak of."""
    reasons: list[str] = []

    def tried(default: _T, what: str, read: Callable[[], _T]) -> _T:
        value, why = _tried(default, what, read)
        reasons.extend(why)
        return value

    tried(None, "NumPy", lambda: importlib.import_module("numpy"))
    stack, gpus = tried(_NO_GPUS, "GPUs", read_gpus)
    frameworks, switches = tried(
        _NO_FRAMEWORKS, "frameworks", lambda: read_frameworks(import_all=import_all)
    )
    libraries, why = read_libraries()
    reasons.extend(why)
    held = tried(_NO_ARRAYS, "arrays", lambda: _wide(arrays))
    flushed, factor = tried(_NO_DENORMALS, "denormals", denormals)
    seen = Diagnosis(
        machine=machine(),
        limits=read_limits(),
        processor=tried(Processor(), "processor", read_processor),
        surroundings=tried(Surroundings(), "surroundings", read_surroundings),
        weather=tried(Weather(), "noise", read_weather),
        file_systems=tried((), "file systems", read_file_systems),
        libraries=_in_order(libraries, frameworks),
        switches=_once((*read_environment(), *switches)),
        gpu_stack=stack,
        gpus=gpus,
        arrays=held,
        denormals=flushed,
        denormals_factor=factor,
        float32_gain=tried(None, "float32", lambda: _float32_gain(held, arrays)),
    )
    gain = tried(None, "threads", lambda: _thread_gain(seen))
    return msgspec.structs.replace(seen, thread_gain=gain, reasons=tuple(reasons))


def _in_order(found: tuple[Library, ...], frameworks: tuple[Library, ...]) -> tuple[Library, ...]:
    """BLAS first, what is only installed last."""
    kinds = ("BLAS", "LAPACK", "OpenMP", "threads", "SIMD", "FFT", "package")
    rows = (*found, *frameworks)
    return tuple(sorted(rows, key=lambda row: (not row.loaded, kinds.index(row.kind))))


def _once(rows: tuple[Switch, ...]) -> tuple[Switch, ...]:
    return tuple({(row.of, row.name): row for row in rows}.values())


def _thread_gain(seen: Diagnosis) -> float | None:
    wanted, now = threads_wanted(seen), threads_now()
    if not too_many(seen) or not wanted or not now:
        return None
    return thread_gain(now, wanted)


def _products(seen: Diagnosis, tick: Tick) -> tuple[Any, ...]:
    return measure_products(threads_wanted(seen) or 1, tick=tick)


# -- float64 where float32 would do ----------------------------------------------------------------


def _wide(namespace: Mapping[str, Any]) -> tuple[Array, ...]:
    """The largest float64 arrays of NumPy; of each at most 65,536 values are looked at."""
    numpy = loaded("numpy")
    if numpy is None:
        return ()
    found = {
        id(value): (name, value)
        for name, value in list(namespace.items())
        if type(value) is numpy.ndarray
        and value.dtype == numpy.float64
        and value.nbytes >= LEAST_BYTES
        and not name.startswith("_")
    }
    largest = sorted(found.values(), key=lambda pair: -pair[1].nbytes)[:MOST_ARRAYS]
    return tuple(
        Array(name=name, nbytes=value.nbytes, exact=_exact(numpy, value)) for name, value in largest
    )


def _exact(numpy: Any, array: Any) -> bool:
    """Is each value that is looked at one of float32?"""
    some = array.flat[:: max(1, array.size // LOOKED_AT)]
    with numpy.errstate(all="ignore"):
        return bool(
            numpy.array_equal(some.astype("float32").astype("float64"), some, equal_nan=True)
        )


def _float32_gain(held: tuple[Array, ...], namespace: Mapping[str, Any]) -> float | None:
    """How many times as fast x + x is in float32, on the first MiB of values of the largest."""
    name = next((row.name for row in held if row.exact), None)
    if name is None:
        return None
    wide = namespace[name].ravel(order="K")[: 2**20].copy()
    pair = (wide, wide.astype("float32"))
    times_s: tuple[list[float], list[float]] = ([], [])
    for _ in range(7):
        for values, own_s in zip(pair, times_s, strict=True):
            start_s = time.perf_counter()
            values + values
            own_s.append(time.perf_counter() - start_s)
    return median(times_s[0]) / median(times_s[1])


# -- what is safe to put right ---------------------------------------------------------------------


def _apply(seen: Diagnosis) -> tuple[Change, ...]:
    """Thread counts of this process down to the CPUs that it may use."""
    wanted, rows = threads_wanted(seen), too_many(seen)
    if wanted is None or not rows:
        return ()
    changes = []
    torch = loaded("torch")
    if torch is not None and (before := torch.get_num_threads()) > wanted:
        torch.set_num_threads(wanted)
        changes.append(_change("torch", before, wanted, f"torch.set_num_threads({before})"))
    control = require("threadpoolctl", "%doctor --fix")
    paths = {row.path for row in rows if row.can_set}
    for pool in control.threadpool_info():
        key, before = pool["prefix"], pool["num_threads"]
        if pool["filepath"] in paths and before > wanted:
            control.threadpool_limits({key: wanted})
            undo = f"import threadpoolctl; threadpoolctl.threadpool_limits({{{key!r}: {before}}})"
            changes.append(_change(key, before, wanted, undo))
    return tuple(changes)


def _change(what: str, before: int, after: int, undo: str) -> Change:
    return Change(what=f"threads of {what}", before=str(before), after=str(after), undo=undo)


def _reread(seen: Diagnosis) -> Diagnosis:
    """The rows that a fix changes."""
    libraries, _ = read_libraries()
    frameworks, switches = read_frameworks()
    known = {(row.name, row.kind) for row in frameworks}
    # What --import has brought, and what it could not, stays in the table.
    kept = tuple(
        row for row in seen.libraries if row.kind == "package" and (row.name, row.kind) not in known
    )
    return msgspec.structs.replace(
        seen,
        libraries=_in_order(libraries, (*frameworks, *kept)),
        switches=_once((*read_environment(), *switches)),
    )
