"""Numeric packages of this process: what they were built for, their threads, their switches."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from perfkit.errors import MissingDependency
from perfkit.optional import loaded, require
from perfkit.records.doctor import Library, Switch
from perfkit.system.files import read
from perfkit.units import count

__all__ = ["denormals", "read_frameworks"]


def read_frameworks(
    *, import_all: bool = False, environ: Mapping[str, str] | None = None
) -> tuple[tuple[Library, ...], tuple[Switch, ...]]:
    """Each numeric package that is installed, and the switches of those in this process.

    `import_all` imports them first; one that fails is a row with the reason in a line. Otherwise
    nothing is imported. No backend and no GPU is set up, and no setting changes.
    """
    rows, switches = [], list(_variables(os.environ if environ is None else environ))
    for name, package in _PACKAGES.items():
        if loaded(name) is None and not _is_installed(name):
            continue
        reason = _import(name) if import_all and loaded(name) is None else ""
        rows += list(_rows(name, package, reason))
        switches += _switches(loaded(name), package)
    return tuple(rows), tuple(switches)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _import(name: str) -> str:
    """Why it cannot be imported, in a line; empty where it could."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            require(name, "%doctor --import")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit among them: packages do that at import
        cause = error.__cause__ if isinstance(error, MissingDependency) else error
        return _line("its import failed", cause or error)
    return ""


def _line(what: str, error: BaseException) -> str:
    words = " ".join(str(error).split())[:200]
    return f"{what}: {type(error).__name__}: {words}".rstrip(": ")


def _rows(name: str, package: _Package, reason: str) -> Iterator[Library]:
    """The package, and its threads where it has a pool of its own."""
    module, details, threads = loaded(name), "", None
    try:
        details = package.details(module) if module else package.from_files()
        threads = package.threads(module) if module else None
    except Exception as error:  # a package that is half there
        reason = reason or _line("not known", error)
    row = Library(
        name=name,
        kind=package.kind,
        of=name,
        version=_version(module, package),
        threads=threads if package.kind == "FFT" else None,
        loaded=module is not None,
        details=details,
        reason=reason,
    )
    yield row
    if threads is not None and package.kind != "FFT":
        yield Library(name=package.pool or name, kind="threads", of=name, threads=threads)


def _switches(module: Any, package: _Package) -> list[Switch]:
    """None of a package that is not loaded."""
    return [] if module is None else _tried(lambda: list(package.switches(module))) or []


def _version(module: Any, package: _Package) -> str:
    for distribution in package.distributions:
        if found := _installed(distribution):
            return found
    return str(getattr(module, "__version__", ""))


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution) or ""
    except Exception:  # not there, or its files are damaged
        return ""


def _tried(read_it: Callable[[], Any]) -> Any:
    """What it gives; None where it fails, in silence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read_it()
    except Exception:
        return None


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


# -- PyTorch ---------------------------------------------------------------------------------------


def _torch_from_files() -> str:
    """The build's CUDA from the file that the build wrote."""
    spec = importlib.util.find_spec("torch")
    text = read(Path(spec.origin).parent / "version.py") if spec and spec.origin else ""
    built = dict(re.findall(r"^(cuda|hip)\b.*=\s*'([\d.]+)", text, re.MULTILINE))
    if not text:
        return ""
    return _torch_build(built.get("cuda"), built.get("hip"))


def _torch_build(cuda: str | None, hip: str | None) -> str:
    return f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU build"


def _torch_details(torch: Any) -> str:
    build = _torch_build(torch.version.cuda, getattr(torch.version, "hip", None))
    cudnn = _tried(torch.backends.cudnn.version)
    nccl = _tried(torch.cuda.nccl.version) if torch.version.cuda else None
    sees = _torch_gpus(torch)
    mkl = re.search(r"Math Kernel Library Version ([\d.]+)", _tried(torch.__config__.show) or "")
    return _joined(
        build,
        f"cuDNN {_dotted(cudnn)}" if cudnn else "",
        f"NCCL {'.'.join(map(str, nccl))}" if nccl else "",
        f"sees {count(sees, 'GPU')}" if sees is not None else "",
        f"MKL {mkl[1]}" if mkl else "",
    )


def _dotted(number: int) -> str:
    """Of cuDNN: 91002 is 9.10.2, and before 9 8902 was 8.9.2."""
    major = 10_000 if number >= 90_000 else 1_000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _torch_gpus(torch: Any) -> int | None:
    """Those that torch sees; None where only CUDA itself could tell."""
    if torch.cuda.is_initialized():
        return int(torch.cuda.device_count())
    if not torch.version.cuda:
        return None
    # torch.cuda.device_count() sets CUDA's driver up where NVML gives no answer.
    found = _tried(torch.cuda._device_count_nvml)
    return None if found is None or found < 0 else int(found)


_TF32 = "factors keep 10 bits of 23"
_PRECISION = {
    "tf32": _TF32,
    "ieee": "float32 in full",
    "none": "not set, float32 in full",
    "bf16": "factors keep 7 bits of 23",
}
_TORCH_NEW = {
    "backends.fp32_precision": "for all that sets none of its own",
    "backends.cuda.matmul.fp32_precision": "products on CUDA",
    "backends.cudnn.conv.fp32_precision": "convolutions on CUDA",
    "backends.cudnn.rnn.fp32_precision": "recurrent layers on CUDA",
    "backends.mkldnn.matmul.fp32_precision": "products on the CPU",
}
# Before torch 2.9. The new ones beside each, and what it is where nobody has set any.
_TORCH_OLD = {
    "backends.cuda.matmul.allow_tf32": (("backends.cuda.matmul.fp32_precision",), False),
    "backends.cudnn.allow_tf32": (
        ("backends.cudnn.conv.fp32_precision", "backends.cudnn.rnn.fp32_precision"),
        True,
    ),
    "get_float32_matmul_precision()": ((), False),
}
_TORCH_OTHER = {
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": "float16 products may add in it",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": "the same for bfloat16",
    "backends.cuda.matmul.allow_fp16_accumulation": "float16 products add in float16 throughout",
    "backends.cudnn.benchmark": "tries algorithms for each new shape: slow first, then fast",
    "backends.cudnn.deterministic": "only algorithms that repeat their results",
    "are_deterministic_algorithms_enabled()": "the same for all of torch",
    "get_num_interop_threads()": "threads for tasks beside each other",
}


def _torch_switches(torch: Any) -> Iterator[Switch]:
    for path, what in _TORCH_NEW.items():
        value = _value(torch, path)
        if value is not None:
            means = _PRECISION.get(value, "")
            yield _torch_switch(path, value, f"{what}: {means}" if means else what)
    for path, (beside, default) in _TORCH_OLD.items():
        yield from _torch_old(torch, path, beside, default)
    for path, what in _TORCH_OTHER.items():
        value = _value(torch, path)
        if value is not None:
            yield _torch_switch(path, value, what)


def _torch_old(torch: Any, path: str, beside: tuple[str, ...], default: bool) -> Iterator[Switch]:
    """Reading an old switch raises RuntimeError where a new one says something else. Where that is
    not its default against a new setting, both must have been set.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield _torch_switch(path, _follow(torch, path), "the switch before torch 2.9")
    except RuntimeError as error:
        new = [_value(torch, key) == "tf32" for key in beside]
        if new and all(is_tf32 == default for is_tf32 in new):
            yield _torch_switch(path, "mixed", _line("set in the old and in the new way", error))
        else:
            yield _torch_switch(path, "n/a", "set in the new way: code that reads this one fails")
    except Exception:
        return


def _torch_switch(path: str, value: object, means: str) -> Switch:
    return Switch(of="torch", name=f"torch.{path}", value=str(value), means=means)


def _follow(module: Any, path: str) -> Any:
    for name in path.removesuffix("()").split("."):
        module = getattr(module, name)
    return module() if path.endswith("()") else module


def _value(module: Any, path: str) -> Any:
    """None where there is none, or where it cannot be read."""
    return _tried(lambda: _follow(module, path))


# -- JAX -------------------------------------------------------------------------------------------

_JAX_PLUGINS = {
    "jax-cuda13-plugin": "CUDA 13 plugin",
    "jax-cuda12-plugin": "CUDA 12 plugin",
    "jax-rocm7-plugin": "ROCm 7 plugin",
    "jax-rocm60-plugin": "ROCm 6 plugin",
    "jax-metal": "Metal plugin",
    "libtpu": "TPU library",
}


def _jax_build() -> str:
    found = [words for name, words in _JAX_PLUGINS.items() if _installed(name)]
    local = re.search(r"\+cuda(\d+)", _installed("jaxlib"))
    found += [f"CUDA {local[1]} build"] if local else []
    return ", ".join(found) or "CPU build"


def _jax_details(jax: Any) -> str:
    """The backends only where they have been started: asking JAX for them would start them."""
    bridge = loaded("jax._src.xla_bridge")
    started = dict(getattr(bridge, "_backends", None) or {})
    first = getattr(bridge, "_default_backend", None)
    in_order = sorted(started.values(), key=lambda backend: backend is not first)
    parts = [_jax_backend(backend) for backend in in_order]
    return _joined(_jax_build(), *(parts or ["no backend started"]))


def _jax_backend(backend: Any) -> str:
    cuda = re.search(r"cuda (\d+)", str(getattr(backend, "platform_version", "")))
    version = f" on CUDA {_cuda(int(cuda[1]))}" if cuda else ""
    return f"{backend.platform}{version}: {count(backend.device_count(), 'device')}"


def _cuda(number: int) -> str:
    """12080 is 12.8."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _jax_switches(jax: Any) -> Iterator[Switch]:
    rows = (
        ("jax_default_matmul_precision", "None: the backend's, TF32 on newer NVIDIA GPUs"),
        ("jax_enable_x64", "False: float64 becomes float32"),
    )
    for name, means in rows:
        if hasattr(jax.config, name):
            value = getattr(jax.config, name)
            yield Switch(of="jax", name=f"jax.config.{name}", value=str(value), means=means)


# -- CuPy ------------------------------------------------------------------------------------------


def _cupy_details(cupy: Any) -> str:
    runtime = cupy.cuda.runtime
    version, driver = _tried(runtime.runtimeGetVersion), _tried(runtime.driverGetVersion)
    accelerators = _cupy_accelerators(cupy)
    tensor = loaded("cupy_backends.cuda.libs.cutensor")
    number = _tried(tensor.get_version) if tensor else None
    kind = "ROCm" if getattr(runtime, "is_hip", False) else "CUDA"
    return _joined(
        f"{kind} {_cuda(version)}" if version and kind == "CUDA" else kind,
        f"the driver serves {_cuda(driver)}" if driver else "no driver",
        _cublas(),
        f"cuTENSOR {number // 10000}.{number % 10000 // 100}" if number else "",
        f"sums by {' and '.join(accelerators)}" if accelerators else "",
    )


def _cupy_accelerators(cupy: Any) -> list[str]:
    core = cupy._core
    numbers = _tried(lambda: [*core.get_reduction_accelerators(), *core.get_routine_accelerators()])
    names = {1: "CUB", 2: "cuTENSOR", 3: "cuTensorNet"}
    return [names[n] for n in dict.fromkeys(numbers or ()) if n in names]


def _cublas() -> str:
    """Its version where it has been loaded; CuPy's own call would set up a GPU for it."""
    path = re.search(r"/\S*/libcublas\.so[\d.]*", read(Path("/proc/self/maps")))
    if path is None:
        return ""
    library, part = ctypes.CDLL(path[0]), ctypes.c_int()
    parts = []
    for number in range(3):
        if library.cublasGetProperty(number, ctypes.byref(part)):
            return ""
        parts.append(str(part.value))
    return f"cuBLAS {'.'.join(parts)}"


# -- the others ------------------------------------------------------------------------------------


def _tensorflow_details(tf: Any) -> str:
    built = tf.sysconfig.get_build_info()
    cuda, cudnn = built.get("cuda_version"), built.get("cudnn_version")
    if not cuda:
        return "ROCm" if built.get("is_rocm_build") else "CPU build"
    return _joined(f"CUDA {cuda}", f"cuDNN {cudnn}" if cudnn else "")


def _tensorflow_switches(tf: Any) -> Iterator[Switch]:
    name = "config.experimental.tensor_float_32_execution_enabled()"
    value = _value(tf, name)
    if value is not None:
        yield Switch(of="tensorflow", name=f"tf.{name}", value=str(value), means=f"TF32: {_TF32}")


def _numexpr_details(numexpr: Any) -> str:
    return "with Intel's VML" if numexpr.use_vml else ""


def _numba_threads(numba: Any) -> int:
    """get_num_threads() would start them."""
    parallel = loaded("numba.np.ufunc.parallel")
    if getattr(parallel, "_is_initialized", False):
        return int(numba.get_num_threads())
    return int(numba.config.NUMBA_NUM_THREADS)


def _numba_details(numba: Any) -> str:
    layer = _tried(numba.threading_layer)
    return f"threads by {layer}" if layer else "threads not started"


class _Package(NamedTuple):
    """How a package is asked. `pool`: the name of its threads."""

    distributions: tuple[str, ...]
    kind: Literal["package", "FFT"] = "package"
    details: Callable[[Any], str] = lambda _: ""
    from_files: Callable[[], str] = lambda: ""
    threads: Callable[[Any], int | None] = lambda _: None
    switches: Callable[[Any], Iterator[Switch]] = lambda _: iter(())
    pool: str = ""


_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy", "cupy-rocm-7-0")
_PACKAGES = {
    "numpy": _Package(("numpy",)),
    "scipy": _Package(("scipy",)),
    "torch": _Package(
        ("torch",),
        details=_torch_details,
        from_files=_torch_from_files,
        threads=lambda torch: torch.get_num_threads(),
        switches=_torch_switches,
        pool="torch intra-op",
    ),
    "jax": _Package(("jax",), details=_jax_details, from_files=_jax_build, switches=_jax_switches),
    "cupy": _Package(_CUPY, details=_cupy_details),
    "tensorflow": _Package(
        ("tensorflow", "tensorflow-cpu", "tf-nightly"),
        details=_tensorflow_details,
        switches=_tensorflow_switches,
    ),
    "numexpr": _Package(
        ("numexpr",), details=_numexpr_details, threads=lambda numexpr: numexpr.get_num_threads()
    ),
    "numba": _Package(("numba",), details=_numba_details, threads=_numba_threads),
    "pyfftw": _Package(
        ("pyfftw",),
        kind="FFT",
        details=lambda pyfftw: str(pyfftw.fftw_version),
        threads=lambda pyfftw: pyfftw.config.NUM_THREADS,
    ),
    "mkl_fft": _Package(("mkl_fft",), kind="FFT"),
}


# -- variables -------------------------------------------------------------------------------------

_VARIABLES = {
    "CUBLAS_WORKSPACE_CONFIG": "cuBLAS repeats its results with :4096:8 or :16:8",
    "CUDA_DEVICE_ORDER": "how CUDA counts GPUs",
    "CUDA_LAUNCH_BLOCKING": "1: the host waits for each kernel",
    "CUDA_VISIBLE_DEVICES": "which GPUs CUDA shows",
    "CUPY_ACCELERATORS": "what CuPy's sums use",
    "CUPY_TF32": "1: CuPy's float32 products in TF32",
    "JAX_PLATFORMS": "the backends that JAX may start",
    "NPY_DISABLE_CPU_FEATURES": "vector units that NumPy must not use",
    "NPY_ENABLE_CPU_FEATURES": "the only vector units that NumPy may use",
    "NVIDIA_TF32_OVERRIDE": "0: no library uses TF32, whatever its switches say",
    "PYTORCH_ALLOC_CONF": "torch's memory pool",
    "PYTORCH_CUDA_ALLOC_CONF": "torch's memory pool on CUDA",
    "TF_ENABLE_ONEDNN_OPTS": "0: TensorFlow without oneDNN",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1: torch starts with TF32 in products",
    "XLA_CLIENT_MEM_FRACTION": "JAX's part of the GPU's memory",
    "XLA_FLAGS": "options of JAX's compiler",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "how JAX takes the GPU's memory",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "JAX's part of the GPU's memory",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "does JAX take the GPU's memory at its start",
}


def _variables(environ: Mapping[str, str]) -> Iterator[Switch]:
    for name, means in _VARIABLES.items():
        if name in environ:
            yield Switch(of="environment", name=name, value=environ[name], means=means)


# -- numbers near zero -----------------------------------------------------------------------------


def denormals() -> tuple[str, float | None]:
    """What happens in this thread to numbers below the smallest normal one, and how many times as
    long NumPy takes for them: the medians of 15 loops over 8,192 float64 of each kind, in turns.
    """
    try:
        numpy = require("numpy", "%doctor")
    except MissingDependency as error:
        return f"n/a: {error}", None
    # Bits, not values: a thread that reads them as zero also compares them equal to it.
    small = numpy.array([2**51] * 8, dtype="uint64").view("float64")
    smallest = numpy.array([numpy.finfo("float64").tiny] * 8)
    with numpy.errstate(all="ignore"):
        flushed = not (smallest * 0.5).view("uint64").any()
        unread = not (small * 2.0**60).view("uint64").any()
        factor = _denormal_factor(numpy)
    text = "flushed to zero" if flushed else "read as zero" if unread else "kept"
    return text, factor


def _denormal_factor(numpy: Any) -> float:
    mantissas = numpy.arange(1, 8193, dtype="uint64") * numpy.uint64(0x51F15EED1)
    small = mantissas.view("float64")
    normal = (mantissas | numpy.uint64(0x3FF << 52)).view("float64")
    result = numpy.empty_like(normal)
    times_ns: tuple[list[int], list[int]] = ([], [])
    for _ in range(15):
        for values, own_ns in zip((normal, small), times_ns, strict=True):
            start_ns = time.perf_counter_ns()
            numpy.multiply(values, 0.7, out=result)
            own_ns.append(time.perf_counter_ns() - start_ns)
    return float(median(times_ns[1]) / median(times_ns[0]))
