"""The one door to packages that may be absent or heavy."""

import importlib
import sys
from types import ModuleType

from perfkit.errors import MissingDependency

__all__ = ["EXTRAS", "loaded", "require"]

EXTRAS = {
    "PIL": "perfkit[workbook]",
    "cloudpickle": "perfkit[cluster]",
    "cupy": "perfkit[cuda13]",
    "grpc": "perfkit[live]",
    "h5py": "perfkit[workbook]",
    "ipyparallel": "perfkit[cluster]",
    "jax": "perfkit[workbook]",
    "jupyterlab": "perfkit[workbook]",
    "mpi4py": "perfkit[cluster]",
    "opt_einsum": "perfkit[workbook]",
    "pyopencl": "perfkit[workbook]",
    "torch": "perfkit[torch]",
}


def loaded(name: str) -> ModuleType | None:
    """The module if something has imported it already, else None. Imports nothing."""
    return sys.modules.get(name)


def require(name: str, needed_by: str) -> ModuleType:
    """Import a package, or raise MissingDependency with the pip line that brings it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        top = name.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == top:
            reason = "is not installed"
        else:
            reason = f"cannot be imported ({error})"
        raise MissingDependency(
            f"{needed_by} needs {top}, which {reason}: pip install '{EXTRAS.get(top, top)}'",
            name=top,
        ) from error
