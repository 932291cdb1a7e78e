"""Chance in a client's test samples, for shares and for metrics that are no mean over samples."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, root_mean_squared_error

import fedskew
from fedskew.comparisons.paired import side_of
from fedskew.comparisons.per_sample import GROUPS, Answered, answered, differences
from fedskew.parts.measures import Answers
from fedskew.parts.metrics import METRICS

QUICK = {
    "federation": {"clients": 3, "unseen": 1, "samples": 300, "test": 0.3},
    "model": "logistic",
    "train": {"rounds": 2},
}


def test_pseudo_values_of_a_mean_are_the_samples_own_values() -> None:
    """Of the absolute error the jackknife gives back what each sample adds."""
    rng = np.random.default_rng(0)
    label, said = rng.normal(size=GROUPS), rng.normal(size=GROUPS)
    told = Answered(label, None, Answers(label, said), partial(METRICS["mae"].value, "regression"))
    assert told.spread() == pytest.approx(np.abs(label - said))


@pytest.mark.parametrize("metric", ["rmse", "auroc"])
def test_the_jackknife_finds_the_spread_of_a_gain_that_is_no_mean(metric: str) -> None:
    """Against the spread of the very gain over many draws of 200 samples, by scikit-learn."""
    rng = np.random.default_rng(1)

    def draw() -> tuple[float, np.ndarray]:
        truth = rng.normal(size=200) if metric == "rmse" else rng.integers(0, 2, 200)
        ours, alone = (truth + rng.normal(0, noise, 200) for noise in (0.8, 1.2))
        told = []
        for said in (ours, alone):
            if metric == "rmse":
                answers = Answers(truth, said)
            else:
                share = 1 / (1 + np.exp(-said))
                answers = Answers(truth, np.stack([1 - share, share], axis=1), 1)
            kind = "regression" if metric == "rmse" else "binary"
            told.append(Answered(truth, None, answers, partial(METRICS[metric].value, kind)))
        found = differences(told[0], told[1], metric == "auroc")
        assert found is not None
        measure = root_mean_squared_error if metric == "rmse" else roc_auc_score
        gain = measure(truth, ours) - measure(truth, alone)
        return (-gain if metric == "rmse" else gain), found.values

    gains, values = zip(*(draw() for _ in range(60)), strict=True)
    error = [v.std(ddof=1) / len(v) ** 0.5 for v in values]
    assert np.mean(error) == pytest.approx(np.std(gains, ddof=1), rel=0.3)
    assert np.mean([v.mean() for v in values]) == pytest.approx(np.mean(gains), rel=0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedskew.Run:
    method = {"method": {"name": "ditto"}}
    return fedskew.run({**QUICK, **method}, out=tmp_path_factory.mktemp("runs"), draw=False)


def test_stored_answers_are_those_that_the_scores_were_made_of(run: fedskew.Run) -> None:
    side = side_of(run, "accuracy")
    assert set(side.answers) == set(side.scores) == {"client-001", "client-002"}
    for name, told in side.answers.items():
        assert told.right is not None
        assert len(told.label) == side.samples[name]
        assert told.right.mean() == pytest.approx(side.scores[name])


def test_the_loss_of_a_method_has_no_answers_and_a_ranking_no_right_ones(run: fedskew.Run) -> None:
    assert answered(run, "loss") == {}
    told = answered(run, "auroc")["client-001"]
    assert told.right is None
    assert len(told.spread()) == min(GROUPS, len(told.label))


def test_a_run_without_stored_answers_has_no_intervals_of_clients(
    run: fedskew.Run, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "result.json", "metrics.jsonl"):
        (bare / name).write_bytes((run.path / name).read_bytes())
    side = side_of(fedskew.Run(bare), "accuracy")
    assert side.answers == {}
    assert side.scores == side_of(run, "accuracy").scores
