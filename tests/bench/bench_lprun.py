"""Figures of the line profiler: shares against the truth, slow-down, and what it says it knows.

One run interleaves, program by program: a plain run with its parts timed (the truth), bursts,
twice, exact, and line_profiler as `%lprun` drives it. Its error is that of the worst part.
"""

import argparse
import faulthandler
import gc
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from statistics import median, quantiles
from typing import NamedTuple

from figures import figure
from line_profiler import LineProfiler

MODES = ("bursts", "twice", "exact")
# Share of the rounds in which a method runs: those that trace all the time take most of the bench.
TAKES_PART = {"raw": 0.2, "exact": 0.4, "twice": 0.6}
STEADY = 0.02
STUCK_S = 180


class Run(NamedTuple):
    """One profiled run: each part's share and its printed uncertainty, seconds of the call."""

    shares: tuple[float, ...]
    uncertainties: tuple[float, ...] = ()
    call_s: float = 0.0
    elapsed_s: float = 0.0


class Result(NamedTuple):
    """All runs of one program."""

    program: object
    plain: list
    runs: dict

    @property
    def truth(self):
        return tuple(map(median, zip(*(times.shares for times in self.plain), strict=True)))

    @property
    def plain_s(self):
        return median(times.wall_s for times in self.plain)

    @property
    def scatter(self):
        """Interquartile range of the plain shares, of the part where it is widest."""
        columns = zip(*(times.shares for times in self.plain), strict=True)
        quartiles = [quantiles(shares, n=4, method="inclusive") for shares in columns]
        return max(high - low for low, _, high in quartiles)

    @property
    def steady(self):
        return self.scatter <= STEADY

    def worst(self, run):
        """Points between a run and the truth, of its worst part."""
        return 100 * max(abs(a - b) for a, b in zip(run.shares, self.truth, strict=True))

    def error(self, method):
        return median(map(self.worst, self.runs[method]))

    def slow_down(self, method, clock="call_s"):
        return median(getattr(run, clock) for run in self.runs[method]) / self.plain_s

    def covered(self, method):
        """For each part of each run: does the printed uncertainty reach the truth?"""
        return [
            abs(share - truth) <= reach
            for run in self.runs[method]
            for share, truth, reach in zip(run.shares, self.truth, run.uncertainties, strict=True)
        ]


def row(profile, part, function):
    """Share and uncertainty that a profile gives a part: its loop's row, else its statements'."""
    for loop in profile.loops:
        if part.loop and loop.line == part.line and loop.function.endswith(function):
            return loop.share, loop.uncertainty
    rows = [
        statement
        for statement in profile.statements
        if part.line <= statement.line <= part.end_line and statement.function.endswith(function)
    ]
    return sum(r.share for r in rows), sum(r.uncertainty for r in rows)


def run_mode(program, mode):
    from perfkit import profile_lines

    start = time.perf_counter()
    profile = profile_lines(program.run, mode=mode)
    call_s = time.perf_counter() - start
    rows = [row(profile, part, program.home.__name__) for part in program.parts]
    return Run(*zip(*rows, strict=True), call_s, profile.elapsed_s)


def run_raw(program):
    """Shares of the function's sum as line_profiler prints them, its own cost not removed."""
    profiler = LineProfiler(*program.functions)
    start = time.perf_counter()
    profiler.enable_by_count()
    try:
        program.run()
    finally:
        profiler.disable_by_count()
    call_s = time.perf_counter() - start
    code = program.home.__code__
    timings = profiler.get_stats().timings
    key = (code.co_filename, code.co_firstlineno, program.home.__qualname__)
    lines = [(line, ticks) for line, _, ticks in timings[key]]
    whole = sum(ticks for _, ticks in lines)
    shares = tuple(
        sum(ticks for line, ticks in lines if part.line <= line <= part.end_line) / whole
        for part in program.parts
    )
    return Run(shares, call_s=call_s, elapsed_s=call_s)


def measure(program, rounds, modes):
    """The methods in turn, up to `rounds` times, between plain runs."""
    program.timed()
    plain, runs = [], {method: [] for method in ("raw", *modes)}
    for i in range(rounds):
        gc.collect()
        plain.append(program.timed())
        for method, done in runs.items():
            if i < TAKES_PART.get(method, 1) * rounds:
                done.append(run_raw(program) if method == "raw" else run_mode(program, method))
        plain.append(program.timed())
    return Result(program, plain, runs)


@contextmanager
def neighbours(count):
    """Busy processes beside the measurement."""
    spin = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(spin) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def show_head(modes):
    errors = "".join(f"{method:>8}" for method in ("raw", *modes))
    print(
        f"{'':36}   ms scatter  shares       |{errors}  points off | slow-down: line_profiler",
        *modes,
    )


def show(result, modes):
    """One line a program; `~` where plain runs scatter, `*` for kinds held out."""
    name = result.program.name + " *" * result.program.held_out
    shares = " ".join(f"{100 * share:3.0f}" for share in result.truth)
    errors = "".join(f"{result.error(method):8.1f}" for method in ("raw", *modes))
    slower = " ".join(f"{result.slow_down(method):7.2f}" for method in ("raw", *modes))
    mark = " " if result.steady else "~"
    print(
        f"{name:36}{1e3 * result.plain_s:5.0f} {100 * result.scatter:5.1f} {mark}  {shares:13}|"
        f"{errors}             | {slower}",
        flush=True,
    )


def percent(name, hits, bound=None):
    """A figure: how many of the hits are true."""
    value = 100 * sum(hits) / len(hits)
    said = "none" if bound is None else f">= {bound} %"
    figure(f"{name}, n = {len(hits)}", f"{value:.0f} %", said, bound is None or value >= bound)


def judge_mode(results, mode, at_5, at_8):
    errors = [result.error(mode) for result in results]
    single = [result.worst(run) for result in results for run in result.runs[mode]]
    percent(f"{mode}: programs within 5 points", [error <= 5 for error in errors], at_5)
    percent(f"{mode}: programs within 8 points", [error <= 8 for error in errors], at_8)
    percent("  single runs within 8 points", [error <= 8 for error in single])
    reached = [hit for result in results for hit in result.covered(mode)]
    percent("  parts whose uncertainty reaches the truth", reached, 90)
    figure("  median error, points", f"{median(errors):.1f}", "none", True)


def judge(results, modes, which):
    """The figures over some of the programs."""
    print(f"      -- {which}: {len(results)} programs")
    if not results:
        return
    for mode in modes:
        judge_mode(results, mode, *((None, None) if mode == "exact" else (85, 95)))
    raw = [result.error("raw") for result in results]
    figure("line_profiler: median error, points", f"{median(raw):.1f}", "none", True)


def judge_cost(results):
    """What a profile costs: the call as a whole, and the run alone as the record has it."""
    for clock, what in (("call_s", "whole call"), ("elapsed_s", "the run alone")):
        slower = {result.program.name: result.slow_down("bursts", clock) for result in results}
        middle, worst = median(slower.values()), max(slower, key=slower.get)
        figure(f"slow-down of bursts, {what}: median", f"{middle:.2f}", "<= 1.3", middle <= 1.3)
        figure("  worst", f"{slower[worst]:.2f}", "<= 2", slower[worst] <= 2, worst)
    full = [result.slow_down("raw") for result in results]
    figure("slow-down of line_profiler: median", f"{median(full):.2f}", "none", True)


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="programs with this in the name (repeat)"
    )
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="busy processes beside it")
    parser.add_argument("--plain", action="store_true", help="only the truth and line_profiler")
    return parser.parse_args()


def main():
    given = options()
    # NumPy's BLAS reads them once, when it is loaded.
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    from corpus import PROGRAMS

    # A collection inside a part would walk the million numbers of the other programs as well.
    gc.collect()
    gc.freeze()
    programs = [p for p in PROGRAMS if not given.only or any(n in p.name for n in given.only)]
    modes = () if given.plain else MODES
    results = []
    show_head(modes)
    with neighbours(given.busy):
        for program in programs:
            # A profiled thread that never ends is a failure that must be seen.
            faulthandler.dump_traceback_later(STUCK_S * max(1, given.rounds / 5), exit=True)
            results.append(measure(program, given.rounds, modes))
            show(results[-1], modes)
    faulthandler.cancel_dump_traceback_later()
    steady = [result for result in results if result.steady]
    held_out = [result for result in results if result.program.held_out]
    judge(results, modes, "all programs")
    judge(steady, modes, "without those whose plain runs scatter > 2 points (~)")
    judge(held_out, modes, "held out (*)")
    if modes:
        judge_cost(results)


if __name__ == "__main__":
    main()
