import pytest

from perfkit.timeline.words import is_input, is_own_line, is_wait


@pytest.mark.parametrize(
    "name",
    [
        "load",
        "## load_batch ##",
        "loadBatch",
        "DataLoader",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "torch/utils/data/dataloader.py(634): __next__",
        "train.py(12): load_batch",
        "cell(3): batch = next(loader)",
        "wait_for_batch",
        "next batch",
        "data",
        "input_pipeline",
        "train_loader",
        "prefetch",
    ],
)
def test_names_of_input(name):
    """Names that say that input is fetched or prepared."""
    assert is_input(name)


@pytest.mark.parametrize(
    "name",
    [
        "upload",
        "payload",
        "reload_weights",
        "load_model",
        "load_state_dict",
        "moe_load_balance",
        "load_and_train",
        "forward_data_parallel",
        "DistributedDataParallel.forward",
        "## all2all_data:lengths_wait ##",
        "## sparse_data_dist ##",
        "aten::_log_softmax_backward_data",
        "batch",
        "batch 17",
        "train_batch",
        "batch_norm",
        "augment",
        "/data/datasets/run/train.py(12): log_step",
        "load.py(3): forward",
        "",
    ],
)
def test_names_of_something_else(name):
    """Names with the same letters that say something else."""
    assert not is_input(name)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("train.py(12): log_step", True),
        ("cell(3): loss = model(x)", True),
        ("work/train.py(12): log_step", True),
        ("models/unet.py(80): forward", True),
        ("train.py(1): <module>", False),
        ("<built-in method sleep>", False),
        ("<string>(1): <module>", False),
        ("threading.py(320): wait", False),
        ("torch/nn/modules/module.py(1511): _call_impl", False),
        ("/usr/lib/python3.11/queue.py(171): get", False),
        ("/venv/lib/site-packages/x/y.py(1): z", False),
        ("nn.Module: Linear_0", False),
    ],
)
def test_the_users_own_lines(name, own):
    """Frames of the user, not of libraries, built-ins or whole files."""
    assert is_own_line(name) == own


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("npuSynchronizeStream", True),
        ("zeEventHostSynchronize", True),
        ("clWaitForEvents", True),
        ("clFinish", True),
        ("cudaStreamWaitEvent", False),
        ("launch", False),
    ],
)
def test_calls_that_wait(name, waits):
    """Calls of runtimes that no reader knows; a stream that waits for an event holds no thread."""
    assert is_wait(name) == waits
