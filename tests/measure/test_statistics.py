"""What samples say about themselves, on made-up runs whose truth is known.

Each rule is judged on a hundred runs with seeds 0 to 99. The shares are those that were found on
recorded samples, with room below.
"""

import random
import statistics

import pytest

from perfkit.measure.statistics import examine, is_settled, spread, warmup_length

SEEDS = range(100)


def samples(seed, n=200, noise=0.01):
    """A quiet run: times of about 1 with a little noise and a tail towards slow."""
    rng = random.Random(seed)
    return [1 + rng.gauss(0, noise) + rng.expovariate(1 / noise) for _ in range(n)]


def slow_start(seed, factor):
    return [t * factor if i < 50 else t for i, t in enumerate(samples(seed))]


def getting_faster(seed):
    return [t * (1 - 0.1 * i / 200) for i, t in enumerate(samples(seed))]


def two_modes(seed):
    rng = random.Random(1000 + seed)
    return [t * 1.3 if rng.random() < 0.3 else t for t in samples(seed)]


def change_of_speed(seed):
    return [t * 1.2 if i >= 100 else t for i, t in enumerate(samples(seed))]


def share(seen):
    """Part of the seeds for which `seen(seed)` holds."""
    return sum(map(bool, map(seen, SEEDS))) / len(SEEDS)


def words(values):
    return " ".join(examine(values).words)


# -- the table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [20, 40, 100, 200, 1000])
def test_stationary_says_nothing(n):
    """A quiet run has no words said about it, however long."""
    assert share(lambda seed: not examine(samples(seed, n)).words) >= 0.95


def test_stationary_keeps_its_median():
    """What is trimmed from a quiet run by mistake changes its median by less than 1 %."""

    def off(seed):
        values = samples(seed)
        kept = values[examine(values).trimmed :]
        return abs(statistics.median(kept) / statistics.median(values) - 1) > 0.01

    assert share(off) == 0


@pytest.mark.parametrize("factor", [1.5, 1.1])
def test_slow_start_is_trimmed(factor):
    """A slow start is found and left out, so that the median is that of the rest."""

    def found(seed):
        values = slow_start(seed, factor)
        trimmed = examine(values).trimmed
        truth = statistics.median(samples(seed))
        return trimmed > 0 and abs(statistics.median(values[trimmed:]) / truth - 1) < 0.03

    assert share(found) >= 0.9


def test_slow_start_is_no_drift():
    """Once a slow start is left out there is nothing more to say."""
    assert share(lambda seed: not examine(slow_start(seed, 1.5)).words) >= 0.85


def test_decay_is_trimmed():
    """A start that decays from half as much again is left out too."""

    def found(seed):
        values = [t * (1 + 0.5 * 0.8**i) for i, t in enumerate(samples(seed))]
        truth = statistics.median(samples(seed))
        kept = values[examine(values).trimmed :]
        return len(kept) < 200 and abs(statistics.median(kept) / truth - 1) < 0.03

    assert share(found) >= 0.95


def test_drift_is_warming():
    """A run that gets faster all along is still warming up."""
    assert share(lambda seed: "still warming up" in words(getting_faster(seed))) >= 0.95


def test_two_modes_are_clusters():
    """Three samples in ten that take 1.3 times as long are two clusters of that distance."""

    def found(seed):
        text = words(two_modes(seed))
        return text.startswith("two clusters") and " 1.3" in text.replace("1.29", "1.30")

    assert share(found) >= 0.85


def test_change_of_speed_is_told():
    """A second half that takes 1.2 times as long is one change, not two clusters."""
    texts = [words(change_of_speed(seed)) for seed in SEEDS]
    assert sum(text.startswith("the speed changed") for text in texts) >= 80
    assert not any("two clusters" in text for text in texts)


def test_every_anomaly_is_told():
    """None of the planted anomalies passes without a word."""
    for plant in (getting_faster, two_modes, change_of_speed):
        assert share(lambda seed, plant=plant: words(plant(seed))) >= 0.9


def test_halves_that_differ():
    """Too few samples for clusters still tell that their halves differ."""

    def slower(seed):
        return [t * 1.1 if i >= 20 else t for i, t in enumerate(samples(seed, 40))]

    assert share(lambda seed: words(slower(seed)).startswith("unstable")) >= 0.95


def test_scale_does_not_matter():
    """The same run in microseconds is judged as in seconds."""
    for plant in (samples, getting_faster, two_modes, change_of_speed):
        values = plant(7)
        assert examine([t * 1e-6 for t in values]) == examine(values)


# -- too few -----------------------------------------------------------------------------------


def test_too_few_to_trim():
    """Below 20 samples nothing is trimmed."""
    values = [2.0] * 5 + [1.0] * 14
    assert examine(values).trimmed == 0
    assert examine([*values, 1.0]).trimmed == 5


def test_too_few_to_warm():
    """From 24 samples on a run that gets faster all along is warming up, below nothing is said."""
    values = [1 - 0.01 * i for i in range(24)]
    assert "warming" in words(values)
    assert "warming" not in words(values[:23])


def test_too_few_for_clusters():
    """Below 60 samples two modes are no clusters."""
    values = [1.0, 1.001, 1.3, 1.002] * 15
    assert "two clusters" in words(values)
    assert "two clusters" not in words(values[:59])


@pytest.mark.parametrize("n", range(1, 20))
def test_few_samples_say_nothing(n):
    """A handful of samples, however wild, is not judged."""
    values = [random.Random(n).uniform(1, 9) for _ in range(n)]
    assert examine(values) == (0, ())


def test_no_samples():
    """Nothing is said about nothing."""
    assert examine([]) == (0, ()) and not is_settled([])


def test_equal_samples():
    """Samples that are all equal are settled, without a word, even at zero."""
    for value in (0.0, 1.0):
        assert examine([value] * 100) == (0, ()) and is_settled([value] * 100)


# -- settled -----------------------------------------------------------------------------------


def test_settled_needs_twenty():
    """Fewer than 20 samples are never settled."""
    assert not is_settled([1.0] * 19)
    assert is_settled([1.0] * 20)


def test_settled_when_parts_agree():
    """Blocks of a quiet run agree; those of a drifting one or of a change do not."""
    assert share(lambda seed: is_settled(samples(seed))) >= 0.95
    assert share(lambda seed: is_settled(getting_faster(seed))) == 0
    assert share(lambda seed: is_settled(change_of_speed(seed))) == 0


def test_settled_forgives_two_blocks():
    """One slow block and one fast one are forgiven, a second of either is not."""

    def run(blocks):
        return [value for value in blocks for _ in range(10)]

    assert is_settled(run([1, 1, 2, 1, 1, 1, 1, 0.5, 1, 1]))
    assert not is_settled(run([1, 1, 2, 1, 1, 1, 1, 0.5, 1, 2]))
    assert not is_settled(run([1, 1, 2, 1, 1, 1, 1, 0.5, 1, 0.5]))


def test_settled_ignores_spikes():
    """Single slow samples do not unsettle a run."""
    values = [5.0 if i % 20 == 0 else 1.0 for i in range(200)]
    assert is_settled(values)


def test_unsettled_is_told():
    """If the blocks disagreed when the budget was spent the run is unstable."""
    assert examine(samples(1), settled=False).words == (
        "unstable: parts of the run differ by more than the rest",
    )


# -- warm-up and spread ------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [0, 5, 10, 50])
def test_warmup_length(slow):
    """Groups of five slow samples at the front are counted exactly, up to a quarter."""
    assert warmup_length([2.0] * slow + [1.0] * 200) == slow


def test_warmup_is_at_most_half():
    """However long the slow start, half of the samples are kept."""
    assert warmup_length([100 - i for i in range(100)]) == 50


def test_long_slow_start_is_told():
    """A slow start too long to be left out is not passed over in silence."""
    values = [t * 1.5 if i < 70 else t for i, t in enumerate(samples(5))]
    assert examine(values).trimmed > 0 or words(values)


def test_slow_end_is_no_warmup():
    """Slow samples at the end are not a warm-up."""
    assert warmup_length([1.0] * 60 + [2.0] * 60) == 0


def test_spread_is_iqr_over_median():
    """The spread is the distance of the quartiles over the median."""
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert spread([2.0] * 10) == 0


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0], [0.0] * 5], ids=str)
def test_spread_is_unknown(values):
    """Below four samples, or with a median of zero, there is no spread."""
    assert spread(values) is None


def test_spread_ignores_one_spike():
    """One wild sample hardly changes the spread."""
    quiet = samples(3)
    assert spread([*quiet, 1000.0]) == pytest.approx(spread(quiet), rel=0.1)
