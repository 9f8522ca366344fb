"""What a name stands for, what is found by name, and what is refused in one line."""

import asyncio
import functools
import importlib.util
import json
import linecache
import math
import textwrap

import numpy as np
import pytest

from perfkit.errors import UsageError
from perfkit.measure.lines import targets
from perfkit.measure.lines.profile import profile_lines

SOURCE = """
import functools, contextlib, dataclasses


def plain(n=3):
    total = 0
    for i in range(n):
        total += i
    return total


def noisy(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        result = function(*args, **kwargs)
        return result
    return wrapper


@functools.lru_cache
def cached(n):
    return plain(n)


@noisy
@noisy
def wrapped(n=3):
    total = n
    return total


@contextlib.contextmanager
def manager():
    x = 1
    yield x
    x = 2


@functools.singledispatch
def dispatched(x):
    return "any"


@dispatched.register
def _(x: int):
    return "int"


class Model:
    scale = 2

    def __init__(self):
        self.state = 0

    def step(self, n=1):
        self.state += n
        return self.helper(n)

    def helper(self, n):
        return n * self.scale

    @property
    def value(self):
        return self.state

    @functools.cached_property
    def once(self):
        return self.state + 1

    @staticmethod
    def static(n):
        return n + 1

    @classmethod
    def make(cls):
        return cls()

    def __call__(self, n):
        return self.step(n)


class Child(Model):
    def helper(self, n):
        return super().helper(n) + 1


@dataclasses.dataclass
class Point:
    x: int = 0

    def norm(self):
        return abs(self.x)


def use_model(n=3):
    model = Model()
    for i in range(n):
        model.step(i)
    return model.value


def closure(n=3):
    k = 2
    def inner(x):
        return x * k
    return [inner(i) for i in range(n)]


def even(n):
    if n == 0:
        return True
    return odd(n - 1)


def odd(n):
    if n == 0:
        return False
    return even(n - 1)


async def coroutine(n=3):
    return plain(n)


def generator(n=3):
    for i in range(n):
        yield i


partly = functools.partial(plain, 5)
table = {"plain": plain}
sample = Model()
sharp = lambda x: x + 1


def by_table(n=3):
    for key in table:
        table[key](n)


def by_global_object():
    return sample.step(2)
"""


@pytest.fixture
def own(tmp_path):
    """A user's module with functions of all kinds."""
    return load(tmp_path, "perfkit_own_module", SOURCE)


def load(tmp_path, name, source):
    """A module from a new file."""
    path = tmp_path / f"{name}.py"
    path.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hits(profile, function):
    """Hits of a function's rows in source order."""
    return [row.hits for row in profile.statements if row.function == function]


def names(profile):
    """Which functions the profile shows."""
    return {function.name for function in profile.functions}


# -- what a name stands for --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pick", "found"),
    [
        (lambda m: m.plain, ["plain"]),
        (lambda m: m.cached, ["cached"]),
        (lambda m: m.wrapped, ["noisy.<locals>.wrapper", "noisy.<locals>.wrapper", "wrapped"]),
        (lambda m: m.manager, ["manager"]),
        (lambda m: m.partly, ["plain"]),
        (lambda m: functools.partial(m.partly), ["plain"]),
        (lambda m: vars(m.Model)["value"], ["Model.value"]),
        (lambda m: vars(m.Model)["once"], ["Model.once"]),
        (lambda m: vars(m.Model)["static"], ["Model.static"]),
        (lambda m: vars(m.Model)["make"], ["Model.make"]),
        (lambda m: m.Model.make, ["Model.make"]),
        (lambda m: m.Model().step, ["Model.step"]),
        (lambda m: m.coroutine, ["coroutine"]),
        (lambda m: m.generator, ["generator"]),
        (lambda m: m.Child, ["Child.helper"]),
    ],
    ids=str,
)
def test_unwrap(own, pick, found):
    """A name stands for the Python functions behind all that is wrapped around them."""
    functions, _ = targets.unwrap(pick(own), "name")
    assert [each.__code__.co_qualname for each in functions] == found


def test_classes_count_with_all_their_functions(own):
    """A class stands for its methods, properties, static and class methods."""
    functions, _ = targets.unwrap(own.Model, "Model")
    wanted = {"__init__", "step", "helper", "value", "once", "static", "make", "__call__"}
    assert {each.__name__ for each in functions} == wanted


def test_wrapping_is_told(own):
    """What was taken off is said once, with the name."""
    assert targets.unwrap(own.plain, "plain")[1] == []
    (note,) = targets.unwrap(own.cached, "cached")[1]
    assert note.startswith("cached is wrapped") and "\n" not in note


def test_compiled_like_numba():
    """An object of numba's stands for its Python function, and the report says so."""

    def kernel(n):
        return n

    kind = type("Dispatcher", (), {"__module__": "numba.core.registry", "py_func": None})
    dispatcher = kind()
    dispatcher.py_func = kernel
    functions, notes = targets.unwrap(dispatcher, "kernel")
    assert functions == [kernel] and "compiled by numba" in notes[0]


def test_compiled_by_jax(own):
    """A jitted function is profiled while it is traced, and the report says so."""
    import jax

    jitted = jax.jit(own.plain, static_argnums=0)
    profile = profile_lines(jitted, 5, mode="exact")
    assert hits(profile, "plain") == [1, 6, 5, 1]
    assert any("compiled by JAX" in note for note in profile.notes)


def test_singledispatch_shows_what_runs(own):
    """The function that single dispatch chooses is among those profiled."""
    profile = profile_lines(own.dispatched, 3, mode="exact")
    assert hits(profile, "_") == [1]


def test_dataclass(own):
    """A dataclass counts with the methods that have a source; the generated ones have none."""

    def body():
        return own.Point(-3).norm()

    profile = profile_lines(body, mode="exact", functions=[own.Point])
    assert hits(profile, "Point.norm") == [1]


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (len, "written in C"),
        (math.sin, "written in C"),
        ([].append, "written in C"),
        (np.dot, "written in C"),
        (np.add, "ufunc"),
        (str.upper, "written in C"),
        (json, "is a module"),
        (3, "of type int"),
        ("plain", "of type str"),
        (None, "of type NoneType"),
        (int, "class without Python functions"),
        (type("Empty", (), {}), "class without Python functions"),
        ((n for n in range(3)), "is a generator that has been made"),
        (lambda: None, "a lambda is part of the statement"),
    ],
    ids=repr,
)
def test_refused(own, target, text):
    """What has no lines of Python is refused before anything runs, in one line that says why."""
    runs = []

    def body():
        runs.append(1)

    with pytest.raises(UsageError, match=text) as caught:
        profile_lines(body, functions=[target])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    assert runs == []


def test_lambda_as_body(own):
    """A lambda as the body is a way to pass arguments: what it calls is profiled."""
    profile = profile_lines(lambda: own.plain(4), mode="exact")
    assert hits(profile, "plain") == [1, 5, 4, 1]


def test_coroutine_object_is_refused(own):
    """A coroutine that has been made cannot be profiled: its function can."""
    made = own.coroutine()
    with pytest.raises(UsageError, match="is a coroutine that has been made: name its function"):
        profile_lines(own.plain, functions=[made])
    made.close()


def test_async_generator_object_is_refused():
    """An asynchronous generator that has been made is refused in one line."""

    async def numbers():
        yield 1

    with pytest.raises(UsageError, match=r"async.*generator"):
        profile_lines(numbers, functions=[numbers()])


def test_not_a_function():
    """What cannot be called is refused with its type."""
    with pytest.raises(UsageError, match="runs a function, not int"):
        profile_lines(3)


def test_objects_that_can_be_called(own):
    """An object with __call__ is run like a function, and its class is profiled."""
    profile = profile_lines(own.Model(), 4, mode="exact")
    assert hits(profile, "Model.__call__") == [1]
    assert hits(profile, "Model.step") == [1, 1]


def test_class_as_body(own):
    """Making an object profiles its __init__."""
    assert hits(profile_lines(own.Model, mode="exact"), "Model.__init__") == [1]


def test_builtin_as_body_that_calls_own_code(own):
    """A builtin that gets own functions is refused, or shows their lines."""
    try:
        profile = profile_lines(map, own.plain, [1, 2], functions=[own.plain])
    except UsageError as error:
        assert "written in C" in str(error) or "class without" in str(error)
    else:
        assert "plain" in names(profile)


# -- sources that are not there ----------------------------------------------------------------


def test_made_by_exec():
    """A function made by exec has no source: that is said in one line."""
    names = {}
    exec("def made():\n    return 1\n", names)
    with pytest.raises(UsageError, match="made: its source is not to be found"):
        profile_lines(names["made"])


def test_deleted_file(tmp_path):
    """A function whose file is gone is refused."""
    module = load(tmp_path, "perfkit_gone", "def gone():\n    return 1\n")
    (tmp_path / "perfkit_gone.py").unlink()
    linecache.clearcache()
    with pytest.raises(UsageError, match="gone: its source is not to be found"):
        profile_lines(module.gone)


@pytest.mark.parametrize(
    "new",
    [
        "# a line more\ndef f(n):\n    x = n\n    y = x\n    return y\n",
        "def f(n):\n    return n\n",
        "def g(n):\n    x = n\n    y = x\n    return y\n",
        "def f(n):\n    x = (n)\n\n    y = x\n    return y\n",
        "def f(n:\n",
        "",
    ],
    ids=["moved", "shorter", "renamed", "longer", "broken", "empty"],
)
def test_changed_file(tmp_path, new):
    """A function whose file was changed since is refused: its lines would carry other text."""
    module = load(tmp_path, "perfkit_changed", "def f(n):\n    x = n\n    y = x\n    return y\n")
    (tmp_path / "perfkit_changed.py").write_text(new)
    with pytest.raises(UsageError, match="f: its source is not to be found"):
        profile_lines(module.f, 3)


def test_changed_words(tmp_path):
    """Lines of the same shape with other words in them are not passed off as those that ran."""
    module = load(tmp_path, "perfkit_words", "def f(n):\n    x = n + 1\n    return x\n")
    (tmp_path / "perfkit_words.py").write_text("def f(n):\n    z = abs(n)\n    return z\n")
    with pytest.raises(UsageError, match="f: its source is not to be found"):
        profile_lines(module.f, 3)


def test_redefined_function(tmp_path):
    """Of two functions with one name each is shown with its own lines."""
    module = load(
        tmp_path,
        "perfkit_twice",
        """
        def f():
            return 1
        first = f
        def f():
            x = 2
            return x
        """,
    )
    assert [row.line for row in profile_lines(module.first, mode="exact").statements] == [3]
    assert [row.line for row in profile_lines(module.f, mode="exact").statements] == [6, 7]


# -- found by name -----------------------------------------------------------------------------


def test_called_through_a_module(tmp_path, own):
    """Functions that are called as module.f are found."""
    names = {"own": own}
    path = tmp_path / "caller.py"
    path.write_text("def run():\n    return own.plain(4)\n")
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert hits(profile_lines(names["run"], mode="exact"), "plain") == [1, 5, 4, 1]


def test_methods_through_an_instance(own):
    """Methods that are called through an object, and what these call, are found."""
    profile = profile_lines(own.use_model, 4, mode="exact")
    assert hits(profile, "use_model") == [1, 5, 4, 1]
    assert hits(profile, "Model.step") == [4, 4]
    assert hits(profile, "Model.helper") == [4] and hits(profile, "Model.value") == [1]


def test_methods_of_a_global_object(own):
    """An object that stands in the module brings its class along."""
    profile = profile_lines(own.by_global_object, mode="exact")
    assert hits(profile, "Model.step") == [1, 1]


def test_method_as_body_brings_its_class(own):
    """A bound method is profiled with the methods that it calls through self."""
    profile = profile_lines(own.Model().step, 2, mode="exact")
    assert hits(profile, "Model.step") == [1, 1]
    assert hits(profile, "Model.helper") == [1]


def test_methods_of_the_parent(own):
    """A method that is inherited, and one that super() reaches, are found."""

    def body():
        return own.Child().step(1)

    profile = profile_lines(body, mode="exact")
    assert hits(profile, "Child.helper") == hits(profile, "Model.helper") == [1]


def test_closures(own):
    """A function inside a function is found, whatever it is given."""
    assert hits(profile_lines(own.closure, 4, mode="exact"), "closure.<locals>.inner") == [4]


def test_mutual_recursion(own):
    """Two functions that call each other are both shown, with their own hits."""
    profile = profile_lines(own.even, 5, mode="exact")
    assert hits(profile, "even") == [3, 0, 3] and hits(profile, "odd") == [3, 1, 2]
    assert all(row.share <= 1 for row in profile.statements)


def test_methods_of_an_argument(own):
    """The methods of an object that is passed in are found, at the latest by the ticks."""

    def body(model):
        for _ in range(300_000):
            model.step(1)

    profile = profile_lines(body, own.Model())
    assert "Model.step" in names(profile)


def test_functions_in_a_dictionary(own):
    """A function that no name leads to is found by the ticks as soon as it takes time."""
    profile = profile_lines(own.by_table, 3_000_000)
    assert "plain" in names(profile)
    assert profile.at(7, "plain").share + profile.at(8, "plain").share > 0.3


def test_wrappers_and_what_they_wrap(own):
    """Of a user's own decorator both the wrapper and the function inside are counted."""
    profile = profile_lines(own.wrapped, 3, mode="exact")
    assert hits(profile, "wrapped") == [1, 1]
    assert sum(hits(profile, "noisy.<locals>.wrapper")) == 4


def test_context_manager(own):
    """A contextmanager's generator is profiled on both sides of its yield."""

    def body():
        with own.manager() as x:
            return x

    assert hits(profile_lines(body, mode="exact", functions=[own.manager]), "manager") == [1, 1, 1]


def test_cached_function(own):
    """A cached function has the hits of the calls that reached it."""
    own.cached.cache_clear()

    def body():
        return [own.cached(3) for _ in range(5)]

    profile = profile_lines(body, mode="exact")
    assert hits(profile, "cached") == [1] and hits(profile, "plain") == [1, 4, 3, 1]


def test_coroutines(own):
    """A coroutine function runs under asyncio.run, named beside it."""

    def body():
        return asyncio.run(own.coroutine(3))

    profile = profile_lines(body, mode="exact")
    assert hits(profile, "coroutine") == [1] and hits(profile, "plain") == [1, 4, 3, 1]


def test_libraries_are_not_entered():
    """Both json and NumPy are one row in the caller, and no function of theirs is shown."""

    def body():
        text = json.dumps(list(range(50)), indent=1)
        return np.linalg.norm(json.loads(text))

    profile = profile_lines(body, mode="exact")
    assert {name.split(".<locals>.")[-1] for name in names(profile)} == {"body"}


def test_libraries_are_entered_when_named():
    """A library's function is profiled where it is asked for."""

    def body():
        return json.loads("[1, 2]")

    profile = profile_lines(body, mode="exact", functions=[json.loads])
    assert {"loads"} <= names(profile)
    assert max(hits(profile, "loads")) == 1


def test_numpy_is_entered_when_named():
    """A Python function of NumPy behind its dispatcher is profiled where it is asked for."""

    def body():
        return np.linalg.norm(np.ones(9))

    profile = profile_lines(body, functions=[np.linalg.norm])
    assert "norm" in names(profile)


# -- nothing is changed ------------------------------------------------------------------------


def test_code_objects_stay(own):
    """After a profile every function still has its code object, decorated or not."""
    made = [own.plain, own.cached.__wrapped__, own.wrapped, own.Model.step, own.closure]
    before = [(each.__code__, each.__code__.co_code) for each in made]

    def body():
        return own.cached(3), own.wrapped(), own.use_model(), own.closure()

    profile_lines(body)
    after = [(each.__code__, each.__code__.co_code) for each in made]
    assert all(a[0] is b[0] and a[1] == b[1] for a, b in zip(before, after, strict=True))


def test_running_code_is_seen(own):
    """A generator that was begun before the profile is counted in it."""
    running = own.generator(6)
    next(running)

    def body():
        return list(running)

    profile = profile_lines(body, mode="exact", functions=[own.generator])
    assert hits(profile, "generator") == [6, 5]
    assert list(own.generator(2)) == [0, 1]


def test_twins_are_told_apart(tmp_path):
    """Functions with the same bytecode on the same lines of two files keep their own hits."""
    text = "def f(n):\n    x = n\n    return x\n"
    one, two = load(tmp_path, "perfkit_one", text), load(tmp_path, "perfkit_two", text)

    def body():
        return one.f(1), two.f(1), two.f(1)

    profile = profile_lines(body, mode="exact", functions=[one.f, two.f])
    found = {row.file: row.hits for row in profile.statements if row.line == 2}
    told = any("same bytecode" in note for note in profile.notes)
    assert sorted(found.values()) == [1, 2] or told


def test_profiled_twice(own):
    """A second profile of the same function begins at zero."""
    first, second = (profile_lines(own.plain, 4, mode="exact") for _ in range(2))
    assert hits(first, "plain") == hits(second, "plain") == [1, 5, 4, 1]


def test_very_long_function(tmp_path):
    """A function of 5,000 lines is profiled, with a row for each of them."""
    body = "".join(f"    x += {number}\n" for number in range(5000))
    module = load(tmp_path, "perfkit_long", f"def f():\n    x = 0\n{body}    return x\n")
    profile = profile_lines(module.f, mode="exact")
    assert len(profile.statements) == 5002
    assert {row.hits for row in profile.statements} == {1}


@pytest.mark.parametrize("mode", ["bursts", "exact", "twice"])
@pytest.mark.parametrize("body", ["pass", "return", "...", '"""Words."""', "return None"])
def test_empty_functions(tmp_path, body, mode):
    """A function with next to nothing in it gives a record, or one line that says why not."""
    module = load(tmp_path, "perfkit_empty", f"def f():\n    {body}\n")
    try:
        profile = profile_lines(module.f, mode=mode)
    except UsageError as error:
        assert "\n" not in str(error) and "source is not to be found" not in str(error)
    else:
        assert all(0 <= row.share <= 1 for row in profile.statements)
        assert [row.hits for row in profile.statements] in ([], [1])
