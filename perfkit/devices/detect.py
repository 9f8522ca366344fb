"""Which runtimes this process has, told from what is imported already."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from perfkit.devices.base import Device
from perfkit.errors import NotSupportedHere, UsageError
from perfkit.optional import loaded

__all__ = ["BACKENDS", "devices_in_use"]


class _Backend(NamedTuple):
    """`module`: once this is imported the runtime may be in use. The adapter's own place."""

    module: str
    adapter: str
    factory: str


BACKENDS = {
    "host": _Backend("builtins", "perfkit.devices.host", "HostDevice"),
    "thread": _Backend("perfkit.devices.thread", "perfkit.devices.thread", "ThreadDevice"),
    "opencl": _Backend("pyopencl", "perfkit.devices.opencl", "OpenCLDevice"),
    "jax": _Backend("jax", "perfkit.devices.jax", "JaxDevice"),
    "cupy": _Backend("cupy", "perfkit.devices.cupy", "CuPyDevice"),
    "torch": _Backend("torch", "perfkit.devices.torch", "TorchDevice"),
}
_made: dict[str, Device] = {}
_stale: set[str] = set()
"""Runtimes that were at work when this process was forked: their threads stayed in the parent, and
waiting for them would never end."""


def devices_in_use(names: Sequence[str] | None = None) -> tuple[Device, ...]:
    """Adapters of the asynchronous runtimes that this process has imported.

    With `names` these alone: UsageError for a name that is not known, NotSupportedHere for a
    runtime that is not imported, or was set up before a fork.
    """
    if names is None:
        chosen = [name for name in _loaded_backends() if name not in _stale]
    else:
        chosen = [_checked(name) for name in names]
    return tuple(device for name in chosen if (device := _device(name)).asynchronous)


def _loaded_backends() -> list[str]:
    return [name for name, backend in BACKENDS.items() if loaded(backend.module)]


def _after_fork_in_child() -> None:
    _stale.update(name for name in _loaded_backends() if _has_devices(name))


def _has_devices(name: str) -> bool:
    device = _device(name)
    return name != "host" and device.asynchronous and bool(device.probe().devices)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _checked(name: str) -> str:
    if name not in BACKENDS:
        close = difflib.get_close_matches(name, BACKENDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(BACKENDS)}"
        raise UsageError(f"backend {name!r} is not known: {hint}")
    module = BACKENDS[name].module
    if not loaded(module):
        raise NotSupportedHere(f"backend {name!r} is not in use: import {module} first")
    if name in _stale:
        raise NotSupportedHere(
            f"backend {name!r} was set up before this process was forked and does not work in it: "
            "start processes with spawn"
        )
    return name


def _device(name: str) -> Device:
    if name not in _made:
        backend = BACKENDS[name]
        device: Device = getattr(importlib.import_module(backend.adapter), backend.factory)()
        _made[name] = device
    return _made[name]
