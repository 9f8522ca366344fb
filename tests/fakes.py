"""Clocks and devices that tests move by hand, so that no test need sleep or hope."""

from contextlib import closing

from perfkit.devices.base import Lane, Seen
from perfkit.intervals import Interval
from perfkit.measure.plan import Plan
from perfkit.measure.timing import Measurement


class FakeClock:
    """All clocks stand still until `advance` moves them."""

    def __init__(self):
        self.now_s = self.thread_s = self.process_s = self.waited_s = 0.0
        self.closed = False

    def advance(self, seconds, *, waited_s=0.0, other_threads_s=0.0):
        """Let `seconds` pass, of which this thread stood `waited_s` without a core."""
        self.now_s += seconds
        self.waited_s += waited_s
        self.thread_s += seconds - waited_s
        self.process_s += seconds - waited_s + other_threads_s

    def now(self):
        return self.now_s

    def thread_cpu(self):
        return self.thread_s

    def process_cpu(self):
        return self.process_s

    def waited(self):
        return self.waited_s

    def close(self):
        self.closed = True


class FakeDevice:
    """One lane that works while `clock` moves; waiting for it moves the clock to its end."""

    name = "fake"
    asynchronous = has_events = sees_commands = sees_waits = True

    def __init__(self, clock):
        self.clock, self.end_s, self.rows, self.waits = clock, 0.0, [], []

    def launch(self, seconds, kind="kernel", nbytes=0):
        """Give it work, at no cost to the host."""
        start_s = max(self.clock.now(), self.end_s)
        self.end_s = start_s + seconds
        self.rows.append(Interval(start_s, self.end_s, "fake lane", kind, "work", nbytes))

    def owns(self, obj):
        return False

    def memory(self):
        return None

    def wait(self):
        """Wait for it as a body would."""
        start_s = self.clock.now()
        self.synchronize()
        self.waits.append((start_s, self.clock.now()))

    def lanes(self):
        return (Lane("fake", "lane", self),)

    def new_lanes(self, known):
        return ()

    def synchronize(self, lanes=None):
        self.clock.now_s = max(self.clock.now_s, self.end_s)

    def trace(self, clock):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def clear(self):
        self.rows, self.waits = [], []

    def close_body(self):
        return None

    def take(self):
        seen = Seen(tuple(self.rows), tuple(self.waits), launches=len(self.rows))
        self.clear()
        return seen

    def pending(self):
        return sum(row.end_s > self.clock.now() for row in self.rows)


def measure(body, clock, *, devices=(), between=lambda: None, **asked):
    """Time `body` on `clock` as `time_call` does on the host's own clocks."""
    measurement = Measurement(
        Plan(**asked).checked(), clock, find_devices=lambda names: devices, between=between
    )
    with closing(measurement.runs()) as runs:
        for _ in runs:
            body()
    return measurement.timing
