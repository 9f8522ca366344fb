"""Numbers to text. The only place that knows 1e9 and 2**30.

Rates are decimal (1 GB/s = 1e9 B/s), capacities binary (1 GiB = 2**30 B), as STREAM has it.
"""

__all__ = [
    "NOT_AVAILABLE",
    "bandwidth",
    "capacity",
    "count",
    "ratio",
    "seconds",
    "share",
    "time_unit",
]

NOT_AVAILABLE = "n/a"
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_RATE_UNITS = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
_SIZE_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def seconds(value: float | None) -> str:
    """A duration in seconds as three significant digits with its unit."""
    if value is None:
        return NOT_AVAILABLE
    if value == 0:
        return "0 s"
    return _scaled(value, _TIME_UNITS)


def time_unit(largest_s: float) -> tuple[float, str]:
    """The unit that suits a duration, in seconds, and its name: for an axis that has only one."""
    return next((u for u in _TIME_UNITS if largest_s >= 0.9995 * u[0]), _TIME_UNITS[-1])


def bandwidth(value_Bps: float | None) -> str:
    """Bytes per second as decimal text: 12.4 GB/s."""
    return NOT_AVAILABLE if value_Bps is None else _scaled(value_Bps, _RATE_UNITS)


def capacity(nbytes: float | None) -> str:
    """Bytes as binary text: 64 MiB."""
    if nbytes is None:
        return NOT_AVAILABLE
    return _scaled(nbytes, _SIZE_UNITS) if nbytes else "0 B"


def share(value: float | None) -> str:
    """A part of one as percent: 0.973 is 97 %."""
    if value is None:
        return NOT_AVAILABLE
    percent = 100 * value
    if 0 < percent < 0.05:
        return "<0.1 %"
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"


def ratio(value: float | None) -> str:
    """A factor: 3.1 x."""
    return NOT_AVAILABLE if value is None else f"{_digits(value)} x"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 launch, 500 launches."""
    if number != 1:
        es = noun.endswith(("ch", "s", "x"))
        noun = noun[:-1] + "ies" if noun.endswith("y") else noun + ("es" if es else "s")
    return f"{number:,} {noun}"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    # 0.9995 of a unit would print as "1000" of the next smaller one.
    for scale, unit in units:
        if abs(value) >= 0.9995 * scale:
            return f"{_digits(value / scale)} {unit}"
    scale, unit = units[-1]
    return f"{_digits(value / scale)} {unit}"


def _digits(value: float) -> str:
    """Three significant digits, without an exponent and without '1000'."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
