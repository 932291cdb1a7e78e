"""Named datasets: each read from tiny files in its real format, and the real ones counted."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedskew.data.datasets import REGISTRY, describe, load
from fedskew.errors import ConfigError, DataError

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _nowhere_else_to_look(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the folder a test names is searched, unless it asks for the real data."""
    if "data_dir" not in request.fixturenames:
        monkeypatch.delenv("FEDSKEW_DATA", raising=False)
        monkeypatch.chdir(tmp_path)


def write_idx(path: Path, array: Array, kind: int = 0x08) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape)
    content = header + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = ".gz", labels: tuple[int, ...] = (7, 2, 1)) -> Array:
    """Three training and two test images of 2x2 pixels; returns the pixels in that order."""
    pixels = np.arange(0, 200, 10, dtype=np.uint8).reshape(5, 2, 2)
    train = len(labels)
    write_idx(folder / f"train-images-idx3-ubyte{suffix}", pixels[:train])
    write_idx(folder / f"train-labels-idx1-ubyte{suffix}", np.array(labels, np.uint8))
    write_idx(folder / f"t10k-images-idx3-ubyte{suffix}", pixels[3:])
    write_idx(folder / f"t10k-labels-idx1-ubyte{suffix}", np.array([0, 9], np.uint8))
    return pixels


def write_qmnist(folder: Path, first_label: int = 7) -> None:
    train = np.array([[first_label, 0, 2034], [2, 0, 17], [1, 0, 2034]], dtype=">i4")
    test = np.array([[0, 4, 3001], [9, 4, 3000], [5, 4, 3000]], dtype=">i4")
    write_idx(folder / "qmnist-train-labels-idx2-int.gz", train, 0x0C)
    write_idx(folder / "qmnist-test-labels-idx2-int.gz", test, 0x0C)


@pytest.mark.parametrize(("place", "suffix"), [("MNIST/raw", ".gz"), (".", ""), ("mnist", "")])
def test_mnist_is_read_from_its_idx_files(tmp_path: Path, place: str, suffix: str) -> None:
    pixels = write_mnist(tmp_path / place, suffix)
    mnist = load("mnist", tmp_path, normalise="unit")
    assert torch.equal(mnist.x, torch.from_numpy(pixels)[:, None] / 255)
    assert mnist.y.tolist() == [7, 2, 1, 0, 9]
    assert (mnist.official_test.tolist(), mnist.train_rows.tolist()) == ([3, 4], [0, 1, 2])
    assert mnist.owner is None


def test_standard_mnist_uses_the_published_mean_and_deviation(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    mnist = load("mnist", tmp_path)
    assert mnist.x[0, 0, 0, 0].item() == pytest.approx((0 - 0.1307) / 0.3081, abs=1e-6)
    assert mnist.x[4, 0, 1, 1].item() == pytest.approx((190 / 255 - 0.1307) / 0.3081, abs=1e-6)


def test_mnist_by_writer_takes_owners_from_the_qmnist_labels(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST/raw")
    write_qmnist(tmp_path / "QMNIST-labels")
    mnist = load("mnist", tmp_path, writers=True)
    assert mnist.owner is not None
    assert [mnist.owner_names[i] for i in mnist.owner] == [
        "writer_2034", "writer_0017", "writer_2034", "writer_3001", "writer_3000",
    ]  # fmt: skip


def test_mnist_by_writer_without_qmnist_names_the_missing_file(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    with pytest.raises(DataError, match=r"QMNIST-labels/qmnist-train-labels-idx2-int\.gz") as info:
        load("mnist", tmp_path, writers=True)
    assert str(tmp_path) in str(info.value)


def test_qmnist_labels_of_other_images_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_qmnist(tmp_path, first_label=8)
    with pytest.raises(DataError, match="do not match the MNIST labels row by row"):
        load("mnist", tmp_path, writers=True)


def test_mnist_files_are_not_mistaken_for_fashion_mnist(tmp_path: Path) -> None:
    opening = np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4], np.uint8)
    blank = np.zeros((10, 2, 2), np.uint8)
    for name, array in (("images-idx3", blank), ("labels-idx1", opening)):
        write_idx(tmp_path / f"train-{name}-ubyte", array)
        write_idx(tmp_path / f"t10k-{name}-ubyte", array)
    with pytest.raises(DataError, match="holds the files of mnist, not of fashion-mnist"):
        load("fashion-mnist", tmp_path)


def test_fashion_mnist_is_found_where_debian_puts_it() -> None:
    assert REGISTRY["fashion-mnist"].elsewhere == (Path("/usr/share/datasets/fashion-mnist"),)


def test_a_place_elsewhere_is_searched_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "debian")
    entry = REGISTRY["fashion-mnist"]
    moved = replace(entry, elsewhere=(tmp_path / "debian",))
    monkeypatch.setitem(REGISTRY, "fashion-mnist", moved)
    assert load("fashion-mnist").class_names[7] == "sneaker"


def test_one_missing_file_is_named_exactly(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST/raw")
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError) as info:
        load("mnist", tmp_path)
    assert f"{tmp_path}/MNIST/raw lacks t10k-labels-idx1-ubyte (looked in" in str(info.value)


def test_more_labels_than_images_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(4, np.uint8))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz has 4 labels for 3 images"):
        load("mnist", tmp_path)


def test_a_label_out_of_range_names_file_and_row(tmp_path: Path) -> None:
    write_mnist(tmp_path, labels=(7, 10, 1))
    with pytest.raises(DataError, match=r"labels-idx1-ubyte\.gz: label 10 of sample 1 is outside"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("name", [name for name in REGISTRY if REGISTRY[name].layouts])
def test_missing_files_say_what_was_wanted_where_and_how_to_get_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path / "shared"))
    monkeypatch.setitem(REGISTRY, name, replace(REGISTRY[name], elsewhere=()))
    with pytest.raises(DataError) as info:
        load(name, tmp_path / "mine")
    message = str(info.value)
    assert all(wanted in message for wanted in REGISTRY[name].files)
    assert f"(looked in {tmp_path}/mine, {tmp_path}/shared, data)" in message
    assert REGISTRY[name].get in message
    assert "set FEDSKEW_DATA or pass --data-dir" in message


def test_the_named_folder_wins_over_the_environment_and_that_over_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, label in (("mine", 1), ("shared", 2), ("data", 3)):
        write_mnist(tmp_path / place, labels=(label, 0, 0))
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path / "shared"))
    assert int(load("mnist", tmp_path / "mine").y[0]) == 1
    assert int(load("mnist").y[0]) == 2
    monkeypatch.delenv("FEDSKEW_DATA")
    assert int(load("mnist").y[0]) == 3


def test_a_data_folder_that_is_a_file_or_absent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file is not a readable folder: not a directory"):
        load("mnist", tmp_path / "file")
    with pytest.raises(DataError, match="gone is not a readable folder: no such file"):
        load("mnist", tmp_path / "gone")


def test_an_environment_folder_that_is_absent_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"^FEDSKEW_DATA .*gone is not a readable folder"):
        load("har")


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", forbidden)  # chmod would not stop root
    with pytest.raises(DataError, match="is not a readable folder: permission denied"):
        load("mnist", tmp_path)


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
    cifar = load("cifar10", tmp_path)
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
    har = load("har", tmp_path)
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
    with pytest.raises(DataError, match="chest_xray is sorted by test, train, not by source"):
        load("chest-xray", tmp_path)


def test_a_source_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chest-xray/rsna/normal").mkdir(parents=True)
    (tmp_path / "chest-xray/bimcv").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "chest-xray/rsna/normal/1.png")
    with pytest.raises(DataError, match="bimcv has no images in class folders"):
        load("chest-xray", tmp_path)


def test_unknown_names_offer_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown dataset 'cifar-10': did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(ConfigError, match="unknown normalise 'standart': did you mean 'standard'"):
        load("digits", normalise="standart")
    with pytest.raises(ConfigError, match=r"unknown option of dataset 'mnist' 'writer'.*'writers'"):
        load("mnist", tmp_path, writer=True)
    with pytest.raises(ConfigError, match="dataset 'digits' takes no options, but got 'writers'"):
        load("digits", writers=True)
    with pytest.raises(ConfigError, match="'writers' of dataset 'mnist' must be true or false"):
        load("mnist", tmp_path, writers="yes")


def test_digits_need_no_files_and_have_no_official_split() -> None:
    digits = load("digits")
    assert tuple(digits.x.shape) == (1797, 1, 8, 8)
    assert float(digits.x.double().mean()) == pytest.approx(0, abs=1e-6)
    assert float(digits.x.double().std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert torch.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert len(digits.official_test) == 0


def test_every_dataset_is_described_with_its_files() -> None:
    rows = {row.name: row for row in describe()}
    assert list(rows) == [
        "digits", "mnist", "fashion-mnist", "femnist", "cifar10", "cifar100", "gtsrb", "har",
        "chest-xray", "gaussian-clients", "bernoulli-clients", "fe-cmnist", "fe-rotmnist",
    ]  # fmt: skip
    assert rows["femnist"].files == ("femnist/data/all_data/all_data_*.json", "femnist.npz")
    assert {name for name, row in rows.items() if not row.files} == {
        "digits", "gaussian-clients", "bernoulli-clients",
    }  # fmt: skip
    assert list(rows["mnist"].options) == ["writers"]


@pytest.mark.real_data
def test_real_mnist_has_539_training_and_297_test_writers(data_dir: Path) -> None:
    mnist = load("mnist", data_dir, normalise="unit", writers=True)
    train = mnist.train_rows
    assert (len(train), len(mnist.official_test)) == (60_000, 10_000)
    assert float(mnist.x[train].mean()) == pytest.approx(0.1307, abs=5e-5)
    assert float(mnist.x[train].std()) == pytest.approx(0.3081, abs=5e-5)
    assert mnist.owner is not None
    writers, sizes = np.unique(mnist.owner[train], return_counts=True)
    others = np.unique(mnist.owner[mnist.official_test])
    assert (len(writers), int(sizes.min()), int(sizes.max()), len(others)) == (539, 19, 131, 297)
    assert not set(writers) & set(others)


@pytest.mark.real_data
def test_real_fashion_mnist_standardised_has_mean_0_and_deviation_1(data_dir: Path) -> None:
    fashion = load("fashion-mnist", data_dir)
    train = fashion.x[:60_000]
    assert len(fashion.y) == 70_000
    assert float(train.mean()) == pytest.approx(0, abs=1e-3)
    assert float(train.std()) == pytest.approx(1, abs=1e-3)
    assert torch.bincount(fashion.y[:60_000]).tolist() == [6000] * 10


@pytest.mark.real_data
def test_real_femnist_has_396_writers_on_white_paper(data_dir: Path) -> None:
    femnist = load("femnist", data_dir, normalise="unit")
    assert (len(femnist.y), len(femnist.owner_names), len(femnist.class_names)) == (60_359, 396, 62)
    assert femnist.owner is not None
    sizes = np.bincount(femnist.owner)
    digits = np.bincount(femnist.owner[femnist.y.numpy() < 10], minlength=396)
    assert ((sizes >= 100).sum(), (sizes >= 300).sum(), (digits >= 80).sum()) == (359, 2, 354)
    assert float(femnist.x.median()) == 1.0


@pytest.mark.real_data
def test_real_har_has_30_subjects_whose_segments_stay_inside_one_activity(data_dir: Path) -> None:
    har = load("har", data_dir, normalise="unit")
    assert (tuple(har.x.shape), len(har.owner_names)) == ((10_299, 561), 30)
    assert har.owner is not None
    assert har.segment is not None
    assert len(np.unique(har.owner[har.official_test])) == 9
    assert len(har.official_test) == 2947
    assert float(har.x.abs().max()) <= 1.0001
    pairs = np.stack([har.segment, har.owner, har.y.numpy()], axis=1)
    assert len(np.unique(pairs, axis=0)) == len(np.unique(har.segment))


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "shape", "classes", "test_rows", "owners"),
    [
        ("cifar10", (12_000, 3, 32, 32), 10, 2000, 0),
        ("gtsrb", (7340, 3, 32, 32), 10, 3630, 0),
        ("chest-xray", (9606, 1, 32, 32), 6, 0, 10),
    ],
)
def test_real_image_sets_have_their_documented_sizes(
    data_dir: Path, name: str, shape: tuple[int, ...], classes: int, test_rows: int, owners: int
) -> None:
    found = load(name, data_dir)
    assert tuple(found.x.shape) == shape
    assert len(found.class_names) == classes
    assert (len(found.official_test), len(found.owner_names)) == (test_rows, owners)
    per_channel = found.x[torch.from_numpy(found.train_rows)].double().mean(dim=(0, 2, 3))
    assert per_channel.tolist() == pytest.approx([0.0] * shape[1], abs=1e-4)
