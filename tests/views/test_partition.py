"""The figure of a partition: samples are counted, many clients are shown as a heat map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import toy_federation, toy_task

from fedskew.federate.holdings import roster_of
from fedskew.views.partition import partition_figure, partition_table


def test_unseen_clients_are_in_the_picture_of_the_partition() -> None:
    lines = partition_table(roster_of(toy_federation(sizes=(5, 6))))
    assert [(line["client"], line["seen"]) for line in lines] == [
        ("c0", True),
        ("c1", True),
        ("c2", False),
    ]
    assert [sum(v for k, v in line.items() if k.startswith("class ")) for line in lines] == [
        5,
        6,
        12,
    ]


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
    figure = partition_figure(counted(4, 2), "four")
    _, grid = figure.axes
    bubbles = grid.collections[0]
    areas = bubbles.get_sizes()
    assert areas / areas[0] == pytest.approx([1, 2, 3, 4])
    assert np.asarray(bubbles.get_offsets()).tolist() == [[0, 0], [1, 1], [2, 0], [3, 1]]
    assert [label.get_text() for label in grid.get_xticklabels()] == [
        "client-0",
        "client-1",
        "client-2",
        "client-3",
    ]


def test_many_clients_are_a_heat_map_ordered_by_largest_class_then_size() -> None:
    figure = partition_figure(counted(1000, 10), "thousand")
    grid = figure.axes[1]
    heat = np.asarray(grid.images[0].get_array())
    assert heat.shape == (10, 1000)
    assert heat.argmax(axis=0).tolist() == np.repeat(np.arange(10), 100).tolist()
    assert heat[0, :3].tolist() == [991, 981, 971]
    assert "1000 clients" in grid.get_xlabel()


def test_many_classes_are_a_heat_map_too_but_clients_keep_their_names() -> None:
    grid = partition_figure(counted(5, 62), "letters").axes[1]
    assert len(grid.images) == 1
    assert grid.get_xticklabels()[4].get_text() == "client-4"


def test_without_classes_it_shows_how_much_each_client_trains_on() -> None:
    lines = partition_table(roster_of(toy_task("regression", (5, 6))))
    assert lines[0] == {"client": "c0", "seen": True, "samples": 5}
    (axes,) = partition_figure(lines, "numbers").axes
    assert [bar.get_height() for bar in axes.patches] == [5.0, 6.0, 12.0]
    assert axes.get_ylabel() == "training samples"
