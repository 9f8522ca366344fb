"""Loops of short statements, beside work that no line profiler slows."""

from corpus.data import NOISE, WORDS
from corpus.program import Program


def arithmetic():
    total = 0
    for i in range(1_300_000):  # part
        total += i * 3 % 7
    ordered = sorted(NOISE[:450_000])  # part
    return total + ordered[0]


def nested():
    cells = 0
    for i in range(330):  # part
        for j in range(60):
            for k in range(70):
                cells += (i ^ j) & k
    ordered = sorted(NOISE[:450_000])  # part
    return cells + ordered[0]


def comprehensions():
    level = kept = 0.0
    squares = sum([x * x + 0.5 for x in NOISE])  # part
    near = sum(abs(x - 0.5) for x in NOISE)  # part
    for x in NOISE:  # part
        if x < 0.3:
            kept += x * x
        level += x
    return near + squares + kept + level


def strings():
    pages = 0
    for start in range(600):  # part
        text = ""
        for word in WORDS[start : start + 2_000]:
            text += word
            text += " "
        pages += len(text)
    for _ in range(60):  # part
        joined = " ".join(WORDS).upper().split()
    return pages + len(joined)


def long_and_short():
    a, b, c, n = 3, 5, 7, 0
    for i in range(130_000):  # part
        a = (a * 5 + b * 3 - c + i) % 1009 + (b * 7 + c * 2 - a) % 997 + (a ^ b ^ c ^ i) % 13
        b = (a + b) % 512 + (b + c) % 256 + (c + a) % 128 + (a * b) % 64 + (b * c) % 32
        c = (c * 9 + a * b + (i & 31) * (i & 7) + (a | b) - (b & c)) % 2039
    for _ in range(1_500_000):  # part
        n += 1
        n ^= 2
    return a + b + c + n


def cell():
    """As a cell does it: every name is a global."""
    global step, level, peak, ranked
    level = peak = 0
    for step in range(1_000_000):  # part
        level += step % 5 - 2
        if level > peak:
            peak = level
    ranked = sorted(NOISE[:400_000])  # part
    return peak


PROGRAMS = (
    Program("arithmetic loop, sort", arithmetic),
    Program("nested, 3 levels", nested),
    Program("comprehension, genexpr, loop", comprehensions),
    Program("string building", strings),
    Program("long and short lines", long_and_short),
    Program("cell code with globals", cell),
)
