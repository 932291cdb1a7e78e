"""Readers of named datasets: each reads tiny files in its real format."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from toy_data import held_by_one

from fedskew.data.datasets import load
from fedskew.errors import DataError

pytestmark = pytest.mark.usefixtures("nowhere_else_to_look")
Array = np.ndarray[Any, Any]


def write_leaf(path: Path, users: dict[str, tuple[list[list[float]], list[int]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def white_with(value: float) -> list[float]:
    return [1.0] * 783 + [value]


def test_femnist_reads_leaf_files_in_numeric_order(tmp_path: Path) -> None:
    folder = tmp_path / "femnist/data/all_data"
    write_leaf(folder / "all_data_10.json", {"cy": ([white_with(0.75)], [61])})
    write_leaf(
        folder / "all_data_2.json",
        {"ann": ([white_with(0.0), white_with(0.5)], [3, 10]), "bob": ([white_with(0.25)], [9])},
    )
    femnist = load("femnist", tmp_path, normalise="unit")
    assert femnist.owner_names == ("ann", "bob", "cy")
    assert femnist.owner is not None
    assert femnist.owner.tolist() == [0, 0, 1, 2]
    assert femnist.x[:, 0, 27, 27].tolist() == [0.0, 0.5, 0.25, 0.75]
    assert femnist.x[:, 0, 0, 0].tolist() == [1.0] * 4, "the background stays white"
    assert [femnist.class_names[i] for i in femnist.y] == ["3", "A", "9", "z"]


def test_femnist_digits_only_drops_letters_and_writers_without_digits(tmp_path: Path) -> None:
    write_leaf(
        tmp_path / "all_data_0.json",
        {"cy": ([white_with(0.75)], [61]), "ann": ([white_with(0), white_with(0.5)], [3, 10])},
    )
    femnist = load("femnist", tmp_path, normalise="unit", digits_only=True)
    assert (femnist.y.tolist(), femnist.owner_names, len(femnist.class_names)) == (
        [3],
        ("ann",),
        10,
    )


@pytest.mark.parametrize(
    ("pixels", "labels", "sentence"),
    [
        ([white_with(float("nan"))], [1], "user 'ann': sample 0 holds a NaN"),
        ([white_with(1)], [62], r"user 'ann': label 62 of sample 0 is outside 0\.\.61"),
        ([], [], "user 'ann' has no samples"),
        ([[1.0] * 783], [1], "user 'ann' needs samples of 784 numbers"),
    ],
)
def test_broken_leaf_users_are_refused_by_file_and_name(
    tmp_path: Path, pixels: list[list[float]], labels: list[int], sentence: str
) -> None:
    write_leaf(tmp_path / "all_data_0.json", {"ann": (pixels, labels)})
    with pytest.raises(DataError, match=rf"all_data_0\.json: {sentence}"):
        load("femnist", tmp_path)


def cifar_rows(start: int, rows: int) -> Array:
    return np.repeat(np.arange(start, start + rows, dtype=np.uint8), 3072).reshape(rows, 3072)


def write_pickle(path: Path, content: dict[bytes, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def test_cifar10_reads_its_python_batches_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    for i, name in enumerate([*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"]):
        write_pickle(folder / name, {b"data": cifar_rows(2 * i, 2), b"labels": [i, 9 - i]})
    cifar = load("cifar10", tmp_path, normalise="unit")
    assert tuple(cifar.x.shape) == (12, 3, 32, 32)
    assert (cifar.x[:, 2, 31, 31] * 255).round().int().tolist() == list(range(12))
    assert cifar.y.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5, 5, 4]
    assert cifar.official_test.tolist() == [10, 11]


def test_cifar10_reads_its_binary_batches(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i, name in enumerate([*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"]):
        (folder / f"{name}.bin").write_bytes(bytes([i]) + bytes([10 * i]) * 3072)
    cifar = load("cifar10", tmp_path, normalise="unit")
    assert (cifar.x[:, 0, 0, 0] * 255).round().int().tolist() == [0, 10, 20, 30, 40, 50]
    assert (cifar.y.tolist(), cifar.official_test.tolist()) == ([0, 1, 2, 3, 4, 5], [5])


def test_standard_cifar_takes_channel_statistics_from_training_rows_only(tmp_path: Path) -> None:
    x = np.zeros((3, 32, 32, 3), np.uint8)
    x[1] = (51, 102, 204)  # with x[0] black: means .1 .2 .4 and deviations the same
    x[2] = 255
    np.savez(tmp_path / "cifar10.npz", x=x, y=[0, 1, 2], split=[0, 0, 1], class_names=list("abc"))
    cifar = held_by_one(load("cifar10", tmp_path))
    assert cifar.x[:, :, 5, 7].flatten().tolist() == pytest.approx(
        [-1, -1, -1, 1, 1, 1, 9, 4, 1.5], abs=1e-5
    )


def test_cifar100_reads_fine_labels_and_their_names_from_pickles(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    for i, name in enumerate(("train", "test")):
        batch = {b"data": cifar_rows(i, 1), b"fine_labels": [99 - i], b"coarse_labels": [0]}
        write_pickle(folder / name, batch)
    write_pickle(folder / "meta", {b"fine_label_names": [b"fine%d" % i for i in range(100)]})
    cifar = load("cifar100", tmp_path)
    assert [cifar.class_names[i] for i in cifar.y] == ["fine99", "fine98"]
    assert cifar.official_test.tolist() == [1]


def test_cifar100_reads_fine_labels_from_binaries(tmp_path: Path) -> None:
    for i, name in enumerate(("train.bin", "test.bin")):
        (tmp_path / name).write_bytes(bytes([3, 40 + i]) + bytes(3072))
    cifar = load("cifar100", tmp_path, normalise="unit")
    assert (cifar.y.tolist(), len(cifar.class_names)) == ([40, 41], 100)


HEADER = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"


def write_signs(
    images: Path, table: Path, signs: dict[str, tuple[int, int, int]], label: int
) -> None:
    """Single-coloured signs of 40x36 pixels, which resizing must leave single-coloured."""
    images.mkdir(parents=True, exist_ok=True)
    table.parent.mkdir(parents=True, exist_ok=True)
    rows = ""
    for name, colour in signs.items():
        Image.new("RGB", (40, 36), colour).save(images / name)
        rows += f"{Path(name).with_suffix('.ppm')};40;36;5;5;35;31;{label}\n"
    table.write_text(HEADER + rows)


@pytest.mark.parametrize("answers", ["GTSRB/Final_Test/Images", "GTSRB", "."])
@pytest.mark.parametrize("training", ["Final_Training/Images", "Training"])
def test_gtsrb_reads_images_with_their_csv(tmp_path: Path, training: str, answers: str) -> None:
    train, test = tmp_path / "GTSRB" / training, tmp_path / "GTSRB/Final_Test/Images"
    write_signs(
        train / "00014", train / "00014/GT-00014.csv", {"00000_00000.ppm": (255, 0, 51)}, 14
    )
    write_signs(train / "00038", train / "00038/GT-00038.csv", {"00000_00000.png": (0, 0, 102)}, 38)
    write_signs(test, tmp_path / answers / "GT-final_test.csv", {"00000.ppm": (0, 204, 0)}, 0)
    signs = load("gtsrb", tmp_path, normalise="unit")
    assert tuple(signs.x.shape) == (3, 3, 32, 32)
    assert signs.x[:, :, 16, 16].flatten().tolist() == pytest.approx(
        [1, 0, 0.2, 0, 0, 0.4, 0, 0.8, 0]
    )
    assert [signs.class_names[i] for i in signs.y] == ["stop", "keep right", "speed limit 20"]
    assert signs.official_test.tolist() == [2]


def test_gtsrb_without_the_answers_to_its_test_set_says_so(tmp_path: Path) -> None:
    train, test = tmp_path / "Final_Training/Images/00000", tmp_path / "Final_Test/Images"
    write_signs(train, train / "GT-00000.csv", {"a.ppm": (1, 2, 3)}, 0)
    write_signs(test, test / "GT-final_test.test.csv", {"a.ppm": (1, 2, 3)}, 0)
    with pytest.raises(DataError, match=r"Final_Test/Images/GT-final_test\.csv is missing"):
        load("gtsrb", tmp_path)


def test_a_gtsrb_table_that_lists_an_absent_image_is_refused(tmp_path: Path) -> None:
    train, test = tmp_path / "Final_Training/Images/00000", tmp_path / "Final_Test/Images"
    write_signs(train, train / "GT-00000.csv", {"a.ppm": (1, 2, 3)}, 0)
    write_signs(test, test / "GT-final_test.csv", {"a.ppm": (1, 2, 3)}, 0)
    (train / "a.ppm").unlink()
    with pytest.raises(DataError, match=r"00000/a\.ppm cannot be read as an image"):
        load("gtsrb", tmp_path)


def write_har(
    root: Path, train_labels: str = "5\n5\n1\n1\n", subjects: str = "1\n1\n1\n30\n"
) -> None:
    for part in ("train", "test"):
        (root / part).mkdir(parents=True, exist_ok=True)
    (root / "activity_labels.txt").write_text("1 WALKING\n2 UP\n3 DOWN\n4 SIT\n5 STAND\n6 LIE\n")
    (root / "train/X_train.txt").write_text("  1 -1\n  3 -1\n  1 -1\n  3 -1\n")
    (root / "train/y_train.txt").write_text(train_labels)
    (root / "train/subject_train.txt").write_text(subjects)
    (root / "test/X_test.txt").write_text("  5.0e+000  2.5e-001\n")
    (root / "test/y_test.txt").write_text("1\n")
    (root / "test/subject_test.txt").write_text("2\n")


def test_har_reads_the_uci_text_files(tmp_path: Path) -> None:
    write_har(tmp_path / "UCI HAR Dataset")
    har = load("har", tmp_path, normalise="unit")
    assert har.x.tolist() == [[1, -1], [3, -1], [1, -1], [3, -1], [5, 0.25]]
    assert [har.class_names[i] for i in har.y] == [
        "STAND",
        "STAND",
        "WALKING",
        "WALKING",
        "WALKING",
    ]
    assert har.owner is not None
    assert [har.owner_names[i] for i in har.owner] == [
        "subject_01", "subject_01", "subject_01", "subject_30", "subject_02",
    ]  # fmt: skip
    assert har.segment is not None
    assert har.segment.tolist() == [0, 0, 1, 2, 3], "a change of activity or subject ends a run"
    assert har.official_test.tolist() == [4]


def test_standard_har_scales_each_feature_by_its_training_rows(tmp_path: Path) -> None:
    write_har(tmp_path)
    har = held_by_one(load("har", tmp_path))
    # feature 0: mean 2, deviation 1; feature 1 is constant -1 in training and only shifted
    assert har.x.tolist() == [[-1, 0], [1, 0], [-1, 0], [1, 0], [3, 1.25]]


def test_har_files_that_disagree_in_length_or_label_are_refused(tmp_path: Path) -> None:
    write_har(tmp_path, subjects="1\n1\n")
    with pytest.raises(DataError, match=r"subject_train\.txt has 2 rows for 4 windows"):
        load("har", tmp_path)
    write_har(tmp_path, train_labels="1\n7\n1\n1\n")
    with pytest.raises(DataError, match=r"label 6 of sample 1 is outside 0\.\.5"):
        load("har", tmp_path)


def test_chest_x_rays_are_owned_by_their_source(tmp_path: Path) -> None:
    for source, kind, grey in (
        ("rsna", "normal", 51),
        ("rsna", "covid", 102),
        ("bimcv", "covid", 204),
    ):
        folder = tmp_path / "chest-xray" / source / kind
        folder.mkdir(parents=True)
        Image.new("L", (50, 60), grey).save(folder / "1.png")
    xray = load("chest-xray", tmp_path, normalise="unit")
    assert tuple(xray.x.shape) == (3, 1, 32, 32)
    assert xray.owner is not None
    rows = {
        (xray.owner_names[o], xray.class_names[c], round(float(x[0, 3, 3]), 4))
        for o, c, x in zip(xray.owner, xray.y, xray.x, strict=True)
    }
    assert rows == {("rsna", "normal", 0.2), ("rsna", "covid", 0.4), ("bimcv", "covid", 0.8)}


def test_x_rays_are_normal_or_not(tmp_path: Path) -> None:
    for source, kind in (("a", "covid"), ("a", "NORMAL"), ("b", "other"), ("b", "NORMAL")):
        folder = tmp_path / "chest-xray" / source / kind
        folder.mkdir(parents=True)
        Image.new("L", (4, 4)).save(folder / "1.png")
    stored = load("chest-xray", tmp_path)
    assert [stored.class_names[i] for i in stored.y] == ["NORMAL", "covid", "NORMAL", "other"]
    two = load("chest-xray", tmp_path, normal_or_not=True)
    assert two.class_names == ("normal", "abnormal")
    assert two.y.tolist() == [0, 1, 0, 1]
    assert torch.equal(two.x, stored.x)
    for source in ("a", "b"):
        (tmp_path / "chest-xray" / source / "NORMAL" / "1.png").unlink()
    with pytest.raises(DataError, match="chest-xray has no class 'normal', only covid, other"):
        load("chest-xray", tmp_path, normal_or_not=True)


@pytest.mark.real_data
def test_about_half_of_the_real_x_rays_are_normal(data_dir: Path) -> None:
    xray = load("chest-xray", data_dir, normal_or_not=True)
    assert torch.bincount(xray.y).tolist() == [18 + 3 + 18 + 1571 + 3000, 9606 - 4610]
    assert len(xray.owner_names) == 10


def test_x_rays_sorted_by_split_are_not_taken_for_sources(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "chest_xray" / split / "NORMAL").mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "chest_xray" / split / "NORMAL" / "1.png")
    with pytest.raises(DataError, match="chest_xray is not sorted by source"):
        load("chest-xray", tmp_path)


def test_a_source_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chest-xray/rsna/normal").mkdir(parents=True)
    (tmp_path / "chest-xray/bimcv").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "chest-xray/rsna/normal/1.png")
    with pytest.raises(DataError, match="bimcv has no images in class folders"):
        load("chest-xray", tmp_path)
