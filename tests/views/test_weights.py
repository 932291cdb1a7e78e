"""Figures of aggregation weights: the server's numbers, as lines or as a heat map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from made_up import results_of

from fedskew.api import run
from fedskew.federate.metrics import Row
from fedskew.views.weights import weight_figure, weight_table


def server_row(stage: str, number: int, client: str, metric: str, value: float) -> Row:
    return Row(stage, number, "personal", "seen", client, "none", "server", metric, value, 0)


def test_weights_are_the_servers_rows_of_every_stage_in_their_order() -> None:
    rows = [
        server_row("first", 1, "ann", "weight", 0.25),
        server_row("first", 1, "bob", "weight", 0.75),
        server_row("main", 1, "ann", "weight", 0.5),
        server_row("main", 1, "ann", "discrepancy", 3.0),
        server_row("main", 1, "ann", "self_weight", 9.0),
        server_row("main", 1, "bob", "discrepancy", 2.0),
        replace(server_row("main", 1, "ann", "weight", 8.0), split="test"),
    ]
    names = ("stage", "round", "client", "weight", "discrepancy")
    assert weight_table(results_of(rows)) == [
        dict(zip(names, line, strict=True))
        for line in (
            ("first", 1, "ann", 0.25, None),
            ("first", 1, "bob", 0.75, None),
            ("main", 1, "ann", 0.5, 3.0),
        )
    ]


def weights_of(clients: int, rounds: int) -> list[dict[str, Any]]:
    """Client i weighs i + round / 10; client 0 misses the first round."""
    return [
        {
            "stage": "main",
            "round": number,
            "client": f"c{i}",
            "weight": i + number / 10,
            "discrepancy": None,
        }
        for number in range(1, rounds + 1)
        for i in range(clients)
        if i or number > 1
    ]


def test_a_few_clients_weights_are_lines_with_gaps_where_they_took_no_part() -> None:
    (axes,) = weight_figure(weights_of(20, 3), "toy").axes
    assert not axes.images
    lines = {str(line.get_label()).split()[0]: line for line in axes.get_lines()}
    assert len(lines) == 20
    assert np.asarray(lines["c7"].get_ydata()).tolist() == [7.1, 7.2, 7.3]
    np.testing.assert_array_equal(np.asarray(lines["c0"].get_ydata()), [np.nan, 0.2, 0.3])


def test_the_weights_of_thirty_clients_are_a_heat_map_with_the_heaviest_on_top(
    tmp_path: Path,
) -> None:
    settings = {
        "model": "logistic",
        "method": "feddisco",
        "federation": {"clients": 30, "partition": {"name": "dirichlet", "alpha": 0.5}},
        "train": {"rounds": 3},
    }
    lines = weight_table(run(settings, out=tmp_path).results)
    panels = weight_figure(lines, "feddisco").axes[:2]
    for axes, metric in zip(panels, ("weight", "discrepancy"), strict=True):
        heat = np.asarray(axes.images[0].get_array())
        assert heat.shape == (30, 3)
        names = [label.get_text() for label in axes.get_yticklabels()]
        for row, name in zip(heat, names, strict=True):
            own = [line for line in lines if line["client"] == name]
            assert row.tolist() == [line[metric] for line in own]
    weights = np.asarray(panels[0].images[0].get_array()).mean(axis=1)
    assert (np.diff(weights) <= 0).all()
    heat = np.asarray(weight_figure(weights_of(30, 3), "toy").axes[0].images[0].get_array())
    assert np.argwhere(np.isnan(heat)).tolist() == [[29, 0]]
