"""NumPy in large and small pieces, and what stands beside it in notebooks."""

import json
import statistics

import numpy as np

from corpus.data import MATRIX, NOISE
from corpus.program import Program

POINTS = MATRIX.reshape(-1, 2)
MEANS = np.array([[-1.0, 0.0], [0.5, 1.0], [1.0, -1.0]])
GAPS = np.empty((len(POINTS), 3, 2))


def tally():
    seen = {}
    for i in range(650_000):  # part
        key = i * 7 % 1013
        seen[key] = seen.get(key, 0) + 1
    values = np.linalg.svd(MATRIX[:700, :700], compute_uv=False)  # part
    return len(seen) + values[0]


def branches():
    n, steps = 27, 0
    while steps < 900_000:  # part
        if n == 1:
            n = 27 + steps
        elif n % 2:
            n = 3 * n + 1
        else:
            n //= 2
        steps += 1
    values = np.linalg.svd(MATRIX[:700, :700], compute_uv=False)  # part
    return steps + values[0]


def small_arrays():
    state, drift, total = np.zeros(8), np.ones(8), 0.0
    for _ in range(20_000):  # part
        state = state * 0.9 + drift
        state -= state.mean()
    for _ in range(70_000):  # part
        total += float(np.dot(drift, state))
        state = np.maximum(state, drift)
    return total


def mixed():
    total, row = 0, np.array(NOISE[:64])
    for i in range(75_000):  # part
        total += i * i % 11
        total ^= i
        ordered = np.sort(row)
        total += i & 3
    for x in NOISE:  # part
        total += int(x * 8)
    return total + ordered[0]


def responsibilities(gaps):
    heights = np.exp(-0.5 * (gaps**2).sum(axis=2))
    return heights / heights.sum(axis=1, keepdims=True)


def variances(weights, gaps):
    sums = np.einsum("nk,nkd,nkd->kd", weights, gaps, gaps)
    return sums / weights.sum(axis=0)[:, None]


def mixture():
    """One step of expectation and maximisation for three clusters."""
    gaps = np.subtract(POINTS[:, None, :], MEANS, out=GAPS)  # part
    weights = responsibilities(gaps)  # part
    spreads = variances(weights, gaps)  # part
    return spreads.sum()


def library():
    record = {"name": "run", "values": list(range(40)), "nested": {"a": [1.5, 2.5], "b": None}}
    text, total = "", 0
    for _ in range(4_000):  # part
        text = json.dumps(json.loads(json.dumps(record)))
    middle = statistics.mean(NOISE[:160_000])  # part
    for i in range(1_400_000):  # part
        total += i % 3
    return len(text) + middle + total


PROGRAMS = (
    Program("dict loop, SVD", tally),
    Program("while with branches, SVD", branches),
    Program("numpy small arrays", small_arrays),
    Program("arith + small np.sort in one loop", mixed),
    Program("EM-GMM (numpy lines)", mixture),
    Program("json, statistics, loop", library),
)
