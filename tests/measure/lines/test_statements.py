"""Rows are statements, and the hits of each are those counted by hand, on every Python alike.

The wanted hits stand in the source itself: `#: 3` ends a statement's first line, `#-2: 3` the line
that is two lines below it.
"""

import re
import textwrap

import pytest

from perfkit.measure.lines.profile import profile_lines

CASES = {
    "call over four lines": """
        def f():
            x = dict(  #: 1
                a=1,
                b=2,
            )
            return x  #: 1
    """,
    "call over lines, in a loop": """
        def f():
            for i in range(5):  #: 6
                x = dict(  #: 5
                    a=abs(i),
                    b=max(
                        i,
                        2,
                    ),
                )
            return x  #: 1
    """,
    "calls of own functions over lines": """
        def g(a, b):
            return a + b  #: 9
        def f():
            for i in range(3):  #: 4
                x = g(  #: 3
                    g(i, 1),
                    g(
                        i,
                        2,
                    ),
                )
            return x  #: 1
    """,
    "list comprehension": """
        def f():
            x = [  #: 1
                i * i
                for i in range(7)
                if i % 2
            ]
            return x  #: 1
    """,
    "list comprehension in a loop": """
        def f():
            for n in range(4):  #: 5
                x = [  #: 4
                    i * i
                    for i in range(7)
                ]
            return x  #: 1
    """,
    "nested comprehension": """
        def f():
            for n in range(3):  #: 4
                x = [  #: 3
                    [
                        i * j
                        for i in range(5)
                    ]
                    for j in range(4)
                ]
            return x  #: 1
    """,
    "dict comprehension": """
        def f():
            for n in range(3):  #: 4
                x = {  #: 3
                    i: i * i
                    for i in range(5)
                }
            return x  #: 1
    """,
    "set comprehension": """
        def f():
            for n in range(3):  #: 4
                x = {  #: 3
                    i * i
                    for i in range(5)
                }
            return x  #: 1
    """,
    "comprehension on its first line": """
        def f():
            for n in range(3):  #: 4
                x = [i for i in range(5)]  #: 3
                y = sum(i for i in range(5))  #: 3
            return x, y  #: 1
    """,
    "comprehension on the first of two lines": """
        def f():
            for n in range(3):  #: 4
                x = [i for i in range(5)  #: 3
                     if i]
            return x  #: 1
    """,
    "generator expression over lines": """
        def f():
            for n in range(3):  #: 4
                x = sum(  #: 3
                    i * i
                    for i in range(5)
                )
            return x  #: 1
    """,
    "comprehension first in a branch": """
        def f():
            for n in range(4):  #: 5
                if n % 2:  #: 4
                    x = [  #: 2
                        i
                        for i in range(5)
                    ]
                else:
                    x = 3  #: 2
            return x  #: 1
    """,
    "comprehension after a comprehension": """
        def f():
            for n in range(4):  #: 5
                x = [  #: 4
                    i
                    for i in range(5)
                ]
                y = [  #: 4
                    i
                    for i in x
                ]
            return x, y  #: 1
    """,
    "comprehension as an argument": """
        def f():
            for n in range(2):  #: 3
                print(  #: 2
                    *[
                        i
                        for i in range(3)
                    ],
                    end="",
                    file=None and 3,
                )
            return 0  #: 1
    """,
    "comprehension in a return": """
        def g(n):
            return [  #: 3
                i
                for i in range(n)
            ]
        def f():
            for n in range(3):  #: 4
                g(5)  #: 3
    """,
    "comprehension in an if": """
        def f():
            for n in range(3):  #: 4
                if any([  #: 3
                    i > 3
                    for i in range(9)
                ]):
                    x = 1  #: 3
            return x  #: 1
    """,
    "decorators": """
        def deco(fn):
            return fn  #: 4
        def more(n):
            return deco  #: 2
        def f():
            for i in range(2):  #: 3
                @deco  #: 2
                @more(1)
                def inner():
                    return 1  #: 2
                inner()  #: 2
    """,
    "decorated functions": """
        import functools
        @functools.lru_cache
        def g(n):
            return n * 2  #: 2
        def f():
            for i in range(6):  #: 7
                g(i % 2)  #: 6
    """,
    "chained calls": """
        def f():
            for i in range(3):  #: 4
                x = (  #: 3
                    "a b c"
                    .upper()
                    .replace("A", "x")
                    .split()
                )
            return x  #: 1
    """,
    "match": """
        def g(v):
            match v:  #: 4
                case 0:  #: 4
                    return "zero"  #: 1
                case [x, y]:  #: 3
                    return x  #: 1
                case {"a": 1} if v:  #: 2
                    return "map"  #: 1
                case _:  #: 1
                    return None  #: 1
        def f():
            for v in (0, [1, 2], {"a": 1}, 7):  #: 5
                g(v)  #: 4
    """,
    "match over lines": """
        def g(v):
            match (  #: 3
                v,
                1,
            ):
                case (  #: 3
                    0,
                    1,
                ):
                    return "zero"  #: 1
                case (a, b) if (  #: 2
                    a > 5
                ):
                    return "big"  #: 1
            return None  #: 1
        def f():
            for v in (0, 7, 3):  #: 4
                g(v)  #: 3
    """,
    "with": """
        from contextlib import nullcontext
        def f():
            for i in range(4):  #: 5
                with nullcontext():  #: 4
                    x = i  #: 4
            return x  #: 1
    """,
    "with on one line": """
        from contextlib import nullcontext
        def f():
            for i in range(4):  #: 5
                with nullcontext(): x = i  #: 4
            return x  #: 1
    """,
    "with over lines": """
        from contextlib import nullcontext
        def f():
            for i in range(4):  #: 5
                with nullcontext(  #: 4
                    i,
                ) as a:
                    x = a  #: 4
            return x  #: 1
    """,
    "with several managers": """
        from contextlib import nullcontext
        def f():
            for i in range(4):  #: 5
                with (  #: 4
                    nullcontext(i) as a,
                    nullcontext(i) as b,
                    nullcontext(i) as c,
                ):
                    x = a + b + c  #: 4
            return x  #: 1
    """,
    "with several managers on one line": """
        from contextlib import nullcontext
        def f():
            for i in range(4):  #: 5
                with nullcontext(i) as a, nullcontext(i) as b:  #: 4
                    x = a + b  #: 4
            return x  #: 1
    """,
    "with left by an exception": """
        from contextlib import suppress
        def f():
            for i in range(4):  #: 5
                with suppress(ValueError):  #: 4
                    raise ValueError  #: 4
            return i  #: 1
    """,
    "with left by break and continue": """
        from contextlib import nullcontext
        def f():
            for i in range(9):  #: 4
                with nullcontext():  #: 4
                    if i == 3:  #: 4
                        break  #: 1
                    continue  #: 3
            return i  #: 1
    """,
    "with left by return": """
        from contextlib import nullcontext
        def g():
            with nullcontext():  #: 4
                return 1  #: 4
        def f():
            for i in range(4):  #: 5
                g()  #: 4
    """,
    "with that cannot be entered": """
        class Closed:
            def __enter__(self):
                raise ValueError  #: 4
            def __exit__(self, *error):
                return None
        def f():
            for i in range(4):  #: 5
                try:  #: 4
                    with Closed():  #: 4
                        x = 1  #: 0
                except ValueError:  #: 4
                    pass  #: 4
    """,
    "with in a generator that is left": """
        from contextlib import nullcontext
        def g():
            with nullcontext():  #: 4
                yield 1  #: 4
        def f():
            for i in range(4):  #: 5
                for x in g():  #: 4
                    break  #: 4
    """,
    "walrus": """
        def f():
            n = 5  #: 1
            while (m := n - 1) > 0:  #: 5
                n = m  #: 4
            if (  #: 1
                k := n
            ) == 1:
                n = k  #: 1
            return n  #: 1
    """,
    "ternary over lines": """
        def f():
            for i in range(5):  #: 6
                x = (  #: 5
                    i
                    if i % 2
                    else -i
                )
            return x  #: 1
    """,
    "ternary with its value first": """
        def f():
            for i in range(5):  #: 6
                x = (abs(i)  #: 5
                     if i % 2 else
                     max(i, 3))
            return x  #: 1
    """,
    "boolean operators over lines": """
        def f():
            n = 0  #: 1
            for i in range(6):  #: 7
                if (  #: 6
                    i > 1
                    and i > 2
                    or i == 0
                ):
                    n += 1  #: 4
            return n  #: 1
    """,
    "if on one line": """
        def f():
            y = 0  #: 1
            for x in range(6):  #: 7
                if x: y += 1  #: 6
            return y  #: 1
    """,
    "two on one line": """
        def f():
            for x in range(6):  #: 7
                a = x; b = abs(a)  #: 6
            return b  #: 1
    """,
    "if elif else": """
        def f():
            for x in range(6):  #: 7
                if x == 0:  #: 6
                    y = 0  #: 1
                elif x < 3:  #: 5
                    y = 1  #: 2
                elif x < 4:  #: 3
                    y = 2  #: 1
                else:
                    y = 3  #: 2
            return y  #: 1
    """,
    "while else": """
        def f():
            n = 4  #: 1
            while n:  #: 5
                n -= 1  #: 4
            else:
                n = 9  #: 1
            return n  #: 1
    """,
    "while true": """
        def f():
            n = 4  #: 1
            while True:  #: 5
                if not n:  #: 5
                    break  #: 1
                n -= 1  #: 4
            return n  #: 1
    """,
    "while over lines": """
        def f():
            n = 4  #: 1
            while (  #: 5
                n > 0
                and n > -1
            ):
                n -= 1  #: 4
            return n  #: 1
    """,
    "for else": """
        def f():
            for i in range(4):  #: 5
                x = i  #: 4
            else:
                x = 9  #: 1
            for i in range(4):  #: 2
                if i == 1:  #: 2
                    break  #: 1
            else:
                x = 7  #: 0
            return x  #: 1
    """,
    "for over lines": """
        def f():
            for i in range(  #: 5
                0,
                4,
            ):
                x = i  #: 4
            return x  #: 1
    """,
    "for over lines, inside a loop": """
        def f():
            for j in range(3):  #: 4
                for (  #: 15
                    i
                ) in [
                    abs(1),
                    abs(2),
                    abs(3),
                    abs(4),
                ]:
                    x = i  #: 12
            return x  #: 1
    """,
    "nested loops": """
        def f():
            n = 0  #: 1
            for i in range(3):  #: 4
                for j in range(5):  #: 18
                    n += 1  #: 15
            return n  #: 1
    """,
    "try except else finally": """
        def f():
            for i in range(4):  #: 5
                try:  #: 4
                    1 / (i % 2)  #: 4
                except KeyError:  #: 2
                    x = 1  #: 0
                except (ValueError, ZeroDivisionError):  #: 2
                    x = 2  #: 2
                else:
                    x = 3  #: 2
                finally:
                    y = x  #: 4
            return y  #: 1
    """,
    "finally left by return": """
        def g(i):
            try:  #: 4
                if i % 2:  #: 4
                    return 1  #: 2
                x = 1 / i  #: 2
            except ZeroDivisionError as error:  #: 1
                return str(error)  #: 1
            finally:
                x = 2  #: 4
            return x  #: 1
        def f():
            for i in range(4):  #: 5
                g(i)  #: 4
    """,
    "bare except": """
        def f():
            for i in range(4):  #: 5
                try:  #: 4
                    1 / (i % 2)  #: 4
                except:  #: 2
                    x = 2  #: 2
            return x  #: 1
    """,
    "except star": """
        def f():
            for i in range(4):  #: 5
                try:  #: 4
                    raise ExceptionGroup("g", [ValueError(1), KeyError(2)])  #: 4
                except* ValueError:  #: 4
                    x = 1  #: 4
                except* KeyError:  #: 4
                    x = 2  #: 4
            return x  #: 1
    """,
    "statement over lines that raises": """
        def f():
            n = 0  #: 1
            for i in range(4):  #: 5
                try:  #: 4
                    n += max(  #: 4
                        i,
                        1 // (i % 2),
                        abs(i),
                    )
                except ZeroDivisionError:  #: 2
                    n += 1  #: 2
            return n  #: 1
    """,
    "raise over lines": """
        def g():
            raise ValueError(  #: 3
                "a"
                "b",
                abs(3),
            )
        def f():
            for i in range(3):  #: 4
                try:  #: 3
                    g()  #: 3
                except ValueError:  #: 3
                    pass  #: 3
    """,
    "assert over lines": """
        def f():
            for i in range(3):  #: 4
                assert (  #: 3
                    i
                    >= 0
                ), (
                    "no"
                )
            return i  #: 1
    """,
    "lambda over lines": """
        def f():
            for i in range(3):  #: 4
                x = sorted(  #: 3
                    [3, 1, 2],
                    key=lambda v: (
                        -v
                    ),
                )
            return x  #: 1
    """,
    "lambda on one line": """
        def f():
            g = lambda v: v + 1  #: 1
            for i in range(3):  #: 4
                g(i)  #: 3
            return g  #: 1
    """,
    "f-string over lines": '''
        def f():
            for i in range(3):  #: 4
                x = (  #: 3
                    f"{i} and "
                    f"{abs(i):>{4}} and "
                    f"{i!r}"
                )
                y = f"""  #: 3
                    {i} with
                    {abs(i)}
                """
            return x, y  #: 1
    ''',
    "text over lines": '''
        def f():
            for i in range(3):  #: 4
                x = """ #: 3
                    text
                """.strip(
                )
            return x  #: 1
    ''',
    "docstrings": '''
        def f():
            """Words.

            More words.
            """
            def g():  #: 1
                """Words."""
                return 1  #: 3
            for i in range(3):  #: 4
                g()  #: 3
    ''',
    "nested functions": """
        def f():
            k = 2  #: 1
            def g(n):  #: 1
                def h():  #: 3
                    return n * k  #: 3
                return h()  #: 3
            for i in range(3):  #: 4
                g(i)  #: 3
    """,
    "defaults over lines": """
        def f():
            for i in range(3):  #: 4
                def g(  #: 3
                    a=abs(1),
                    b=abs(2),
                ):
                    return a + b  #: 3
                g()  #: 3
    """,
    "class in a function": """
        def f():
            class A:  #: 1
                x = 3
                def m(self):
                    return self.x  #: 3
            a = A()  #: 1
            for i in range(3):  #: 4
                a.m()  #: 3
    """,
    "global and nonlocal": """
        total = 0
        def f():
            global total
            n = 0  #: 1
            def g():  #: 1
                nonlocal n
                n += 1  #: 3
            for i in range(3):  #: 4
                g()  #: 3
                total += 1  #: 3
    """,
    "annotations": """
        def f():
            x: int
            y: int = 3  #: 1
            z: "list[int]" = [  #: 1
                y,
                y,
            ]
            for i in range(2):  #: 3
                x: int = i  #: 2
            return x, z  #: 1
    """,
    "backslash": """
        def f():
            for i in range(3):  #: 4
                x = i + 1 + \\
                    abs(i) + \\
                    abs(2)  #-2: 3
            return x  #: 1
    """,
    "tabs": "\n\tdef f():\n\t\tfor i in range(3):  #: 4\n\t\t\tx = max(  #: 3\n\t\t\t\ti,\n"
    "\t\t\t\t2,\n\t\t\t)\n\t\treturn x  #: 1\n",
    "wide characters": """
        def f():
            größe = "漢字" * 3  #: 1
            for ñ in "𝔘ñ漢":  #: 4
                größe += max(  #: 3
                    ñ,
                    "é",
                )
            return größe  #: 1
    """,
    "del, import, pass, continue": """
        def f():
            for i in range(4):  #: 5
                import math  #: 4
                x = {0: i}  #: 4
                del x[0]  #: 4
                if i:  #: 4
                    pass  #: 3
                    continue  #: 3
                math.sqrt(i)  #: 1
    """,
    "subscripts and unpacking over lines": """
        def f():
            for i in range(3):  #: 4
                a, b = (  #: 3
                    i,
                    abs(i),
                )
                d = {}  #: 3
                d[  #: 3
                    a
                ] = b
                d[  #: 3
                    a] += (
                    b
                )
            return d  #: 1
    """,
    "generator": """
        def g(n):
            for i in range(n):  #: 6
                yield (  #: 5
                    i
                )
        def f():
            for x in g(5):  #: 6
                y = x  #: 5
            return y  #: 1
    """,
    "yield from": """
        def h(n):
            yield n  #: 3
            yield n  #: 3
        def g(n):
            for i in range(n):  #: 4
                yield from h(i)  #: 3
        def f():
            return list(g(3))  #: 1
    """,
    "send": """
        def g():
            total = 0  #: 1
            while True:  #: 4
                total += yield total  #: 4
        def f():
            it = g()  #: 1
            next(it)  #: 1
            for i in range(3):  #: 4
                it.send(i)  #: 3
            it.close()  #: 1
    """,
    "recursion": """
        def fib(n):
            if n < 2:  #: 15
                return n  #: 8
            return fib(n - 1) + fib(n - 2)  #: 7
        def f():
            fib(5)  #: 1
    """,
    "recursion over lines": """
        def fib(n):
            if n < 2:  #: 15
                return n  #: 8
            return (  #: 7
                fib(n - 1)
                + fib(
                    n - 2,
                )
            )
        def f():
            fib(5)  #: 1
    """,
    "async for and with": """
        import asyncio
        class Manager:
            async def __aenter__(self):
                return self  #: 3
            async def __aexit__(self, *error):
                return None  #: 3
        async def numbers(n):
            for i in range(n):  #: 4
                await asyncio.sleep(0)  #: 3
                yield i  #: 3
        async def work():
            async for i in numbers(3):  #: 4
                async with Manager() as m:  #: 3
                    x = m  #: 3
            return x  #: 1
        def f():
            asyncio.run(work())  #: 1
    """,
    "async comprehension": """
        import asyncio
        async def numbers(n):
            for i in range(n):  #: 8
                yield i  #: 6
        async def work():
            for n in range(2):  #: 3
                x = [  #: 2
                    i
                    async for i in numbers(3)
                ]
            return x  #: 1
        def f():
            asyncio.run(work())  #: 1
    """,
    "await over lines": """
        import asyncio
        async def g(i):
            await asyncio.sleep(  #: 3
                0,
            )
            return i  #: 3
        async def work():
            for i in range(3):  #: 4
                x = await g(  #: 3
                    i,
                )
            return x  #: 1
        def f():
            asyncio.run(work())  #: 1
    """,
    "gather over lines": """
        import asyncio
        async def g(i):
            await asyncio.sleep(0)  #: 3
            return i  #: 3
        async def work():
            return await asyncio.gather(  #: 1
                g(1),
                g(2),
                g(3),
            )
        def f():
            asyncio.run(work())  #: 1
    """,
    "comments and blank lines": """
        def f():
            # before

            for i in range(3):  #: 4
                # inside
                x = max(  #: 3
                    # a comment in a call
                    i,

                    2,
                )

            # after
            return x  #: 1
    """,
    "dead code": """
        def f():
            if False:  #: 1
                x = 1  #: 0
            return 2  #: 1
            x = 3  #: 0
    """,
    "long call over lines": """
        def f():
            for i in range(3):  #: 4
                x = max(  #: 3
                    abs(i) + abs(i) + abs(i) + abs(i) + abs(i) + abs(i) + abs(i) + abs(i),
                    abs(i) + abs(i) + abs(i) + abs(i) + abs(i) + abs(i) + abs(i) + abs(i),
                )
            return x  #: 1
    """,
    "a list of a list of literals": """
        def f():
            for i in range(3):  #: 4
                x = [  #: 3
                    [1, 2, i],
                    [3, 4, i],
                    {
                        "a": i,
                        "b": (i, 2),
                    },
                ]
            return x  #: 1
    """,
    "comparison chain over lines": """
        def f():
            for i in range(4):  #: 5
                x = (  #: 4
                    0
                    < i
                    < abs(3)
                )
            return x  #: 1
    """,
    "starred and keyword arguments over lines": """
        def g(*args, **kwargs):
            return args  #: 3
        def f():
            for i in range(3):  #: 4
                g(  #: 3
                    *range(i),
                    **{
                        "a": i,
                    },
                )
    """,
}


def load(tmp_path, source):
    """The names that a file with this source defines."""
    path = tmp_path / "own.py"
    path.write_text(source, encoding="utf-8")
    names = {"__name__": "own"}
    exec(compile(source, str(path), "exec"), names)
    return names


def marked(source):
    """Hits by line, as the source says them."""
    return {
        number + int(found[1] or 0): int(found[2])
        for number, line in enumerate(source.splitlines(), 1)
        if (found := re.search(r"#(-\d+)?: (\d+)", line))
    }


@pytest.mark.parametrize("name", CASES)
def test_hits(tmp_path, name):
    """Each statement is one row with the hits of a count by hand, and all of them are exact."""
    source = textwrap.dedent(CASES[name])
    profile = profile_lines(load(tmp_path, source)["f"], mode="exact")
    assert {row.line: row.hits for row in profile.statements} == marked(source)
    assert all(row.hits_exact for row in profile.statements)


@pytest.mark.parametrize("loop", ["for i in range(9): n += i", "while n < 9: n += 1"])
def test_loop_on_one_line(tmp_path, loop):
    """A loop on one line has ten hits, or says that what it shows is a lower limit."""
    source = f"def f():\n    n = 0\n    {loop}\n    return n\n"
    row = profile_lines(load(tmp_path, source)["f"], mode="exact").at(3)
    assert row.source == loop
    assert row.hits == 10 or (not row.hits_exact and 1 <= row.hits < 10)


def test_sources_are_shown_as_typed(tmp_path):
    """A row's source is its lines less the indentation of the function; its header alone for if."""
    source = "def f(x=1):\n    if x:\n        y = max(\n            x,\n            2,\n        )\n"
    source += "    return y\n"
    rows = profile_lines(load(tmp_path, source)["f"], mode="exact").statements
    assert [row.source for row in rows] == [
        "if x:",
        "    y = max(\n        x,\n        2,\n    )",
        "return y",
    ]
    assert [(row.line, row.end_line) for row in rows] == [(2, 2), (3, 6), (7, 7)]


def test_html_in_the_source(tmp_path):
    """Text that looks like HTML stays as it is in the record."""
    source = 'def f():\n    x = "<script>alert(1)</script> & <b>"\n    return x\n'
    profile = profile_lines(load(tmp_path, source)["f"], mode="exact")
    assert profile.at(2).source == 'x = "<script>alert(1)</script> & <b>"'


def test_tabs_and_form_feeds(tmp_path):
    """Tabs become spaces, and a form feed before a function moves no line."""
    source = "\x0c\ndef f():\n\tif 1 < 2:\n\t\tx = 'a'\n\treturn x\n"
    profile = profile_lines(load(tmp_path, source)["f"], mode="exact")
    assert [row.source for row in profile.statements] == [
        "if 1 < 2:",
        "        x = 'a'",
        "return x",
    ]
    assert [row.line for row in profile.statements] == [3, 4, 5]


def test_other_encodings(tmp_path):
    """A file that declares its encoding is read in it."""
    path = tmp_path / "own.py"
    text = "# coding: latin-1\ndef f():\n    größe = 'äöü'\n    return größe\n"
    path.write_bytes(text.encode("latin-1"))
    names = {}
    exec(compile(path.read_bytes(), str(path), "exec"), names)
    assert profile_lines(names["f"], mode="exact").at(3).source == "größe = 'äöü'"


def test_windows_line_ends(tmp_path):
    """Files with the line ends of Windows are profiled like others."""
    path = tmp_path / "own.py"
    path.write_bytes(b"def f():\r\n    x = [\r\n        1,\r\n    ]\r\n    return x\r\n")
    names = {}
    exec(compile(path.read_bytes(), str(path), "exec"), names)
    rows = profile_lines(names["f"], mode="exact").statements
    assert [(row.line, row.hits) for row in rows] == [(2, 1), (5, 1)]
    assert "\r" not in rows[0].source


def test_loops_of_rows(tmp_path):
    """A header lies in its own loop, and loops know their ends."""
    source = textwrap.dedent(CASES["nested loops"])
    profile = profile_lines(load(tmp_path, source)["f"], mode="exact")
    assert [row.loop for row in profile.statements] == [0, 4, 5, 5, 0]
    assert [(loop.line, loop.end_line) for loop in profile.loops] == [(4, 6), (5, 6)]


def test_two_functions_on_one_line(tmp_path):
    """Functions that share their line are told apart, or the report says that they cannot be."""
    source = "def f():\n    def a(): return 1\n    def b(): return 2\n    return a() + a() + b()\n"
    profile = profile_lines(load(tmp_path, source)["f"], mode="exact")
    rows = {row.line: row.hits for row in profile.statements if row.function == "f"}
    assert rows == {2: 1, 3: 1, 4: 1}
