"""Thresholds and risk-coverage curves, held against counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.errors import ConfigError, DataError
from fedskew.federate.confidence import answered, aurc, choose_threshold, risk_coverage

answers = st.lists(
    st.tuples(st.integers(1, 12).map(lambda n: n / 13), st.booleans()), min_size=1, max_size=40
)


@given(answers)
def test_risk_and_coverage_are_what_counting_at_every_threshold_gives(
    pairs: list[tuple[float, bool]],
) -> None:
    confidence, correct = zip(*pairs, strict=True)
    expected = []
    for threshold in sorted(set(confidence), reverse=True):
        kept = [right for sure, right in pairs if sure >= threshold]
        expected.append((len(kept) / len(pairs), kept.count(False) / len(kept)))
    coverage, risk = risk_coverage(confidence, correct)
    np.testing.assert_allclose(np.stack([coverage, risk], axis=1), expected)
    area = before = 0.0
    for reached, error in expected:
        area += (reached - before) * error
        before = reached
    assert aurc(confidence, correct) == pytest.approx(area)


def test_without_ties_the_area_is_the_mean_risk_over_ranked_samples() -> None:
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(200), rng.random(200) < 0.7
    wrong = ~correct[np.argsort(-confidence)]
    risks = [wrong[: k + 1].mean() for k in range(200)]
    assert aurc(confidence, correct) == pytest.approx(np.mean(risks))


def test_a_perfect_ranking_has_the_smallest_area() -> None:
    confidence, correct = [0.9, 0.8, 0.7, 0.6], [True, True, True, False]
    assert aurc(confidence, correct) == pytest.approx(1 / 16)
    assert aurc(confidence, correct[::-1]) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


@given(answers, st.sampled_from([0.5, 0.6, 0.75, 0.8]))
def test_the_threshold_is_the_smallest_that_reaches_the_accuracy(
    pairs: list[tuple[float, bool]], wished: float
) -> None:
    """Brute force over every confidence that occurs, by the rule the docstring gives."""
    confidence, correct = zip(*pairs, strict=True)
    fewest = {0.5: 2, 0.6: 3, 0.75: 4, 0.8: 5}[wished]
    if len(pairs) < fewest:
        with pytest.raises(DataError, match="too few"):
            choose_threshold(confidence, correct, wished)
        return
    found = {}
    for threshold in set(confidence):
        kept = [right for sure, right in pairs if sure >= threshold]
        if len(kept) >= fewest:
            found[threshold] = kept.count(True) / len(kept)
    reaching = [threshold for threshold, accuracy in found.items() if accuracy >= wished]
    best = [threshold for threshold, a in found.items() if a == max(found.values())]
    assert choose_threshold(confidence, correct, wished) == min(reaching or best)


def test_one_sure_and_right_sample_is_no_reason_for_a_threshold() -> None:
    """Of 40 samples only the surest is always right; at 0.95 twenty must be answered."""
    confidence = np.linspace(0.99, 0.2, 40)
    correct = np.arange(40) % 2 == 0
    value = choose_threshold(confidence, correct, 0.95)
    assert answered(confidence, correct, value).samples >= 20


def test_a_threshold_is_never_one_even_where_all_are_certain() -> None:
    assert 0 < choose_threshold([1.0] * 30, [True] * 30) < 1
    assert (
        answered([1.0] * 30, [True] * 30, choose_threshold([1.0] * 30, [True] * 30)).samples == 30
    )


@pytest.mark.parametrize("accuracy", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_an_accuracy_outside_0_to_1_is_refused(accuracy: float) -> None:
    with pytest.raises(ConfigError, match="accuracy must lie between 0 and 1"):
        choose_threshold([0.5] * 30, [True] * 30, accuracy)


@pytest.mark.parametrize(
    ("confidence", "correct", "says"),
    [
        ([0.5, 0.6], [True], "same length"),
        ([], [], "no samples"),
        ([0.5, float("nan")], [True, True], "NaN"),
    ],
)
def test_confidence_that_is_none_is_refused(
    confidence: list[float], correct: list[bool], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        risk_coverage(confidence, correct)
