"""What the categories and names of PyTorch's profiler (Kineto) mean, old and new, on any vendor's
accelerator.
"""

from __future__ import annotations

import re

from perfkit.timeline.columns import KINDS

__all__ = ["OWN", "kind_of", "kind_of_copy", "step_number"]

OWN = "perfkit."
"""Stands before the kind in a category of our own, where Kineto has none that tells it."""
_KINDS = {
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "gpu_memset": "memset",
    "memset": "memset",
    "collective_comm": "collective",
    "mtia_ccp_events": "kernel",
    "hpu_op": "kernel",
    "gpu_user_annotation": "device_mark",
    "cpu_op": "op",
    "operator": "op",
    "python_function": "python",
    "runtime": "runtime",
    "driver": "runtime",
    "overhead": "host",
    "trace": "",
    "ac2g": "",
}
"""By category in lower case: older releases wrote "Kernel" and "Operator". Empty: left out."""
_COPIES = ("gpu_memcpy", "memcpy")
_ANNOTATIONS = ("user_annotation", "cpu_user_annotation")
_STEP = re.compile(r"(?:ProfilerStep|step)#(\d+)$")
_WAIT = re.compile(
    r"synchronize|EventWait|WaitForEvents|^(?:cuda|hip)Memcpy(?:2D|3D|WithStream|DtoH|HtoD)?$"
    r"|^(?:cu|hip)Memcpy[DH]to[DH]",
    re.IGNORECASE,
)
"""Calls of a runtime that return when the device is done."""
_COLLECTIVE = re.compile(
    r"(?:nccl|rccl|oneccl|mscclpp|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter"
    r"|all_?to_?all)",
    re.IGNORECASE,
)
_DIRECTIONS = (
    ("h2d", re.compile(r"HtoD|HostToDevice|H2D|M2D|HtoA", re.IGNORECASE)),
    ("d2h", re.compile(r"DtoH|DeviceToHost|D2H|D2M|AtoH", re.IGNORECASE)),
)
_COMPILE = re.compile(
    r"dynamo|inductor.*compil|torch-compile|triton.*compil|nvrtc|cuModuleLoad|hipModuleLoad"
    r"|aot_?autograd|compile_fx|TorchInductor",
    re.IGNORECASE,
)
_COMPILED_RUN = re.compile(r"^Torch-Compiled Region|CompiledFunction|cudagraph", re.IGNORECASE)


def kind_of(category: str, name: str) -> str | None:
    """The kind (of columns.KINDS) of an event; "" to leave it out; None: category not known."""
    category = category.lower().replace(" ", "_")
    if category.removeprefix(OWN) in KINDS and category.startswith(OWN):
        return category.removeprefix(OWN)
    if category in _COPIES:
        return kind_of_copy(name)
    if category in _ANNOTATIONS:
        if _STEP.search(name):
            return "step"
        return "compile" if _is_compile(name) else "annotation"
    kind = _KINDS.get(category)
    if kind is None and category.endswith(("_runtime", "_driver")):
        kind = "runtime"
    if kind is None and category.endswith("_sync"):
        kind = "device_mark"
    if kind == "kernel":
        return "collective" if _COLLECTIVE.search(_function(name)) else kind
    if kind == "runtime":
        if _COMPILE.search(name):
            return "compile"
        return "wait" if _WAIT.search(name) else kind
    if kind == "op" and _is_compile(name):
        return "compile"
    return kind


def kind_of_copy(name: str) -> str:
    """The direction of a copy from its name; copies between devices are d2d."""
    return next((kind for kind, words in _DIRECTIONS if words.search(name)), "d2d")


def step_number(name: str, detail: str = "") -> int | None:
    """The number of a step: its own, or what stands behind the # of its name."""
    digits = detail if detail.isdigit() else name.rpartition("#")[2]
    return int(digits) if digits.isdigit() and digits.isascii() else None


def _is_compile(name: str) -> bool:
    return bool(_COMPILE.search(name)) and not _COMPILED_RUN.search(name)


def _function(name: str) -> str:
    """A kernel's own name, without its template arguments, which may name anything."""
    return name.partition("<")[0].partition("(")[0] or name
