"""A user's own data in every form it may come, and what bad forms are told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from toy_data import held_by_one

from fedskew.data.own import load_function, load_own
from fedskew.errors import ConfigError, DataError


def save(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def test_one_npz_brings_everything_it_holds(tmp_path: Path) -> None:
    path = save(
        tmp_path / "wards.npz",
        x=np.array([[100, -50], [0, 25], [50, 75]], np.int16),
        x_scale=np.float32(0.01),
        y=np.array([1, 0, 1], np.uint8),
        owner=np.array([1, 0, 1], np.uint8),
        owner_names=["east", "west"],
        split=np.array([0, 0, 1], np.uint8),
        class_names=["well", "ill"],
        segment=np.array([4, 5, 4], np.int16),
    )
    wards = load_own(path, normalise="unit")
    assert wards.name == "wards"
    assert wards.x.flatten().tolist() == pytest.approx([1, -0.5, 0, 0.25, 0.5, 0.75])
    assert (wards.y.tolist(), wards.class_names) == ([1, 0, 1], ("well", "ill"))
    assert wards.owner is not None
    assert wards.segment is not None
    assert (wards.owner.tolist(), wards.owner_names) == ([1, 0, 1], ("east", "west"))
    assert (wards.official_test.tolist(), wards.segment.tolist()) == ([2], [4, 5, 4])


def test_owners_may_be_given_by_name_and_classes_left_unnamed(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", x=np.eye(3), y=[0, 2, 0], owner=["bob", "ann", "bob"])
    own = load_own(path)
    assert own.owner is not None
    assert (own.owner.tolist(), own.owner_names) == ([1, 0, 1], ("ann", "bob"))
    assert own.class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 6, 5), (2, 1, 6, 5)),
        ((2, 6, 5, 1), (2, 1, 6, 5)),
        ((2, 6, 5, 3), (2, 3, 6, 5)),
        ((2, 3, 6, 5), (2, 3, 6, 5)),
        ((2, 7), (2, 7)),
    ],
)
def test_images_come_out_channels_first_and_features_flat(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    path = save(tmp_path / "a.npz", x=np.zeros(shape, np.uint8), y=[0, 1])
    assert tuple(load_own(path).x.shape) == expected


def test_bytes_of_images_become_0_to_1_and_colours_stay_with_their_pixel(tmp_path: Path) -> None:
    x = np.zeros((1, 2, 2, 3), np.uint8)
    x[0, 1, 0] = (51, 102, 255)
    own = load_own(save(tmp_path / "a.npz", x=x, y=[0]), normalise="unit")
    assert own.x[0, :, 1, 0].tolist() == pytest.approx([0.2, 0.4, 1.0])
    assert float(own.x.sum()) == pytest.approx(1.6)


def test_byte_features_keep_their_values(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", x=np.array([[200, 3]], np.uint8), y=[0])
    assert load_own(path, normalise="unit").x.tolist() == [[200, 3]]


def test_standard_uses_mean_and_deviation_of_training_rows(tmp_path: Path) -> None:
    x = np.zeros((3, 1, 2), np.uint8)
    x[0], x[1], x[2] = 0, 102, 255  # training: mean .2, deviation .2
    own = held_by_one(load_own(save(tmp_path / "a.npz", x=x, y=[0, 1, 0], split=[0, 0, 1])))
    assert own.x[:, 0, 0, 1].tolist() == pytest.approx([-1, 1, 4], abs=1e-6)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.eye(2)}, "a.npz has no array 'y'"),
        ({"x": np.eye(2), "y": [0, 1, 0]}, "a.npz: 2 samples need 2 values of 'y'"),
        ({"x": [[0.0], [np.nan]], "y": [0, 1]}, "a.npz: sample 1 holds a NaN"),
        ({"x": np.eye(2), "y": [0, -1]}, "a.npz: label -1 of sample 1 is outside"),
        ({"x": np.eye(2), "y": [0, 2], "class_names": ["a", "b"]}, "label 2 of sample 1"),
        ({"x": np.eye(2), "y": [0.5, np.nan]}, "a.npz: row 2 has no label in column 'y'"),
        ({"x": np.eye(2), "y": [0.5, 0.5]}, "a.npz: all targets are 0.5"),
        ({"x": np.eye(2), "y": [[0, 1], [1, 2]]}, "column '1' holds '2', but a label"),
        ({"x": np.eye(2), "y": ["a", "b"]}, "'y' must hold a number for each sample"),
        ({"x": [["a"], ["b"]], "y": [0, 1]}, "samples must be numbers, not <U1"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, "a.npz: no samples"),
        ({"x": np.eye(2), "y": [0, 1], "split": [0, 2]}, "'split' must hold 0"),
        ({"x": np.eye(2), "y": [0, 1], "split": [1, 1]}, "every row is marked as test"),
        ({"x": np.eye(2), "y": [0, 1], "owner": [0]}, "need 2 values of 'owner'"),
        (
            {"x": np.eye(2), "y": [0, 1], "owner": [0, 1], "owner_names": ["ann"]},
            "owner 1 of sample 1 is outside 0..0",
        ),
        ({"x": np.eye(2), "y": [0, 1], "x_scale": [1.0, 2.0]}, "'x_scale' must be one"),
        ({"x": np.zeros((2, 4, 4, 5)), "y": [0, 1]}, "neither features nor images"),
        ({"x": np.eye(2), "y": np.array([0, None])}, "'y' is an object array, which is refused"),
        ({"x": np.full((2, 2), 1e300), "y": [0, 1]}, "sample 0 holds a NaN or infinite"),
    ],
)
def test_a_broken_npz_gets_one_sentence_naming_it(
    tmp_path: Path, arrays: dict[str, Any], sentence: str
) -> None:
    path = save(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError) as info:
        load_own(path, normalise="unit")
    assert sentence in str(info.value)


def test_a_folder_of_npz_makes_each_file_a_client(tmp_path: Path) -> None:
    save(tmp_path / "fed/bob.npz", x=np.ones((1, 2)), y=[0], segment=[7])
    save(tmp_path / "fed/ann.npz", x=np.zeros((2, 2)), y=[1, 2], segment=[7, 7], split=[0, 1])
    fed = load_own(tmp_path / "fed", normalise="unit")
    assert fed.owner is not None
    assert fed.segment is not None
    assert (fed.owner_names, fed.owner.tolist()) == (("ann", "bob"), [0, 0, 1])
    assert fed.y.tolist() == [1, 2, 0]
    assert fed.class_names == ("0", "1", "2")
    assert fed.segment.tolist() == [0, 0, 1], "the same id in two files is two segments"
    assert fed.official_test.tolist() == [1]


def test_clients_whose_samples_differ_in_shape_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "ann.npz", x=np.zeros((2, 2)), y=[1, 0])
    save(tmp_path / "bob.npz", x=np.zeros((2, 3)), y=[1, 0])
    with pytest.raises(DataError, match=r"bob\.npz: samples are float64 \[3\], but those of"):
        load_own(tmp_path)


def test_an_empty_client_npz_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path / "ann.npz", x=np.zeros((2, 2)), y=[1, 0])
    save(tmp_path / "bob.npz", x=np.zeros((0, 2)), y=np.zeros(0, int))
    with pytest.raises(DataError, match=r"bob\.npz: no samples"):
        load_own(tmp_path)


def test_a_folder_of_csv_makes_each_file_a_client(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text("age,label,dose\n40,10,0.5\n50,2,1e-1\n")
    (tmp_path / "south.csv").write_text("age,label,dose\n60,2,-3\n")
    (tmp_path / "notes.txt").write_text("not a client")
    fed = load_own(tmp_path, normalise="unit")
    assert fed.x.flatten().tolist() == pytest.approx([40, 0.5, 50, 0.1, 60, -3])
    assert fed.class_names == ("2", "10"), "numbers sort as numbers"
    assert fed.y.tolist() == [1, 0, 0]
    assert fed.owner is not None
    assert (fed.owner_names, fed.owner.tolist()) == (("north", "south"), [0, 0, 1])


def test_one_csv_is_a_dataset_without_owners(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("x1,kind\n1,cat\n2,ant\n")
    own = load_own(tmp_path / "all.csv", normalise="unit", label="kind")
    assert (own.x.tolist(), own.y.tolist(), own.class_names) == ([[1], [2]], [1, 0], ("ant", "cat"))
    assert own.owner is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("age,class\n1,2\n", "b.csv has no label column 'label'; its columns: age, class."),
        ("age,label\n1,0\nold,1\n", "b.csv: row 2, column 'age' holds 'old', which is not"),
        ("age,label\n1,0\n-inf,1\n", "b.csv: row 2, column 'age' holds -inf, which is not"),
        ("age,label\n1,NA\n", "b.csv: row 1 has no label in column 'label', only 'NA': leave"),
        ("age,label\n1e39,0\n", "b.csv: row 1, column 'age' holds 1e+39, which is not a finite"),
        ("age,label\n1,\n", "b.csv: row 1 has no label in column 'label': leave it out."),
        ("age,label\n", "b.csv has no rows: a client needs at least one sample."),
        ("", "b.csv is empty"),
        ("label\n1\n", "b.csv has no column besides the label 'label'."),
        ("age,age,label\n1,2,0\n", "b.csv has two columns named 'age'."),
        ("dose,label\n1,0\n", "b.csv and "),
    ],
)
def test_a_broken_csv_gets_file_row_and_column(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "a.csv").write_text("age,label\n1,0\n")
    (tmp_path / "b.csv").write_text(content)
    with pytest.raises(DataError) as info:
        load_own(tmp_path)
    assert sentence in str(info.value)


def write_parquet(path: Path, **columns: list[Any]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path)


def test_a_folder_of_parquet_makes_each_file_a_client(tmp_path: Path) -> None:
    write_parquet(tmp_path / "ann.parquet", a=[1, 2], b=[0.5, 0.25], label=["yes", "no"])
    write_parquet(tmp_path / "bob.parquet", a=[3], b=[4.0], label=["yes"])
    fed = load_own(tmp_path, normalise="unit")
    assert fed.x.tolist() == [[1, 0.5], [2, 0.25], [3, 4]]
    assert (fed.y.tolist(), fed.class_names) == ([1, 0, 1], ("no", "yes"))
    assert fed.owner is not None
    assert fed.owner.tolist() == [0, 0, 1]


def test_parquet_cells_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", a=[1.0, float("inf")], label=[0, 1])
    with pytest.raises(DataError, match=r"a\.parquet: row 2, column 'a' holds .*inf.*not a finite"):
        load_own(tmp_path)
    write_parquet(tmp_path / "a.parquet", a=["1", "y", "2"], label=[0, 1, 1])
    with pytest.raises(DataError, match=r"a\.parquet: row 2, column 'a' holds 'y'"):
        load_own(tmp_path)


def test_a_truncated_parquet_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", a=[1.0], label=[0])
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(DataError, match=r"a\.parquet is not a complete Parquet file"):
        load_own(tmp_path)


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'fedskew\[parquet\]'"):
        load_own(tmp_path)


def write_image(path: Path, colour: Any, size: tuple[int, int] = (4, 3), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_folders_of_images_make_each_folder_a_client(tmp_path: Path) -> None:
    write_image(tmp_path / "ann/cat/1.png", 51)
    write_image(tmp_path / "ann/dog/1.png", 102)
    write_image(tmp_path / "bob/dog/x.PNG", 204)
    fed = load_own(tmp_path, normalise="unit")
    assert tuple(fed.x.shape) == (3, 1, 3, 4)
    assert fed.x[:, 0, 2, 3].tolist() == pytest.approx([0.2, 0.4, 0.8])
    assert (fed.class_names, fed.y.tolist()) == (("cat", "dog"), [0, 1, 1])
    assert fed.owner is not None
    assert (fed.owner_names, fed.owner.tolist()) == (("ann", "bob"), [0, 0, 1])


def test_colour_images_may_be_resized(tmp_path: Path) -> None:
    write_image(tmp_path / "ann/cat/1.png", (255, 0, 51), (9, 7), "RGB")
    write_image(tmp_path / "bob/cat/1.png", (255, 0, 51), (5, 5), "RGB")
    with pytest.raises(DataError, match=r"different sizes: 5x5 \(1\), 9x7 \(1\)"):
        load_own(tmp_path)
    fed = load_own(tmp_path, normalise="unit", image_size=6)
    assert tuple(fed.x.shape) == (2, 3, 6, 6)
    assert fed.x[1, :, 0, 0].tolist() == pytest.approx([1, 0, 0.2])


def test_a_client_folder_without_images_is_refused_by_name(tmp_path: Path) -> None:
    write_image(tmp_path / "ann/cat/1.png", 51)
    (tmp_path / "bob/cat").mkdir(parents=True)
    with pytest.raises(DataError, match="bob has no images in class folders"):
        load_own(tmp_path)


def test_sources_that_hold_no_federation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone does not exist"):
        load_own(tmp_path / "gone")
    with pytest.raises(DataError, match=r"has neither a \.npz, \.csv or \.parquet file per client"):
        load_own(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"notes\.txt is not a complete npz"):
        load_own(tmp_path / "notes.txt")
    (tmp_path / "a.csv").write_text("a,label\n1,0\n")
    save(tmp_path / "b.npz", x=np.eye(2), y=[0, 1])
    with pytest.raises(DataError, match=r"mixes \.csv and \.npz files"):
        load_own(tmp_path)


def test_an_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", forbidden)  # chmod would not stop root
    with pytest.raises(DataError, match=f"no permission to read {tmp_path}"):
        load_own(tmp_path)


MODULE = """
import numpy as np, torch
from fedskew.data.federation import Client, Federation

def toy(clients=2):
    rows = [Client(f"c{i}", np.array([i])) for i in range(clients)]
    x, y = torch.zeros(clients, 3), torch.zeros(clients, dtype=torch.long)
    return Federation("toy", x, y, ("a",), tuple(rows))

def wrong():
    return 3

number = 4
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working folder, as a user of the command line would have it."""
    name = "users_own_federation"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_a_function_in_the_working_folder_builds_the_federation(user_module: str) -> None:
    before = list(sys.path)
    fed = load_function(f"{user_module}:toy", clients=5)
    assert [client.name for client in fed.clients] == ["c0", "c1", "c2", "c3", "c4"]
    assert sys.path == before


@pytest.mark.parametrize(
    ("suffix", "options", "sentence"),
    [
        (":", {}, "must read 'module:function'"),
        (":absent", {}, "has no function 'absent'"),
        (":number", {}, "module 'users_own_federation' has no function 'number'"),
        (":wrong", {}, "returned int, not a fedskew Federation"),
        (
            ":toy",
            {"client": 5},
            "unknown knob 'client' of dataset 'users_own_federation:toy': did you mean 'clients'",
        ),
    ],
)
def test_functions_that_cannot_build_one_are_refused(
    user_module: str, suffix: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=sentence):
        load_function(f"{user_module}{suffix}", **options)


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"module 'no_such_module' cannot be imported"):
        load_function("no_such_module:f")
