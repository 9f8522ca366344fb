"""Names and steps, as the real profilers and listeners see them."""

import asyncio
import json
import subprocess
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import perfkit
from perfkit.errors import UsageError
from perfkit.measure.annotations import annotate, listening, step


class Heard(list):
    """What a listener was told, on a clock that counts its readings."""

    def __init__(self):
        super().__init__()
        self.readings = 0

    def clock(self):
        self.readings += 1
        return self.readings

    def hear(self, *stretch):
        self.append(stretch)

    def names(self):
        return [stretch[0] for stretch in self]


@pytest.fixture
def heard():
    told = Heard()
    with listening(told.hear, told.clock):
        yield told


@pytest.fixture
def only(monkeypatch):
    """Puts stand-ins where modules would be; the real runtimes are out of sight."""
    for name in ("torch", "jax", "torch_xla", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def put(name, **contents):
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


def ranges(log, *arguments, **details):
    """A context manager that logs how it is used."""

    class Range:
        def __enter__(self):
            log.append(("enter", *arguments, *details.values()))

        def __exit__(self, *failure):
            log.append(("exit", *arguments))

    return Range()


def in_torch(work, path):
    """Names of the user annotations in torch's own trace of `work()`."""
    with torch.profiler.profile() as session:
        work()
    session.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "user_annotation"]


def in_jax(work, folder):
    """Events of the Python threads in JAX's own trace of `work()`: names with their numbers."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        work()
    (file,) = folder.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    events = [event for plane in planes for line in plane.lines for event in line.events]
    return [(event.name, dict(event.stats).get("step_num")) for event in events]


def op_names(function, *arguments):
    """The op_names in the optimised program."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return {part.partition('"')[0] for part in text.split('op_name="')[1:]}


def two_marks():
    with step(3):
        with annotate("forward"):
            pass


def test_torch_sees_names_and_steps(tmp_path):
    """PyTorch's profiler has both as user annotations."""
    assert in_torch(two_marks, tmp_path / "trace.json") == ["step#3", "forward"]


def test_jax_sees_names_and_steps(tmp_path):
    """JAX's profiler has both, and the number with the step."""
    events = in_jax(two_marks, tmp_path)
    assert ("step", 3) in events
    assert ("forward", None) in events


def test_names_are_in_the_compiled_program():
    """Each annotated part of a jitted function is found in op_name, nested ones in order."""

    def model(x):
        with annotate("encode"):
            y = jnp.sin(x)
            with annotate("inner"):
                y = y @ x
        with annotate("decode"):
            return jnp.cos(y).sum()

    names = op_names(model, np.ones((8, 8), np.float32))
    assert any("/encode/sin" in name for name in names)
    assert any("/encode/inner/dot" in name for name in names)
    assert any("/decode/cos" in name for name in names)


def test_outside_a_trace_nothing_is_scoped():
    """Around a jitted call the name changes no program, compiles none anew, and piles up nothing
    where two tasks take turns.
    """
    double = jax.jit(lambda x: x * 2)
    double(1.0)
    with annotate("outer"):
        double(1.0)
    first, second = annotate("first"), annotate("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert double._cache_size() == 1
    assert not any("outer" in name or "first" in name for name in op_names(jnp.sin, 1.0))
    assert str(jax._src.source_info_util.current_name_stack()) == ""


def test_torch_compile_sees_one_graph(heard):
    """A compiled function with annotations is one graph, right, and has no marks."""

    def model(x):
        with perfkit.step(1), perfkit.annotate("part"):
            return torch.sin(x) * 2

    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.ones(3)
    assert torch.equal(compiled(x), torch.sin(x) * 2)
    assert heard == []


def test_torch_compile_with_a_break_inside(heard):
    """Where the graph breaks inside an annotation, the function is marked as it is written."""

    def model(x):
        with annotate("part"):
            x = torch.sin(x)
            torch._dynamo.graph_break()
            return x + 1

    torch.compile(model, backend="eager")(torch.ones(3))
    assert heard.names() == ["part"]


def test_nothing_is_imported():
    """A process without runtimes stays so."""
    code = (
        "import sys, perfkit\n"
        "with perfkit.annotate('a'), perfkit.step(0): pass\n"
        "print(sorted({'torch', 'jax', 'cupy', 'numpy', 'torch_xla'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_listener_is_told_what_when_and_where(heard):
    """The inner stretch comes first; times are the listener's, with the thread and the number."""
    two_marks()
    thread = threading.get_ident()
    assert heard == [
        ("forward", "annotation", 2, 3, thread, None),
        ("step", "step", 1, 4, thread, 3),
    ]


def test_listener_hears_only_what_ends_meanwhile():
    """What begins before or ends after it is not told, and nobody is listening afterwards."""
    heard = Heard()
    early, late = annotate("early"), annotate("late")
    early.__enter__()
    with listening(heard.hear, heard.clock):
        early.__exit__(None, None, None)
        late.__enter__()
    late.__exit__(None, None, None)
    two_marks()
    assert heard == []


def test_two_listeners(heard):
    """Each has its own clock; one that leaves takes only itself out."""
    other = Heard()
    with listening(other.hear, other.clock):
        two_marks()
    two_marks()
    assert len(other) == 2
    assert len(heard) == 4


def test_failing_listener_keeps_no_mark_open(tmp_path):
    """Its error is seen, and the runtime's mark is closed all the same."""

    def fail(*stretch):
        raise LookupError("the listener's own")

    def work():
        with pytest.raises(LookupError, match="own"), listening(fail):
            with annotate("closed"):
                pass
        torch.ones(3)

    assert in_torch(work, tmp_path / "trace.json") == ["closed"]


def test_errors_go_through(heard):
    """The body's error propagates and closes what is open."""
    with pytest.raises(ZeroDivisionError), annotate("outer"), step(np.int64(7)):
        raise ZeroDivisionError
    assert [(stretch[0], stretch[-1]) for stretch in heard] == [("step", 7), ("outer", None)]
    assert type(heard[0][-1]) is int


def test_mark_that_cannot_be_opened_leaves_none_open(only):
    """If a runtime refuses, those opened before are closed and its error is seen."""
    log = []
    only("torch", profiler=SimpleNamespace(record_function=lambda name: ranges(log, name)))
    only("jax", profiler=SimpleNamespace(TraceAnnotation=lambda name: 1 // 0))
    with pytest.raises(ZeroDivisionError), annotate("load"):
        pass
    assert log == [("enter", "load"), ("exit", "load")]


def test_one_object_may_be_entered_again(heard):
    """Recursion through one object gives one stretch for each entry, properly nested."""
    again = annotate("again")
    with again, again, again:
        pass
    assert [stretch[2:4] for stretch in heard] == [(3, 4), (2, 5), (1, 6)]


def test_one_object_in_many_threads():
    """Threads that share one object each close what they opened themselves."""
    shared, barrier, told = annotate("shared"), threading.Barrier(4), Heard()

    def work():
        for _ in range(50):
            with shared:
                barrier.wait(10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    # On this clock it is always the thread that reads it.
    with listening(told.hear, threading.get_ident):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(told) == 200
    assert all(opened == closed == thread for _, _, opened, closed, thread, _ in told)


def test_left_on_another_thread_is_no_error():
    """A generator that another thread closes ends without an error."""

    def turns():
        with annotate("turn"):
            yield

    turn = turns()
    next(turn)
    errors = []

    def close():
        try:
            turn.close()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert not errors


def test_decorated_function(heard):
    """Each call is marked, recursive ones too; the function keeps its name and result."""

    @annotate("fact")
    def factorial(n):
        """The product."""
        return n * factorial(n - 1) if n else 1

    assert factorial(3) == 6
    assert (factorial.__name__, factorial.__doc__) == ("factorial", "The product.")
    assert heard.names() == ["fact"] * 4


def test_decorated_coroutine(heard):
    """The stretch is the coroutine's run, not the call that makes it; tasks may take turns."""

    @annotate("fetch")
    async def fetch(n):
        await asyncio.sleep(0)
        return n

    async def both():
        return await asyncio.gather(fetch(1), fetch(2))

    assert asyncio.run(both()) == [1, 2]
    assert [stretch[2:4] for stretch in heard] == [(1, 3), (2, 4)]


def test_what_cannot_be_decorated():
    """Generators and classes are refused in one line that says what to do."""

    def rows():
        yield 1

    async def arows():
        yield 1

    for wrong in (rows, arows):
        with pytest.raises(UsageError, match=r"put `with perfkit.annotate\('load'\):` around"):
            annotate("load")(wrong)
    for wrong in (Heard, 3):
        with pytest.raises(UsageError, match="functions only"):
            annotate("load")(wrong)


@pytest.mark.parametrize(
    ("wrong", "said"), [(3, "not int"), (len, "not builtin"), ("", "empty"), (b"load", "not bytes")]
)
def test_names_are_text(wrong, said):
    """A name that is no text is refused in one line that shows the form."""
    with pytest.raises(UsageError, match=rf"annotate takes a name.*annotate\('load'\).*{said}"):
        annotate(wrong)


@pytest.mark.parametrize(
    ("wrong", "said"), [(-1, "not -1"), (1.0, "not float"), ("1", "not str"), (None, "NoneType")]
)
def test_numbers_are_whole(wrong, said):
    """A number that counts no turns is refused in one line that shows the form."""
    with pytest.raises(UsageError, match=rf"step takes the number.*step\(3\).*{said}"):
        step(wrong)


def test_runtime_that_is_still_being_imported_is_left_alone(only):
    """Another thread may be half way through `import torch`."""
    only("torch").__spec__ = ModuleSpec("torch", None)
    sys.modules["torch"].__spec__._initializing = True
    two_marks()
    sys.modules["torch"].__spec__._initializing = False
    with pytest.raises(AttributeError, match="profiler"):
        two_marks()


def test_torch_xla_is_marked_without_ending_a_step(only):
    """TraceMe marks only; a step has its number, and the flag that makes it a step's root."""
    log = []
    trace_me = SimpleNamespace(TraceMe=lambda name, **details: ranges(log, name, **details))
    only("torch_xla", _XLAC=SimpleNamespace(profiler=trace_me))
    two_marks()
    assert log[:2] == [("enter", "step", 1, 3), ("enter", "forward")]
    assert log[2:] == [("exit", "forward"), ("exit", "step")]


def test_cupy_gives_ranges_to_nsight(only):
    """Where CuPy has NVTX, each stretch is a range; where it has none, nothing happens."""
    log = []
    only("cupy", cuda=SimpleNamespace(nvtx=SimpleNamespace(available=False)))
    two_marks()
    nvtx = SimpleNamespace(RangePush=log.append, RangePop=lambda: log.append("pop"))
    only("cupy", cuda=SimpleNamespace(nvtx=nvtx))
    two_marks()
    assert log == ["step#3", "forward", "pop", "pop"]
