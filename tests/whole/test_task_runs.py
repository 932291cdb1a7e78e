"""Whole runs where samples have no class of many: what is told, what is refused, what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

import fedskew
from fedskew.errors import FedskewError
from fedskew.views.terminal import run_summary

TABLE = load_diabetes(as_frame=True, scaled=False).frame
SETTINGS: dict[str, Any] = {
    "federation": {"label": "target", "partition": "iid", "clients": 4, "columns": {}},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"rounds": 3, "lr": 0.05},
}


def settings(path: Path, target: object, **changes: Any) -> dict[str, Any]:
    """Settings of a run on the diabetes table with another target, written to this file."""
    table = TABLE.assign(target=target)
    table.to_csv(path, index=False)
    federation = {**SETTINGS["federation"], **changes.pop("federation", {}), "dataset": str(path)}
    return {**SETTINGS, **changes, "federation": federation}


FRACTIONS = TABLE["target"] + 0.5 * (TABLE["sex"] == 2)
WORDS = np.where(TABLE["target"] > 140, "ill", "well")


def test_numbers_are_said_trained_scored_and_drawn(tmp_path: Path) -> None:
    said: list[str] = []
    given = settings(tmp_path / "t.csv", FRACTIONS)
    done = fedskew.run(given, out=tmp_path / "runs", tell=said.append)
    sentence = "'target' is learned as a number: it holds fractions."
    assert any(line.startswith(sentence) for line in said)
    result = done.result
    assert (result["primary_metric"], result["higher_is_better"]) == ("rmse", False)
    first, last = (
        [r.value for r in done.rows() if (r.round, r.metric, r.on) == (n, "rmse", "central")]
        for n in (1, 3)
    )
    # Better than its mean, in units of the target.
    assert last[0] < first[0]
    assert last[0] < float(FRACTIONS.std())
    assert "rmse" in run_summary(done)
    assert "accuracy" not in run_summary(done)
    figures = {path.name for path in (done.path / "figures").iterdir()}
    assert {"learning.png", "clients.png", "partition.png", "partition.csv"} <= figures
    assert "class" not in (done.path / "figures" / "partition.csv").read_text()


def test_the_loss_of_numbers_is_part_of_a_runs_name_only_where_it_is_chosen(tmp_path: Path) -> None:
    given = settings(tmp_path / "t.csv", FRACTIONS)
    plain = fedskew.run(given, out=tmp_path / "runs", draw=False)
    usual = {**given, "train": {**given["train"], "loss": "squared"}}
    assert fedskew.run(usual, out=tmp_path / "runs", draw=False).path == plain.path
    other = {**given, "train": {**given["train"], "loss": "absolute"}}
    assert fedskew.run(other, out=tmp_path / "runs", draw=False).path != plain.path
    assert "loss" not in plain.config.resolved()["train"]


@pytest.mark.parametrize(
    ("target", "changes", "match"),
    [
        (
            FRACTIONS,
            {"federation": {"task": "classification"}},
            "different fractions, which are",
        ),
        (WORDS, {"federation": {"positive": "maybe"}}, "'maybe'"),
        (3.5, {}, "all targets are 3.5; nothing can be learned"),
        (FRACTIONS.where(TABLE.index != 7), {}, "row 8 has no label in column 'target'"),
        (FRACTIONS, {"method": "fedrod"}, "method 'fedrod' needs classes to balance a softmax"),
        (FRACTIONS, {"method": "civae"}, "method 'civae' needs classes to make its codes"),
        (
            FRACTIONS,
            {"train": {"loss": {"name": "pinball", "quantile": 1.5}}},
            "quantile of loss 'pinball' must be a number above 0 and below 1, not 1.5",
        ),
        (WORDS, {"train": {"loss": "huber"}}, "train.loss = 'huber' is the loss of a target that"),
        (
            FRACTIONS,
            {"federation": {"positive": "ill"}},
            "federation.positive is for two classes, but",
        ),
        (FRACTIONS, {"federation": {"features": {"top": 2}}}, "top of federation.features needs"),
        (
            FRACTIONS,
            {"evaluate": {"shots": [400], "fine_tune_epochs": 1}},
            "asks for 400 samples, but no client has more than",
        ),
    ],
)
def test_what_does_not_fit_the_labels_is_refused_before_anything_is_written(
    target: object, changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    given = settings(tmp_path / "t.csv", target, **changes)
    with pytest.raises(FedskewError, match=match):
        fedskew.run(given, out=tmp_path / "runs")
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
