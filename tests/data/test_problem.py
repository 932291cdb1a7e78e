from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes

from fedskew.config import make_config
from fedskew.data.dataset import with_problem
from fedskew.data.federation import Client, Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.data.own import load_own
from fedskew.data.problem import labels_of, many_labels_of
from fedskew.errors import ConfigError, DataError
from fedskew.problem import Problem

FRACTIONS = [n + 0.5 for n in range(30)]


@pytest.mark.parametrize(
    ("cells", "kind", "names"),
    [
        (["cat", "dog", "eel"], "classification", ("cat", "dog", "eel")),
        (["10", "2", "2"], "binary", ("2", "10")),
        ([1.0, 0.0, 2.0], "classification", ("0.0", "1.0", "2.0")),
        ([0.5, 1, 2], "regression", ()),
        (["-1.25", "3e4"], "regression", ()),
        (list(range(30)), "regression", ()),
        (list(range(30)) * 10, "classification", tuple(map(str, range(30)))),
        ([n * n for n in range(30)] * 10, "regression", ()),
        ([True, False], "binary", ("False", "True")),
    ],
)
def test_a_column_of_labels_tells_what_is_learned(
    cells: list[Any], kind: str, names: tuple[str, ...]
) -> None:
    problem, y, found = labels_of("t.csv", cells)
    assert (problem.kind, found) == (kind, names)
    assert problem.said.startswith("'label' is ")
    if kind == "regression":
        assert y.dtype == np.float32
        assert y.tolist() == [float(np.float32(float(cell))) for cell in cells]
    else:
        assert [found[number] for number in y] == [str(cell) for cell in cells]


def test_the_diabetes_target_is_a_number_however_it_is_written() -> None:
    target = load_diabetes().target  # 214 different whole numbers
    for cells in (target.tolist(), [f"{value:.0f}" for value in target]):
        problem, y, names = labels_of("diabetes.csv", cells)
        assert (problem.kind, names) == ("regression", ())
        assert y.tolist() == target.tolist()
        assert "214 different numbers" in problem.said
        assert "federation.task" in problem.said


def test_the_user_has_the_last_word() -> None:
    assert labels_of("t", ["0", "1", "2"], "regression")[1].dtype == np.float32
    assert labels_of("t", [0.5, 1.5, 0.5], "classification")[2] == ("0.5", "1.5")
    assert labels_of("t", ["ill", "well"], positive="ill")[0].positive == "ill"
    assert labels_of("t", ["ill", "well"], "classification")[0].kind == "classification"


@pytest.mark.parametrize(
    ("cells", "asked", "sentence"),
    [
        (["a", "", "b"], {}, "t: row 2 has no label in column 'label'"),
        ([1.5, float("nan")], {}, "t: row 2 has no label"),
        (["1.5", None], {}, "t: row 2 has no label"),
        (["1", "x"], {"wanted": "regression"}, "row 2, column 'label' holds 'x'"),
        (["1.5", "inf"], {"wanted": "regression"}, "row 2, column 'label' holds 'inf'"),
        (["2.5", "2.5"], {}, "all targets are 2.5"),
        (["a", "b", "c"], {"wanted": "binary"}, "needs two classes, not 3"),
        (["ill", "well"], {"positive": "il"}, "did you mean 'ill'"),
        (["a", "b", "c"], {"positive": "a"}, "is for two classes"),
        (
            [0.5, 1.5],
            {"positive": "1.5"},
            "is learned as a number, it holds fractions .*: leave it",
        ),
        (
            [*FRACTIONS, "unknown"],
            {},
            "row 31, column 'label' holds 'unknown', but most labels are",
        ),
        (FRACTIONS, {"wanted": "classification"}, "30 different fractions, which are no classes"),
        ([f"p{n}" for n in range(21)], {}, "another word in every row.*name another column with"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    cells: list[Any], asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=sentence):
        labels_of("t", cells, **asked)


@pytest.mark.parametrize(
    ("cells", "names", "positive"),
    [
        (["ja", "nein"], ("ja", "nein"), "ja"),
        (["j", "n"], ("j", "n"), "j"),
        (["-", "+"], ("+", "-"), "+"),
        (["WAHR", "FALSCH"], ("FALSCH", "WAHR"), "WAHR"),
        (["Yes", "no", "yes"], ("no", "yes"), "yes"),
        (["1.0", "0", "1"], ("0", "1"), "1"),
        (["A", "a"], ("A", "a"), "a"),
    ],
)
def test_yes_is_looked_for_however_it_is_spelled(
    cells: list[str], names: tuple[str, ...], positive: str
) -> None:
    problem, y, found = labels_of("t", cells)
    assert (problem.kind, found, problem.positive) == ("binary", names, positive)
    assert set(y) == {0, 1}
    assert "(federation.positive names another)" in problem.said


def test_several_columns_are_labels_that_a_sample_may_have_together() -> None:
    columns = {"red": ["Ja", "nein"], "round": [True, 1.0]}
    problem, y, names = many_labels_of("t", columns)
    assert (problem.kind, names, y.tolist()) == ("multi-label", ("red", "round"), [[1, 1], [0, 1]])
    with pytest.raises(DataError, match="row 2, column 'red' holds 'maybe'"):
        many_labels_of("t", {"red": [0, "maybe"]})


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **{name: np.asarray(values) for name, values in arrays.items()})
    return path


def test_an_npz_of_fractions_is_regression_and_of_a_matrix_multi_label(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(4, 2))
    data = load_own(npz(tmp_path / "a.npz", x=x, y=[0.5, 2, 3, 4]))
    assert (data.problem.kind, data.y.tolist(), data.class_names) == (
        "regression",
        [0.5, 2, 3, 4],
        (),
    )
    data = load_own(npz(tmp_path / "b.npz", x=x, y=[[0, 1], [1, 1], [0, 0], [1, 0]]))
    assert (data.problem.kind, data.class_names) == ("multi-label", ("0", "1"))
    assert data.y.tolist() == [[0, 1], [1, 1], [0, 0], [1, 0]]
    data = load_own(npz(tmp_path / "c.npz", x=x, y=[0.0, 1.0, 1.0, 0.0]))
    assert (data.problem.kind, data.problem.positive, data.y.tolist()) == (
        "binary",
        "1",
        [0, 1, 1, 0],
    )
    data = load_own(npz(tmp_path / "d.npz", x=x, y=[3, -1, 4, 1]), task="regression")
    assert (data.problem.kind, data.y.tolist()) == ("regression", [3, -1, 4, 1])


def test_the_files_of_a_folder_are_decided_together(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 2))
    npz(tmp_path / "ann.npz", x=x, y=[0.0, 1.0, 2.0])
    npz(tmp_path / "bob.npz", x=x, y=[0.5, 1.0, 2.0])
    data = load_own(tmp_path)
    assert data.problem.kind == "regression"
    assert data.owner_names == ("ann", "bob")
    assert data.y.tolist() == [0, 1, 2, 0.5, 1, 2]


def regression(targets: list[float], **problem: Any) -> Federation:
    rows = np.arange(len(targets))
    made = Problem("regression", **problem)
    return Federation(
        "toy", torch.zeros(len(rows), 2), torch.tensor(targets), (), (Client("ann", rows),),
        problem=made,
    )  # fmt: skip


def test_what_is_learned_is_part_of_the_data_but_not_how_it_is_told() -> None:
    one, other = regression([1.0, 2.0]), regression([1.0, 2.0], said="as the file says")
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) != fingerprint(regression([1.0, 2.0], units=(1.0, 2.0)))


def test_a_federation_refuses_labels_of_another_problem() -> None:
    with pytest.raises(DataError, match="label of sample 1 is NaN"):
        regression([1.0, float("nan")])
    rows = np.arange(2)
    with pytest.raises(DataError, match=r"must be float32 of shape \[2, 3\], not torch.int64"):
        Federation(
            "toy", torch.zeros(2, 2), torch.tensor([0, 1]), ("a", "b", "c"),
            (Client("ann", rows),), problem=Problem("multi-label"),
        )  # fmt: skip


def test_classes_of_a_regression_cannot_be_asked_for(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", x=np.eye(3), y=[0.5, 2, 3])
    with pytest.raises(ConfigError, match=r"federation.classes chooses classes.*leave it out"):
        load_own(path, classes=[0, 1])
    data = load_own(path)
    with pytest.raises(ConfigError, match="names a class"):
        with_problem(data, positive="a")
    with pytest.raises(ConfigError, match="'binary' does not fit a, which is for regression"):
        with_problem(data, "binary")


def test_settings_that_are_not_used_leave_no_trace_in_a_runs_name() -> None:
    federation = make_config({}).resolved()["federation"]
    assert "task" not in federation
    assert "positive" not in federation
    asked = make_config({"federation": {"task": "binary", "positive": "1"}}).resolved()
    assert asked["federation"]["positive"] == "1"
