"""The matrix on a page: means, gains paired by seed and partner."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from scipy.stats import t as student
from toy_pairs import Scores, stubs, toy_suite

from fedskew.papers.matrix import (
    gain_of_aggregator,
    gain_of_objective,
    matrix_of,
    matrix_tables,
    pair_runs,
)
from fedskew.views.domains import Matrix


def test_gains_are_paired_by_seed_and_partner(tmp_path: Path) -> None:
    scores = np.random.default_rng(0).uniform(size=(2, 2, 3))
    found = _matrix(tmp_path, scores)
    differences = (scores[1] - scores[0]).mean(axis=0)
    gain = gain_of_objective(found, "irm", "erm", "last")
    assert gain.mean == pytest.approx(differences.mean())
    error = differences.std(ddof=1) / math.sqrt(3)
    assert gain.half == pytest.approx(student.ppf(0.975, 2) * error)
    across = (scores[:, 1] - scores[:, 0]).mean(axis=0)
    gain = gain_of_aggregator(found, "fedprox", "fedavg", "last")
    assert gain.mean == pytest.approx(across.mean())
    assert math.isnan(gain_of_objective(found, "irm", "erm", "validation").mean)


def test_gains_that_are_the_same_on_every_seed_are_not_bold(tmp_path: Path) -> None:
    """C8: a width of nothing kept any gain apart from zero."""
    scores = np.array([[[0.25, 0.5]], [[0.5, 0.75]]]).repeat(2, axis=1)
    alike = _matrix(tmp_path, scores)
    runs = {("skewed", f"{p.objective}+{p.aggregator}", p.seed): Scores({"last": p.ood})
            for p in alike.picks if p.rule == "last"}  # fmt: skip
    lines = "\n".join(matrix_tables(toy_suite(tmp_path), "skewed", cast(Any, runs)))
    assert "| irm | +25.00 ± 0.00 |" in lines
    assert "**+25.00" not in lines


def test_a_gain_leaves_out_pairs_without_a_partner(tmp_path: Path) -> None:
    scores = np.array([[[0.1, 0.2], [0.3, 0.4]], [[0.6, 0.7], [math.nan, math.nan]]])
    found = _matrix(tmp_path, scores)
    assert gain_of_objective(found, "irm", "erm", "last").mean == pytest.approx(0.5)
    assert gain_of_aggregator(found, "fedprox", "fedavg", "last").mean == pytest.approx(0.2)


def test_a_smaller_loss_is_a_gain(tmp_path: Path) -> None:
    found = _matrix(tmp_path, np.array([[[3.0], [3.0]], [[1.0], [2.0]]]), rising=False)
    assert gain_of_objective(found, "irm", "erm", "last").mean == pytest.approx(1.5)


def _matrix(folder: Path, scores: Any, rising: bool = True) -> Matrix:
    """The matrix of scores by objective, aggregator and seed."""
    runs = {
        ("skewed", f"{objective}+{aggregator}", seed): Scores({"last": value}, rising=rising)
        for o, objective in enumerate(("erm", "irm"))
        for a, aggregator in enumerate(("fedavg", "fedprox"))
        for seed, value in enumerate(scores[o, a].tolist())
        if not math.isnan(value)
    }
    found = pair_runs(toy_suite(folder), "skewed", runs)  # type: ignore[arg-type]
    return matrix_of(found)


def test_a_setting_without_pairs_has_no_matrix(tmp_path: Path) -> None:
    suite = toy_suite(tmp_path)
    assert pair_runs(suite, "skewed", stubs(central=[0.5])) == {}
    assert matrix_tables(suite, "skewed", stubs(central=[0.5])) == []


def test_pairs_without_a_score_in_every_seed_have_dashes(tmp_path: Path) -> None:
    runs = stubs(erm_fedavg=[0.5, 0.6], irm_fedavg=[0.7, 0.8])
    runs["skewed", "irm+fedavg", 1] = Scores({})
    text = "\n".join(matrix_tables(toy_suite(tmp_path), "skewed", runs))
    assert text.count("| erm | **55.00 ± 63.53** |\n| irm | – |") == 2, "last and oracle"
    assert "Without numbers here: rule validation, environment, left-out." in text
    # Of seed 0 alone, which has no interval.
    assert "| irm | +20.00 | +20.00 |" in text
    for run in runs.values():
        run.values = {}
    bare = matrix_tables(toy_suite(tmp_path), "skewed", runs)
    assert bare[1:] == [
        "Without numbers here: rule last, validation, environment, left-out, oracle."
    ]
