"""What names say: of annotations, Python functions, operators and calls of a runtime."""

from __future__ import annotations

import re
import sys

__all__ = ["is_input", "is_own_line", "is_read", "is_wait"]

INPUT_WORDS = {
    *("load", "loads", "loading", "loader", "loaders", "dataload", "dataloader", "dataloading"),
    *("dataset", "datasets", "fetch", "fetches", "fetching", "fetcher"),
    *("prefetch", "prefetching", "prefetcher", "collate"),
}
"""A name with one of these words says that input is fetched or prepared ..."""
OTHER_WORDS = {
    *("and", "model", "models", "module", "modules", "weight", "weights", "state", "states"),
    *("checkpoint", "checkpoints", "ckpt", "param", "params", "parameter", "parameters"),
    *("grad", "grads", "gradient", "gradients", "optimizer", "loss", "balance", "balancing"),
    *("library", "kernel", "kernels", "forward", "backward", "plugin", "config", "extension"),
}
"""... unless one of these stands in it too: "load_model", "moe_load_balance"."""
INPUT_VERBS = {"get", "next", "read", "reading", "wait", "prepare", "preparing", "queue"}
INPUT_NOUNS = {"data", "input", "inputs", "pipeline"}
BATCHES = {"batch", "batches", "minibatch", "minibatches", "sample", "samples"}
FILLERS = {"for", "the", "a", "new", "train", "training", "test", "validation", "raw"}
"""A name of nothing but these four: "data", "input_pipeline", "wait_for_batch". A batch needs a
verb, since "batch" and "train_batch" are turns of a loop as often."""
READS = {"aten::item", "aten::_local_scalar_dense"}
"""Operators that give a number to Python, and wait for it."""
LIBRARIES = (sys.stdlib_module_names - {"code", "profile", "test"}) | {
    *("torch", "torchvision", "jax", "jaxlib", "flax", "optax", "numpy", "scipy", "triton"),
    *("tensorflow", "transformers", "accelerate", "lightning", "pytorch_lightning", "tqdm"),
    *("IPython", "ipykernel", "tornado", "traitlets", "nbclient", "perfkit"),
}
"""Where the path of a frame begins so, it is not the user's own; a script may be called test.py."""
_INPUT = re.compile(r"__next__|IteratorGetNext|\bdataloader\.py|\butils/data/")
_WAIT = re.compile(r"synchroni[sz]e|waitfor|[a-z]finish$|hostwait", re.IGNORECASE)
_INSTALLED = re.compile(r"(?:site|dist)-packages/|/lib/python\d")
_FRAME = re.compile(r"(?P<path>[^(]+\.py|cell)\(\d+\)(?:: (?P<what>.+))?$")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_input(name: str) -> bool:
    """Does the name of an annotation, a Python function or an operator say that it fetches or
    prepares input? "load_batch", "DataLoader", "wait_for_batch"; not "upload", "load_model",
    "DataParallel".
    """
    if _INPUT.search(name):
        return True
    frame = _FRAME.match(name)
    words = {word.lower() for word in _WORD.findall(frame["what"] or "" if frame else name)}
    if words & INPUT_WORDS:
        return not words & OTHER_WORDS
    if words - INPUT_VERBS - INPUT_NOUNS - BATCHES - FILLERS:
        return False
    return bool(words & INPUT_NOUNS or (words & BATCHES and words & INPUT_VERBS))


def is_own_line(name: str) -> bool:
    """Is a Python function the user's own, and not that of a library or of a whole file?"""
    frame = _FRAME.match(name)
    if not frame or frame["what"] == "<module>" or _INSTALLED.search(frame["path"]):
        return False
    return frame["path"].partition("/")[0].removesuffix(".py") not in LIBRARIES


def is_read(name: str) -> bool:
    """Does an operator of this name hand a result of the device to Python?"""
    return name in READS


def is_wait(name: str) -> bool:
    """Does a call of a runtime wait for the device, as far as its name tells? For runtimes that no
    reader knows.
    """
    return bool(_WAIT.search(name))
