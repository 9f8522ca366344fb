"""`%doctor`: what this machine really gives you, and what should be put right.

It looks at the libraries that are loaded, and loads none but NumPy. Nothing is changed without
--fix, and with it thread counts of this kernel alone.
"""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from perfkit.errors import UsageError
from perfkit.magics import options
from perfkit.magics.options import Option
from perfkit.magics.show import deliver

__all__ = ["NAME", "OPTIONS", "run"]

NAME = "doctor"
OPTIONS = (
    Option(("--fix",), "set thread counts to the CPUs that you may use, and say what changed"),
    Option(("--bench",), "measure matrix products against the processor's peak, some 6 s"),
    Option(("--import",), "import every numeric package that is installed, to ask it more"),
    options.OUTPUT,
    options.QUIET,
    options.NAME,
)


def run(shell: InteractiveShell, line: str) -> None:
    """Examine, show, keep."""
    __tracebackhide__ = True
    from perfkit.measure.doctor import diagnose

    asked, rest = options.parse("%doctor", OPTIONS, line)
    if rest:
        raise UsageError(f"%doctor: {rest!r} is no option: %doctor looks at this kernel")
    diagnosis = diagnose(
        bench=asked["bench"],
        fix=asked["fix"],
        import_all=asked["import"],
        arrays=shell.user_ns,
    )
    deliver(shell, diagnosis, asked)
