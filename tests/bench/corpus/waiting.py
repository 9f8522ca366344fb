"""Work that waits for others: threads that are joined, coroutines that are awaited."""

import asyncio
from threading import Thread

from corpus.data import NOISE
from corpus.program import Program


def climb(limit, heights):
    height = 0
    for i in range(limit):
        height += i & 7
    heights.append(height)


def in_two_threads(work, *args):
    workers = [Thread(target=work, args=args) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def threads():
    heights, total = [], 0
    in_two_threads(climb, 650_000, heights)  # part
    for i in range(1_000_000):  # part
        total += i * 5 % 3
    return total + sum(heights)


async def reading(i):
    value = i * 17 % 101
    return value + 0.5


async def session():
    total = 0.0
    for i in range(80):  # part
        for j in range(4_000):
            total += await reading(i + j)
        await asyncio.sleep(0)
    for start in range(0, 700_000, 10_000):  # part
        total += sorted(NOISE[start : start + 10_000])[0]
        await asyncio.sleep(0)
    return total


def awaits():
    return asyncio.run(session())


PROGRAMS = (
    Program("threads, 2 workers", threads),
    Program("async, awaits", awaits, body=session),
)
