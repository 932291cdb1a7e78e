"""Heat maps of similarity matrices: groups stand together, numbers are a run's, any size works."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers import toy_federation
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedskew.api import run
from fedskew.errors import RunError
from fedskew.runs.experiment import Run
from fedskew.views.figures import draw_run, is_drawn
from fedskew.views.similarity import (
    SimilarityMatrix,
    clustered,
    colour_range,
    common_order,
    evenly,
    heat_maps,
    similarity_series,
)

PNG = b"\x89PNG\r\n\x1a\n"


def blocks(groups: Sequence[int], inside: float = 0.4, outside: float = 0.1) -> NDArray[np.float64]:
    """Clients of one group are alike, others are not, and each is wholly like itself."""
    of = np.array(groups)
    values = np.where(of[:, None] == of[None], inside, outside)
    np.fill_diagonal(values, 1.0)
    return values


def matrix(number: int, clients: Sequence[str], values: NDArray[np.float64]) -> SimilarityMatrix:
    return SimilarityMatrix(number, tuple(clients), values)


def write(run: Path, name: str, recorded: SimilarityMatrix) -> None:
    (run / "matrices").mkdir(exist_ok=True)
    path = run / "matrices" / f"{name}-{recorded.round:06d}.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", *recorded.clients])
        writer.writerows(
            [client, *line]
            for client, line in zip(recorded.clients, recorded.values.tolist(), strict=True)
        )


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def drawn(*series: SimilarityMatrix) -> Figure:
    """The figure, rendered: what cannot be laid out or warns fails here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = heat_maps(series, common_order(series), "similarity", "toy")
        figure.draw_without_rendering()
    return figure


def shown(figure: Figure, panel: int) -> NDArray[np.float64]:
    return np.asarray(figure.axes[panel].images[0].get_array())


def names(figure: Figure, panel: int) -> list[str]:
    """The names down the side, which must be the names along the bottom."""
    axes = figure.axes[panel]
    side = [label.get_text() for label in axes.get_yticklabels()]
    assert side == [label.get_text() for label in axes.get_xticklabels()]
    return side


@pytest.fixture
def finished(tmp_path: Path) -> Run:
    """A finished run without pictures."""
    done = run(
        {"model": "logistic", "train": {"rounds": 1}}, out=tmp_path, federation=toy_federation()
    )
    (done.path / "figures" / "partition.png").unlink()
    return done


def test_two_groups_become_two_blocks() -> None:
    groups = [0, 1, 0, 1, 1, 0]
    order = clustered(blocks(groups))
    assert sorted(order) == list(range(6))
    assert [groups[i] for i in order] in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


@pytest.mark.parametrize("clients", [60, 300])
def test_groups_stand_together_with_and_without_the_best_order(clients: int) -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 4, clients)
    order = clustered(blocks(groups.tolist()) + rng.uniform(0, 0.1, (clients, clients)))
    assert sorted(order) == list(range(clients))
    assert (np.diff(groups[order]) != 0).sum() == 3


def test_likeness_in_either_direction_counts() -> None:
    # Three pairs, each alike in the view of one of the two only.
    values = np.full((6, 6), 0.1)
    values[3, 0] = values[4, 1] = values[5, 2] = 0.9
    for view in (values, values.T):
        order = clustered(view)
        pairs = [sorted(order[i : i + 2]) for i in (0, 2, 4)]
        assert sorted(pairs) == [[0, 3], [1, 4], [2, 5]]


def test_clients_keep_their_places_whatever_the_scale_of_the_numbers() -> None:
    values = blocks([0, 1, 0, 1, 2]) + np.random.default_rng(1).uniform(0, 0.05, (5, 5))
    assert clustered(values) == clustered(50 * values - 7)


def test_every_panel_has_the_order_of_the_last_round() -> None:
    first, last = blocks([0, 0, 1, 1]), blocks([0, 1, 0, 1])
    figure = drawn(matrix(1, "abcd", first), matrix(9, "abcd", last))
    assert names(figure, 0) == names(figure, 1)
    assert [name in "ac" for name in names(figure, 1)] in (
        [True, True, False, False],
        [False, False, True, True],
    )
    places = ["abcd".index(name) for name in names(figure, 0)]
    assert shown(figure, 0).tolist() == first[np.ix_(places, places)].tolist()
    assert shown(figure, 1).tolist() == last[np.ix_(places, places)].tolist()
    assert [axes.get_title() for axes in figure.axes[:2]] == ["round 1", "round 9"]


def test_a_round_shows_its_own_clients_in_the_common_order() -> None:
    # In the end a is like c and b like d; e was last seen like b.
    early = blocks([0, 0, 1])
    late = blocks([0, 1, 0, 1])
    figure = drawn(matrix(1, "bex", early), matrix(2, "abcd", late))
    order = common_order([matrix(1, "bex", early), matrix(2, "abcd", late)])
    assert sorted(order) == list("abcdex")
    together = sorted(order.index(name) for name in "bde")
    assert together[2] - together[0] == 2
    assert names(figure, 0) == [name for name in order if name in "bex"]
    assert names(figure, 1) == [name for name in order if name in "abcd"]
    own = ["bex".index(name) for name in names(figure, 0)]
    assert shown(figure, 0).tolist() == early[np.ix_(own, own)].tolist()


def test_diagonals_do_not_stretch_the_colours_and_the_bar_says_so() -> None:
    figure = drawn(matrix(1, "abc", blocks([0, 0, 1], 0.2)), matrix(2, "abc", blocks([0, 0, 1])))
    for panel in (0, 1):
        assert figure.axes[panel].images[0].get_clim() == (0.1, 0.4)
        image = figure.axes[panel].images[0]
        white = [1.0, 1.0, 1.0, 1.0]
        colours = image.to_rgba(shown(figure, panel))
        assert [(colours[i, j].tolist() == white) for i in range(3) for j in range(3)] == [
            i == j for i in range(3) for j in range(3)
        ]
    bar = figure.axes[2].get_ylabel()
    assert bar.startswith("similarity")
    assert "itself, off the scale" in bar


def test_a_diagonal_within_the_scale_is_drawn_like_the_rest() -> None:
    values = blocks([0, 0, 1])
    np.fill_diagonal(values, 0.3)
    assert drawn(matrix(1, "abc", values)).axes[1].get_ylabel() == "similarity"


@pytest.mark.parametrize("value", [0.0, 1.0, 250.0])
@pytest.mark.parametrize("clients", [1, 2, 7, 40])
def test_equal_numbers_are_drawn_in_the_order_given(clients: int, value: float) -> None:
    everyone = [f"client-{i}" for i in range(clients)]
    equal = matrix(1, everyone, np.full((clients, clients), value))
    assert common_order([equal]) == everyone
    low, high = colour_range([equal])
    assert low < value < high
    assert shown(drawn(equal, equal), 1).tolist() == equal.values.tolist()


def test_many_clients_are_counted_instead_of_named() -> None:
    few, many = blocks([0] * 25), blocks([0] * 26)
    assert names(drawn(matrix(1, [f"c{i:02d}" for i in range(25)], few)), 0)[7] == "c07"
    axes = drawn(matrix(1, [f"c{i:02d}" for i in range(26)], many)).axes[0]
    assert axes.get_xlabel() == "26 clients"
    assert not any("c" in label.get_text() for label in axes.get_yticklabels())


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (1, [0]),
        (6, [0, 1, 2, 3, 4, 5]),
        (7, [0, 1, 2, 4, 5, 6]),
        (11, [0, 2, 4, 6, 8, 10]),
        (101, [0, 20, 40, 60, 80, 100]),
    ],
)
def test_six_rounds_at_most_evenly_chosen_with_the_first_and_the_last(
    recorded: int, expected: list[int]
) -> None:
    one = np.ones((1, 1))
    assert [m.round for m in evenly([matrix(i, "a", one) for i in range(recorded)])] == expected


def test_matrices_are_read_by_name_in_the_order_of_rounds(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    wanted = [
        matrix(2, ("ann, of York", 'the "other" bob'), rng.normal(size=(2, 2))),
        matrix(10, ("zoe",), rng.normal(size=(1, 1))),
        matrix(1_000_000, ("x", "y", "z"), rng.normal(size=(3, 3))),
    ]
    for recorded in reversed(wanted):
        write(tmp_path, "similarity", recorded)
    write(tmp_path, "similarity-raw", matrix(3, "ab", np.eye(2)))
    found = similarity_series(tmp_path, "similarity")
    assert [(m.round, m.clients) for m in found] == [(m.round, m.clients) for m in wanted]
    for read, written in zip(found, wanted, strict=True):
        assert read.values.tolist() == written.values.tolist()
    assert [m.round for m in similarity_series(tmp_path, "similarity-raw")] == [3]
    assert similarity_series(tmp_path / "elsewhere", "similarity") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "could not read"),
        ("client,a,b\na,1,x\nb,1,1\n", "could not read"),
        ("client,a,b\na,1,1\nb,1\n", "could not read"),
        ("client,a,b\na,1,1\n", "not a square matrix"),
        ("client,a,b\nb,1,1\na,1,1\n", "not a square matrix"),
        ("client\n", "not a square matrix"),
    ],
)
def test_a_broken_matrix_is_named_and_the_run_does_not_count_as_drawn(
    finished: Run, text: str, message: str
) -> None:
    (finished.path / "matrices").mkdir()
    (finished.path / "matrices" / "similarity-000001.csv").write_text(text)
    with pytest.raises(RunError, match=rf"(?s){message}") as caught:
        draw_run(finished, toy_federation)
    assert "similarity-000001.csv" in str(caught.value)
    assert not is_drawn(finished.path)


def test_a_run_with_matrices_has_their_numbers_and_a_picture_of_each_name(finished: Run) -> None:
    rng = np.random.default_rng(3)
    recorded = [matrix(at, ("a", "b", f"c{at}"), rng.normal(size=(3, 3))) for at in range(1, 9)]
    for one in recorded:
        write(finished.path, "similarity", one)
    write(finished.path, "weights", matrix(1, "ab", np.eye(2)))
    figures = draw_run(finished, toy_federation)
    assert is_drawn(finished.path)
    for name in ("similarity", "weights"):
        assert (figures / f"{name}.png").read_bytes().startswith(PNG)
    lines = table(figures / "similarity.csv")
    assert list(lines[0]) == ["round", "row", "column", "value"]
    found = {(int(x["round"]), x["row"], x["column"]): float(x["value"]) for x in lines}
    # Eight rounds are too many for six panels: of 0..7, every 1.4th.
    expected = {
        (m.round, row, column): m.values[i, j]
        for m in (recorded[i] for i in (0, 1, 3, 4, 6, 7))
        for i, row in enumerate(m.clients)
        for j, column in enumerate(m.clients)
    }
    assert found == expected
    assert len(lines) == len(expected)


def test_numbers_of_very_many_clients_are_pointed_at_not_copied(finished: Run) -> None:
    clients = [f"client-{i:03d}" for i in range(101)]
    write(finished.path, "similarity", matrix(5, clients[:100], np.eye(100)))
    write(finished.path, "similarity", matrix(20, clients, np.eye(101)))
    figures = draw_run(finished, toy_federation)
    lines = table(figures / "similarity.csv")
    assert [line["round"] for line in lines] == ["5", "20"]
    assert all((finished.path / line["file"]).is_file() for line in lines)
    assert (figures / "similarity.png").read_bytes().startswith(PNG)


def test_a_run_without_matrices_is_drawn_as_ever(finished: Run) -> None:
    figures = draw_run(finished, toy_federation)
    assert sorted(path.name for path in figures.iterdir()) == [
        "clients.csv",
        "clients.png",
        "coverage.csv",
        "coverage.png",
        "learning.csv",
        "learning.png",
        "partition.csv",
        "partition.png",
    ]
