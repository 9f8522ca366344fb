"""Objects and the protocols of the language: attributes, exceptions, contexts, generators."""

from contextlib import contextmanager

from corpus.data import NOISE
from corpus.program import Program


class Account:
    """A balance with its history of two counters."""

    def __init__(self):
        self.balance = 100.0
        self.moves = 0
        self.refused = 0

    def pay(self, amount):
        if amount > self.balance:
            self.refused += 1
            return
        self.balance -= amount
        self.moves += 1

    def earn(self, amount):
        self.balance += amount
        self.moves += 1


def attributes():
    account = Account()
    for x in NOISE[:500_000]:  # part
        account.pay(x)
        account.earn(0.4)
    ordered = sorted(NOISE[:450_000])  # part
    return account.moves + ordered[0]


def exceptions():
    table, missing, total = {0: 1, 1: 2, 2: 3}, 0, 0
    for i in range(700_000):  # part
        try:
            total += table[i % 5]
        except KeyError:
            missing += 1
    ordered = sorted(NOISE[:450_000])  # part
    return total + missing + ordered[0]


class Guard:
    """A context that counts how deep it is."""

    depth = 0

    def __enter__(self):
        self.depth += 1
        return self

    def __exit__(self, *error):
        self.depth -= 1


@contextmanager
def counted(seen):
    seen.append(1)
    yield seen
    seen.clear()


def contexts():
    guard, seen, total = Guard(), [], 0
    for i in range(200_000):  # part
        with guard:
            total += i
    for i in range(45_000):  # part
        with counted(seen):
            total -= i
    ordered = sorted(NOISE[:300_000])  # part
    return total + ordered[0]


def evens(limit):
    for i in range(limit):
        if i % 2 == 0:
            yield i


def generator():
    total = 0
    for value in evens(1_500_000):  # part
        total += value
    ordered = sorted(NOISE[:450_000])  # part
    return total + ordered[0]


class Counter:
    """Two numbers."""

    def __init__(self):
        self.hits = 0
        self.level = 1.0


clicks = 0
floor = 0.5


def places():
    global clicks
    counter = Counter()
    for _ in range(950_000):  # part
        counter.hits += 1
        counter.level = counter.level * 0.5 + counter.hits
    clicks = 0
    for x in NOISE:  # part
        counter.level += x
        if x > floor:
            clicks += 1
        else:
            clicks -= 1
    return counter.level + clicks


PROGRAMS = (
    Program("attribute-heavy OOP", attributes),
    Program("try/except", exceptions),
    Program("context managers", contexts),
    Program("generator", generator),
    Program("attributes, globals", places),
)
