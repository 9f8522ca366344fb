"""The runtimes' own profilers, run so that none is started twice and nothing stays behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfkit.errors import NotSupportedHere
from perfkit.optional import loaded, require

__all__ = ["ANCHOR", "TORCH_FILE", "busy", "jax_profile", "torch_profile"]

ANCHOR = "perfkit anchor"
"""The name of an annotation that each trace of this process has, at the same instant."""
TORCH_FILE = "torch.json"


def busy(who: str, where: str) -> str:
    """That only one profile runs at a time, in one line."""
    return f"{who} {where} is being profiled already: end that profile first"


@contextmanager
def jax_profile(folder: Path) -> Iterator[None]:
    """Run JAX's; its .xplane.pb lies below `folder` when it has ended. Raises NotSupportedHere."""
    profiler = require("jax", "a timeline").profiler
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0
    try:
        profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        raise NotSupportedHere(busy("JAX", "in this process")) from error
    try:
        yield
    finally:
        try:
            profiler.stop_trace()
        except RuntimeError as error:
            # Only now does JAX tell that its server was recording, and it would never start again.
            loaded("jax._src.profiler")._profile_state.reset()  # type: ignore[union-attr]
            raise NotSupportedHere(busy("JAX", "in this process")) from error


@contextmanager
def torch_profile(folder: Path, every_thread: bool = False) -> Iterator[None]:
    """Run PyTorch's; TORCH_FILE lies in `folder` when it has ended without an error. CUDA is in it
    if the program has set it up. Raises NotSupportedHere.
    """
    torch: Any = require("torch", "a timeline")
    if _torch_profiles(torch):
        raise NotSupportedHere(busy("PyTorch", "in this process"))
    kinds = [kind for kind in torch.profiler.supported_activities() if kind.name == "CPU"]
    if torch.cuda.is_initialized():
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=every_thread)
    session = torch.profiler.profile(activities=kinds, experimental_config=config)
    with _quiet_stderr():
        session.start()
    try:
        yield
    finally:
        with _quiet_stderr():
            session.stop()
        # One that begins takes over from the one that runs, which then has nothing to save.
        if not session.profiler.kineto_results.trace_start_ns():
            raise NotSupportedHere(
                "another profiler of PyTorch began meanwhile: end that one first"
            )
        session.export_chrome_trace(str(folder / TORCH_FILE))


def _torch_profiles(torch: Any) -> bool:
    """Has a profiler begun, if only to warm up? To start another would crash the process later."""
    kind = torch.autograd.profiler.profile
    return torch.autograd.profiler._is_profiler_enabled or any(
        issubclass(type(obj), kind) and obj.entered and obj.kineto_results is None
        for obj in gc.get_objects()
    )


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Kineto's library writes to the error stream itself when it starts and stops."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
