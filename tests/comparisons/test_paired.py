"""Every client against itself trained alone: by hand, and intervals that keep their word."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedskew.comparisons.paired import (
    Against,
    Side,
    against_alone,
    client_interval,
    judged,
    mean_gain,
)
from fedskew.comparisons.per_sample import Answered, differences
from fedskew.comparisons.statistics import Interval, interval

DRAWS = 500


def side(seed: int, right: dict[str, str], data: str = "") -> Side:
    """Clients whose samples are answered right (1) or wrong (0)."""
    told = {name: np.array([sign == "1" for sign in signs]) for name, signs in right.items()}
    return Side(
        seed,
        data or f"data of {seed}",
        {name: float(found.mean()) for name, found in told.items()},
        {name: len(found) for name, found in told.items()},
        {name: Answered(np.zeros(len(found)), found) for name, found in told.items()},
    )


def plain(seed: int, **scores: float) -> Side:
    """Clients whose answers are not known sample by sample."""
    return Side(seed, f"data of {seed}", scores, dict.fromkeys(scores, 10))


def against(ours: list[Side], alone: list[Side], higher: bool = True) -> Against:
    return against_alone(ours, alone, "accuracy", higher)


def test_clients_are_paired_by_name_and_seed_and_counted() -> None:
    ours = [plain(1, a=0.9, b=0.5), plain(0, a=0.7, b=0.6)]
    alone = [plain(0, a=0.6, b=0.8), plain(1, b=0.5, a=0.6)]
    found = against(ours, alone)
    gains = {(each.client, each.seed): each.gain.mean for each in found.by_seed}
    assert gains == pytest.approx({("a", 1): 0.3, ("b", 1): 0.0, ("a", 0): 0.1, ("b", 0): -0.2})
    assert (found.worse, len(found.clients)) == (1, 4)
    assert found.worst is not None
    assert (found.worst.client, found.worst.seed, found.worst.samples) == ("b", 0, 10)
    # Means of 0.7 and 0.55 on seed 1, 0.65 and 0.7 on seed 0: gains of 0.15 and -0.05.
    known = stats.ttest_1samp([0.15, -0.05], 0.0).confidence_interval(0.95)
    assert found.gain.mean == pytest.approx(0.05)
    assert (found.gain.low, found.gain.high) == pytest.approx((known.low, known.high))
    assert found.clearly_worse is None


def test_less_is_a_gain_where_lower_is_better() -> None:
    [a, b] = against([plain(0, a=1.0, b=3.0)], [plain(0, a=1.5, b=2.5)], higher=False).by_seed
    assert (a.gain.mean, b.gain.mean) == (0.5, -0.5)
    assert (a.is_worse, b.is_worse) == (False, True)


def test_a_client_that_only_one_of_both_scored_is_left_out_and_counted() -> None:
    found = against([plain(0, a=0.5, b=0.9)], [plain(0, a=0.4, c=0.1)])
    assert [each.client for each in found.by_seed] == ["a"]
    assert found.unpaired == 2
    assert found.gain.mean == pytest.approx(0.1)


def test_a_client_without_a_usable_answer_is_worse_off() -> None:
    found = against([plain(0, a=math.nan, b=0.5)], [plain(0, a=0.4, b=0.5)])
    assert found.worse == 1
    assert found.worst is None
    assert found.verdict == "cannot tell"


def test_one_seed_cannot_tell_a_gain_but_its_samples_tell_who_is_clearly_worse() -> None:
    """20 samples: 10 lost and none won is clear, 3 lost and one won is not."""
    ours = side(0, {"clear": "1" * 5 + "0" * 15, "open": "1" * 11 + "0" * 9})
    alone = side(0, {"clear": "1" * 15 + "0" * 5, "open": "1" * 10 + "0" + "1" * 3 + "0" * 6})
    found = against([ours], [alone])
    assert found.verdict == "cannot tell"
    assert math.isnan(found.gain.low)
    assert (found.worse, found.clearly_worse) == (2, 1)
    clear = found.by_seed[0].gain
    # Bonett and Price: 11 of 22 lost, 1 of 22 won, with one sample added to each.
    lost, won = 11 / 22, 1 / 22
    half = stats.norm.ppf(0.975) * math.sqrt((lost + won - (won - lost) ** 2) / 22)
    assert clear.mean == pytest.approx(-0.5)
    assert (clear.low, clear.high) == pytest.approx((won - lost - half, won - lost + half))


def test_answers_for_other_samples_are_not_paired() -> None:
    right = np.array([True, False, True])
    ours, alone = Answered(np.array([0, 1, 2]), right), Answered(np.array([0, 2, 1]), right)
    assert differences(ours, alone, higher=True) is None
    assert differences(ours, ours, higher=True) is not None
    one = Answered(np.array([1]), np.array([True]))
    assert differences(one, one, higher=True) is None


def test_where_all_seeds_have_the_same_clients_each_counts_once() -> None:
    ours = [side(seed, {"a": "1100", "b": "0001"}, "the same") for seed in (0, 1)]
    alone = [side(seed, {"a": "1000", "b": "0011"}, "the same") for seed in (0, 1)]
    found = against(ours, alone)
    assert [(c.client, c.seed, c.gain.mean) for c in found.clients] == [
        ("a", None, 0.25),
        ("b", None, -0.25),
    ]
    assert len(found.by_seed) == 4
    # No seed differs from another, but eight samples do not rule out a gain.
    assert interval([0.0, 0.0]).is_constant
    assert found.gain.high > 0.1
    assert found.verdict == "cannot tell"


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (Interval(0.030, 0.002, 0.058, 3), "better"),
        (Interval(-0.030, -0.058, -0.002, 3), "worse"),
        (Interval(0.001, -0.009, 0.010, 3), "tie"),
        (Interval(0.005, 0.001, 0.009, 3), "tie"),
        (Interval(0.001, -0.011, 0.010, 3), "cannot tell"),
        (interval([0.2]), "cannot tell"),
        (interval([0.2, 0.2]), "cannot tell"),
        (interval([math.nan, 0.2]), "cannot tell"),
    ],
)
def test_a_tie_is_an_interval_inside_the_margin(gain: Interval, verdict: str) -> None:
    assert judged(gain, 0.01) == verdict


def test_models_that_score_the_same_on_every_client_of_all_seeds_tie() -> None:
    sides = [plain(seed, a=0.5, b=0.7) for seed in (0, 1)]
    assert against(sides, sides).verdict == "tie"
    shifted = [plain(seed, a=0.7, b=0.9) for seed in (0, 1)]
    assert against(shifted, sides).verdict == "cannot tell"


def test_the_margin_of_a_metric_that_is_no_share_is_part_of_the_score_alone() -> None:
    ours, alone = [plain(0, a=11.0)], [plain(0, a=20.0)]
    assert against_alone(ours, alone, "rmse", higher=False).margin == pytest.approx(0.2)
    assert against_alone(ours, alone, "accuracy", higher=True, margin=0.05).margin == 0.05


def covered(found: Interval, truth: float) -> bool:
    return found.low <= truth <= found.high


def test_the_interval_of_the_mean_gain_keeps_its_word_over_seeds_of_dependent_clients() -> None:
    """Clients of a seed share a shift five times their own; 95 % of intervals hold the truth."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(DRAWS):
        shift = rng.normal(0.0, 0.05, (4, 1))
        gains = 0.02 + shift + rng.normal(0.0, 0.01, (4, 10))
        found = mean_gain([(float(g), 0.0) for g in gains.mean(axis=1)], True)
        hits += covered(found, 0.02)
    assert 0.90 <= hits / DRAWS <= 0.97


@pytest.mark.parametrize(
    ("seeds", "clients", "samples", "shift"), [(3, 10, 20, 0.0), (3, 10, 20, 0.02), (5, 4, 50, 0.1)]
)
def test_the_interval_keeps_its_word_where_seeds_share_clients_and_samples(
    seeds: int, clients: int, samples: int, shift: float
) -> None:
    """Samples are easier or harder for all seeds, seeds better or worse for all samples."""
    rng = np.random.default_rng(2)
    hits, blind = 0, 0
    for _ in range(DRAWS):
        of_seeds = rng.normal(0.0, shift, (seeds, 1))
        gains = rng.normal(0.03, 0.05, clients)
        tables = [
            gain + of_seeds + rng.normal(0, 0.4, samples) + rng.normal(0, 0.3, (seeds, samples))
            for gain in gains
        ]
        means = [(float(np.mean([t[s].mean() for t in tables])), 0.0) for s in range(seeds)]
        hits += covered(mean_gain(means, True, tables), float(gains.mean()))
        blind += covered(mean_gain(means, True), float(gains.mean()))
    assert 0.90 <= hits / DRAWS <= 0.97
    # Seeds alone do not know the chance in samples they share.
    assert shift > 0.05 or blind < hits


@pytest.mark.parametrize(
    ("won", "lost", "samples"), [(0.1, 0.2, 20), (0.3, 0.1, 50), (0.05, 0.05, 100)]
)
def test_the_interval_of_a_client_keeps_its_word(won: float, lost: float, samples: int) -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(DRAWS):
        values = rng.choice([1.0, -1.0, 0.0], (1, samples), p=[won, lost, 1 - won - lost])
        found = client_interval([float(values.mean())], values, counted=True)
        hits += covered(found, won - lost)
    assert 0.92 <= hits / DRAWS <= 0.99


def test_a_client_none_of_whose_few_answers_changed_is_not_certain_of_a_tie() -> None:
    found = client_interval([0.0], np.zeros((1, 10)), counted=True)
    assert found.low < -0.1
    assert found.high > 0.1
