"""Figures: their data are the run's numbers, and their form follows how many there are."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import toy_federation

from fedskew.runs.experiment import Run, make_federation, run
from fedskew.views import plots
from fedskew.views.figures import draw_comparison, draw_run, is_drawn, partition_table

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


def test_unseen_clients_are_in_the_picture_of_the_partition() -> None:
    lines = partition_table(toy_federation(sizes=(5, 6)))
    assert [(line["client"], line["seen"]) for line in lines] == [
        ("c0", True), ("c1", True), ("c2", False),
    ]  # fmt: skip
    assert [sum(v for k, v in line.items() if k.startswith("class ")) for line in lines] == [
        5, 6, 12,
    ]  # fmt: skip


def test_what_is_drawn_is_left_and_what_is_missing_is_drawn_without_a_second_run(
    finished: Run,
) -> None:
    figures = finished.path / "figures"
    stamp = (figures / "clients.png").stat().st_mtime_ns
    draw_run(finished, make_federation(finished.config))
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
    assert float(last["std"]) == pytest.approx(np.std(means, ddof=1))
    points = table(folder / "clients.csv")
    assert [p["seed"] for p in points] == ["0"] * 4 + ["1"] * 4
    assert {p["client"]: float(p["accuracy"]) for p in points[4:]} == scores(
        other, other.result["selected_round"]
    )
    source = finished.path / "figures" / "partition.png"
    assert (folder / "partition.png").read_bytes() == source.read_bytes()


def counted(clients: int, classes: int) -> list[dict[str, Any]]:
    """Client i holds i + 1 samples of class i modulo the classes."""
    return [
        {
            "client": f"client-{i}",
            "seen": True,
            **{f"class {c}": (i + 1) * (c == i % classes) for c in range(classes)},
        }
        for i in range(clients)
    ]


def test_few_clients_are_bubbles_whose_areas_are_the_counts() -> None:
    figure = plots.partition(counted(4, 2), "four")
    _, grid = figure.axes
    bubbles = grid.collections[0]
    areas = bubbles.get_sizes()
    assert areas / areas[0] == pytest.approx([1, 2, 3, 4])
    assert np.asarray(bubbles.get_offsets()).tolist() == [[0, 0], [1, 1], [2, 0], [3, 1]]
    assert [label.get_text() for label in grid.get_xticklabels()] == [
        "client-0", "client-1", "client-2", "client-3",
    ]  # fmt: skip


def test_many_clients_are_a_heat_map_ordered_by_largest_class_then_size() -> None:
    figure = plots.partition(counted(1000, 10), "thousand")
    grid = figure.axes[1]
    heat = np.asarray(grid.images[0].get_array())
    assert heat.shape == (10, 1000)
    assert heat.argmax(axis=0).tolist() == np.repeat(np.arange(10), 100).tolist()
    assert heat[0, :3].tolist() == [991, 981, 971]
    assert "1000 clients" in grid.get_xlabel()


def test_many_classes_are_a_heat_map_too_but_clients_keep_their_names() -> None:
    grid = plots.partition(counted(5, 62), "letters").axes[1]
    assert len(grid.images) == 1
    assert grid.get_xticklabels()[4].get_text() == "client-4"


def test_references_keep_their_colours_and_no_two_methods_look_alike() -> None:
    names = ["local", *(f"method-{i}" for i in range(16)), "central"]
    chosen = plots.styles(names)
    assert len(set(chosen)) == len(names)
    assert chosen[0] == plots.styles(["local"])[0]
    assert chosen[-1] == plots.styles(["central"])[0]
