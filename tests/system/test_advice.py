"""Each finding on a machine that has just that fault, and none on a sound one."""

import json
from pathlib import Path

import msgspec
import pytest

from perfkit.records.doctor import (
    Array,
    Diagnosis,
    FileSystem,
    Gpu,
    GpuStack,
    Library,
    Processor,
    Product,
    Surroundings,
    Switch,
    Weather,
)
from perfkit.records.machine import Limits, Machine
from perfkit.system.advice import advise

GiB = 2**30
MACHINE = Machine(
    host="h", system="Linux x86_64", processor="p", limits=Limits(), python="3.12", perfkit="1"
)
BLAS = Library(name="OpenBLAS", kind="BLAS", of="numpy", threads=2, can_set=True, path="/n/b.so")
SIMD = Library(name="SIMD of NumPy", kind="SIMD", of="numpy", details="in use up to X86_V3")
NARROW = msgspec.structs.replace(SIMD, details="in use up to SSE42")
GPU = Gpu(index=0, name="H200", memory_bytes=140 * GiB, link_width=16, link_width_max=16)


def sound(**other):
    """A machine without a fault, but for `other`."""
    facts = {
        "machine": MACHINE,
        "limits": Limits(affinity_cpus=2, cpus=2, reason="affinity mask 2 CPUs"),
        "processor": Processor(
            model="AMD EPYC", isa=("avx2",), cpus=2, cores=2, memory_bytes=32 * GiB
        ),
        "weather": Weather(lost_share=0.001, spin_s=0.1, memory_available_bytes=16 * GiB),
        "file_systems": (
            FileSystem(
                use="here", path="/w", fstype="ext4", free_bytes=9 * GiB, total_bytes=99 * GiB
            ),
            FileSystem(use="shared memory", path="/dev/shm", fstype="tmpfs", total_bytes=8 * GiB),
        ),
        "libraries": (BLAS, SIMD),
        "denormals": "kept",
    }
    return Diagnosis(**(facts | other))


def blas(**other):
    return msgspec.structs.replace(BLAS, **other)


def package(name, details, **other):
    return Library(name=name, kind="package", of=name, version="1.0", details=details, **other)


def product(dtype="float64", threads=1, gflops=50, peak=58):
    n = 1000
    return Product(
        library="NumPy", dtype=dtype, n=n, threads=threads, samples=9,
        seconds=2 * n**3 / gflops / 1e9, peak_flops=peak * 1e9 * threads,
    )  # fmt: skip


QUOTA = Limits(quota_cpus=2.5, affinity_cpus=64, cpus=2.5, reason="CPU quota 2.5")
HOST = Processor(model="Xeon", isa=("avx2",), cpus=64, memory_bytes=64 * GiB)
LOW = Limits(affinity_cpus=2, cpus=2, memory_bytes=4 * GiB, reason="r")
FAULTS = {
    "threads-over-limit": {"libraries": (blas(threads=16), SIMD)},
    "threads-of-new-processes": {"limits": QUOTA, "processor": HOST},
    "cpu-count": {"limits": QUOTA, "processor": HOST},
    "grant-not-used": {"surroundings": Surroundings(batch="Slurm job 1", cpus_granted=8)},
    "two-openmp-runtimes": {
        "libraries": (
            BLAS,
            Library(name="GNU OpenMP", kind="OpenMP", of="torch", path="/t/libgomp.so"),
            Library(name="LLVM OpenMP", kind="OpenMP", of="numba", path="/n/libomp.so"),
        )
    },
    "plain-blas": {"libraries": (blas(name="libblas", can_set=False, details="plain"), SIMD)},
    "slow-product": {"products": (product(gflops=5),)},
    "threads-without-gain": {"products": (product(), product(threads=2, gflops=55))},
    "mkl-on-amd": {"libraries": (blas(name="MKL"), SIMD)},
    "narrow-simd": {"libraries": (BLAS, NARROW)},
    "flush-to-zero": {"denormals": "flushed to zero"},
    "float64-arrays": {"arrays": (Array(name="x", nbytes=GiB, exact=True),)},
    "torch-without-gpu": {"gpus": (GPU,), "libraries": (BLAS, SIMD, package("torch", "CPU build"))},
    "cupy-newer-than-driver": {
        "gpus": (GPU,),
        "gpu_stack": GpuStack(driver="535.1", cuda="12.2"),
        "libraries": (BLAS, SIMD, package("cupy", "CUDA 13.0, cuBLAS 13.0")),
    },
    "gpu-shared": {"gpus": (msgspec.structs.replace(GPU, others=2, others_bytes=GiB),)},
    "gpu-slowed": {"gpus": (msgspec.structs.replace(GPU, slowed_by=("power cap",)),)},
    "gpu-narrow-link": {"gpus": (msgspec.structs.replace(GPU, link_width=4),)},
    "gpu-memory-errors": {"gpus": (msgspec.structs.replace(GPU, ecc=True, ecc_errors=3),)},
    "tf32-mixed": {"switches": (Switch(of="torch", name="matmul", value="mixed"),)},
    "jax-preallocation": {"gpus": (GPU,), "libraries": (BLAS, SIMD, package("jax", "cuda"))},
    "throttled": {"weather": Weather(periods=100, throttled_share=0.4, throttled_s=7.0)},
    "memory-short": {"limits": LOW, "weather": Weather(memory_available_bytes=GiB // 8)},
    "noisy": {"weather": Weather(lost_share=0.4, spin_s=0.1, longest_gap_s=0.03)},
    "pressure-cpu": {"weather": Weather(cpu_pressure=0.6)},
    "pressure-storage": {"weather": Weather(io_pressure=0.6)},
    "small-shared-memory": {
        "file_systems": (
            FileSystem(use="shared memory", path="/dev/shm", fstype="tmpfs", total_bytes=2**26),
        )
    },
    "disk-full": {
        "file_systems": (
            FileSystem(use="home", path="/h", fstype="nfs", free_bytes=2**20, total_bytes=99 * GiB),
        )
    },
    "temporary-in-memory": {
        "file_systems": (
            FileSystem(use="here, temporary files", path="/t", fstype="tmpfs", memory_backed=True),
        )
    },
    "python-on-network": {
        "file_systems": (FileSystem(use="Python", path="/p", fstype="lustre", network=True),)
    },
}  # fmt: skip
TOGETHER = {"threads-of-new-processes", "cpu-count"}


def test_a_sound_machine_has_no_findings():
    """Nothing is said where nothing is to be done."""
    assert advise(sound()) == ()


def test_what_is_not_known_is_no_fault():
    """A machine that tells nothing has no findings, and no rule fails on it."""
    assert advise(Diagnosis(machine=MACHINE, limits=Limits())) == ()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_alone(fault):
    """A fault gives its finding and no other, with what was seen."""
    found = {finding.id: finding for finding in advise(sound(**FAULTS[fault]))}
    assert set(found) == (TOGETHER if fault in TOGETHER else {fault})
    assert found[fault].evidence and found[fault].title


def test_every_rule_has_a_fault():
    """No finding that is not tested here, or that no rule makes."""
    from perfkit.system import advice

    assert len(FAULTS) >= len(advice.RULES)


def test_worst_first():
    """Problems before warnings before notes."""
    seen = sound(**FAULTS["threads-over-limit"], denormals="flushed to zero", limits=QUOTA)
    order = [finding.severity for finding in advise(seen)]
    assert order == sorted(order, key=("problem", "warning", "note").index)


def test_lessons_exist():
    """A finding sends nobody to a lesson that is not there."""
    lessons = {path.name[:2] for path in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb")}
    cited = {f.lesson for fault in FAULTS.values() for f in advise(sound(**fault))}
    assert cited - {""} <= lessons


def test_only_threads_are_safe():
    """--fix changes thread counts and nothing else."""
    safe = {f.id for fault in FAULTS.values() for f in advise(sound(**fault)) if f.safe}
    assert safe == {"threads-over-limit"}


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, 1), (1.0, 1), (2.5, 2), (3.99, 3)])
def test_threads_fit_in_the_quota(cpus, threads):
    """Whole threads below the quota, and at least one."""
    limits = Limits(quota_cpus=cpus, affinity_cpus=64, cpus=cpus, reason="CPU quota")
    (found,) = (
        f
        for f in advise(sound(limits=limits, libraries=(blas(threads=64), SIMD)))
        if f.id == "threads-over-limit"
    )
    assert found.fix.endswith(f"threadpool_limits({threads})")


def test_threads_that_gain_nothing_in_a_burst_are_no_problem_yet():
    slow, burst = (
        next(
            f
            for f in advise(sound(**FAULTS["threads-over-limit"], thread_gain=gain))
            if f.id == "threads-over-limit"
        )
        for gain in (8.0, 0.52)
    )
    assert slow.severity == "problem" and "8.00 x as fast" in slow.gain
    assert burst.severity == "warning" and "burst" in burst.gain and "0.52" in burst.gain


def test_as_many_threads_as_fit_are_no_fault():
    """The limit itself is allowed."""
    limits = Limits(quota_cpus=2.5, affinity_cpus=2, cpus=2, reason="r")
    assert advise(sound(limits=limits)) == ()


def test_a_cap_in_the_environment_holds():
    """Where OMP_NUM_THREADS is set to what fits, new processes are no fault."""
    capped = Switch(of="environment", name="OMP_NUM_THREADS", value="2")
    ids = [f.id for f in advise(sound(limits=QUOTA, processor=HOST, switches=(capped,)))]
    assert ids == ["cpu-count"]


def test_the_grant_counts_as_a_limit():
    """A job that may use the whole node by its mask still has only what it was granted."""
    seen = sound(
        limits=Limits(affinity_cpus=64, cpus=64, reason="affinity mask 64 CPUs"),
        processor=HOST,
        surroundings=Surroundings(batch="PBS job 1", cpus_granted=4),
        libraries=(blas(threads=64), SIMD),
    )
    found = advise(seen)[0]
    assert found.id == "threads-over-limit" and "4 CPUs granted" in found.evidence


def test_one_major_version_of_cuda_is_a_warning():
    """12.9 on a driver for 12.2 mostly runs; 13 does not."""
    stack = GpuStack(driver="535.1", cuda="12.2")
    libraries = (BLAS, SIMD, package("torch", "CUDA 12.9"))
    (found,) = advise(sound(gpus=(GPU,), gpu_stack=stack, libraries=libraries))
    assert found.severity == "warning"
    older = (BLAS, SIMD, package("torch", "CUDA 11.8"))
    assert advise(sound(gpus=(GPU,), gpu_stack=stack, libraries=older)) == ()


def test_findings_are_plain_data():
    """They go into JSON as they are."""
    found = advise(sound(**FAULTS["gpu-shared"]))
    assert json.loads(msgspec.json.encode(found))[0]["severity"] == "warning"
