"""Kinds that were not there when the profiler's rules were tuned."""

import json
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from io import StringIO

from corpus.data import NOISE, WORDS
from corpus.program import Program


def product(a, b, n):
    out = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            cell = 0.0
            for k in range(n):
                cell += a[i][k] * b[k][j]
            out[i][j] = cell
    return out


def triple_loop():
    n = 115
    a = [NOISE[i * n : (i + 1) * n] for i in range(n)]
    out = product(a, a, n)  # part
    ordered = sorted(NOISE[:400_000])  # part
    return out[0][0] + ordered[0]


def clean(word):
    return word.strip(".,").lower()


def word_count():
    counts = {}
    for _ in range(14):  # part
        for word in WORDS:
            key = clean(word)
            if key in counts:
                counts[key] += 1
            else:
                counts[key] = 1
    again = Counter(w.rstrip(".,") for _ in range(28) for w in WORDS)  # part
    return len(counts) + len(again)


def pull(bodies, dt):
    for body in bodies:
        ax = ay = 0.0
        for other in bodies:
            if other is not body:
                dx = other[0] - body[0]
                dy = other[1] - body[1]
                strength = other[4] / (dx * dx + dy * dy + 0.01) ** 1.5
                ax += dx * strength
                ay += dy * strength
        body[2] += ax * dt
        body[3] += ay * dt


def energy(bodies):
    total = 0.0
    for body in bodies:
        total += 0.5 * body[4] * (body[2] ** 2 + body[3] ** 2)
        for other in bodies:
            if other is not body:
                gap = ((other[0] - body[0]) ** 2 + (other[1] - body[1]) ** 2 + 0.01) ** 0.5
                total -= 0.5 * body[4] * other[4] / gap
    return total


def n_body():
    bodies = [[NOISE[i], NOISE[i + 9], 0.0, 0.0, 1.0 + NOISE[i + 20]] for i in range(8)]
    drift = 0.0
    for _ in range(5_000):  # part
        pull(bodies, 0.001)
        for body in bodies:
            body[0] += body[2] * 0.001
            body[1] += body[3] * 0.001
    for _ in range(4_000):  # part
        drift += energy(bodies)
    return drift


def sieve():
    limit = 1_900_000
    flags = bytearray([1]) * (limit + 1)
    found, gap, widest, i = 0, 0, 0, 3
    while i * i <= limit:  # part
        if flags[i]:
            for j in range(i * i, limit + 1, 2 * i):
                flags[j] = 0
        i += 2
    for flag in flags:  # part
        gap += 1
        if flag:
            found += 1
            if gap > widest:
                widest = gap
            gap = 0
    return found + widest


def json_both_ways():
    rows = [{"id": i, "name": WORDS[i], "x": NOISE[i], "tags": WORDS[i : i + 3]} for i in range(50)]
    size, total = 0, 0.0
    for _ in range(210):  # part
        page = StringIO()
        json.dump(rows, page)
        size += page.tell()
    for _ in range(1_400):  # part
        total += json.loads(page.getvalue())[3]["x"]
    return size + total


def numbers(limit):
    yield from range(limit)


def scaled(source, factor):
    for value in source:
        yield value * factor


def windows(source):
    last = 0
    for value in source:
        yield value - last
        last = value


def pipeline():
    total = 0
    for gap in windows(scaled(numbers(750_000), 3)):  # part
        total += gap
    longest = max(len(w) for _ in range(90) for w in WORDS)  # part
    return total + longest


@dataclass
class Point:
    """A place in the plane."""

    x: float
    y: float

    def moved(self, dx, dy):
        return Point(self.x + dx, self.y + dy)

    @property
    def norm(self):
        return self.x * self.x + self.y * self.y


def dataclasses():
    point, far = Point(0.0, 0.0), 0
    for x in NOISE[:300_000]:  # part
        point = point.moved(x - 0.5, 0.5 - x)
    for _ in range(550_000):  # part
        if point.norm > 1.0:
            far += 1
    return far


def fractions():
    total, odd = Fraction(0), 0
    for i in range(1, 35_000):  # part
        total = Fraction(i, i + 1) + Fraction(1, i % 7 + 1)
    for i in range(1_600_000):  # part
        odd += i & 1
    return total + odd


PROGRAMS = (
    Program("triple loop", triple_loop, held_out=True),
    Program("word count", word_count, held_out=True),
    Program("n-body", n_body, held_out=True),
    Program("sieve", sieve, held_out=True),
    Program("json", json_both_ways, held_out=True),
    Program("generator pipeline", pipeline, held_out=True),
    Program("dataclass", dataclasses, held_out=True),
    Program("fractions", fractions, held_out=True),
)
