"""Programs on which the line profiler is judged: one kind of work each, parts of equal weight."""

from corpus import calls, held_out, loops, numeric, objects, waiting

PROGRAMS = (
    *loops.PROGRAMS,
    *calls.PROGRAMS,
    *objects.PROGRAMS,
    *numeric.PROGRAMS,
    *waiting.PROGRAMS,
    *held_out.PROGRAMS,
)
