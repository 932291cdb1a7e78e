"""From tables to samples: labels, owners, and tables that are in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedskew.data.build import build
from fedskew.data.dataset import to_dataset
from fedskew.data.prepare import Preparation
from fedskew.data.tables.samples import Asked, read_samples, samples_of_frames
from fedskew.errors import ConfigError, DataError

pandas = pytest.importorskip("pandas")


def test_frames_of_pandas_and_mappings_of_columns_become_the_same_samples():
    cells = {
        "age": [30.0, None, 50.0, 41.0],
        "ward": ["a", "b", None, "a"],
        "seen": np.array(["2024-01-01", "NaT", "2024-02-01", "2024-03-01"], "datetime64[D]"),
        "label": ["ill", "well", "ill", "well"],
    }
    frame = pandas.DataFrame(cells).astype({"age": "Float64", "ward": "category"})
    frame["seen"] = pandas.to_datetime(frame["seen"], utc=True)
    plain, framed = (
        samples_of_frames({"ann": each, "bob": each}, Asked()) for each in (cells, frame)
    )
    assert framed.owner_names == plain.owner_names == ("ann", "bob")
    assert framed.owner.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert framed.y.tolist() == plain.y.tolist() == [0, 1, 0, 1] * 2
    for mine, theirs in zip(framed.table.used, plain.table.used, strict=True):
        rows = np.arange(8)
        assert (mine.name, mine.fits(rows)) == (theirs.name, theirs.fits(rows))
        kind = mine.fits(rows)[0]
        np.testing.assert_array_equal(mine.read_as(kind).values, theirs.read_as(kind).values)


def test_a_federation_is_built_from_frames():
    rng = np.random.default_rng(0)
    frames = {
        name: pandas.DataFrame({
            "age": rng.normal(size=20), "ward": rng.choice(["a", "b"], 20),
            "label": np.arange(20) % 2,
        })
        for name in ("ann", "bob")
    }  # fmt: skip
    dataset = to_dataset("wards", samples_of_frames(frames, Asked()), Preparation())
    federation = build(dataset, partition="owner", clients=None, seed=0)
    assert [client.name for client in federation.clients] == ["ann", "bob"]
    assert federation.encoder.outputs == ("age", "ward=a", "ward=b")
    assert federation.x.shape == (40, 3)


def test_durations_are_numbers_of_days():
    lasted = pandas.to_timedelta(["1 days", None, "36:00:00"])
    made = samples_of_frames({"ann": {"stay": lasted, "label": ["a", "b", "a"]}}, Asked())
    assert made.table.used[0].kind == "number"
    np.testing.assert_array_equal(made.table.used[0].values, [1.0, np.nan, 1.5])


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ({}, "there is no client's table"),
        ({"ann": [[1, 2]]}, "the table of client 'ann' is a list: give a data frame"),
        ({"ann": {"a": [1, 2], "label": [0]}}, "columns of different lengths"),
        ({"ann": {"a": [1], 1: [1], "1": [2], "label": [0]}}, "two columns named '1'"),
        ({"ann": {"a": [[1, 2]], "label": [0]}}, r"column 'a' has shape \[1, 2\]"),
        ({"ann": {"a": [1], "y": [0]}}, "no label column 'label'; its columns: a, y"),
        (
            {"ann": {"a": [1], "label": [0]}, "bob": {"b": [1], "label": [0]}},
            "client 'bob' and the table of client 'ann' differ in column 'a'",
        ),
    ],
)
def test_frames_that_cannot_be_used_are_named(frames, words):
    with pytest.raises(DataError, match=words):
        samples_of_frames(frames, Asked())


def test_frames_are_clients_so_no_column_can_be():
    frames = {"ann": {"a": [1], "who": ["x"], "label": [0]}}
    with pytest.raises(ConfigError, match="'who' as the column of clients"):
        samples_of_frames(frames, Asked(columns={"who": "client"}))


def files(folder: Path, **content: str) -> list[Path]:
    for name, text in content.items():
        (folder / f"{name}.csv").write_text(text)
    return sorted(folder.glob("*.csv"))


def test_files_of_a_folder_are_clients_and_a_column_may_be_in_one_file(tmp_path: Path) -> None:
    paths = files(
        tmp_path,
        ann="a,w,label\n1,x,0\n2,y,1\n",
        bob="label,a,w\n1,3,x\n",
        cleo="a,w,label\n4,z,0\n",
    )
    made = read_samples(tmp_path, paths, Asked())
    assert made.owner is not None
    assert (made.owner.tolist(), made.owner_names) == ([0, 0, 1, 2], ("ann", "bob", "cleo"))
    assert (made.y.tolist(), made.label) == ([0, 1, 1, 0], ("label",))
    assert [column.name for column in made.table.used] == ["a", "w"]  # type: ignore[union-attr]
    one = read_samples(paths[0], paths[:1], Asked(columns={"w": "client"}))
    assert one.owner is not None
    assert (one.owner.tolist(), one.owner_names) == ([0, 1], ("x", "y"))
    assert one.table is not None
    assert one.table.ignored == {"w": "it says whose a row is"}


def test_a_column_that_is_ignored_need_not_be_in_all_files(tmp_path: Path) -> None:
    paths = files(tmp_path, ann="a,note,label\n1,x,0\n2,y,1\n", bob="a,label\n3,1\n")
    with pytest.raises(DataError, match=r"bob\.csv and .*ann\.csv differ in column 'note'"):
        read_samples(tmp_path, paths, Asked())
    made = read_samples(tmp_path, paths, Asked(columns={"note": "ignore"}))
    assert made.table is not None
    assert ([c.name for c in made.table.used], made.table.ignored) == (
        ["a"],
        {"note": "as you say"},
    )


def test_a_column_to_ignore_may_be_at_other_sites_only(tmp_path: Path) -> None:
    paths = files(tmp_path, ann="a,label\n1,0\n2,1\n")
    columns = {"note": "ignore"}
    with pytest.raises(ConfigError, match=r"unknown column in federation\.columns 'note'"):
        read_samples(paths[0], paths, Asked(columns=columns))
    assert len(read_samples(paths[0], paths, Asked(columns=columns, partly=True)).y) == 2
    with pytest.raises(ConfigError, match=r"unknown column in federation\.columns 'note'"):
        read_samples(paths[0], paths, Asked(columns={"note": "date"}, partly=True))


def test_a_mistake_among_labels_is_named_by_its_file_and_row(tmp_path: Path) -> None:
    numbers = "".join(f"{n},{n}.5\n" for n in range(30))
    paths = files(tmp_path, ann=f"a,label\n{numbers}", bob="a,label\n1,0.25\n2,unknown\n")
    told = r"bob\.csv: row 2, column 'label' holds 'unknown', but most labels are numbers: mend it"
    with pytest.raises(DataError, match=told):
        read_samples(tmp_path, paths, Asked())
    with pytest.raises(DataError, match=r"bob\.csv: row 2, .* is not a finite number"):
        read_samples(tmp_path, paths, Asked(task="regression"))


def test_several_labels_are_columns_of_yes_or_no(tmp_path: Path) -> None:
    paths = files(tmp_path, ann="a,red,big\n1,1,0\n2,1,1\n5,0,0\n")
    made = read_samples(paths[0], paths, Asked(("red", "big")))
    assert made.problem.kind == "multi-label"
    assert (made.y.tolist(), made.label) == ([[1, 0], [1, 1], [0, 0]], ("red", "big"))
    assert [column.name for column in made.table.used] == ["a"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "asked", "sentence"),
    [
        ("1,2,0\n3,4,1\n", Asked(), "Its first row holds numbers: does it lack a header with"),
        ("a,Label\n1,0\n", Asked(), "its columns: a, Label. Name one with --label or federation."),
        ("a,Label\n1,0\n", Asked(), "Did you mean 'Label'?"),
        ("a,label\n1,NA\n", Asked(), "row 1 has no label in column 'label', only 'NA': leave"),
        ("a,label\n1,0\n2, \n", Asked(), "row 2 has no label in column 'label': leave it"),
        ("a,label\n1,-\n2,+\n", Asked(), ""),
        ("w,a,label\n,1,0\nx,2,1\n", Asked(columns={"w": "client"}), "row 1 names no client in"),
        ("a,w,label\n1,,0\n2,x,1\n", Asked(columns={"w": "client"}), "row 1 names no client in co"),
        ("a,label\n1,0\n", Asked(columns={"a": "ignore"}), "has no column besides the label 'lab"),
        ("a,label\n1,0\n", Asked(columns={"label": "number"}), "names 'label', which is the label"),
        ("a,b,c,label\n1,1,1,0\n", Asked(columns={"a": "client", "b": "client"}), "two columns of"),
        ("a,label\n1,0\n", Asked(("label", "label")), "federation.label names a column twice"),
        ("a,b,label\n1,1,0\n", Asked(("b", "label"), "binary"), "names 2 columns, which is 'multi"),
        ("a,b,label\n1,2,0\n", Asked(("b", "label")), "column 'b' holds '2', but a label of a"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_labels_and_columns_is_said(
    text: str, asked: Asked, sentence: str, tmp_path: Path
) -> None:
    paths = files(tmp_path, ann=text)
    if not sentence:
        assert read_samples(paths[0], paths, asked).class_names == ("+", "-")
        return
    with pytest.raises((DataError, ConfigError)) as info:
        read_samples(paths[0], paths, asked)
    assert sentence in str(info.value)
