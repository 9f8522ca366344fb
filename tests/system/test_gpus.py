"""NVML's answers, each alone and each refused; and what a machine without a GPU would need."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from perfkit.errors import MissingDependency
from perfkit.system import gpus as subject
from perfkit.system.gpus import read_gpus

GiB = 2**30
NOT_SUPPORTED, NO_PERMISSION, LOST = 3, 4, 15
PROCESSES = "nvmlDeviceGetComputeRunningProcesses"


def process(pid, used=GiB):
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def refused(code):
    def query(*given):
        raise pynvml.NVMLError(code)

    return query


SOUND = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlSystemGetDriverVersion": b"580.65.06",
    "nvmlSystemGetCudaDriverVersion_v2": 13000,
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetUUID": "GPU-aa11",
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=140 * GiB, used=3 * GiB),
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetVirtualizationMode": 0,
    "nvmlDeviceGetComputeMode": 0,
    PROCESSES: [],
    "nvmlDeviceGetMPSComputeRunningProcesses": [],
    "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1,
    "nvmlDeviceGetTemperature": 31,
    "nvmlDeviceGetPowerUsage": 75_500,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
}


@pytest.fixture
def card(monkeypatch, tmp_path):
    """One sound GPU by nvidia-ml-py's own names, with other answers; the root has no namespaces."""

    def set_up(**other):
        answers = SOUND | {"nvmlDeviceGetHandleByIndex": lambda index: index} | other
        for name, answer in answers.items():
            query = answer if callable(answer) else lambda *given, answer=answer: answer
            monkeypatch.setattr(pynvml, name, query)
        return tmp_path

    return set_up


def only(root, environ=None):
    """The one GPU."""
    (gpu,) = read_gpus(root, environ or {})[1]
    return gpu


def test_a_sound_gpu(card):
    """All that is told is in the record, in SI units, with nothing missing."""
    stack, (gpu,) = read_gpus(card(), {})
    assert (stack.driver, stack.cuda, stack.needs, stack.reasons) == ("580.65.06", "13.0", "", ())
    assert (gpu.name, gpu.uuid, gpu.compute_capability) == ("NVIDIA H200", "GPU-aa11", "9.0")
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (140 * GiB, 3 * GiB)
    assert (gpu.power_W, gpu.power_limit_W, gpu.temperature_C) == (75.5, 700, 31)
    assert (gpu.ecc, gpu.ecc_errors, gpu.others, gpu.others_bytes) == (True, 0, 0, 0)
    assert (gpu.link_width, gpu.link_width_max, gpu.link_generation) == (16, 16, 5)
    assert (gpu.sharing, gpu.slowed_by, gpu.reasons) == ("alone", (), ())


# Each question, what is missing without its answer, and how the reason calls it.
FIELDS = {
    "nvmlDeviceGetName": ("", "name"),
    "nvmlDeviceGetUUID": ("uuid", "uuid"),
    "nvmlDeviceGetCudaComputeCapability": ("compute_capability", "compute capability"),
    "nvmlDeviceGetMemoryInfo": ("memory_bytes", "memory"),
    PROCESSES: ("others", "processes"),
    "nvmlDeviceGetComputeMode": ("", "compute mode"),
    "nvmlDeviceGetTemperature": ("temperature_C", "temperature"),
    "nvmlDeviceGetPowerUsage": ("power_W", "power"),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_W", "power limit"),
    "nvmlDeviceGetEccMode": ("ecc", "ECC"),
    "nvmlDeviceGetTotalEccErrors": ("ecc_errors", "ECC errors"),
    "nvmlDeviceGetCurrPcieLinkWidth": ("link_width", "link width"),
    "nvmlDeviceGetMaxPcieLinkGeneration": ("link_generation_max", "link generation max"),
}


@pytest.mark.parametrize("query", FIELDS)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, LOST, 999, 12345])
def test_one_question_refused(card, query, code):
    """A refusal leaves its field empty with a reason that names it; the rest is there."""
    field, named = FIELDS[query]
    gpu = only(card(**{query: refused(code)}))
    assert not field or getattr(gpu, field) in (None, "")
    assert len(gpu.reasons) == 1 and gpu.reasons[0].startswith(f"{named}: ")
    kept = {key for key, _ in FIELDS.values() if key and key != field}
    lost = {key for key in kept if getattr(gpu, key) in (None, "")}
    assert lost <= ({"ecc_errors"} if field == "ecc" else set())


def test_all_questions_refused(card):
    """A GPU that tells nothing is still there, and the causes are not said once for each field."""
    gpu = only(card(**{query: refused(NOT_SUPPORTED) for query in SOUND if "DeviceGet" in query}
                    | {"nvmlDeviceGetCount": 1}))  # fmt: skip
    assert gpu.name == "GPU without a name" and gpu.others is None and gpu.sharing == ""
    (reason,) = gpu.reasons
    assert reason.endswith("this GPU or its driver does not tell") and "temperature" in reason


@pytest.mark.parametrize(
    "failure", [AttributeError("no such"), OSError("bad\nlibrary"), ValueError("x")]
)
def test_other_failures(card, failure):
    """Not only NVML's own errors: an old nvidia-ml-py, or a library that breaks ctypes."""

    def query(*given):
        raise failure

    gpu = only(card(nvmlDeviceGetPowerUsage=query))
    assert gpu.power_W is None and gpu.temperature_C == 31
    assert gpu.reasons[0].startswith("power: ") and "\n" not in gpu.reasons[0]


def test_older_names(card, monkeypatch):
    """Drivers before the newer forms of two questions answer the older ones."""
    info = lambda handle, version=None: (  # noqa: E731
        refused(13)() if version else SOUND["nvmlDeviceGetMemoryInfo"]
    )
    root = card(
        nvmlDeviceGetMemoryInfo=info,
        nvmlDeviceGetCurrentClocksEventReasons=refused(13),
        nvmlDeviceGetCurrentClocksThrottleReasons=0x4,
    )
    gpu = only(root)
    assert (gpu.memory_bytes, gpu.slowed_by, gpu.reasons) == (140 * GiB, ("power cap",), ())


def test_a_card_that_is_lost(card):
    """The others are listed, and the lost one is a reason."""
    handles = lambda index: refused(LOST)() if index == 0 else index  # noqa: E731
    root = card(nvmlDeviceGetCount=2, nvmlDeviceGetHandleByIndex=handles)
    stack, gpus = read_gpus(root, {})
    assert [gpu.index for gpu in gpus] == [1] and stack.needs == ""
    assert stack.reasons == ("GPU 0: the GPU is lost: it fell off the bus or hangs",)


def test_cards_that_are_all_lost(card):
    """A driver that lists GPUs of which none answers is not a driver without GPUs."""
    stack, gpus = read_gpus(card(nvmlDeviceGetHandleByIndex=refused(LOST)), {})
    assert gpus == () and "none of them answers" in stack.needs and stack.driver
    none, _ = read_gpus(card(nvmlDeviceGetCount=0), {})
    assert "lists no GPU" in none.needs and none.reasons == ()


@pytest.mark.parametrize("broken", ["", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_nvml_is_closed(card, broken):
    """Once for each start, whatever failed between, and even if closing fails."""
    calls = []
    refusals = {broken: refused(999)} if broken else {}
    closing = lambda: (calls.append("shutdown"), refused(1)())  # noqa: E731
    read_gpus(card(nvmlInit=lambda: calls.append("init"), nvmlShutdown=closing, **refusals), {})
    assert calls == ["init", "shutdown"]


# -- who shares it ---------------------------------------------------------------------------------


def test_others(card):
    """This process is not one of the others, a client of MPS is, and none counts twice."""
    rows = [process(os.getpid(), 5 * GiB), process(10), process(11)]
    root = card(**{PROCESSES: rows, "nvmlDeviceGetMPSComputeRunningProcesses": [process(11)]})
    gpu = only(root)
    assert (gpu.others, gpu.others_bytes) == (2, 2 * GiB)
    assert gpu.sharing == "shared with 2 other processes"


def test_bytes_that_are_not_told(card):
    """One unknown size makes the sum unknown; the count stays."""
    gpu = only(card(**{PROCESSES: [process(10), process(11, None)]}))
    assert (gpu.others, gpu.others_bytes) == (2, None)
    assert gpu.reasons[0].startswith("memory of other processes: ")


def nested(root, namespace="pid:[4026532445]"):
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to(namespace)
    return root


def test_nobody_seen_is_not_alone(card):
    """Inside a PID namespace an empty list is no proof: None, and a reason."""
    gpu = only(nested(card()))
    assert (gpu.others, gpu.others_bytes, gpu.sharing) == (None, None, "")
    assert "PID namespace" in gpu.reasons[0]


def test_numbers_of_the_host(card):
    """A number that is no process here may be this one by the host's count: it is not counted."""
    root = nested(card(**{PROCESSES: [process(10), process(4_000_000)]}))
    (root / "proc/10").mkdir()
    gpu = only(root)
    assert (gpu.others, gpu.others_bytes) == (1, GiB)
    assert gpu.sharing == "shared with at least 1 other process"
    assert any("this one may be among them" in reason for reason in gpu.reasons)


def test_the_first_namespace_hides_nobody(card):
    """Its number is fixed in the kernel."""
    assert only(nested(card(), "pid:[4026531836]")).sharing == "alone"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"nvmlDeviceGetComputeMode": 3}, "exclusive: one process at a time, alone"),
        ({"nvmlDeviceGetComputeMode": 2}, "closed: no process may compute on it, alone"),
        ({"nvmlDeviceGetVirtualizationMode": 2}, "vGPU, alone"),
        ({"nvmlDeviceGetMigMode": refused(NOT_SUPPORTED)}, "alone"),
    ],
)
def test_modes(card, answer, words):
    """Each mode in words; a GPU without MIG has no reason for it."""
    gpu = only(card(**answer))
    assert gpu.sharing == words and gpu.reasons == ()


def test_mig_without_slices(card):
    """MIG that is switched on and not used."""
    root = card(
        nvmlDeviceGetMigMode=[1, 1],
        nvmlDeviceGetMaxMigDeviceCount=7,
        nvmlDeviceGetMigDeviceHandleByIndex=refused(6),
    )
    assert only(root).sharing == "MIG enabled, not sliced, alone"


def test_mig_slices(card):
    """Slices stand for the card; memory is the slice's, heat the card's."""
    slices = {0: "MIG-a", 3: "MIG-b"}
    root = card(
        nvmlDeviceGetMigMode=[1, 1],
        nvmlDeviceGetMaxMigDeviceCount=7,
        nvmlDeviceGetMigDeviceHandleByIndex=lambda card, i: slices.get(i) or refused(6)(),
        nvmlDeviceGetName=lambda part: "H200 MIG " + {"MIG-a": "1g.18gb", "MIG-b": "2g.35gb"}[part],
        nvmlDeviceGetUUID=lambda part: part,
        nvmlDeviceGetTemperature=lambda part, sensor: 40 if part == 0 else refused(3)(),
        nvmlDeviceGetMemoryInfo=lambda part, version: SimpleNamespace(total=len(part), used=0),
    )  # fmt: skip
    stack, gpus = read_gpus(root, {"CUDA_VISIBLE_DEVICES": "MIG-b"})
    assert [gpu.sharing for gpu in gpus] == ["MIG 1g.18gb, alone", "MIG 2g.35gb, alone"]
    assert [(gpu.index, gpu.memory_bytes, gpu.temperature_C) for gpu in gpus] == [(0, 5, 40)] * 2
    assert stack.reasons == ("CUDA_VISIBLE_DEVICES=MIG-b: this process sees GPU MIG-b",)


# -- its condition ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x1 | 0x4, ("power cap",)),
        (0x8, ("hardware slowdown",)),
        (0x8 | 0x40, ("heat, by the hardware",)),
        (0x8 | 0x80, ("power brake of the server",)),
        (0x20 | 0x2, ("clocks that someone has set", "heat, by the driver")),
        (0x1000, ()),
    ],
)
def test_slowed_by(card, bits, words):
    """Idle is no slowdown, and a cause is not named twice."""
    assert only(card(nvmlDeviceGetCurrentClocksEventReasons=bits)).slowed_by == words


def test_the_bits_are_nvmls():
    """The numbers in the table are those of nvml.h."""
    named = {
        getattr(pynvml, f"nvmlClocksEventReason{name}")
        for name in (
            "ApplicationsClocksSetting", "SwPowerCap", "HwSlowdown", "SyncBoost",
            "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown", "DisplayClockSetting",
        )
    }  # fmt: skip
    assert named | {pynvml.nvmlClocksThrottleReasonBoardLimit} == set(subject._SLOWED)
    assert pynvml.nvmlMemory_v2 == 0x02000028
    errors = {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert set(subject._WORDS) <= errors


def test_an_idle_link(card):
    """A lower generation is no fault of the slot, and the reason says so."""
    gpu = only(card(nvmlDeviceGetCurrPcieLinkGeneration=1))
    assert (gpu.link_generation, gpu.link_generation_max) == (1, 5)
    assert gpu.reasons == ("link generation 1 of 5: an idle GPU lowers it; look under load",)


def test_ecc_that_is_off(card):
    """Without ECC no errors are counted, which is not the same as none."""
    gpu = only(card(nvmlDeviceGetEccMode=[0, 1]))
    assert (gpu.ecc, gpu.ecc_errors, gpu.reasons) == (False, None, ())


# -- which are visible -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "sees"),
    [
        ("1", "GPU 1"),
        ("1,0", "GPU 1, 0"),
        ("0,7,1", "GPU 0"),
        ("", "none of them"),
        ("-1", "none of them"),
        ("GPU-b", "GPU 1"),
        ("GPU-", "none of them"),
        ("٣", "none of them"),
    ],
)
def test_visible_devices(card, value, sees):
    """All are listed, with a word on which this process sees; CUDA stops at a wrong entry."""
    uuids = lambda part: ("GPU-aa", "GPU-bb")[part]  # noqa: E731
    root = card(nvmlDeviceGetCount=2, nvmlDeviceGetUUID=uuids)
    stack, gpus = read_gpus(root, {"CUDA_VISIBLE_DEVICES": value})
    assert len(gpus) == 2
    assert stack.reasons == (f"CUDA_VISIBLE_DEVICES={value}: this process sees {sees}",)


def test_cuda_counts_unlike_cards_its_own_way(card):
    """With different cards a number means one only by the bus."""
    root = card(nvmlDeviceGetCount=2, nvmlDeviceGetName=lambda part: f"card {part}")
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    assert "the fastest first" in read_gpus(root, environ)[0].reasons[0]
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert read_gpus(root, environ)[0].reasons[0].endswith("sees GPU 0")


# -- no GPU ----------------------------------------------------------------------------------------

PCI = "sys/bus/pci/devices/0000:00:02.0"
NO_LIBRARY, NOT_LOADED, MISMATCH = 12, 9, 18
DRIVER = "proc/driver/nvidia/version"


def pci(maker, kind="0x030000"):
    return {f"{PCI}/vendor": f"{maker}\n", f"{PCI}/class": f"{kind}\n"}


@pytest.mark.parametrize(
    ("code", "files", "line"),
    [
        (NO_LIBRARY, {}, subject._NOTHING),
        (NO_LIBRARY, {"dev/nvidia0": ""}, subject._LIBRARY_MISSING),
        (NO_LIBRARY, {"dev/nvidiactl": "", DRIVER: ""}, subject._LIBRARY_MISSING),
        (NO_LIBRARY, {DRIVER: ""}, subject._NOT_HANDED_IN),
        (NO_LIBRARY, {"dev/nvidia-like": ""}, subject._NOTHING),
        (NO_LIBRARY, {"dev/dxg": ""}, subject._WSL),
        (NO_LIBRARY, pci("0x10de"), subject._NO_DRIVER),
        (NO_LIBRARY, pci("0x10de", "0x040300"), subject._NOTHING),
        (NO_LIBRARY, {"dev/kfd": "", "dev/dri/card0": ""}, subject._AMD),
        (NO_LIBRARY, pci("0x1002") | {"dev/dri/card0": ""}, subject._AMD),
        (NO_LIBRARY, pci("0x8086") | {"dev/dri/card0": ""}, subject._INTEL),
        (NO_LIBRARY, {"dev/dri/card0": ""}, subject._DISPLAY),
        (NO_LIBRARY, pci("0x8086", "0x020000"), subject._NOTHING),
        (NOT_LOADED, {}, subject._BROKEN[NOT_LOADED]),
        (NOT_LOADED, {DRIVER: ""}, subject._NOT_HANDED_IN),
        (NOT_LOADED, {DRIVER: "", "dev/nvidia0": ""}, subject._BROKEN[NO_PERMISSION]),
        (MISMATCH, {DRIVER: "", "dev/nvidia0": ""}, subject._BROKEN[MISMATCH]),
        (NO_PERMISSION, {"dev/nvidia0": ""}, subject._BROKEN[NO_PERMISSION]),
    ],
)
def test_what_a_gpu_would_need(monkeypatch, tree, code, files, line):
    """Each kind of machine without a GPU is told apart, in one line, with NVML's words beside."""
    monkeypatch.setattr(pynvml, "nvmlInit", refused(code))
    monkeypatch.setattr(sys, "platform", "linux")
    stack, gpus = read_gpus(tree(files), {})
    assert gpus == () and stack.needs == line and "\n" not in line
    assert stack.reasons == (f"NVML: {subject._WORDS[code]}",)


def test_lines_are_told_apart():
    """No two cases share a line."""
    lines = [subject._NOTHING, subject._LIBRARY_MISSING, subject._NOT_HANDED_IN, subject._WSL,
             subject._NO_DRIVER, subject._AMD, subject._INTEL, subject._DISPLAY,
             subject._NONE_LISTED, subject._SILENT, *subject._BROKEN.values()]  # fmt: skip
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize("failure", [refused(999), lambda: (_ for _ in ()).throw(OSError("bad"))])
def test_a_driver_that_does_not_start(monkeypatch, tmp_path, failure):
    """Whatever its start raises is a line that names the driver."""
    monkeypatch.setattr(pynvml, "nvmlInit", failure)
    stack, _ = read_gpus(tmp_path, {})
    assert stack.needs.startswith("the NVIDIA driver does not start (") and len(stack.reasons) == 1


def test_macos(tmp_path):
    """Apple's GPU is not reached through CUDA."""
    assert "mps" in subject._needs(tmp_path, NO_LIBRARY, "darwin")


def test_without_nvidia_ml_py(monkeypatch, tree):
    """Its absence is a reason; where a GPU may be, it is what is needed."""

    def missing(*given):
        raise MissingDependency("needs pynvml: pip install 'nvidia-ml-py'", name="pynvml")

    monkeypatch.setattr(subject, "require", missing)
    monkeypatch.setattr(sys, "platform", "linux")
    stack, _ = read_gpus(tree({}), {})
    assert "nvidia-ml-py" in stack.reasons[0] and stack.needs == subject._NOTHING
    assert "nvidia-ml-py" in read_gpus(tree({"dev/nvidia0": ""}), {})[0].needs


def test_this_machine():
    """On any machine there are GPUs or one line on what is missing, without delay."""
    start_s = time.perf_counter()
    stack, gpus = read_gpus()
    assert bool(gpus) != bool(stack.needs)
    assert gpus or time.perf_counter() - start_s < 5


@pytest.mark.gpu
def test_a_real_gpu():
    """NVML on a real card: it is named and measured, and no context was made for it."""
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA GPU here")
    stack, gpus = read_gpus()
    assert stack.driver and int(stack.cuda.split(".")[0]) >= 12 and gpus
    for gpu in gpus:
        assert gpu.name and gpu.uuid and gpu.compute_capability
        assert 0 <= gpu.memory_used_bytes <= gpu.memory_bytes
    code = (
        "from perfkit.system.gpus import read_gpus; from perfkit.devices.cuda import has_context\n"
        "print(any(has_context(gpu.index) for gpu in read_gpus()[1]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
