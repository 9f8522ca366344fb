"""What CUDA's driver tells of the devices of this process without setting one up."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

__all__ = ["has_context"]


def has_context(number: int) -> bool:
    """Has this process set up device `number`? Never sets it up; False where there is no driver."""
    driver = _driver()
    if driver is None:
        return False
    flags, active = ctypes.c_uint(), ctypes.c_int()
    status = driver.cuDevicePrimaryCtxGetState(number, ctypes.byref(flags), ctypes.byref(active))
    return status == 0 and active.value == 1


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
