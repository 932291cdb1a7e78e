"""Answers with their confidence: thresholds, risk and coverage, and predictions from folders."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedskew
from fedskew.data.datasets import load
from fedskew.deploy.model import validation_threshold
from fedskew.errors import ConfigError, DataError, RunError
from fedskew.federate.confidence import answered, aurc, choose_threshold, risk_coverage
from fedskew.federate.predictions import load_predictions
from fedskew.runs.experiment import Run, make_federation, run

Stored = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

# Few distinct confidences, so that ties are common.
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A quick federation with one client left out, whose clients have models of their own too."""
    settings = {
        "model": "logistic",
        "method": "ditto",
        "federation": {"clients": 4, "unseen": 1, "samples": 600},
        "train": {"rounds": 6, "lr": 0.5},
    }
    return run(settings, out=tmp_path_factory.mktemp("runs"), draw=False)


@pytest.fixture(scope="module")
def stored() -> Stored:
    """The digits as stored; a run's rows are theirs."""
    digits = load("digits", normalise="unit")
    return digits.x.numpy(), digits.y.numpy()


def test_predictions_are_those_the_run_scored(finished: Run, stored: Stored) -> None:
    """From pixels as stored to the very confidences in predictions.npz, by another way."""
    x, y = stored
    scored = load_predictions(finished.path)
    federation = make_federation(finished.config)
    for client in federation.clients:
        rows = client.validation
        found = fedskew.predict(finished, x[rows], y[rows], client=client.name, threshold=0.5)
        mine = (scored["client"] == client.name) & (scored["split"] == "validation")
        mine &= scored["adapted"] == "none"
        np.testing.assert_array_equal(found.label, scored["predicted"][mine])
        np.testing.assert_allclose(found.probability, scored["confidence"][mine], rtol=1e-5)


def test_a_chosen_threshold_holds_what_it_says_on_the_validation_samples(
    finished: Run, stored: Stored
) -> None:
    x, y = stored
    found = fedskew.predict(finished, x[:50], y[:50], accuracy=0.9)
    scored = load_predictions(finished.path)
    rows = (scored["split"] == "validation") & (scored["adapted"] == "none")
    kept = scored["confidence"][rows] >= found.threshold
    assert found.chosen is not None
    assert found.chosen.samples == rows.sum()
    assert found.chosen.coverage == pytest.approx(kept.mean())
    assert found.chosen.accuracy == pytest.approx(scored["correct"][rows][kept].mean())
    assert found.chosen.accuracy >= 0.9 or "only" in str(found.chosen)


def test_below_the_threshold_one_asks_and_the_scores_say_what_that_does(
    finished: Run, stored: Stored
) -> None:
    x, y = stored
    found = fedskew.predict(finished, x[:200], y[:200], threshold=0.6)
    sure = found.probability >= 0.6
    assert 0 < sure.sum() < 200
    np.testing.assert_array_equal(found.ask, ~sure)
    assert found.coverage == pytest.approx(sure.mean())
    assert found.accuracy == pytest.approx((found.label == y[:200]).mean())
    assert found.answered is not None
    assert found.answered.accuracy == pytest.approx((found.label == y[:200])[sure].mean())
    assert f"{sure.mean():.1%} answered, {(~sure).sum()} of 200 to ask" in str(found)


def test_the_csv_file_has_a_line_a_sample(finished: Run, stored: Stored, tmp_path: Path) -> None:
    x, y = stored
    found = fedskew.predict(finished, x[:30], y[:30], threshold=0.6)
    found.save(tmp_path / "answers.csv")
    with open(tmp_path / "answers.csv") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["truth"]) for line in lines] == y[:30].tolist()
    assert [line["label"] for line in lines] == found.names
    asked = [line["answer"] == "ask for a label" for line in lines]
    assert asked == (found.probability < 0.6).tolist()


def test_samples_without_labels_are_answered_but_not_scored(
    finished: Run, stored: Stored, tmp_path: Path
) -> None:
    np.savez(tmp_path / "new.npz", x=stored[0][:5])
    found = fedskew.predict(finished, tmp_path / "new.npz", threshold=0.6)
    assert len(found.label) == 5
    assert found.accuracy is None
    assert "truth" not in str(found)
    assert "accuracy" not in str(found)


@pytest.mark.parametrize("threshold", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_a_threshold_outside_0_to_1_is_refused(finished: Run, threshold: float) -> None:
    with pytest.raises(ConfigError, match="threshold must lie between 0 and 1"):
        fedskew.predict(finished, np.zeros((1, 8, 8), np.float32), threshold=threshold)


def test_an_unknown_client_is_answered_with_the_nearest(finished: Run) -> None:
    known = make_federation(finished.config).clients[0].name
    with pytest.raises(ConfigError, match="did you mean 'client-00"):
        fedskew.predict(finished, np.zeros((1, 8, 8)), client=f"{known}0", threshold=0.5)


def test_too_few_validation_samples_ask_for_a_threshold(finished: Run) -> None:
    with pytest.raises(DataError, match="give the threshold itself"):
        validation_threshold(finished.path, accuracy=0.999)


def test_a_run_without_a_classifier_predicts_nothing(tmp_path: Path) -> None:
    settings = {
        "model": "beta-vae",
        "method": "vae",
        "federation": {"clients": 2, "samples": 100, "partition": "iid", "normalise": "unit"},
        "train": {"rounds": 1, "lr": 0.001},
    }
    done = run(settings, out=tmp_path, draw=False)
    with pytest.raises(RunError, match="has no classifier"):
        fedskew.predict(done, np.zeros((1, 8, 8)), threshold=0.5)
