"""Copy the lessons to a folder of your own and open JupyterLab there. Your edits are kept."""

from __future__ import annotations

import argparse
import errno
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

import perfkit
from perfkit import units
from perfkit.errors import PerfkitError, UsageError
from perfkit.optional import require

__all__ = ["HELP", "MANIFEST", "add_arguments", "command", "copy_lessons", "run", "shipped_lessons"]

HELP = "copy the lessons to a folder and open JupyterLab there"
MANIFEST = ".perfkit-workbook.json"
"""In the folder: for each file the digests of the versions that perfkit put there, newest last."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare DIR and the options."""
    parser.usage = "perfkit lab [DIR] [--port N] [--no-open] [-- ARGUMENTS OF JUPYTER LAB]"
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        type=Path,
        default=Path("perfkit-workbook"),
        help="where your copy lies (default ./perfkit-workbook)",
    )
    parser.add_argument("--port", metavar="N", type=_port, help="port of JupyterLab (default 8888)")
    parser.add_argument(
        "--no-open", dest="open", action="store_false", help="copy, and start nothing"
    )


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError("give a number from 1 to 65535")
    return int(text)


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """Copy, then become JupyterLab. Nothing is copied if JupyterLab is wanted but missing."""
    if arguments.open:
        require("jupyterlab", "perfkit lab")
    folder = arguments.folder.absolute()
    yield from copy_lessons(shipped_lessons(), folder)
    if arguments.open:
        words = command(folder, arguments.port, arguments.further)
        os.execv(words[0], words)


def command(folder: Path, port: int | None, further: Sequence[str]) -> list[str]:
    """The command line that opens JupyterLab in `folder`."""
    words = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    if port is not None:
        words.append(f"--port={port}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--allow-root")  # in a container there is often no other user
    return [*words, *further]


def shipped_lessons() -> Path:
    """The folder of the lessons: inside an installed package, beside it in a checkout."""
    package = Path(perfkit.__file__).parent
    for folder in (package / "notebooks", package.parent / "notebooks"):
        if any(folder.glob("[0-9]*.ipynb")):
            return folder
    raise PerfkitError("this perfkit has no lessons in it: install it again, pip install perfkit")


def copy_lessons(source: Path, folder: Path) -> Iterator[str]:
    """Bring the files of `source` to `folder`, and say what happened in lines.

    A file that the learner has changed is never written over: it is named, and a newer version is
    laid beside it once, as NAME.new.ipynb. Raises PerfkitError in one line.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file: give a folder, as in perfkit lab my-workbook")
        if folder.exists() and folder.samefile(source):
            yield f"{folder} is where the lessons come from: nothing to copy"
            return
        folder.mkdir(parents=True, exist_ok=True)
        yield from _copy(source, folder)
    except OSError as error:
        cure = "free some space" if error.errno in _FULL else "give another: perfkit lab DIR"
        reason = error.strerror or type(error).__name__
        raise PerfkitError(f"{folder} cannot take the lessons ({reason}): {cure}") from error


def _copy(source: Path, folder: Path) -> Iterator[str]:
    known = _read_manifest(folder)
    written = 0
    paths = sorted([*source.glob("[0-9]*.ipynb"), *source.glob("figures/*.*")])
    for path in paths:
        name = path.relative_to(source).as_posix()
        digests = known.setdefault(name, [])
        content, target = path.read_bytes(), folder / name
        if _digest(target) in (None, *digests, _digest(path)):
            written += _write(target, content)
            _remember(digests, path)
        else:
            yield _lay_beside(path, target, digests)
    # Last: what is not in it counts as changed by the learner, which loses nothing.
    _write(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(known)))
    yield f"{units.count(len(paths), 'file')} in {folder}, {written} new or updated"


def _lay_beside(path: Path, target: Path, digests: list[str]) -> str:
    """Keep `target`, which the learner has changed; a version not yet seen goes beside it."""
    kept = f"{target.name}: you have changed it, it stays"
    if digests[-1:] == [_digest(path)]:
        return kept
    beside = target.with_suffix(f".new{target.suffix}")
    if _digest(beside) not in (None, *digests, _digest(path)):
        return f"{kept}; rename {beside.name}, which you have changed too, to get the new version"
    _write(beside, path.read_bytes())
    _remember(digests, path)
    return f"{kept}; the new version is {beside.name}"


def _remember(digests: list[str], path: Path) -> None:
    digest = str(_digest(path))
    digests[:] = [*(old for old in digests if old != digest), digest]


def _digest(path: Path) -> str | None:
    """Of the content; None if there is no file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _read_manifest(folder: Path) -> dict[str, list[str]]:
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict[str, list[str]])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _write(path: Path, content: bytes) -> bool:
    """Put `content` there whole or not at all; False if it is there already."""
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise
    return True
