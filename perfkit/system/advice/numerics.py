"""Is the fast library the one in use, and is it asked in the right precision?"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.records.doctor import Diagnosis, Finding, Library, Product
from perfkit.units import capacity, count, ratio, share

__all__ = ["RULES"]

SLOW = 0.4
"""A tuned library reaches 0.7 to 0.95 of the peak on a product of this size."""


def _blas(seen: Diagnosis) -> list[Library]:
    return [row for row in seen.libraries if row.kind == "BLAS"]


def plain_blas(seen: Diagnosis) -> Iterator[Finding]:
    """A NumPy that stands on the reference code, or on none that is known."""
    rows = _blas(seen)
    numpy = any(row.of == "numpy" for row in seen.libraries)
    if not numpy or any(row.can_set or row.name == "Accelerate" for row in rows):
        return
    plain = [row for row in rows if row.details]
    yield Finding(
        id="plain-blas",
        severity="problem" if plain and len(plain) == len(rows) else "warning",
        title="NumPy's BLAS is not one that is known to be fast",
        evidence=", ".join(row.path for row in rows) or "no BLAS library is loaded",
        fix="pip install --force-reinstall --no-deps numpy",
        gain="10 x to 100 x on matrix products; %doctor --bench shows it",
        lesson="21",
    )


def _numpy_products(seen: Diagnosis) -> list[Product]:
    return [row for row in seen.products if row.library == "NumPy"]


def slow_product(seen: Diagnosis) -> Iterator[Finding]:
    """A product far below what the registers do."""
    slow = [row for row in _numpy_products(seen) if (row.of_peak or 1) < SLOW and row.threads == 1]
    if not slow:
        return
    worst = min(slow, key=lambda row: row.of_peak or 1)
    yield Finding(
        id="slow-product",
        severity="problem",
        title="NumPy's products are far below the processor's peak",
        evidence=f"{worst.dtype}, one thread: {worst.flops / 1e9:.3g} GFLOP/s, "
        f"{share(worst.of_peak)} of the peak",
        fix="pip install --force-reinstall --no-deps numpy",
        gain=f"up to {ratio(0.8 / (worst.of_peak or 1))}",
        lesson="21",
    )


def threads_without_gain(seen: Diagnosis) -> Iterator[Finding]:
    """All threads together are hardly faster than one."""
    for dtype in ("float64", "float32"):
        rows = sorted(
            (row for row in _numpy_products(seen) if row.dtype == dtype), key=lambda r: r.threads
        )
        if len(rows) < 2 or rows[-1].quality.status != "valid":
            continue
        speedup = rows[-1].flops / rows[0].flops
        if speedup < 1 + 0.3 * (rows[-1].threads - 1):
            yield Finding(
                id="threads-without-gain",
                severity="warning",
                title="More threads hardly help",
                evidence=f"{dtype}: {count(rows[-1].threads, 'thread')} are {ratio(speedup)} as "
                "fast as one",
                fix="%doctor: look for a quota, a neighbour, or threads of one core",
                lesson="13",
            )
            return


def mkl_on_amd(seen: Diagnosis) -> Iterator[Finding]:
    """The vendor's library is the one of your chip's vendor."""
    rows = [row for row in _blas(seen) if row.name == "MKL"]
    if rows and "AMD" in seen.processor.model:
        yield Finding(
            id="mkl-on-amd",
            severity="note",
            title="Intel's library on a processor of AMD",
            evidence=f"MKL of {rows[0].of or 'the system'} on {seen.processor.model}",
            fix="pip install --force-reinstall --no-deps numpy",
            gain="OpenBLAS may be as fast or faster: compare with %doctor --bench",
            lesson="21",
        )


def narrow_simd(seen: Diagnosis) -> Iterator[Finding]:
    """Vector units that NumPy was told, or built, not to use."""
    rows = [row for row in seen.libraries if row.kind == "SIMD" and row.details]
    off = [row for row in seen.switches if row.name == "NPY_DISABLE_CPU_FEATURES"]
    narrow = rows and "avx2" in seen.processor.isa and _is_narrow(rows[0].details)
    if narrow or off:
        yield Finding(
            id="narrow-simd",
            severity="warning",
            title="NumPy does not use all vector units",
            evidence="; ".join(
                [f"{row.name}={row.value}" for row in off] + [row.details for row in rows]
            ),
            fix="unset NPY_DISABLE_CPU_FEATURES" if off else "pip install --upgrade numpy",
            gain="2 x to 4 x on element-wise work that stays in a cache",
            lesson="21",
        )


def _is_narrow(details: str) -> bool:
    used = details.partition(";")[0]
    return not any(name in used for name in ("AVX2", "AVX512", "X86_V3", "X86_V4", "FMA3"))


def flushed(seen: Diagnosis) -> Iterator[Finding]:
    """Small numbers that become zero, since some library has switched that on."""
    if "zero" in seen.denormals:
        yield Finding(
            id="flush-to-zero",
            severity="warning",
            title="Numbers near zero are flushed to zero in this thread",
            evidence=f"denormals are {seen.denormals}: x - y may be 0 for x != y",
            fix="import torch; torch.set_flush_denormal(False)",
            gain="the same results as on other machines",
            lesson="21",
        )


def wide_arrays(seen: Diagnosis) -> Iterator[Finding]:
    """float64 arrays whose values are all ones of float32."""
    rows = [row for row in seen.arrays if row.exact]
    if not rows:
        return
    names = ", ".join(f"{row.name} ({capacity(row.nbytes)})" for row in rows)
    speed = (
        f"; measured on its values: x + x is {ratio(seen.float32_gain)} as fast"
        if seen.float32_gain
        else ""
    )
    yield Finding(
        id="float64-arrays",
        severity="note",
        title="float64 where float32 would hold the same values",
        evidence=f"{names}: all values that were looked at are exact in float32",
        fix=f'{rows[0].name} = {rows[0].name}.astype("float32")',
        gain=f"half the memory{speed}",
        lesson="21",
    )


RULES = (
    plain_blas,
    slow_product,
    threads_without_gain,
    mkl_on_amd,
    narrow_simd,
    flushed,
    wide_arrays,
)
