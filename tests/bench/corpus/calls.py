"""Many short calls: of own functions, of the library's, of built-in ones."""

from colorsys import rgb_to_yiq
from posixpath import basename, splitext

from corpus.data import NOISE, PATHS
from corpus.program import Program


def halve(x):
    return x * 0.5


def tiny_own():
    total = 0.0
    for x in NOISE:  # part
        total += halve(x)
    ordered = sorted(NOISE[:350_000])  # part
    return total + ordered[0]


def tiny_library():
    light = total = 0.0
    for x in NOISE[:250_000]:  # part
        light += rgb_to_yiq(x, 0.5, 0.25)[0]
    for x in NOISE:  # part
        total += x * 1.5 - 0.5
    ordered = sorted(NOISE[:250_000])  # part
    return light + total + ordered[0]


def ways(n):
    if n < 2:
        return 1
    return ways(n - 1) + ways(n - 2)


def recursion():
    odd = 0
    count = ways(29)  # part
    for i in range(1_200_000):  # part
        odd += i & 1
    ordered = sorted(NOISE[:250_000])  # part
    return count + odd + ordered[0]


def distance(x):
    gap = x - 0.5
    return gap * gap


def keys_own():
    nearest = sorted(NOISE[:250_000], key=distance)  # part
    spread = sum(map(distance, NOISE))  # part
    return nearest[0] + spread


def keys_library():
    named = sorted(PATHS * 4, key=basename)  # part
    kinds = len(set(map(splitext, PATHS * 3)))  # part
    ordered = sorted(NOISE[:250_000])  # part
    return len(named) + kinds + ordered[0]


def lambdas():
    n = 0
    nearest = min(NOISE[:600_000], key=lambda x: (x - 0.5) ** 2)  # part
    energy = sum(x * x for x in NOISE if x > 0.1)  # part
    for x in NOISE:  # part
        n += x > 0.5
    return nearest + energy + n


def short_calls():
    total = 0
    for i in range(300_000):  # part
        total += abs(i - 1000)
        total -= min(i, 500)
        total += len(str(i))
    ordered = sorted(NOISE[:400_000])  # part
    return total + ordered[0]


PROGRAMS = (
    Program("tiny calls profiled, sort", tiny_own),
    Program("tiny calls unprofiled, loop, sort", tiny_library),
    Program("recursion, loop, sort", recursion),
    Program("key=/map, profiled f", keys_own),
    Program("key=/map, unprofiled f", keys_library),
    Program("lambda, genexpr", lambdas),
    Program("short calls in a loop", short_calls),
)
