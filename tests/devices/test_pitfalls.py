"""What goes wrong with event timing, once each, on streams of host threads."""

import re
import threading
import time

import pytest

import perfkit
from perfkit.devices.thread import Event, Stream
from perfkit.errors import DeviceError
from perfkit.measure.timing import time_call

SHORT_S, LONG_S = 0.02, 0.2


@pytest.fixture
def stream(thread):
    return thread.stream()


@pytest.fixture
def other(thread):
    return thread.stream()


def marked(stream, body):
    """The two events around `body` on one stream."""
    start, end = Event(), Event()
    start.record(stream)
    body()
    end.record(stream)
    end.synchronize()
    return start, end


def kernel_s(timing):
    """The durations of all kernels added up, overlap or not."""
    bars = [span for span in timing.spans if span.kind == "kernel"]
    return sum(span.end_s - span.start_s for span in bars)


# -- where time goes wrong ---------------------------------------------------------------------


def test_pending_work_stays_out(stream):
    """Work that was pending before the start is in no figure of the measurement."""
    stream.launch(time.sleep, LONG_S)
    timing = time_call(lambda: stream.launch(time.sleep, SHORT_S))
    assert timing.launches == 1
    assert timing.device_s <= timing.wall_s < 0.9 * LONG_S


def test_pending_work_fools_events(stream):
    """The same pending work does bleed into a stopwatch that drains only at the end."""
    stream.launch(time.sleep, LONG_S)
    start_s = time.perf_counter()
    stream.launch(time.sleep, SHORT_S)
    stream.synchronize()
    assert time.perf_counter() - start_s > 0.5 * LONG_S


def test_wrong_stream_reads_nothing(stream, other):
    """Events on another stream than the work's read about 0; time_call tells the truth."""

    def body():
        other.launch(time.sleep, LONG_S)

    start, end = marked(stream, body)
    other.synchronize()
    assert start.elapsed_s(end) < 0.5 * LONG_S
    assert time_call(body).wall_s > 0.9 * LONG_S


def test_span_is_not_busy(stream):
    """Launch gaps lie inside the span; busy time leaves them out, idle time is them."""

    def body():
        for _ in range(3):
            stream.launch(time.sleep, SHORT_S)
            stream.synchronize()
            time.sleep(2 * SHORT_S)

    timing = time_call(body)
    assert timing.device_busy_s < 0.7 * timing.device_s
    assert timing.idle_s == pytest.approx(timing.device_s - timing.device_busy_s)
    assert timing.idle_s > 3 * SHORT_S


def test_events_hold_the_gaps(stream):
    """A pair of events around work with gaps tells the span, not the work."""

    def body():
        for _ in range(3):
            stream.launch(time.sleep, SHORT_S)
            stream.synchronize()
            time.sleep(2 * SHORT_S)

    start, end = marked(stream, body)
    assert start.elapsed_s(end) > 2 * 3 * SHORT_S


def test_overlap_counts_once(stream, other):
    """Two streams at work at once are busy for the union of their work, not for the sum."""

    def body():
        stream.launch(time.sleep, LONG_S)
        other.launch(time.sleep, LONG_S)

    timing = time_call(body)
    assert len({span.lane for span in timing.spans if span.kind == "kernel"}) == 2
    assert timing.device_busy_s < 0.75 * kernel_s(timing)
    assert timing.device_busy_s <= timing.device_s <= timing.wall_s


def test_transfers_add_up(stream, other):
    """Copies at the same time on two streams count their own seconds each, but busy once."""

    def body():
        for lane in (stream, other):
            lane.launch(time.sleep, LONG_S, kind="h2d", nbytes=1000)

    timing = time_call(body)
    (copies,) = timing.transfers
    assert (copies.direction, copies.count, copies.nbytes) == ("h2d", 2, 2000)
    assert copies.seconds > 1.5 * timing.device_busy_s


def test_loop_sync_destroys_overlap(stream, other):
    """Synchronising inside the loop makes two streams take turns; once at the end does not."""

    def body(in_loop):
        for _ in range(4):
            for lane in (stream, other):
                lane.launch(time.sleep, SHORT_S)
                if in_loop:
                    lane.synchronize()

    apart, together = time_call(lambda: body(True)), time_call(lambda: body(False))
    assert apart.device_busy_s > 0.9 * kernel_s(apart)
    assert together.device_busy_s < 0.8 * kernel_s(together)
    assert apart.naive_s > 0.5 * apart.wall_s and together.naive_s < 0.5 * together.wall_s


def test_first_call_stands_apart(stream):
    """A slow first call is a figure of its own and is in no median and no sample."""
    durations = iter([LONG_S])

    def body():
        stream.launch(time.sleep, next(durations, 0.001))

    timing = time_call(body, repeat=5, warmup=1)
    assert timing.first_s > 0.9 * LONG_S
    assert len(timing.samples) == 5 and timing.first not in timing.samples
    assert max(sample.wall_s for sample in timing.samples) < 0.5 * timing.first_s
    assert timing.wall_s < 0.5 * timing.first_s


def test_waits_are_not_host_work(stream):
    """Blocked in a wait the host does nothing: naive time has it, host time does not."""

    def body():
        stream.launch(time.sleep, LONG_S)
        stream.synchronize()

    timing = time_call(body)
    assert timing.naive_s > 0.9 * LONG_S
    assert timing.host_s < 0.5 * timing.naive_s


def test_naive_watch_lies(stream):
    """A stopwatch around a launch alone reads a small part of what the work takes."""
    timing = time_call(lambda: stream.launch(time.sleep, LONG_S), repeat=3, warmup=0)
    assert timing.naive_s < 0.1 * timing.wall_s
    assert timing.verdict == "device"


# -- work that nobody holds --------------------------------------------------------------------


def test_dropped_work_is_awaited(stream):
    """Work whose result nobody keeps is waited for all the same."""
    done = []

    def body():
        stream.launch(lambda: (time.sleep(SHORT_S), done.append(1)))
        return

    timing = time_call(body, repeat=3, warmup=0)
    assert len(done) == timing.runs
    assert min(sample.wall_s for sample in timing.samples) > 0.9 * SHORT_S


def test_new_stream_is_awaited():
    """A stream made inside the body, and dropped there, is drained and seen."""
    timing = time_call(lambda: Stream().launch(time.sleep, LONG_S))
    assert timing.wall_s > 0.9 * LONG_S and timing.naive_s < 0.5 * timing.wall_s
    assert timing.device_s > 0.9 * LONG_S and timing.launches == 1


def test_new_stream_each_run():
    """A body that makes a stream in every run is drained in every run."""
    timing = time_call(lambda: Stream().launch(time.sleep, SHORT_S), repeat=4, warmup=1)
    assert [sample.launches for sample in timing.samples] == [1, 1, 1, 1]
    assert min(sample.wall_s for sample in timing.samples) > 0.9 * SHORT_S


def test_stream_closed_in_body():
    """A stream that the body closes behind its work is still waited for."""

    def body():
        stream = Stream()
        stream.launch(time.sleep, LONG_S)
        stream.close()

    timing = time_call(body)
    assert timing.wall_s > 0.9 * LONG_S


def test_known_stream_closed_in_body(stream):
    """Closing a stream that was there before the measurement is no error of the measurement."""

    def body():
        stream.launch(time.sleep, LONG_S)
        stream.close()

    assert time_call(body).wall_s > 0.9 * LONG_S


def test_closed_stream_refuses_work(stream):
    """A closed stream takes no more work, and says what to do."""
    stream.close()
    with pytest.raises(DeviceError, match="is closed: make a new Stream"):
        stream.launch(time.sleep, 0)
    stream.close()


def test_closed_stream_is_no_lane(thread):
    """A stream that is closed and empty is not watched, and stops no measurement."""
    stream = thread.stream("closed device")
    assert "closed device" in thread.device.probe().devices
    stream.close()
    stream._thread.join()
    assert stream not in [lane.handle for lane in thread.device.lanes()]
    assert time_call(lambda: None).backends == ("host",)


def test_dropped_stream_ends():
    """A stream that nobody holds ends its thread when its work is done."""
    stream = Stream("dropped")
    worker = stream._thread
    stream.launch(time.sleep, 0.001)
    del stream
    worker.join(timeout=10)
    assert not worker.is_alive()


# -- work of other threads ---------------------------------------------------------------------


def test_worker_threads_are_seen(stream, other):
    """Launches of worker threads are in the figures, on both streams."""

    def body():
        workers = [
            threading.Thread(target=lane.launch, args=(time.sleep, LONG_S))
            for lane in (stream, other)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    timing = time_call(body)
    assert timing.launches == 2 and timing.wall_s > 0.9 * LONG_S
    assert len({span.lane for span in timing.spans if span.kind == "kernel"}) == 2


def test_worker_waits_are_not_ours(stream):
    """A worker that waits does not make the measured thread look idle while it works."""

    def body():
        stream.launch(time.sleep, LONG_S)
        worker = threading.Thread(target=stream.synchronize)
        worker.start()
        time.sleep(SHORT_S)
        worker.join()

    timing = time_call(body)
    assert timing.host_s == timing.naive_s


# -- failures ----------------------------------------------------------------------------------


def test_failed_work_is_one_error(stream):
    """Work that fails half-way gives one DeviceError that names it; the rest still runs."""
    done = []

    def body():
        stream.launch(done.append, "before")
        stream.launch(int, "not a number")
        stream.launch(int, "nor is this")
        stream.launch(done.append, "after")

    with pytest.raises(DeviceError, match=r"failed: ValueError: .*not a number") as caught:
        time_call(body)
    assert isinstance(caught.value.__cause__, ValueError)
    assert done == ["before", "after"]


def test_next_measurement_works(stream, other):
    """After failures on two streams the next measurement sees nothing of them."""

    def body():
        stream.launch(int, "not a number")
        other.launch(int, "not a number")

    with pytest.raises(DeviceError):
        time_call(body)
    timing = time_call(lambda: stream.launch(time.sleep, SHORT_S), repeat=3)
    assert timing.stopped == "" and len(timing.samples) == 3
    assert timing.launches == 1 and timing.device_s > 0.9 * SHORT_S


def test_failed_work_is_partial(stream):
    """A device that fails in the first call leaves a partial record of this very measurement."""
    before = time_call(lambda: None)
    with pytest.raises(DeviceError):
        time_call(lambda: stream.launch(int, "not a number"))
    last = perfkit.last()
    assert last is not before and last.samples == ()
    assert "first call" in last.stopped and last.quality.status == "suspect"


def test_failure_in_a_sample(stream):
    """A device that fails in a later run keeps the samples that were good."""
    words = iter(["1"] * 6)

    def body():
        stream.launch(int, next(words, "not a number"))

    with pytest.raises(DeviceError):
        time_call(body, repeat=10, warmup=2)
    last = perfkit.last()
    assert len(last.samples) == 3 and last.stopped.endswith("sample 4")


def test_failure_before_the_start(stream):
    """A failure left over from before is told before the body runs, and told once."""
    ran = []
    stream.launch(int, "not a number")
    with pytest.raises(DeviceError, match="ValueError"):
        time_call(lambda: ran.append(1))
    assert ran == []
    time_call(lambda: ran.append(1))
    assert ran == [1]


# -- events without an answer ------------------------------------------------------------------


def unrecorded():
    return Event()


def untimed():
    event = Event(timing=False)
    event.record(Stream())
    event.synchronize()
    return event


def unreached():
    event, stream = Event(), Stream()
    stream.launch(time.sleep, LONG_S)
    event.record(stream)
    return event


def reached(device="thread0"):
    event = Event()
    event.record(Stream(device=device))
    event.synchronize()
    return event


def elsewhere():
    return reached("thread1")


MESSAGES = {
    unrecorded: "never recorded",
    untimed: "timing=False",
    unreached: "not reached yet",
    elsewhere: "two devices (thread",
}


@pytest.mark.parametrize("make", MESSAGES)
@pytest.mark.parametrize("place", ["start", "end"])
def test_events_without_answer(make, place):
    """Each reason why two events have no time between them has a message of its own."""
    pair = (make(), reached()) if place == "start" else (reached(), make())
    with pytest.raises(DeviceError) as caught:
        pair[0].elapsed_s(pair[1])
    text = str(caught.value)
    assert [words for words in MESSAGES.values() if words in text] == [MESSAGES[make]]
    assert make is elsewhere or f"the {place} event" in text


def test_unrecorded_event_cannot_wait():
    """Waiting for an event that was never recorded is an error, not a wait for ever."""
    with pytest.raises(DeviceError, match=re.escape("call event.record(stream) first")):
        Event().synchronize()


def test_event_recorded_again(stream):
    """An event that is recorded anew is not reached until its new place is."""
    event = Event()
    event.record(stream)
    event.synchronize()
    assert event.query()
    stream.launch(time.sleep, LONG_S)
    event.record(stream)
    assert not event.query()
    event.synchronize()
    assert event.query()


def test_copies_move_bytes(stream):
    """A copy on a stream runs in its order and moves the bytes that were there at that time."""
    source, target = bytearray(4), bytearray(4)
    stream.launch(source.__setitem__, 0, 7)
    stream.copy(source, target)
    stream.synchronize()
    assert bytes(target) == b"\7\0\0\0"
