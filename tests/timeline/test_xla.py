import re

import pytest

from perfkit.timeline.columns import KINDS, Lane
from perfkit.timeline.xla import CPU, EXECUTE, classify, is_launch, shown

WORKER = "tf_XLAPjRtCpuClient/-2224249450120687804"
ON_WORKER = Lane(CPU, "XLAPjRtCpuClient 687804")
MAIN = Lane("", "thread (python)")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gemm_fusion_dot_1", "kernel"),
        ("loop_add_fusion", "kernel"),
        ("MemcpyH2D", "h2d"),
        ("MemcpyD2H", "d2h"),
        ("MemcpyD2D", "d2d"),
        ("MemcpyP2P", "d2d"),
        ("CopyHostToDevice", "h2d"),
        ("Memset", "memset"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "collective"),
        ("all-gather-start.2", "collective"),
        ("CudaGraphExec:7", "device"),
        ("NVTX:range", "device_mark"),
    ],
)
def test_streams_of_a_gpu(name, kind):
    """What runs on a stream is work of the GPU, on a lane of the stream's number."""
    found = classify("/device:GPU:1", "Stream #13(Compute,MemcpyH2D)", name)
    assert found == (Lane("GPU 1", "stream 13"), kind)


@pytest.mark.parametrize(
    "line",
    ["Steps", "XLA Modules", "XLA Ops", "Framework Ops", "Framework Name Scope", "Source code"],
)
def test_derived_lines_of_a_gpu(line):
    """What the profiler derives from the streams is no work besides them."""
    assert classify("/device:GPU:0", line, "fusion.3") == (Lane("GPU 0", line), "device_mark")


@pytest.mark.parametrize(
    ("line", "name", "kind"),
    [
        ("XLA Ops", "fusion.3", "kernel"),
        ("XLA Ops", "convolution.1", "kernel"),
        ("XLA Ops", "all-reduce.3", "collective"),
        ("XLA Ops", "reduce-scatter.7", "collective"),
        ("XLA Ops", "collective-permute-done.1", "collective"),
        ("XLA Ops", "all-to-all", "collective"),
        ("XLA Ops", "recv-done.2", "collective"),
        ("XLA Ops", "reduce.3", "kernel"),
        ("XLA Ops", "copy-done.5", "d2d"),
        ("XLA Ops", "copy_fusion", "kernel"),
        ("XLA Ops", "while.3", "device_mark"),
        ("XLA Ops", "infeed.1", "device_mark"),
        ("Async XLA Ops", "copy-start.5", "d2d"),
        ("Async XLA Ops", "slice-start.5", "d2d"),
        ("Async XLA Ops", "all-gather-start", "collective"),
        ("XLA Modules", "jit_train(123)", "device_mark"),
        ("Steps", "3", "device_mark"),
    ],
)
def test_lines_of_a_tpu(line, name, kind):
    """XLA's operations are the work of a TPU; loops hold them and infeeds wait for the host."""
    assert classify("/device:TPU:3", line, name) == (Lane("TPU 3", line), kind)


def test_parts_of_a_chip():
    """The sparse cores of a TPU are lanes of it."""
    found = classify("/device:TPU:0 SparseCore 1", "Sparse Core Ops", "fusion.9")
    assert found == (Lane("TPU 0", "SparseCore 1, Sparse Core Ops"), "kernel")


@pytest.mark.parametrize(
    ("name", "op", "kind"),
    [
        ("ynn_fusion.2", "ynn_fusion.2", "kernel"),
        ("ynn_fusion.2", "", "kernel"),
        ("psum_invariant.7", "all-reduce", "collective"),
        ("while.5", "while", "device_mark"),
        ("cond.1.clone", "conditional", "device_mark"),
        ("copy.6", "copy", "d2d"),
        ("H2D Dispatch", "", "h2d"),
        (EXECUTE, "", "device_mark"),
    ],
)
def test_workers_of_the_processor(name, op, kind):
    """On the processor the threads that run programs are the device's lanes."""
    assert classify("/host:CPU", WORKER, name, op) == (ON_WORKER, kind)


def test_inline_work():
    """A small program runs on the thread that called it: told by its operations alone."""
    found = classify("/host:CPU", "python", "copy", "copy")
    assert found == (Lane(CPU, "calling thread (python)"), "d2d")
    assert classify("/host:CPU", "python", "copy") == (MAIN, "annotation")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("load", "annotation"),
        ("model::forward", "annotation"),
        ("$train.py:12 log_step", "python"),
        ("PjitFunction(f)", "op"),
        ("backend_compile_and_load", "compile"),
        ("lower_sharding_computation", "compile"),
        ("XlaCompile", "compile"),
        ("PjRtCpuClient::Compile", "compile"),
        ("PjRtComputationClient::Compile", "compile"),
        ("np.asarray(jax.Array)", "wait"),
        ("PjRtComputationClient::TransferFromDevice", "wait"),
        ("PjRtComputationClient::WaitDeviceOps", "wait"),
        ("PjRtComputationClient::TransferToDevice", "runtime"),
        ("PjRtComputationClient::ExecuteComputation", "runtime"),
        ("SyncTensorsGraph", "runtime"),
        ("StepMarker", "runtime"),
        ("mark_step", "runtime"),
        ("Wait for usage holds", "runtime"),
        ("cuLaunchKernel", "runtime"),
        ("cuStreamSynchronize", "wait"),
        ("hipModuleLoad", "compile"),
    ],
)
def test_threads_of_the_host(name, kind):
    """On a thread of the user, names that are not the libraries' are annotations."""
    assert classify("/host:CPU", "python", name) == (MAIN, kind)


@pytest.mark.parametrize(
    ("process", "thread", "name"),
    [
        ("/host:CPU", WORKER, "ThreadpoolListener::StartRegion"),
        ("/host:CPU", WORKER, "end: ynn_fusion.2"),
        ("/host:CPU", WORKER, "SlinkyThreadPool::Await"),
        ("/host:CPU", "python", "CommonPjRtBuffer::Await"),
        ("/host:CPU", "tf_PjRtCompilerThreadPool/3", "algsimp"),
        ("/host:metadata", "", "jit_f(6)"),
        ("/device:GPU:0", "_counters_", "power_mw"),
        ("/device:GPU:0", "Stream #7", "MemoryAlloc"),
    ],
)
def test_left_out(process, thread, name):
    """What only the profiler itself needs is no row, nor are the hundreds of compiler passes."""
    assert classify(process, thread, name) is None


@pytest.mark.parametrize("thread", ["", "python", WORKER, "Stream #1", "XLA Ops", "x" * 1000])
@pytest.mark.parametrize("process", ["", "/device:GPU:0", "/device:CUSTOM:X:1", "/host:CPU", "a b"])
def test_any_names(process, thread):
    """There is an answer for any names, and its kind is one of KINDS."""
    for name in ("", "<b>", "$", "$x", "$ a b", "::", "é" * 300, "Memcpy", "\x00"):
        found = classify(process, thread, name)
        assert found is None or (isinstance(found[0], Lane) and found[1] in KINDS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("load", "load"),
        ("$train.py:12 log_step", "train.py(12): log_step"),
        ("$pjit.py:250 cache_miss", "jax/pjit.py(250): cache_miss"),
        ("$2883019481.py:3 step", "cell(3): step"),
        ("$<frozen os>:674 __getitem__", "<frozen os>(674): __getitem__"),
        ("$time sleep", "time.sleep"),
        ("$<unknown> append", "append"),
        ("$", ""),
    ],
)
def test_shown(name, text):
    """Python's functions are shown as file, line and name; JAX's own as such."""
    assert shown(name) == text


def test_launches():
    """Calls that start programs and copies are told from their preparation."""
    names = ("CommonPjRtLoadedExecutable::Execute", "PjRtCpuExecutable::ExecuteHelper", "DevicePut")
    assert all(map(is_launch, names))
    assert not any(map(is_launch, ("A::ExecutePrepare", EXECUTE, "PjitFunction(Execute)")))


def test_lanes_are_stable():
    """The same names give the same answer, whichever came before."""
    pair = classify("/host:CPU", WORKER, "a.1", "a.1"), classify("/host:CPU", WORKER, "b.2", "b.2")
    assert pair[0] == pair[1] == (ON_WORKER, "kernel")
    assert re.fullmatch(r"\w+ \d{6}", ON_WORKER.name)
