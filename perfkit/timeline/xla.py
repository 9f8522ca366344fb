"""What XLA's planes, lines and names mean, as JAX and torch_xla record them.

An .xplane.pb calls them planes and lines, Chrome's JSON processes and threads; the names are the
same ones.
"""

from __future__ import annotations

import re

from perfkit.timeline import kineto
from perfkit.timeline.columns import Lane

__all__ = [
    "CPU",
    "EXECUTE",
    "classify",
    "is_launch",
    "is_worker",
    "short_thread",
    "shown",
    "worker_lane",
]

CPU = "cpu (XLA)"
"""The processor as XLA's device. Its lanes are the threads that ran XLA's operations."""
EXECUTE = "ThunkExecutor::Execute (wait for completion)"
"""On the processor: the program runs, on other threads too, and this one waits for its end."""

_DEVICE = re.compile(r"/device:(?:CUSTOM:)?([^:]+):(\d+)(?: (.+))?$")
_STREAM = re.compile(r"Stream #(\d+)")
_OP_LINES = ("XLA Ops", "Async XLA Ops", "Sparse Core Ops")
_DERIVED_LINES = re.compile(
    r"Steps$|Modules$|^Framework |^Source code|^XLA TraceMe|^Launch Stats|^TC Overlay"
    r"|^Host Offload|overhead$|Sync"
)
"""Drawn by the profiler from what is on other lines, or no work."""
_COUNTERS = re.compile(r"_counters_|Sync Flag|Syncs$")
_COLLECTIVE = re.compile(
    r"all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|collective|(?:ragged-)?all[-_]?to[-_]?all"
    r"|psum|ppermute"
    r"|^(?:send|recv)\b",
    re.IGNORECASE,
)
_COPY_OP = re.compile(r"copy(?:-start|-done)?(?:\.\d+)*(?:\.clone)?$")
_CONTROL = re.compile(r"(?:while|conditional|cond|call|async-\w+)(?:\.\d+)*(?:\.clone)?$")
"""Operations that hold others, which have events of their own."""
_WAITING_OP = re.compile(r"infeed|[\w-]*host-wait")
_ALLOCATION = re.compile(r"Mem(?:ory)?(?:Alloc|Free|Residency)", re.IGNORECASE)
_COPY = re.compile(r"memcpy|^Copy(?:Host|Device)", re.IGNORECASE)
_SET = re.compile(r"memset|^FillBuffer", re.IGNORECASE)

_WORKER = re.compile(r"tf_XLA(?:Eigen|PjRt)|tf_(?:Xla|xla)_?[Cc]pu(?!.*codegen)")
_INTERNAL_THREAD = re.compile(r"tf_|Host Threads/|pjrt|grpc", re.IGNORECASE)
_COMPILER_THREAD = re.compile(r"tf_.*(?:compiler|codegen)", re.IGNORECASE)
_NOISE = re.compile(
    r"ThreadpoolListener::|end: |SlinkyThreadPool::|(?:Invoke)?Rendezvous$|\w*Buffer::Await$"
    r"|PythonRefManager::|Wait: pending_threads|Wait for rendezvous"
)
_OPERATION = re.compile(r"[a-z][\w.-]*$")
_DISPATCH = {"H2D Dispatch": "h2d", "D2H Dispatch": "d2h"}
_DRIVER = re.compile(r"(?:cu|hip)[A-Z]")
_LIBRARY = re.compile(r"[A-Z]\w*(?:<.*>)?::|(?:xla|tsl|tpu|pjrt|torch_xla)::|\[\d+\] ")
_COMPILE = re.compile(
    r"backend_compile|lower_sharding_computation|trace_to_jaxpr|XlaCompile|compile_or_get_cached"
    r"|\w*Client::Compile|CompileAndLoad|\w*Compiler::|JitCompiler|ThunkEmitter::|Codegen$"
)
_WAIT = re.compile(
    r"np\.asarray\(jax\.Array\)|\w*::(?:Await|ToLiteral\w*|Block\w*UntilReady)|PjrtAsyncWait"
    r"|.*TransferFromDevice|.*[Ww]ait_?[Dd]evice_?[Oo]ps|Wait for LaunchOnDevice"
)
_CALL = re.compile(
    r"DevicePut|shard_args$|ParseArguments$|Handle input|AllocateOutputBuffers|CopyToMemorySpace$"
    r"|BatchedCopy|batched_copy_array|ExecuteReplicated|Wait for (?:donation|usage) holds"
    r"|\w+Impl\.|pickle_util\.|Sync(?:Live)?Tensors?Graph|StepMarker$|mark_step$|ReshardData$"
    r"|XRT|Xrt|Transfer(?:To|From)|Linearize$|Delinearize$|DoEnqueue\w*Program$|RunProgramRequest$"
)
"""Calls of JAX, torch_xla and their runtimes that are not told by the `::` of C++."""
_LAUNCH = re.compile(r".*::Execute(?!Prepare)|DevicePut|.*TransferToDevice")
_FRAME = re.compile(r"\$(.+):(\d+) (.+)")
_FILE_OF_JAX = re.compile(
    r"(?:ad|ad_util|api|api_util|array|array_creation|array_methods|batching|compilation_cache"
    r"|compiler|core|custom_derivatives|device_put|dispatch|dtypes|lax|lax_numpy|linear_util"
    r"|literals|mesh_utils|mlir|named_sharding|partial_eval|pjit|profiler|pxla|reductions"
    r"|sharding_impls|slicing|source_info_util|stages|traceback_util|tree_util|ufunc_api|ufuncs"
    r"|xla_bridge)\.py$"
)
"""Frames have no folders: of these files JAX's own are by far the more frequent."""


def classify(process: str, thread: str, name: str, op: str = "") -> tuple[Lane, str] | None:
    """The lane and the kind (of columns.KINDS) of events of this name; None to leave them out.

    `op`: the HLO operation that ran, or its opcode, if the trace tells it ("hlo_op"). An annotation
    that has a "step_num" is a step, which the names do not tell.
    """
    if found := _DEVICE.match(process):
        vendor, number, part = found.groups()
        kind = _kind_on_device(vendor, thread, name)
        return None if kind is None else (Lane(f"{vendor} {number}", _line(thread, part)), kind)
    if process.startswith(("/host:metadata", "/host:tfstreamz", "/host:__", "Task Env", "#Chip")):
        return None
    if _NOISE.match(name) or not name:
        return None
    if kind := _kind_on_processor(thread, name, op):
        return worker_lane(thread), kind
    kind = _kind_on_host(thread, name)
    return (Lane("", f"thread ({short_thread(thread)})"), kind) if kind else None


def shown(name: str) -> str:
    """The name as it is shown: Python's functions as "train.py(12): log_step"."""
    if not name.startswith("$"):
        return name
    if not (frame := _FRAME.match(name)):
        return ".".join(name[1:].replace("<unknown> ", "").split(" ", 1))
    file, line, function = frame.groups()
    # A cell's file is named by a number alone.
    path = "cell" if file.removesuffix(".py").isdigit() else file
    return f"{'jax/' if _FILE_OF_JAX.match(file) else ''}{path}({line}): {function}"


def worker_lane(thread: str) -> Lane:
    """The lane of a thread that works as the device."""
    if not is_worker(thread):
        return Lane(CPU, f"calling thread ({short_thread(thread)})")
    # The number is a hash of 19 digits, of which some are enough.
    return Lane(CPU, f"{short_thread(thread)} {thread.rpartition('/')[2][-6:]}")


def is_worker(thread: str) -> bool:
    """Is it a thread of the processor that runs XLA's programs?"""
    return bool(_WORKER.match(thread))


def is_launch(name: str) -> bool:
    """Is it the call of a runtime that starts a program or a copy?"""
    return bool(_LAUNCH.match(name)) and name != EXECUTE


def _kind_on_device(vendor: str, thread: str, name: str) -> str | None:
    if _COUNTERS.match(thread) or _ALLOCATION.match(name):
        return None
    if _STREAM.match(thread) or not (thread in _OP_LINES or _DERIVED_LINES.search(thread)):
        return "device_mark" if name.startswith("NVTX") else _kind_on_stream(name)
    if thread not in _OP_LINES or vendor == "GPU":
        return "device_mark"
    kind = _kind_of_op(name)
    return "d2d" if kind == "kernel" and thread.startswith("Async") else kind


def _kind_on_stream(name: str) -> str:
    if _SET.match(name):
        return "memset"
    if _COPY.match(name):
        return kineto.kind_of_copy(name)
    if name.startswith("CudaGraph"):
        return "device"
    if _COLLECTIVE.match(name):
        return "collective"
    return kineto.kind_of("kernel", name) or "kernel"


def _kind_of_op(op: str) -> str:
    if _COLLECTIVE.match(op):
        return "collective"
    if _CONTROL.match(op) or _WAITING_OP.match(op):
        return "device_mark"
    return "d2d" if _COPY_OP.match(op) else "kernel"


def _kind_on_processor(thread: str, name: str, op: str) -> str | None:
    """What XLA's device does where it is the processor; None for what its host does."""
    if op:
        return _kind_of_op(op)
    if name == EXECUTE:
        return "device_mark"
    if is_worker(thread):
        return _DISPATCH.get(name) or (_kind_of_op(name) if _OPERATION.match(name) else None)
    return None


def _kind_on_host(thread: str, name: str) -> str | None:
    if name.startswith("$"):
        return "python"
    if name.startswith("PjitFunction("):
        return "op"
    if _DRIVER.match(name):
        return kineto.kind_of("cuda_runtime", name) or "runtime"
    if _COMPILER_THREAD.match(thread):
        # The thread that asked for the program has the compilation; here are its hundreds of parts.
        return "host" if _LIBRARY.match(name) else None
    if _WAIT.match(name):
        return "wait"
    if _COMPILE.match(name):
        return "compile"
    if name in _DISPATCH or _LIBRARY.match(name) or _CALL.match(name):
        return "runtime"
    return "host" if _INTERNAL_THREAD.match(thread) else "annotation"


def _line(thread: str, part: str | None) -> str:
    """A stream as others name it, and the part of the chip."""
    stream = _STREAM.match(thread)
    line = f"stream {stream[1]}" if stream else thread
    return f"{part}, {line}" if part else line


def short_thread(thread: str) -> str:
    """The name of a thread without the hash that XLA's own have behind it."""
    name, slash, number = thread.rpartition("/")
    hashed = thread.startswith("tf_") and slash and number.lstrip("-").isdigit()
    return (name if hashed else thread).removeprefix("tf_")
