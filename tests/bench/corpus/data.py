"""What the programs work on: the same numbers and words in every run."""

import random

import numpy as np

_random = random.Random(20)
NOISE = [_random.random() for _ in range(1_000_000)]
WORDS = [
    "".join(_random.choices("abcdefghij", k=_random.randint(2, 6))) + _random.choice(["", ".", ","])
    for _ in range(20_000)
]
PATHS = [f"/data/{a}/{b}.{c}" for a, b, c in zip(WORDS, WORDS[7:], WORDS[3:], strict=False)]
MATRIX = np.random.default_rng(20).normal(size=(1200, 1200))
