"""Figures of runs and comparisons: their numbers are the run's."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskew.api import run
from fedskew.runs.experiment import Run, make_federation
from fedskew.views.figures import draw_comparison, draw_run, is_drawn

SETTINGS: dict[str, Any] = {
    "model": "logistic",
    "train": {"rounds": 3},
    "federation": {"clients": 4},
    "evaluate": {"every": 2, "fine_tune_epochs": 1},
}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(SETTINGS, out=tmp_path_factory.mktemp("runs"))


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def scores(done: Run, number: int, adapted: bool = False) -> dict[str, float]:
    return {
        r.client: r.value
        for r in done.rows()
        if (r.round, r.on, r.split, r.metric) == (number, "seen", "test", "accuracy")
        and (r.adapted != "none") == adapted
    }


def test_a_run_leaves_three_pictures_each_with_its_data(finished: Run) -> None:
    for name in ("learning", "clients", "partition"):
        assert (finished.path / "figures" / f"{name}.png").read_bytes().startswith(PNG)
        assert table(finished.path / "figures" / f"{name}.csv")


def test_learning_curves_are_the_clients_mean_worst_and_best(finished: Run) -> None:
    lines = table(finished.path / "figures" / "learning.csv")
    assert [line["round"] for line in lines] == ["1", "2", "3"]
    assert lines[0]["test_mean"] == ""
    for line in lines[1:]:
        values = list(scores(finished, int(line["round"])).values())
        assert float(line["test_mean"]) == pytest.approx(sum(values) / 4)
        assert float(line["test_worst"]) == min(values)
        assert float(line["test_best"]) == max(values)
    losses = [float(line["train_loss"]) for line in lines]
    assert losses[2] < losses[0]


def test_clients_stand_lowest_first_with_their_score_after_fine_tuning(finished: Run) -> None:
    lines = table(finished.path / "figures" / "clients.csv")
    selected = finished.result["selected_round"]
    shown = [float(line["accuracy"]) for line in lines]
    assert shown == sorted(shown)
    assert {line["client"]: float(line["accuracy"]) for line in lines} == scores(finished, selected)
    adapted = {line["client"]: float(line["adapted"]) for line in lines}
    assert adapted == scores(finished, selected, adapted=True)
    assert {line["how"] for line in lines} == {"fine-tuned 1"}


def test_the_partition_is_counted_in_training_samples(finished: Run) -> None:
    lines = table(finished.path / "figures" / "partition.csv")
    counts = [[int(line[f"class {c}"]) for c in range(10)] for line in lines]
    assert counts == make_federation(finished.config).class_counts().tolist()


def test_what_is_drawn_is_left_and_what_is_missing_is_drawn_without_a_second_run(
    finished: Run,
) -> None:
    figures = finished.path / "figures"
    stamp = (figures / "clients.png").stat().st_mtime_ns
    draw_run(finished, lambda: make_federation(finished.config))
    assert (figures / "clients.png").stat().st_mtime_ns == stamp
    (figures / "partition.png").unlink()
    assert not is_drawn(finished.path)
    result = (finished.path / "result.json").stat().st_mtime_ns
    run(SETTINGS, out=finished.path.parent)
    assert is_drawn(finished.path)
    assert (finished.path / "result.json").stat().st_mtime_ns == result


def test_a_comparison_draws_all_methods_over_seeds(finished: Run, tmp_path: Path) -> None:
    other = run({**SETTINGS, "seed": 1}, out=finished.path.parent)
    folder = draw_comparison(tmp_path, {"ours": [finished, other]}, "accuracy")
    means = [np.mean(list(scores(r, 3).values())) for r in (finished, other)]
    last = table(folder / "learning.csv")[-1]
    assert (last["method"], last["round"]) == ("ours", "3")
    assert float(last["mean"]) == pytest.approx(np.mean(means))
    # Of two seeds: t(0.975, 1) = 12.706 times the standard error, which is half their distance.
    half = 12.7062 * abs(means[0] - means[1]) / 2
    assert float(last["low"]) == pytest.approx(np.mean(means) - half, rel=1e-5)
    assert float(last["high"]) == pytest.approx(np.mean(means) + half, rel=1e-5)
    points = table(folder / "clients.csv")
    assert [p["seed"] for p in points] == ["0"] * 4 + ["1"] * 4
    assert {p["client"]: float(p["accuracy"]) for p in points[4:]} == scores(
        other, other.result["selected_round"]
    )
    source = finished.path / "figures" / "partition.png"
    assert (folder / "partition.png").read_bytes() == source.read_bytes()
