"""The GPUs and what stands under them, as NVIDIA's driver tells it; no GPU is set up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfkit.errors import MissingDependency
from perfkit.optional import require
from perfkit.records.doctor import Gpu, GpuStack
from perfkit.system.files import read
from perfkit.units import count

__all__ = ["read_gpus"]

_ROOT = Path("/")


def read_gpus(
    root: Path = _ROOT, environ: Mapping[str, str] | None = None
) -> tuple[GpuStack, tuple[Gpu, ...]]:
    """What NVML tells of the driver and of each GPU, or of each MIG slice that is to be seen here.

    A question that is not answered leaves None or nothing, and a reason. Without a GPU `needs` says
    in a line what one would need here, by the files below `root`. Never sets up CUDA.
    """
    given = os.environ if environ is None else environ
    try:
        nvml = require("pynvml", "%doctor")
    except MissingDependency as error:
        needs = str(error) if _has_devices(root) else _needs(root, 12)
        return GpuStack(needs=needs, reasons=(str(error),)), ()
    try:
        nvml.nvmlInit()
    except Exception as error:  # NVML's own, or what a half installed driver does to ctypes
        return GpuStack(needs=_needs(root, _code(error)), reasons=(f"NVML: {_words(error)}",)), ()
    try:
        return _stack(nvml, root, given)
    finally:
        _Asked(nvml).quietly("nvmlShutdown")


def _stack(nvml: Any, root: Path, environ: Mapping[str, str]) -> tuple[GpuStack, tuple[Gpu, ...]]:
    asked = _Asked(nvml)
    driver = _text(asked("driver version", "nvmlSystemGetDriverVersion"))
    version = asked("CUDA version", "nvmlSystemGetCudaDriverVersion_v2")
    number = asked("number of GPUs", "nvmlDeviceGetCount") or 0
    gpus = [gpu for index in range(number) for gpu in _gpus(nvml, index, asked, root)]
    stack = GpuStack(
        driver=driver,
        cuda=f"{version // 1000}.{version % 1000 // 10}" if version else "",
        needs="" if gpus else _SILENT if number else _NONE_LISTED,
        reasons=(*asked.reasons, *_visible(environ, gpus)),
    )
    return stack, tuple(gpus)


# -- questions -------------------------------------------------------------------------------------

_WORDS = {
    2: "NVML does not take the question",
    3: "this GPU or its driver does not tell",
    4: "no permission",
    6: "not found",
    9: "the driver is not loaded",
    12: "its library libnvidia-ml was not found",
    13: "this driver does not know the question",
    15: "the GPU is lost: it fell off the bus or hangs",
    16: "the GPU must be restarted",
    17: "the operating system forbids it",
    18: "library and loaded driver have different versions",
    20: "not enough memory",
    999: "unknown error of the driver",
}  # the numbers of nvmlReturn_t in nvml.h


def _code(error: Exception) -> int:
    code = getattr(error, "value", None)
    return code if isinstance(code, int) else 0


def _words(error: Exception) -> str:
    """In plain words; else NVML's own, in one line."""
    own = " ".join(str(error).split())
    return _WORDS.get(_code(error)) or f"{type(error).__name__}: {own}".rstrip(": ")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


class _Asked:
    """Questions to NVML, each guarded by itself. `reasons`: those without an answer, by cause."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._failed: dict[str, list[str]] = {}

    def __call__(self, what: str, query: str, *given: Any) -> Any:
        """The answer; None, and a reason that names `what`, where there is none."""
        try:
            return getattr(self._nvml, query)(*given)
        except AttributeError:
            self.note(what, "this nvidia-ml-py does not know the question")
        except Exception as error:  # whatever one question does, the others are asked
            self.note(what, _words(error))
        return None

    def quietly(self, query: str, *given: Any) -> Any:
        """The answer, or None: for what many GPUs have no word on."""
        try:
            return getattr(self._nvml, query)(*given)
        except Exception:
            return None

    def note(self, what: str, cause: str) -> None:
        self._failed.setdefault(cause, []).append(what)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(f"{', '.join(names)}: {cause}" for cause, names in self._failed.items())


# -- one GPU ---------------------------------------------------------------------------------------


def _gpus(nvml: Any, index: int, stack: _Asked, root: Path) -> Iterator[Gpu]:
    """The GPU, or in its place the MIG slices of it that are given to this process."""
    card = stack(f"GPU {index}", "nvmlDeviceGetHandleByIndex", index)
    if card is None:
        return
    for part in _slices(_Asked(nvml), card) or [card]:
        yield _gpu(_Asked(nvml), index, card, part, root)


def _slices(asked: _Asked, card: Any) -> list[Any]:
    most = asked.quietly("nvmlDeviceGetMaxMigDeviceCount", card) or 0 if _mig(asked, card) else 0
    found = (asked.quietly("nvmlDeviceGetMigDeviceHandleByIndex", card, i) for i in range(most))
    return [part for part in found if part is not None]


def _mig(asked: _Asked, card: Any) -> bool:
    return bool((asked.quietly("nvmlDeviceGetMigMode", card) or (0,))[0])


def _gpu(asked: _Asked, index: int, card: Any, part: Any, root: Path) -> Gpu:
    """`part` is a MIG slice or `card` itself; heat, power and link are the whole card's."""
    name = _text(asked("name", "nvmlDeviceGetName", part)) or "GPU without a name"
    capability = asked("compute capability", "nvmlDeviceGetCudaComputeCapability", card)
    memory = _memory(asked, part)
    others, others_bytes, why = _others(asked, part, root)
    facts = _condition(asked, card) | _ecc(asked, card) | _link(asked, card)
    return Gpu(
        index=index,
        name=name,
        uuid=_text(asked("uuid", "nvmlDeviceGetUUID", part)),
        compute_capability=".".join(map(str, capability or ())),
        memory_bytes=memory and memory.total,
        memory_used_bytes=memory and memory.used,
        sharing=_sharing(asked, card, name, others, certain=not why),
        others=others,
        others_bytes=others_bytes,
        **facts,
        reasons=(*asked.reasons, *why),
    )


def _memory(asked: _Asked, part: Any) -> Any:
    # Only the second form keeps what the driver reserves for itself out of what is used.
    second = asked.quietly("nvmlDeviceGetMemoryInfo", part, 0x02000028)
    return second or asked("memory", "nvmlDeviceGetMemoryInfo", part)


# -- who else is on it -----------------------------------------------------------------------------


def _others(asked: _Asked, part: Any, root: Path) -> tuple[int | None, int | None, tuple[str, ...]]:
    """Processes beside this one, their bytes, and why the numbers are not all. From inside a PID
    namespace drivers either hide those outside, or number them, and this one, by the host's count.
    """
    running = asked("processes", "nvmlDeviceGetComputeRunningProcesses", part)
    if running is None:
        return None, None, ()
    running = [*running, *(asked.quietly("nvmlDeviceGetMPSComputeRunningProcesses", part) or ())]
    bytes_of = {row.pid: row.usedGpuMemory for row in running if row.pid != os.getpid()}
    if not _is_nested(root):
        return len(bytes_of), _total(asked, bytes_of), ()
    outside = [pid for pid in bytes_of if not (root / f"proc/{pid}").exists()]
    inside = {pid: size for pid, size in bytes_of.items() if pid not in outside}
    why = [
        "processes outside this PID namespace are not all seen: docker run --pid=host shows them"
    ]
    if outside:
        why.append(f"{count(len(outside), 'process')} outside it, and this one may be among them")
    return len(inside) or None, _total(asked, inside) or None, tuple(why)


def _total(asked: _Asked, bytes_of: Mapping[int, int | None]) -> int | None:
    known = [size for size in bytes_of.values() if size is not None]
    if len(known) < len(bytes_of):
        asked.note("memory of other processes", _WORDS[3])
        return None
    return sum(known)


def _is_nested(root: Path) -> bool:
    """Is this a PID namespace inside another? The kernel's first one has a fixed number."""
    try:
        return str((root / "proc/self/ns/pid").readlink()) != "pid:[4026531836]"
    except OSError:
        return (root / "proc/self").exists()


_MODES = {
    1: "exclusive: one thread at a time",
    2: "closed: no process may compute on it",
    3: "exclusive: one process at a time",
}


def _sharing(asked: _Asked, card: Any, name: str, others: int | None, *, certain: bool) -> str:
    said = []
    if "MIG " in name:
        said.append(name[name.rindex("MIG ") :])
    elif _mig(asked, card):
        said.append("MIG enabled, not sliced")
    if asked.quietly("nvmlDeviceGetVirtualizationMode", card) == 2:
        said.append("vGPU")
    said.append(_MODES.get(asked("compute mode", "nvmlDeviceGetComputeMode", card), ""))
    if others:
        least = "" if certain else "at least "
        said.append(f"shared with {least}{count(others, 'other process')}")
    elif others == 0 and certain:
        said.append("alone")
    return ", ".join(filter(None, said))


# -- its condition ---------------------------------------------------------------------------------

_SLOWED = {
    0x2: "clocks that someone has set",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "clock in step with other GPUs",
    0x20: "heat, by the driver",
    0x40: "heat, by the hardware",
    0x80: "power brake of the server",
    0x100: "clocks for the display",
    0x200: "limit of the board",
}  # nvmlClocksEventReasons in nvml.h; 0x1, idle, is no slowdown


def _condition(asked: _Asked, card: Any) -> dict[str, Any]:
    power_mW = asked("power", "nvmlDeviceGetPowerUsage", card)
    limit_mW = asked("power limit", "nvmlDeviceGetEnforcedPowerLimit", card)
    temperature_C = asked("temperature", "nvmlDeviceGetTemperature", card, 0)
    return {
        "slowed_by": _slowed_by(asked, card),
        "temperature_C": None if temperature_C is None else float(temperature_C),
        "power_W": None if power_mW is None else power_mW / 1000,
        "power_limit_W": None if limit_mW is None else limit_mW / 1000,
    }


def _slowed_by(asked: _Asked, card: Any) -> tuple[str, ...]:
    bits = asked.quietly("nvmlDeviceGetCurrentClocksEventReasons", card)
    if bits is None:  # its name in older drivers
        bits = asked("what slows it", "nvmlDeviceGetCurrentClocksThrottleReasons", card) or 0
    if bits & 0xC0:
        bits &= ~0x8  # set beside its own causes
    return tuple(words for bit, words in _SLOWED.items() if bits & bit)


def _ecc(asked: _Asked, card: Any) -> dict[str, Any]:
    """Errors: those that could not be put right since the driver was loaded."""
    mode = asked("ECC", "nvmlDeviceGetEccMode", card)
    if mode is None or not mode[0]:
        return {"ecc": None if mode is None else False}
    return {
        "ecc": True,
        "ecc_errors": asked("ECC errors", "nvmlDeviceGetTotalEccErrors", card, 1, 0),
    }


def _link(asked: _Asked, card: Any) -> dict[str, Any]:
    queries = {
        "link_width": "nvmlDeviceGetCurrPcieLinkWidth",
        "link_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
        "link_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
        "link_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    }
    found = {key: asked(key.replace("_", " "), query, card) for key, query in queries.items()}
    now, most = found["link_generation"], found["link_generation_max"]
    if now and most and now < most:
        asked.note(f"link generation {now} of {most}", "an idle GPU lowers it; look under load")
    return found


# -- which of them this process sees ---------------------------------------------------------------


def _visible(environ: Mapping[str, str], gpus: list[Gpu]) -> Iterator[str]:
    """What CUDA_VISIBLE_DEVICES leaves of them; CUDA stops at the first entry that is none."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None or not gpus:
        return
    seen = []
    for entry in map(str.strip, text.split(",")):
        gpu = _named(entry, gpus)
        if gpu is None:
            break
        seen.append(str(gpu.index) if gpu.uuid.startswith("GPU-") else gpu.uuid)
    names = f"GPU {', '.join(seen)}" if seen else "none of them"
    yield f"CUDA_VISIBLE_DEVICES={text}: this process sees {names}{_order(environ, gpus, text)}"


def _named(entry: str, gpus: list[Gpu]) -> Gpu | None:
    """By number among whole cards, or by the beginning of one uuid."""
    if entry.isascii() and entry.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    named = [g for g in gpus if entry.startswith(("GPU-", "MIG-")) and g.uuid.startswith(entry)]
    return named[0] if len(named) == 1 else None


def _order(environ: Mapping[str, str], gpus: list[Gpu], text: str) -> str:
    unlike = len({gpu.name for gpu in gpus}) > 1 and any(map(str.isdigit, text))
    if not unlike or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return ""
    return ", if CUDA_DEVICE_ORDER=PCI_BUS_ID is set: else CUDA counts the fastest first"


# -- what a GPU would need here --------------------------------------------------------------------

_NONE_LISTED = (
    "the NVIDIA driver works and lists no GPU: ask the batch system for one (Slurm: --gres=gpu:1), "
    "or start the container with --gpus all"
)
_SILENT = "the NVIDIA driver lists GPUs and none of them answers: see the reasons, and nvidia-smi"
_BROKEN = {
    4: "the GPU's device files may not be opened: ask the batch system for a GPU, or for access",
    9: "NVIDIA's library is here, the driver not loaded: sudo modprobe nvidia, if it has a GPU",
    18: "the driver was updated while it was loaded: restart the machine",
}
_LIBRARY_MISSING = (
    "the GPU's device files are here, its library libnvidia-ml.so.1 is not: start the container "
    "with --gpus all (NVIDIA Container Toolkit), or install the driver's libraries"
)
_NOT_HANDED_IN = (
    "the machine has NVIDIA's driver, and no GPU was handed in: start the container with --gpus "
    "all (NVIDIA Container Toolkit)"
)
_NO_DRIVER = (
    "an NVIDIA GPU is here without its driver: install it (Ubuntu: sudo ubuntu-drivers install)"
)
_WSL = "Windows lends its GPU to WSL, without NVIDIA's library: install its driver on Windows"
_AMD = "the GPU is AMD's: builds of PyTorch, JAX or CuPy for ROCm use it; it is not examined here"
_INTEL = "the GPU is Intel's: PyTorch's build for XPU may use it; it is not examined here"
_DISPLAY = "the GPU is Intel's or only draws the screen (/dev/dri): CUDA needs one of NVIDIA's"
_NOTHING = (
    "no NVIDIA card and no driver (libnvidia-ml.so.1) here: install the driver where there is a "
    "card, ask the batch system for one (Slurm: --gres=gpu:1), or change Colab's runtime type"
)


def _needs(root: Path, code: int, system: str = sys.platform) -> str:
    """One line. `code`: what NVML failed with; 12 is a library that is not there."""
    if system == "darwin":
        return "CUDA is not made for macOS; Apple's GPU is Metal: torch.device('mps')"
    if code == 9 and _has_driver(root):
        return _BROKEN[4] if _has_devices(root) else _NOT_HANDED_IN
    if code in _BROKEN:
        return _BROKEN[code]
    if code != 12:
        return (
            f"the NVIDIA driver does not start ({_WORDS.get(code, 'see the reasons')}): nvidia-smi"
        )
    return next((line for line, seen in _signs(root) if seen), _NOTHING)


def _signs(root: Path) -> Iterator[tuple[str, bool]]:
    """What may be here without NVIDIA's library, the surest sign first."""
    yield _LIBRARY_MISSING, _has_devices(root)
    yield _NOT_HANDED_IN, _has_driver(root)
    yield _WSL, (root / "dev/dxg").exists()
    makers = _makers(root)
    yield _NO_DRIVER, "0x10de" in makers
    yield _AMD, (root / "dev/kfd").exists() or "0x1002" in makers
    yield _INTEL, "0x8086" in makers
    yield _DISPLAY, (root / "dev/dri").is_dir()


def _has_devices(root: Path) -> bool:
    return any((root / "dev").glob("nvidia[0-9c]*"))


def _has_driver(root: Path) -> bool:
    return (root / "proc/driver/nvidia").is_dir()


def _makers(root: Path) -> set[str]:
    """The PCI vendors of display adapters (class 03) and accelerators (12)."""
    devices = (root / "sys/bus/pci/devices").glob("*")
    return {read(d / "vendor") for d in devices if read(d / "class").startswith(("0x03", "0x12"))}
