"""Figures about clients on their own: their numbers are the run's, their curves the definition."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedskew.api import run
from fedskew.federate.predictions import load_predictions
from fedskew.runs.experiment import Run
from fedskew.views.clients import client_table
from fedskew.views.deployment import (
    coverage_figure,
    coverage_table,
    shots_figure,
    shots_table,
)

SETTINGS: dict[str, Any] = {
    "model": "logistic",
    "train": {"rounds": 2},
    "federation": {"clients": 5, "unseen": 2, "partition": "iid", "validation": 0.2},
    "evaluate": {"fine_tune_epochs": 3, "shots": [0, 1, 5, "all"]},
}
LABELS = {0: "none", 1: "1-shot 3", 5: "5-shot 3", "all": "fine-tuned 3"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(SETTINGS, out=tmp_path_factory.mktemp("runs"))


def table(done: Run, name: str) -> list[dict[str, str]]:
    with open(done.path / "figures" / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def scores_on(done: Run, on: str, adapted: str) -> list[float]:
    selected = done.result["selected_round"]
    return [
        r.value
        for r in done.rows()
        if (r.on, r.adapted, r.split, r.metric) == (on, adapted, "test", "accuracy")
        and (r.round, r.model) == (selected, "global")
    ]


def test_the_curve_of_shots_is_the_clients_mean_at_every_number(finished: Run) -> None:
    lines = table(finished, "shots")
    places = [(line["on"], line["shots"]) for line in lines]
    assert places == [(on, str(k)) for on in ("seen", "unseen") for k in LABELS]
    for line in lines:
        values = scores_on(finished, line["on"], line["adapted"])
        assert len(values) == int(line["clients"])
        assert float(line["mean"]) == pytest.approx(np.mean(values))
        assert float(line["std"]) == pytest.approx(np.std(values))
        assert float(line["worst"]) == min(values)
    assert [line["adapted"] for line in lines[:4]] == list(LABELS.values())


@pytest.mark.parametrize("method", ["ditto", "fedper", "local-classifier"])
def test_methods_with_models_of_their_own_have_such_a_curve_too(
    method: str, tmp_path: Path
) -> None:
    done = run({**SETTINGS, "method": method, "model": "mlp"}, out=tmp_path, draw=False)
    lines = shots_table(done.result)
    assert [(line["on"], line["shots"]) for line in lines] == [
        (on, k) for on in ("seen", "unseen") for k in LABELS
    ]


def test_a_run_with_one_number_of_shots_has_no_curve(finished: Run) -> None:
    scores = [s for s in finished.result["scores"] if s["adapted"] in ("none", "5-shot 3")]
    assert shots_table({**finished.result, "scores": scores}) == []


def test_a_client_is_shown_after_the_adaptation_with_most_labels(finished: Run) -> None:
    selected = finished.result["selected_round"]
    lines = client_table(finished.results, "global", "accuracy", selected)
    assert {line["how"] for line in lines} == {"fine-tuned 3"}
    assert sorted(line["adapted"] for line in lines) == sorted(
        scores_on(finished, "seen", "fine-tuned 3")
    )


def test_the_last_point_of_coverage_is_the_accuracy_on_all_samples(finished: Run) -> None:
    found, lines = load_predictions(finished.path), table(finished, "coverage")
    for on in ("seen", "unseen"):
        for adapted in LABELS.values():
            own = [line for line in lines if (line["on"], line["adapted"]) == (on, adapted)]
            rows = (found["split"] == "test") & (found["on"] == on) & (found["adapted"] == adapted)
            last = [line for line in own if line["point"] == "curve"][-1]
            assert int(last["samples"]) == rows.sum()
            assert float(last["asked"]) == 0
            assert float(last["accuracy"]) == pytest.approx(found["correct"][rows].mean())


def made_up(
    confidence: list[float], correct: list[bool], on: str, split: str
) -> dict[str, NDArray[Any]]:
    count = len(confidence)
    return {
        "confidence": np.array(confidence, np.float32),
        "correct": np.array(correct),
        "on": np.full(count, on),
        "split": np.full(count, split),
        "adapted": np.full(count, "none"),
    }


def joined(*parts: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_coverage_by_hand_with_the_threshold_of_the_seen_clients_validation_samples() -> None:
    validation = made_up([0.9] * 20 + [0.5] * 10, [True] * 20 + [False] * 10, "seen", "validation")
    test = made_up(
        [0.95] * 20 + [0.6] * 10 + [0.3] * 10,
        [True] * 19 + [False] + [True] * 5 + [False] * 5 + [False] * 10,
        "unseen",
        "test",
    )
    lines = coverage_table(joined(validation, test))
    curve = [(line["asked"], line["accuracy"]) for line in lines if line["point"] == "curve"]
    assert curve == [
        pytest.approx((0.5, 19 / 20)),
        pytest.approx((0.25, 24 / 30)),
        pytest.approx((0.0, 24 / 40)),
    ]
    (chosen,) = (line for line in lines if line["point"] == "chosen")
    assert chosen["threshold"] == pytest.approx(0.9, abs=1e-6)
    assert (chosen["asked"], chosen["accuracy"]) == pytest.approx((0.5, 19 / 20))
    areas = 0.5 * (1 / 20) + 0.25 * (6 / 30) + 0.25 * (16 / 40)
    assert chosen["aurc"] == pytest.approx(areas)


def test_without_validation_samples_no_threshold_is_marked_and_few_samples_have_no_curve() -> None:
    many = made_up([0.1 * i for i in range(30)], [True] * 30, "seen", "test")
    few = made_up([0.5] * 19, [True] * 19, "unseen", "test")
    lines = coverage_table(joined(many, few))
    assert {(line["on"], line["point"]) for line in lines} == {("seen", "curve")}
    # Nineteen answers cannot tell an accuracy of 0.95.
    assert lines[0]["asked"] == pytest.approx(10 / 30)


def test_long_curves_are_thinned_but_keep_both_ends() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.permutation(np.linspace(0.1, 1.0, 5000)).tolist()
    lines = coverage_table(made_up(confidence, [True] * 5000, "seen", "test"))
    assert len(lines) == 200
    assert (lines[0]["asked"], lines[-1]["asked"]) == pytest.approx((1 - 20 / 5000, 0.0))


def test_the_pictures_show_their_tables(finished: Run) -> None:
    lines = shots_table(finished.result)
    (axes,) = shots_figure(lines, "accuracy", "toy").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "5", "all"]
    curves = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.get_lines()}
    assert curves["2 unseen clients, mean"].tolist() == [r["mean"] for r in lines[4:]]
    points = coverage_table(load_predictions(finished.path))
    left, right = coverage_figure(points, "toy").axes
    assert (left.get_title(), right.get_title()) == ("seen clients", "unseen clients")
    (trained, *_) = right.get_lines()
    own = [r for r in points if (r["on"], r["adapted"], r["point"]) == ("unseen", "none", "curve")]
    assert np.asarray(trained.get_ydata()).tolist() == [r["accuracy"] for r in own]
