"""The numeric libraries of this process: BLAS, OpenMP and their threads, SIMD, FFT."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfkit.optional import loaded, require
from perfkit.records.doctor import Library, Switch
from perfkit.system.files import read

__all__ = ["package_of", "read_environment", "read_libraries", "thread_pools"]

_NAMES = {
    "openblas": "OpenBLAS",
    "mkl": "MKL",
    "blis": "BLIS",
    "flexiblas": "FlexiBLAS",
    "libgomp": "GNU OpenMP",
    "libomp": "LLVM OpenMP",
    "libiomp": "Intel OpenMP",
    "vcomp": "Microsoft OpenMP",
}
_UNKNOWN_BLAS = re.compile(
    r"/lib((?:mkl_rt|openblas|blis|flexiblas|armpl|nvpl_blas|nvblas|essl|sci_|xlmath|acml|sunperf"
    r"|satlas|tatlas|atlas|gslcblas|cblas|blas|lapack)[\w.-]*?)\.so"
)
_REFERENCE = re.compile(r"blas|cblas|gslcblas|lapack")


def thread_pools() -> list[dict[str, Any]]:
    """What threadpoolctl finds in this process, with the name of the package that brought it.
    Raises MissingDependency without threadpoolctl.
    """
    pools: list[dict[str, Any]] = require("threadpoolctl", "%doctor").threadpool_info()
    return pools


def read_libraries() -> tuple[tuple[Library, ...], tuple[str, ...]]:
    """What is loaded now, and why a part could not be read. Loads nothing but threadpoolctl."""
    found: list[Library] = []
    reasons = []
    for what, reader in (("BLAS and OpenMP", _pools), ("NumPy", _numpy), ("SciPy", _scipy)):
        try:
            found += reader()
        except Exception as error:  # whatever a library does wrong, the other rows come
            reasons.append(f"{what}: {type(error).__name__}: {error}".splitlines()[0])
    known = {library.path for library in found}
    found += _unknown(read(Path("/proc/self/maps")), known)
    return tuple(found), tuple(reasons)


def _pools() -> Iterator[Library]:
    for pool in thread_pools():
        prefix = str(pool.get("prefix"))
        kind = str(pool.get("internal_api"))
        yield Library(
            name=_NAMES.get(kind) or _NAMES.get(prefix) or kind,
            kind="OpenMP" if pool.get("user_api") == "openmp" else "BLAS",
            version=str(pool.get("version") or ""),
            of=package_of(pool["filepath"]),
            threads=pool.get("num_threads"),
            architecture=str(pool.get("architecture") or ""),
            layer=str(pool.get("threading_layer") or ""),
            path=pool["filepath"],
            can_set=True,
        )


def package_of(path: str) -> str:
    """The package whose folder a library lies in; else the kind of place."""
    found = re.search(r"(?:site|dist)-packages/([^/]+)", path)
    if found:
        return re.sub(r"(\.libs|_libs|\.dylibs)$", "", found[1])
    if re.search(r"/(conda-meta|envs|\w*conda\w*|\w*forge\w*|\.pixi)/", path):
        return "conda"
    return "system" if re.match(r"/(usr|lib|lib64|opt)/", path) else ""


def _unknown(maps: str, known: set[str]) -> Iterator[Library]:
    """BLAS libraries in the list of mapped files that nobody has asked for their threads."""
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in maps.splitlines() if "/" in line)
    for path in paths:
        found = _UNKNOWN_BLAS.search(path)
        if not found or path in known or str(Path(path).resolve()) in known:
            continue
        reference = bool(_REFERENCE.match(found[1])) and "atlas" not in found[1]
        yield Library(
            name=f"lib{found[1]}",
            kind="BLAS",
            of=package_of(path),
            path=path,
            details="the plain reference code or another library under its name"
            if reference
            else "",
            reason="threads n/a: threadpoolctl does not know it",
        )


_VARIABLES = re.compile(
    r"(OMP|GOMP|KMP|OPENBLAS|MKL|BLIS|VECLIB|NUMEXPR|NUMBA|NPY)_\w*"
    r"(THREADS|AFFINITY|PLACES|BIND|BLOCKTIME|CORETYPE|CPU_TYPE|CPU_FEATURES|DYNAMIC)"
)


def read_environment(environ: Mapping[str, str] | None = None) -> tuple[Switch, ...]:
    """The variables that steer threads and kernels, where they are set."""
    given = os.environ if environ is None else environ
    return tuple(
        Switch(of="environment", name=name, value=value)
        for name, value in sorted(given.items())
        if _VARIABLES.fullmatch(name)
    )


# -- what NumPy and SciPy were built with ----------------------------------------------------------


def _numpy() -> Iterator[Library]:
    numpy = loaded("numpy")
    if numpy is None:
        return
    built = numpy.show_config(mode="dicts")
    simd = built.get("SIMD Extensions", {})
    used = [*simd.get("baseline", ()), *simd.get("found", ())]
    missed = simd.get("not found", ())
    yield Library(
        name="SIMD of NumPy",
        kind="SIMD",
        of="numpy",
        version=numpy.__version__,
        details=_simd(used, missed),
        reason="" if used else "NumPy does not tell what it was built for",
    )
    yield Library(name="numpy.fft", kind="FFT", of="numpy", threads=1, details="pocketfft")
    yield from _lapack("NumPy", built)
    yield from _accelerate(built)


def _lapack(package: str, built: dict[str, Any]) -> Iterator[Library]:
    """What the package was linked with; many libraries bring BLAS and LAPACK in one file."""
    lapack = built.get("Build Dependencies", {}).get("lapack", {})
    name, version = str(lapack.get("name") or ""), str(lapack.get("version") or "")
    yield Library(
        name=f"LAPACK of {package}",
        kind="LAPACK",
        of=package.lower(),
        version=version if version != "unknown" else "",
        details=name,
        reason="" if name else f"{package} does not tell what it was built with",
    )


def _simd(used: list[str], missed: list[str]) -> str:
    if not used:
        return ""
    text = f"in use up to {used[-1]}"
    return text + (f"; built for, but not in this processor: {', '.join(missed)}" if missed else "")


def _accelerate(built: dict[str, Any]) -> Iterator[Library]:
    """Apple's library, which threadpoolctl does not know."""
    name = str(built.get("Build Dependencies", {}).get("blas", {}).get("name", ""))
    if "accelerate" in name.lower():
        yield Library(
            name="Accelerate",
            kind="BLAS",
            of="system",
            reason="threads n/a: it chooses them itself; VECLIB_MAXIMUM_THREADS before the start",
        )


def _scipy() -> Iterator[Library]:
    if loaded("scipy") is not None:
        yield from _lapack("SciPy", sys.modules["scipy"].show_config(mode="dicts"))
    fft = loaded("scipy.fft")
    if fft is not None:
        version = sys.modules["scipy"].__version__
        workers = fft.get_workers()
        yield Library(name="scipy.fft", kind="FFT", of="scipy", version=version, threads=workers)
