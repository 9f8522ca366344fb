"""The one door to packages that may be absent."""

import sys

import pytest

from perfkit.errors import MissingDependency
from perfkit.optional import EXTRAS, loaded, require


def test_require_gives_the_module():
    """A package that is there is imported and given."""
    import json

    assert require("json", "a test") is json
    assert require("os.path", "a test") is sys.modules["os.path"]


def test_missing_package():
    """A package that is not there is named with who needs it and the pip line that brings it."""
    with pytest.raises(MissingDependency) as caught:
        require("no_such_package", "%tiers")
    text = "%tiers needs no_such_package, which is not installed: pip install 'no_such_package'"
    assert str(caught.value) == text
    assert caught.value.name == "no_such_package" and isinstance(caught.value, ImportError)


@pytest.mark.parametrize("name", EXTRAS)
def test_extra_is_named(name, monkeypatch):
    """A package of an extra is brought by that extra of perfkit."""
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency) as caught:
        require(name, "this")
    assert f"pip install 'perfkit[{EXTRAS[name].partition('[')[2]}'" in str(caught.value)


def test_submodule_of_missing():
    """A submodule of a missing package asks for the package."""
    with pytest.raises(MissingDependency, match="needs no_such_package, which is not installed"):
        require("no_such_package.part", "a test")


def test_broken_package(tmp_path, monkeypatch):
    """A package that is there but cannot be imported says why, and not that it is missing."""
    (tmp_path / "brokenpkg.py").write_text("import no_such_part\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependency, match=r"cannot be imported .*no_such_part"):
        require("brokenpkg", "a test")
    assert "brokenpkg" not in sys.modules


def test_error_inside_is_not_hidden(tmp_path, monkeypatch):
    """An error of another kind while a package is imported comes out as it is."""
    (tmp_path / "raisingpkg.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        require("raisingpkg", "a test")


def test_loaded_imports_nothing(tmp_path, monkeypatch):
    """Asking whether a package is loaded does not load it."""
    (tmp_path / "quietpkg.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert loaded("quietpkg") is None and "quietpkg" not in sys.modules
    module = require("quietpkg", "a test")
    assert loaded("quietpkg") is module
    monkeypatch.delitem(sys.modules, "quietpkg")
