"""The step on the syntax tree: a cell's statements become the body of one loop.

The names that the rewritten cell needs are few, and %reset may take them away at any time, so the
engine is reached through this module's own table.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["BEGIN", "RUN", "VALUE", "Loop", "Target", "targets"]

BEGIN = "__perfkit__"
"""What the text step calls in line 1: BEGIN(magic, line)."""
RUN, VALUE = "__perfkit_run__", "__perfkit_value__"


class Target(Protocol):
    """What the rewritten cell calls at run time."""

    def begin(self, magic: str, line: str) -> Any:
        """An iterable that yields once for each run of the body."""

    def value(self, name: str) -> Any:
        """Give away the value that the body left under `name`."""

    def refuse_empty(self, magic: str) -> None:
        """Raise: the body has no code."""


targets: dict[int, Target] = {}
"""Engines by their id, for the calls in rewritten cells."""


class Loop(ast.NodeTransformer):
    """Builds the loop around cells that begin with a call of BEGIN; leaves others alone.

    It must not raise: IPython would drop it for the rest of the session.
    """

    def __init__(self, target: Target, shell: Any) -> None:
        self._key, self._shell = id(target), shell
        targets[self._key] = target

    def forget(self) -> None:
        """Let the engine go."""
        targets.pop(self._key, None)

    def visit_Module(self, module: ast.Module) -> ast.Module:
        # A step of the user's may have put statements in front of ours.
        for place, statement in enumerate(module.body):
            if arguments := _begin_arguments(statement):
                ahead, body = module.body[:place], module.body[place + 1 :]
                return self._around(ahead, statement, arguments, body)
        return module

    def _around(
        self,
        ahead: list[ast.stmt],
        first: ast.stmt,
        arguments: list[ast.expr],
        body: list[ast.stmt],
    ) -> ast.Module:
        if not body:
            refusal = ast.Expr(self._call("refuse_empty", *arguments[:1]))
            return _module([*ahead, ast.copy_location(refusal, first)])
        wrong = next((node for node in body if not self._compiles(node)), None)
        if wrong is not None:
            # Inside the loop a stray `break` would be legal. Alone it raises as it always did.
            return _module([wrong])
        future = [node for node in body if _is_future_import(node)]
        body = [node for node in body if not _is_future_import(node)]
        shown = self._take_values(body)
        # Drop the last values before the next are made, so that only one of each is ever alive.
        release = [_assign(f"{VALUE}{i}", ast.Constant(None)) for i in range(len(shown))]
        loop = ast.For(
            target=ast.Name(RUN, ast.Store()),
            iter=self._call("begin", *arguments),
            body=[*release, *body] or [ast.Pass()],
            orelse=[],
        )
        # IPython may run the last statement interactively: that must not be the loop.
        return _module([*future, *ahead, ast.copy_location(loop, first), *(shown or [ast.Pass()])])

    def _compiles(self, node: ast.stmt) -> bool:
        flags = self._shell.compile.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                compile(_module([node]), "<cell>", "exec", flags=flags)
            except (SyntaxError, ValueError):
                return False
        return True

    def _take_values(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Make `body` save the values that IPython would show; the statements that show them."""
        interactivity = self._shell.ast_node_interactivity
        name = _assigned_name(body[-1]) if body else ""
        if interactivity == "last_expr_or_assign" and name:
            body.append(ast.copy_location(ast.Expr(ast.Name(name, ast.Load())), body[-1]))
        places = [i for i, node in enumerate(body) if isinstance(node, ast.Expr)]
        if interactivity != "all":
            places = [i for i in places if i == len(body) - 1]
        shown: list[ast.stmt] = []
        for number, place in enumerate(places):
            node = body[place]
            assert isinstance(node, ast.Expr)
            slot = f"{VALUE}{number}"
            body[place] = ast.copy_location(_assign(slot, node.value), node)
            give = ast.Expr(self._call("value", ast.Constant(slot)))
            shown.append(ast.copy_location(give, node))
        return shown

    def _call(self, method: str, *arguments: ast.expr) -> ast.expr:
        """`method(*arguments)` on the engine."""
        where = f"__import__({__name__!r}, fromlist=['targets']).targets[{self._key}].{method}()"
        call = ast.parse(where, mode="eval").body
        assert isinstance(call, ast.Call)
        call.args.extend(arguments)
        return call


def _module(body: Sequence[ast.stmt]) -> ast.Module:
    return ast.fix_missing_locations(ast.Module(body=list(body), type_ignores=[]))


def _begin_arguments(statement: ast.stmt) -> list[ast.expr]:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=arguments)) if name == BEGIN:
            return arguments
    return []


def _is_future_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _assigned_name(node: ast.stmt) -> str:
    """The one plain name that a statement assigns, or nothing."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AugAssign(target=ast.Name(id=name)) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def _assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign(targets=[ast.Name(name, ast.Store())], value=value)
