"""Who may import whom: the table in the design, held by a parse of every module."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import perfkit

PACKAGE = Path(perfkit.__file__).parent
GROUND = {"errors", "units", "optional", "intervals", "records"}
MAY_IMPORT = {
    "errors": set(),
    "units": set(),
    "optional": {"errors"},
    "intervals": set(),
    "records": {"errors"},
    "system": GROUND,
    "timeline": GROUND,
    "devices": GROUND | {"system", "timeline"},
    "measure": GROUND | {"system", "timeline", "devices"},
    "models": GROUND,
    "ranks": GROUND | {"system"},
    "tiers": GROUND | {"system", "devices", "measure", "ranks", "ledger"},
    "ledger": GROUND,
    "render": GROUND | {"models", "timeline"},
}
BELOW = set(MAY_IMPORT)
MAY_IMPORT |= {"lessons": BELOW, "magics": BELOW, "cli": BELOW}
# Modules that a class must inherit from; only functions import the rooms that use them.
LEAVES: dict[str, set[str]] = {}


def modules() -> dict[str, ast.Module]:
    """Every module of the package with its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(parts)] = ast.parse(path.read_text())
    return found


def imported(tree: ast.AST) -> set[str]:
    """Dotted names that a tree imports, at the top or inside functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_of(name: str) -> str | None:
    """The module of perfkit that a dotted name is or lies in."""
    for candidate in (name, name.rpartition(".")[0]):
        if candidate.startswith("perfkit.") and candidate.removeprefix("perfkit.") in MODULES:
            return candidate
    return None


def rooms(names: set[str]) -> set[str]:
    """The top-level rooms of perfkit among dotted names."""
    return {name.split(".")[1] for name in names if name.startswith("perfkit.")}


MODULES = modules()
ROOMS = {name.split(".")[0] for name in MODULES if name}


def test_rooms_are_in_the_table():
    """Every room of the package has a row in the table."""
    assert MAY_IMPORT.keys() >= ROOMS


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_go_down(name):
    """A module imports only rooms below its own, or its own."""
    room = name.split(".")[0]
    reached = rooms(imported(MODULES[name])) & ROOMS
    assert reached <= MAY_IMPORT[room] | {room}


def test_table_can_fail():
    """The check sees a forbidden import where there is one."""
    tree = ast.parse("def f():\n    from perfkit.magics import cell")
    assert not rooms(imported(tree)) <= MAY_IMPORT["measure"]


def test_no_cycles():
    """No module imports itself by way of others."""
    graph = {
        f"perfkit.{name}": {module_of(target) for target in imported(tree)} - {None}
        for name, tree in MODULES.items()
        if name
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_only_magics_know_ipython():
    """IPython is imported by the magics and the package's root alone."""
    users = {
        name.split(".")[0]
        for name, tree in MODULES.items()
        if any(target.split(".")[0] == "IPython" for target in imported(tree))
    }
    assert users <= {"", "magics"}


def test_no_public_name_is_a_submodule():
    """perfkit.x is never both a name and a module."""
    assert not set(perfkit.__all__) & ROOMS


@pytest.mark.parametrize("name", perfkit.__all__)
def test_public_names_resolve(name):
    """Every public name can be had, and has a docstring."""
    assert getattr(perfkit, name).__doc__


def test_folders_hold_siblings():
    """A folder of the package exists only where three or more modules share a shape."""
    counts = {
        folder.name: len([p for p in folder.glob("*.py") if p.name != "__init__.py"])
        for folder in PACKAGE.iterdir()
        if folder.is_dir() and folder.name != "__pycache__"
    }
    assert all(count >= 3 for count in counts.values()), counts
