"""The matrix of scores out of domain: its cells, its tables, its pictures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import matplotlib.colors
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from fedskew.comparisons.selection import Curves
from fedskew.federate.rounds import Score
from fedskew.views.domains import (
    UNSEEN,
    Matrix,
    Pick,
    picks_of,
)
from fedskew.views.learning import crossed_learning


def made_up(**changes: Any) -> Matrix:
    values = {("erm", "a"): (0.5, 0.7), ("erm", "b"): (0.2, 0.2), ("irm", "a"): (0.9, 0.1)}
    picks = tuple(
        Pick(*cell, rule, seed, 3, value, None)
        for rule in ("last", "oracle")
        for cell, both in values.items()
        for seed, value in enumerate(both)
    )
    made = Matrix(("erm", "irm"), ("a", "b"), "accuracy", True, UNSEEN, 2, picks)
    return replace(made, **changes)


def test_a_pair_without_a_number_in_every_seed_has_none() -> None:
    matrix = made_up()
    assert matrix.score("last", ("erm", "a")).mean == pytest.approx(0.6)
    assert math.isnan(matrix.score("last", ("irm", "b")).mean)
    fewer = replace(matrix, picks=matrix.picks[1:])
    assert math.isnan(fewer.score("last", ("erm", "a")).mean)
    assert "| irm | 0.500 ± 5.082 | – |" in matrix.to_markdown()


def test_the_best_is_the_smallest_where_less_is_better() -> None:
    assert "| **0.600 ± 1.271** | 0.200 ± 0.000 |" in made_up().to_markdown()
    less = made_up(metric="loss", higher_is_better=False)
    assert "| 0.6 ± 1.271 | **0.2 ± 0** |" in less.to_markdown()
    assert "[0.2 ± 0]" in str(less)


def test_clients_that_could_not_be_left_out_are_named() -> None:
    picks = made_up().picks
    left = tuple(replace(pick, rule="left-out") for pick in picks if pick.rule == "last")
    told = "Never left out, for want of validation data: ann, bob."
    assert told in str(made_up(silent=("ann", "bob"), picks=picks + left))
    assert told not in str(made_up(silent=("ann", "bob")))


def test_a_round_that_was_not_scored_out_of_domain_is_no_choice() -> None:
    validation = {1: Score(0.9), 2: Score(0.5)}
    curves = Curves(validation, ood={2: Score(0.4)}, in_domain={2: 0.6})
    assert picks_of(("erm", "fedavg"), 7, curves) == [
        Pick("erm", "fedavg", rule, 7, 2, 0.4, 0.6) for rule in ("last", "oracle")
    ]


def framed(axes: Axes) -> tuple[float, float]:
    """The corner of the only frame."""
    (frame,) = axes.patches
    assert isinstance(frame, Rectangle)
    return frame.get_xy()


def test_the_heat_maps_write_every_mean_and_frame_the_best() -> None:
    name, table, draw = made_up().picture()
    assert name == "matrix"
    assert [line["mean"] for line in table[:3]] == pytest.approx([0.6, 0.2, 0.5])
    figure = draw()
    panels = [axes for axes in figure.axes if axes.images][:2]
    assert [axes.get_title() for axes in panels] == ["last", "oracle (peeks)"]
    for axes in panels:
        texts = {tuple(map(round, text.get_position())): text.get_text() for text in axes.texts}
        assert texts == {(0, 0): "0.600", (1, 0): "0.200", (0, 1): "0.500", (1, 1): "–"}
        assert framed(axes) == (-0.5, -0.5)
        assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b"]
    assert [t.get_text() for t in panels[0].get_yticklabels()] == ["erm", "irm"]
    least = made_up(higher_is_better=False).picture().draw()
    assert framed(least.axes[0]) == (0.5, -0.5)


def test_curves_of_many_pairs_have_a_panel_an_aggregator_and_keep_their_colours() -> None:
    methods = [f"{o} × {a}" for o in ("erm", "irm", "mmd") for a in ("fedavg", "fedgma")]
    table = [
        {"method": method, "round": at, "mean": 0.1 * at, "low": None, "high": None}
        for method in [*methods, "local"]
        for at in (1, 2)
    ]
    figure = crossed_learning(table, "accuracy")
    assert [axes.get_title() for axes in figure.axes] == ["fedavg", "fedgma"]
    drawn = [
        {str(line.get_label()): matplotlib.colors.to_hex(line.get_color()) for line in axes.lines}
        for axes in figure.axes
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0].keys() == {"erm", "irm", "mmd", "local"}
    assert len(set(drawn[0].values())) == 4
