"""XSpace messages made by hand: a dict of planes, of lines, of events (name, start, duration,
stats), with times in nanoseconds.
"""

import struct


def varint(number):
    """A number as the wire has it; negative ones as 64 bits."""
    number, out = number % 2**64, b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number, value):
    """One field of a message: a number, a double, a text, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def message(*pairs):
    """A message of (number, value) in order."""
    return b"".join(field(*pair) for pair in pairs)


def xspace(planes, **started):
    """The message; `started`: profile_start_time."""
    parts = [field(1, xplane(name, lines)) for name, lines in planes.items()]
    return b"".join([*parts, field(1, xplane("Task Environment", {}, started))])


def xplane(name, lines, stats=()):
    """A plane. A line may be (timestamp_ns, events) in place of its events."""
    events, words = {}, {}
    body = [(2, name)]
    for number, (title, rows) in enumerate(lines.items(), start=1):
        timestamp_ns, rows = rows if isinstance(rows, tuple) else (0, rows)
        own = [(4, _event(row, events, words)) for row in rows]
        body.append((3, message((1, number), (2, title), (3, timestamp_ns), *own)))
    body += [(4, _entry(code, title)) for title, code in events.items()]
    body += [(6, _stat(key, value, words)) for key, value in dict(stats).items()]
    return message(*body, *((5, _entry(code, title)) for title, code in words.items()))


def _event(row, events, words):
    name, start_ns, duration_ns, *stats = row
    code = events.setdefault(name, len(events) + 1)
    own = [(4, _stat(key, value, words)) for pairs in stats for key, value in pairs.items()]
    return message((1, code), (2, round(1000 * start_ns)), (3, round(1000 * duration_ns)), *own)


def _stat(key, value, words):
    code = words.setdefault(key, len(words) + 1)
    number = {int: 4, float: 2, str: 5, bytes: 6}[type(value)]
    return message((1, code), (number, value))


def _entry(code, title):
    return message((1, code), (2, message((1, code), (2, title))))
