"""A program of the corpus: what runs, where its parts are, how long each takes in a plain run."""

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from types import CodeType
from typing import NamedTuple

MARK = "# part"


class Part(NamedTuple):
    """A whole statement at the top of the body; lines as in its file."""

    line: int
    end_line: int
    loop: bool


class Times(NamedTuple):
    """Seconds of one plain run and of each of its parts."""

    wall_s: float
    parts_s: tuple[float, ...]

    @property
    def shares(self):
        return tuple(seconds / self.wall_s for seconds in self.parts_s)


def parse(function):
    """The definition of a function at the top of its module, with the file's own line numbers."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse("".join(lines))
    ast.increment_lineno(tree, first - 1)
    marked = {first + i for i, text in enumerate(lines) if text.rstrip().endswith(MARK)}
    return tree.body[0], marked


def mark():
    """A statement that notes the time."""
    return ast.parse("_marks.append(_now())").body[0]


def names(code):
    """Every global name and attribute that a code object and those inside it use."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*map(names, inner))


@dataclass(frozen=True)
class Program:
    """`run()` works for 0.1 s or more, nearly all of it in the marked statements of `body`.

    `body` is `run` itself unless it is named (a coroutine that `run` drives). Lines that end in
    `# part` begin a part. A program that is held out was not there when rules were tuned.
    """

    name: str
    run: Callable[[], object]
    body: Callable[[], object] | None = None
    held_out: bool = False

    @property
    def home(self):
        """The function whose statements are the parts."""
        return self.body or self.run

    @cached_property
    def parts(self):
        definition, marked = parse(self.home)
        found = tuple(
            Part(node.lineno, node.end_lineno, isinstance(node, ast.For | ast.While))
            for node in definition.body
            if node.lineno in marked
        )
        if len(found) != len(marked):
            raise ValueError(f"{self.name}: a mark is not on the first line of a statement")
        return found

    @cached_property
    def timed(self):
        """A copy of `run` with the time noted around each part; called, it returns Times."""
        lines = {part.line for part in self.parts}
        inner, _ = parse(self.home)
        inner.body = [
            node
            for statement in inner.body
            for node in ([mark(), statement, mark()] if statement.lineno in lines else [statement])
        ]
        # Closures, not globals: both copies keep the globals of the program's own module.
        maker = ast.parse(f"def make(_now, _marks):\n    return {self.run.__name__}")
        copies = [inner] if self.body is None else [inner, parse(self.run)[0]]
        maker.body[0].body[:0] = copies
        space = {}
        file = inspect.getsourcefile(self.run)
        code = compile(ast.fix_missing_locations(maker), file, "exec")
        exec(code, self.run.__globals__, space)
        marks = []
        copy = space["make"](perf_counter, marks)

        def timed():
            marks.clear()
            start = perf_counter()
            copy()
            wall_s = perf_counter() - start
            return Times(wall_s, tuple(marks[i + 1] - marks[i] for i in range(0, len(marks), 2)))

        return timed

    @cached_property
    def functions(self):
        """`run` and the functions and methods of its module that it reaches by name."""
        file = self.run.__code__.co_filename
        found, waiting = {}, [self.run]
        while waiting:
            thing = inspect.unwrap(waiting.pop())
            if isinstance(thing, type) and thing.__module__ == self.run.__module__:
                waiting += [getattr(value, "fget", value) for value in vars(thing).values()]
                continue
            code = getattr(thing, "__code__", None)
            if code is not None and code not in found and code.co_filename == file:
                found[code] = thing
                scope = self.run.__globals__
                waiting += [scope[name] for name in names(code) if name in scope]
        return tuple(found.values())
