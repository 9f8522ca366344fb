"""Lesson 33: a training loop in JAX whose device waits in eight ways, and the questions."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit import units
from perfkit.lessons.checks import Wrong, question
from perfkit.lessons.traces import Table
from perfkit.measure.annotations import annotate, step
from perfkit.optional import require
from perfkit.render import grid

if TYPE_CHECKING:
    from perfkit.timeline.trace import Timeline

__all__ = [
    "COMPUTING",
    "LOOPS",
    "Loop",
    "Outcome",
    "Training",
    "Way",
    "every_step",
    "outcome",
    "ragged",
    "scopes",
    "table",
]

STEPS = 16
AIM_S = 8e-3
WIDTH, ROWS = 256, 64
SHAPES = 10


class Way(NamedTuple):
    """One way to run the loop. `load`: seconds for each batch, in steps of the device; `log`: the
    loss is read after every step; `ahead`: a thread loads ahead; `shapes`: batches of ten lengths;
    `computes`: loading needs a core for as long, where it else only waits.
    """

    name: str
    load: float = 0.0
    log: bool = False
    ahead: bool = False
    shapes: bool = False
    computes: bool = False


LOOPS = (
    Way("plain"),
    Way("reads the loss each step", log=True),
    Way("loads for as long as a step", load=1.0),
    Way("loads and reads", load=1.0, log=True),
    Way("loads on a thread, and reads", load=1.0, log=True, ahead=True),
    Way("loads for 2.5 steps", load=2.5),
    Way("loads for 2.5 steps on a thread", load=2.5, ahead=True),
    Way("batches of ten shapes", shapes=True),
)
COMPUTING = (
    Way("computes its input, and reads", load=1.0, log=True, computes=True),
    Way("the same on a thread", load=1.0, log=True, computes=True, ahead=True),
)


class Training:
    """A small network whose step takes the device some `AIM_S`. `step_s`: what it takes here.
    `traces`: how often JAX traced the step, once for each shape of a batch.
    """

    def __init__(self) -> None:
        jax = require("jax", "lesson 33")
        self.traces = self._rounds = 0
        self._jax = jax
        # Layers of this size keep the length of their input, so that losses stay apart.
        self.weights = jax.random.normal(jax.random.key(33), (WIDTH, WIDTH)) / WIDTH**0.5
        layers = 1
        while True:
            self.step = jax.jit(self._made(layers))
            self.step_s = self._measured()
            if self.step_s > 0.7 * AIM_S or layers >= 256:
                break
            layers = min(256, max(layers + 1, round(layers * AIM_S / self.step_s)))

    def _made(self, layers: int) -> Callable[[Any, Any], Any]:
        numpy = self._jax.numpy

        def one_step(weights: Any, batch: Any) -> Any:
            self.traces += 1
            with annotate("forward"):
                out = batch
                for _ in range(layers):
                    out = numpy.tanh(out @ weights)
                loss = (out**2).mean()
            with annotate("backward"):
                gradient = out.T @ out / out.shape[0]
            with annotate("update"):
                return weights - 1e-3 * gradient, loss

        return one_step

    def _measured(self) -> float:
        """Median seconds of a step with its wait, after the one that compiles."""
        taken = []
        for _ in range(6):
            start_s = time.perf_counter()
            self._jax.block_until_ready(self.step(self.weights, self.batch(ROWS)))
            taken.append(time.perf_counter() - start_s)
        return median(taken[1:])

    def batch(self, rows: int) -> Any:
        """Some input."""
        return self._jax.numpy.ones((rows, WIDTH)) * 0.05

    def program(self) -> str:
        """The compiled program of a step, as XLA's text."""
        compiled = self._jax.jit(self._made(4)).lower(self.weights, self.batch(ROWS)).compile()
        return str(compiled.as_text())

    def run(self, way: Way, steps: int = STEPS) -> list[float]:
        """Train so. Returns the losses that were read."""
        weights, read = self.weights, []
        with self._batches(way, steps) as next_batch:
            for i in range(steps):
                with step(i):
                    batch = next_batch(i)
                    weights, loss = self.step(weights, batch)
                    if way.log:
                        with annotate("log"):
                            read.append(float(loss))
        self._jax.block_until_ready(weights)
        return read

    def _load(self, way: Way, i: int) -> Any:
        with annotate("load"):
            if way.computes:
                self._compute(way.load)
            else:
                time.sleep(way.load * self.step_s)
            return self.batch(ROWS + (i % SHAPES if way.shapes else 0))

    def _compute(self, steps: float) -> None:
        """Work for one core that takes as long as so many steps, if the core is free."""
        numpy = require("numpy", "lesson 33")
        rows = numpy.linspace(0.0, 1.0, 4096)
        if not self._rounds:
            start_s = time.perf_counter()
            while time.perf_counter() - start_s < self.step_s:
                numpy.sort(numpy.sin(rows))
                self._rounds += 1
        for _ in range(round(steps * self._rounds)):
            numpy.sort(numpy.sin(rows))

    @contextmanager
    def _batches(self, way: Way, steps: int) -> Iterator[Callable[[int], Any]]:
        if not way.load and not way.shapes:
            batch = self.batch(ROWS)
            yield lambda _: batch
            return
        if not way.ahead:
            yield lambda i: self._load(way, i)
            return
        ready: queue.Queue[Any] = queue.Queue(maxsize=2)

        def fill() -> None:
            for i in range(steps):
                ready.put(self._load(way, i))

        worker = threading.Thread(target=fill, daemon=True)
        worker.start()
        try:
            yield lambda _: ready.get()
        finally:
            while worker.is_alive():
                # One that waits to put must not wait for ever.
                try:
                    ready.get(timeout=0.05)
                except queue.Empty:
                    worker.join(0.05)


class Outcome(NamedTuple):
    """What a timeline says of one way: the device's duty cycle, seconds a step from the first
    step's start to the end of the work, programs compiled, and most of the idle time's cause.
    """

    name: str
    duty: float
    step_s: float
    compiled: int
    cause: str


def outcome(way: Way, timeline: Timeline) -> Outcome:
    """The outcome of a recorded run."""
    (device,) = timeline.devices
    whole_s = device.start_s + device.span_s - timeline.steps[0].start_s
    top = device.causes[0] if device.causes and device.duty_cycle < 0.9 else None
    return Outcome(
        name=way.name,
        duty=device.duty_cycle,
        step_s=whole_s / len(timeline.steps),
        compiled=sum(row.count for row in timeline.report.compiles),
        cause="" if top is None else ", ".join(filter(None, (top.cause, top.host))),
    )


def table(outcomes: Sequence[Outcome]) -> Table:
    """All outcomes, one a row."""
    head = ("the loop", " duty cycle", " a step", " compiled", "most of the idle time")
    rows = [
        (row.name, units.share(row.duty), units.seconds(row.step_s), str(row.compiled), row.cause)
        for row in outcomes
    ]
    return Table(grid.Grid("eight loops", head, rows))


def scopes(program: str) -> dict[str, int]:
    """How many operations of a compiled program carry each of our names in their `op_name`."""
    found = re.findall(r'op_name="[^"]*?/(forward|backward|update)/', program)
    return dict(sorted(Counter(found).items()))


# -- exercise 33.1: keep every value, lose the stall -------------------------------------------


class Loss:
    """The loss of one step, which may still be computing. `float(loss)` waits for it."""

    def __init__(self, loop: Loop, number: int, value: Any) -> None:
        self._loop, self._number, self._value = loop, number, value

    def __float__(self) -> float:
        self._loop.on_read(self._number)
        return float(self._value)


class Loop:
    """What a training needs: `steps`, `load(i)` gives a batch after some ms, `step(batch)` gives
    the step to the device and returns its Loss at once, `log(i, value)` keeps a number.

    Counted: `logged`, and `stalls`, reads of the newest loss by the thread that trains: while it
    waits, nothing is queued behind.
    """

    def __init__(self, training: Training, steps: int = 20) -> None:
        self.steps = steps
        self.logged: list[tuple[int, float]] = []
        self.stalls = 0
        self._training, self._weights = training, training.weights
        self._given = 0
        self._thread = threading.get_ident()

    def load(self, i: int) -> Any:
        """The batch of step `i`: a wait as for a slow file system, as long as a step."""
        time.sleep(self._training.step_s)
        return self._training.batch(ROWS) * (1 + i / self.steps)

    def step(self, batch: Any) -> Loss:
        """Give one step to the device."""
        self._weights, loss = self._training.step(self._weights, batch)
        self._given += 1
        return Loss(self, self._given - 1, loss)

    def log(self, i: int, value: float) -> None:
        """Keep the loss of step `i`."""
        self.logged.append((i, value))

    def on_read(self, number: int) -> None:
        """Somebody waits for the loss of a step."""
        newest = number == self._given - 1
        self.stalls += newest and threading.get_ident() == self._thread

    def finish(self) -> None:
        """Wait for all that was given."""
        self._weights.block_until_ready()


def every_step(loop: Loop) -> None:
    """The loop as people write it first."""
    for i in range(loop.steps):
        loss = loop.step(loop.load(i))
        loop.log(i, float(loss))


MOST_STALLS = 0.1
SAME = 1e-4
"""Sums of floats on several threads may differ by so much."""
PAIRS, ENOUGH = 9, 3
FASTER = 1.1


@question("33.1")
def _keep_every_value(train: Callable[[Loop], None]) -> str:
    training = Training()
    before = training.traces
    wanted, _ = _trained(every_step, training)
    own, _ = _trained(train, training)
    if own._given != own.steps:
        raise Wrong(f"{own._given} steps were given to the device, not {own.steps}")
    _same_values(own.logged, wanted.logged)
    if own.stalls > MOST_STALLS * own.steps:
        raise Wrong(
            f"{own.stalls} of {own.steps} reads waited for the step that was given last: nothing "
            "was queued behind it. Give the next step first, then read the loss before it"
        )
    ratios: list[float] = []
    while len(ratios) < PAIRS:
        _, theirs_s = _trained(every_step, training)
        _, yours_s = _trained(train, training)
        ratios.append(theirs_s / yours_s)
        if len(ratios) >= ENOUGH and median(ratios) > FASTER:
            break
    if training.traces > before:
        raise Wrong("the step was compiled again: keep the shape of the batches")
    if median(ratios) <= FASTER:
        raise Wrong(
            f"in {PAIRS} turns your loop was {units.ratio(median(ratios))} as fast as the first "
            "one: what still waits?"
        )
    return (
        f"all {own.steps} values are logged, {units.count(own.stalls, 'read')} waited for the "
        f"newest step, and the loop runs {units.ratio(median(ratios))} as fast"
    )


def _trained(train: Callable[[Loop], None], training: Training) -> tuple[Loop, float]:
    loop = Loop(training)
    start_s = time.perf_counter()
    train(loop)
    loop.finish()
    return loop, time.perf_counter() - start_s


def _same_values(own: list[tuple[int, float]], wanted: list[tuple[int, float]]) -> None:
    if len(own) < len(wanted):
        raise Wrong(f"{len(own)} of {len(wanted)} values were logged: every step has one")
    if [i for i, _ in own] != [i for i, _ in wanted]:
        raise Wrong("the steps are not logged once each and in order: 0, 1, 2 ...")
    for (i, value), (_, right) in zip(own, wanted, strict=True):
        if not abs(value - right) <= SAME * abs(right):
            raise Wrong(f"step {i} was logged as {value:.6g}; its loss is {right:.6g}")


# -- exercise 33.2: ten shapes, at most two programs -------------------------------------------


def ragged(lengths: Sequence[int] = (3, 17, 40, 9, 64, 28, 5, 51, 33, 12)) -> list[Any]:
    """Batches of different lengths, rows of four numbers."""
    numpy = require("numpy", "lesson 33")
    random = numpy.random.default_rng(33)
    return [random.normal(size=(rows, 4)).astype(numpy.float32) for rows in lengths]


@question("33.2")
def _pad_with_a_mask(pad: Callable[[Any], tuple[Any, Any]]) -> str:
    jax = require("jax", "lesson 33")
    numpy = jax.numpy
    traces = 0

    def mean_loss(rows: Any, mask: Any) -> Any:
        nonlocal traces
        traces += 1
        return ((rows**2).sum(axis=1) * mask).sum() / mask.sum()

    compiled = jax.jit(mean_loss)
    for batch in ragged():
        rows, mask = pad(batch)
        if numpy.shape(mask) != numpy.shape(rows)[:1]:
            raise Wrong(
                f"the mask has shape {numpy.shape(mask)} for rows of {numpy.shape(rows)}: one "
                "number for each row"
            )
        right = float((batch**2).sum(axis=1).mean())
        value = float(compiled(rows, numpy.asarray(mask, dtype=numpy.float32)))
        if not abs(value - right) <= 1e-5 * abs(right):
            raise Wrong(
                f"the loss of a batch of {len(batch)} rows is {right:.6g}; with your rows and mask "
                f"it is {value:.6g}: rows that are only padding must not count"
            )
    if traces > 2:
        raise Wrong(f"ten batches made {traces} programs: pad them to one length, or to two")
    return f"ten lengths, {units.count(traces, 'program')}, and every loss is the same"
