"""Training loops whose device is idle for reasons that were planted.

A model of a host that launches and of devices that work through their queues: a thread has a clock,
a stream is free from some time on, work starts when it was launched and its stream is free. The
truth is known from the model: idle time that lies in a planted stretch is that stretch's.
"""

import contextlib
import random
from collections import Counter
from typing import NamedTuple

from perfkit.records import timeline as records
from perfkit.timeline.columns import DEVICE_KINDS, KINDS, NO_BYTES, NO_LINK, Columns, Event, Lane

CAUSES = tuple(cause for cause in records.CAUSES if cause != "unknown")
US, MS = 1000, 1_000_000
MAIN, BACKWARD, WATCHDOG, WORKER = 100, 101, 102, 103
CATEGORIES = {
    "step": "user_annotation",
    "annotation": "user_annotation",
    "python": "python_function",
    "op": "cpu_op",
    "compile": "cpu_op",
    "runtime": "cuda_runtime",
    "wait": "cuda_runtime",
    "kernel": "kernel",
    "h2d": "gpu_memcpy",
    "d2h": "gpu_memcpy",
    "device_mark": "cuda_sync",
}
VENDORS = {
    "cuda": ("cudaLaunchKernel", "cudaStreamSynchronize", "cudaMemcpyAsync", "cudaStreamWaitEvent"),
    "hip": ("hipLaunchKernel", "hipStreamSynchronize", "hipMemcpyWithStream", "hipStreamWaitEvent"),
    "other": ("npuLaunch", "npuSynchronizeStream", "npuMemcpyAsync", "npuStreamWaitEvent"),
}
SIGNS = ("links", "annotations", "frames", "steps")


class Planted(NamedTuple):
    """A trace, and the share of the idle time of GPU 0 that each planted cause has."""

    columns: Columns
    truth: dict[str, float]


def planted(*causes, steps=8, seed=0, without=(), lasting_ms=(3, 8)):
    """A trace of a loop in which `causes` take turns. Names, vendor, streams, threads and clocks
    come from the seed; `without` leaves out some of SIGNS for sure. `lasting_ms`: how long each
    planted stretch is, between two bounds.
    """
    model = Model(random.Random(f"{causes} {seed}"), without)
    if "links" in without:
        model.background = False
    model.loop(causes, steps, lasting_ms)
    model.others()
    columns = Columns.of(model.events, source="planted")
    return Planted(columns, model.truth())


def planted_json(*causes, **options):
    """The same as PyTorch's profiler writes it: a dict for json.dump."""
    columns = planted(*causes, **options).columns
    return {
        "schemaVersion": 1,
        "traceEvents": [_kineto(columns, row) for row in range(len(columns))],
    }


class Model:
    """One run: `now` is the clock of the thread that has the turn."""

    def __init__(self, rng, without=()):
        self.rng = rng
        self.now, self.thread, self.link = 5 * MS, MAIN, 0
        self.events, self.stretches, self.free = [], [], {}
        self.vendor = rng.choice(sorted(VENDORS))
        self.launching, self.waiting, self.copying, self.holding = VENDORS[self.vendor]
        self.streams = rng.randint(1, 3)
        self.skew = rng.randint(-4 * US, 4 * US)
        self.has = {sign: sign not in without and rng.random() < 0.7 for sign in SIGNS}
        self.has["links"] = "links" not in without
        self.used_again = rng.random() < 0.3
        self.twice = rng.random() < 0.3
        self.two_threads = rng.random() < 0.6
        self.background = rng.random() < 0.5

    # -- the host ------------------------------------------------------------------------------

    def spend(self, ns):
        """Let the thread work for about as long."""
        self.now += int(ns * self.rng.uniform(0.7, 1.4))

    def add(self, name, kind, start, end, lane=None, link=NO_LINK, nbytes=NO_BYTES):
        """Record an interval."""
        lane = lane or Lane("", f"thread {self.thread}")
        link = link if self.has["links"] else NO_LINK
        self.events.append(Event(int(start), int(end), lane, kind, name, nbytes, link))

    @contextlib.contextmanager
    def span(self, name, kind="op", wanted=True):
        """An interval around what the thread does meanwhile."""
        start = self.now
        self.now += self.rng.randint(1, 2) * US
        yield
        self.now += self.rng.randint(1, 2) * US
        if wanted:
            self.add(name, kind, start, self.now)

    def named(self, name, line=None):
        """A stretch that the user named, as far as this trace has such signs."""
        stack = contextlib.ExitStack()
        stack.enter_context(self.span(name, "annotation", self.has["annotations"]))
        line = line or f"train.py({self.rng.randint(10, 90)}): {name}"
        stack.enter_context(self.span(line, "python", self.has["frames"]))
        return stack

    def python(self, ns):
        """Python code, in which an operator of the host or a call of a library is seen at times."""
        until = self.now + ns
        while self.now < until:
            with self.span("<built-in method sleep>", "python", self.has["frames"]):
                self.now += int(min(until - self.now, self.rng.uniform(0.2, 1) * ns) + 1)
            with self.span(self.rng.choice(("aten::empty", "aten::detach", "aten::view"))):
                pass

    @contextlib.contextmanager
    def planting(self, cause):
        """Whatever is idle meanwhile is idle for this cause."""
        start = self.now
        yield
        self.stretches.append((start, self.now, cause))

    # -- the devices ---------------------------------------------------------------------------

    def launch(self, name, work_ns, kind="kernel", device=0, after=0, call=None, held=False):
        """Launch work; the time when it ends. `held`: the call returns only then."""
        stream = self.rng.randrange(self.streams) if kind == "kernel" and self.streams > 1 else 0
        lane = Lane(f"GPU {device}", f"stream {7 + stream}")
        self.link += 1
        link = self.link % 2999 + 1 if self.used_again else self.link
        begun = self.now
        self.now += self.rng.randint(3, 5) * US
        start = max(self.free.get(lane, 0), begun + self.rng.randint(5, 9) * US, after)
        end = start + max(1, int(work_ns))
        # Streams of one device follow one another often, as those of real programs do.
        self.free[lane] = end + self.rng.randint(800, 1500)
        if held:
            self.now = end + 3 * US
        call = call or self.launching
        self.add(call, self.kind_of(call), begun, self.now, link=link)
        if self.twice and not held:
            self.add("cuLaunchKernel", "runtime", begun + US, self.now - US, link=link)
        moved = 4096 if kind in ("h2d", "d2h") else NO_BYTES
        self.add(name, kind, start + self.skew, end + self.skew, lane, link, moved)
        return end

    def kind_of(self, call):
        """What a reader makes of a call: it knows two vendors."""
        waits = "Synchronize" in call or call == "hipMemcpyWithStream"
        return "wait" if waits and not call.startswith("npu") else "runtime"

    def drained(self, device=0):
        """When the device has done all it was given."""
        return max(
            (t for lane, t in self.free.items() if lane.device == f"GPU {device}"), default=0
        )

    def synchronize(self):
        """Wait for the device."""
        start = self.now
        self.now = max(self.now + 3 * US, self.drained() + self.rng.randint(4, 9) * US)
        self.add(self.waiting, self.kind_of(self.waiting), start, self.now)

    def compute(self, count, work_ns):
        """Operators that launch one kernel each."""
        for _ in range(count):
            with self.span(self.rng.choice(("aten::linear", "aten::relu", "aten::layer_norm"))):
                with self.span(self.rng.choice(("aten::addmm", "aten::clamp_min"))):
                    self.launch(f"kernel_{self.rng.randrange(9)}", self.rng.gauss(1, 0.2) * work_ns)

    # -- the loop ------------------------------------------------------------------------------

    def loop(self, causes, steps, lasting_ms):
        """The training loop: work, with one reason to be idle after each part of it."""
        with self.named("train", "train.py(99): main"):
            self.compute(8, 90 * US)
            for number in range(steps):
                with self.span(f"ProfilerStep#{number}", "step", self.has["steps"]):
                    for cause in self.rng.sample(causes, len(causes)):
                        PLANTS[cause](self, self.rng.uniform(*lasting_ms) * MS)
                        self.part()

    def part(self):
        """A forward pass, or a backward pass in a thread of its own while the main one waits."""
        count, work_ns = self.rng.randint(5, 9), self.rng.uniform(50, 150) * US
        if not (self.two_threads and self.rng.random() < 0.5):
            with self.named("forward"):
                self.compute(count, work_ns)
            return
        with self.named("backward"):
            self.spend(15 * US)
            self.thread = BACKWARD
            with self.span("autograd::engine::evaluate_function: AddmmBackward0"):
                self.compute(count, work_ns)
            self.thread = MAIN
            self.spend(15 * US)

    def be_late(self, ns):
        parts = self.rng.randint(1, 3)
        for _ in range(parts):
            with self.planting("host late"), self.named(self.rng.choice(("augment", "metrics"))):
                self.python(ns / parts)
            if parts > 1:
                self.compute(1, 30 * US)

    def load(self, ns):
        name = self.rng.choice(("load", "load_batch", "next batch", "data", "DataLoader.fetch"))
        iterator = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        profiled = not (self.has["annotations"] or self.has["frames"]) or self.rng.random() < 0.4
        with self.planting("data loading"):
            with self.named(name, "torch/utils/data/dataloader.py(634): __next__"):
                with self.span(iterator, "annotation", profiled):
                    self.python(ns)
        held = self.vendor == "hip"
        with self.span("aten::to"), self.span("aten::copy_"):
            self.launch("Memcpy HtoD", 40 * US, "h2d", call=self.copying, held=held)

    def compile(self, ns):
        with self.planting("compile"), self.named("forward"):
            if self.rng.random() < 0.3:
                self.thread = WORKER + 1
            with self.span("TorchDynamo: compile forward", "compile"):
                for _ in range(3):
                    with self.span("inductor: compile graph", "compile"):
                        self.now += int(ns / 3)
            self.thread = MAIN

    def read(self, ns):
        with self.planting("blocking copy"):
            together = self.rng.random() < 0.5
            with self.named("log_step") if together else contextlib.nullcontext():
                self.wait_for_result()
                if together:
                    self.python(ns)
            if not together:
                with self.named("log_step"):
                    self.python(ns)

    def wait_for_result(self):
        ways = ("item", "synchronize", "copy")
        # Which call made a copy is known by its link alone.
        way = self.rng.choice(ways if self.has["links"] else ways[:2])
        if way == "synchronize":
            self.synchronize()
            return
        outer = ("aten::item", "aten::_local_scalar_dense") if way == "item" else ("aten::to",) * 2
        with self.span(outer[0]), self.span(outer[1]):
            held = self.vendor == "hip" or way == "copy"
            self.launch(
                "Memcpy DtoH", 2 * US, "d2h", call=self.copying, held=held, after=self.drained()
            )
            if not held:
                self.synchronize()

    def tiny(self, ns):
        with self.planting("launch gap"):
            until = self.now + max(ns, self.drained() - self.now + ns / 2)
            while self.now < until:
                with self.span("aten::add_"):
                    self.launch("tiny", 2 * US)

    def hold(self, ns):
        with self.span("aten::matmul"):
            start = max(self.now, self.free.get(Lane("GPU 1", "stream 7"), 0))
            streams, self.streams = self.streams, 1
            done = self.launch("kernel_far", ns, device=1)
            with self.span(self.holding, "runtime"):
                pass
            for lane in [lane for lane in self.free if lane.device == "GPU 0"]:
                self.add("Stream Wait Event", "device_mark", start, done, lane)
                self.free[lane] = max(self.free[lane], done + 2 * US)
            self.streams = streams
        self.stretches.append((start, done, "waiting on a stream"))

    def others(self):
        """Threads that have nothing to do with it."""
        end = self.now
        for at in range(0, end, end // 40 + 1):
            self.thread = WATCHDOG
            self.add("cudaEventQuery", "runtime", at, at + 2 * US)
            self.add(self.waiting, self.kind_of(self.waiting), at + 3 * US, at + end // 50)
            self.thread = WORKER
            self.add("aten::stack", "op", at, at + end // 60)
            self.add("load", "annotation", at, at + end // 45)
        if self.background:
            self.thread = WORKER + 2
            for at in range(0, end, end // 3 + 1):
                self.add("TorchDynamo: compile later", "compile", at, at + end // 4)
            for at in range(0, end, 9 * MS):
                self.add("TorchDynamo: compile a little", "compile", at, at + 200 * US)
        self.thread = MAIN

    def truth(self):
        """Shares of the idle time by cause; what lies in no planted stretch is "" ."""
        work = sorted(
            (e.start_ns - self.skew, e.end_ns - self.skew)
            for e in self.events
            if e.kind in DEVICE_KINDS and e.lane.device == "GPU 0"
        )
        idle, total, reach = Counter(), 0, work[0][1]
        # A device that waits for another one waits for it, whatever the host does meanwhile.
        stretches = sorted(self.stretches, key=lambda s: (s[2] != "waiting on a stream", s[0]))
        for start, end in work:
            if start > reach:
                total += start - reach
                left = start - reach
                for begin, stop, cause in stretches:
                    part = min(left, max(0, min(stop, start) - max(begin, reach)))
                    idle[cause] += part
                    left -= part
                idle[""] += left
            reach = max(reach, end)
        return {cause: ns / total for cause, ns in idle.items()}


PLANTS = {
    "host late": Model.be_late,
    "data loading": Model.load,
    "compile": Model.compile,
    "blocking copy": Model.read,
    "launch gap": Model.tiny,
    "waiting on a stream": Model.hold,
}


def _kineto(columns, row):
    kind, lane = KINDS[columns.kind[row]], columns.lanes[columns.lane[row]]
    device, number = lane.device.rpartition(" ")[2], int(lane.name.split()[1])
    args = {"correlation": int(columns.link[row])} if columns.link[row] else {}
    return {
        "ph": "X",
        "cat": CATEGORIES[kind],
        "name": columns.names[columns.name[row]],
        "pid": int(device) if device else 4242,
        "tid": number,
        "ts": int(columns.start_ns[row]) / 1000,
        "dur": int(columns.end_ns[row] - columns.start_ns[row]) / 1000,
        "args": args | ({"device": int(device), "stream": number} if device else {}),
    }
