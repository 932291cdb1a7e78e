"""Named datasets: where their files are looked for, what is refused, and the real ones counted."""

from __future__ import annotations

import gzip
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_data import held_by_one

from fedskew.data.datasets import DATASETS, load
from fedskew.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("nowhere_else_to_look")
Array = np.ndarray[Any, Any]


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
    assert DATASETS["fashion-mnist"].elsewhere == (Path("/usr/share/datasets/fashion-mnist"),)


def test_a_place_elsewhere_is_searched_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "debian")
    entry = DATASETS["fashion-mnist"]
    moved = replace(entry, elsewhere=(tmp_path / "debian",))
    monkeypatch.setitem(DATASETS.entries, "fashion-mnist", moved)
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


@pytest.mark.parametrize("name", [name for name in DATASETS if DATASETS[name].layouts])
def test_missing_files_say_what_was_wanted_where_and_how_to_get_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path / "shared"))
    monkeypatch.setitem(DATASETS.entries, name, replace(DATASETS[name], elsewhere=()))
    with pytest.raises(DataError) as info:
        load(name, tmp_path / "mine")
    message = str(info.value)
    assert all(wanted in message for wanted in DATASETS[name].files)
    assert f"(looked in {tmp_path}/mine, {tmp_path}/shared, data)" in message
    assert DATASETS[name].get in message
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


def test_unknown_names_offer_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown dataset 'cifar-10': did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(ConfigError, match="unknown normalise 'standart': did you mean 'standard'"):
        load("digits", normalise="standart")
    with pytest.raises(ConfigError, match=r"unknown knob 'writer' of dataset 'mnist'.*'writers'"):
        load("mnist", tmp_path, writer=True)
    with pytest.raises(
        ConfigError, match="unknown knob 'writers' of dataset 'digits', which has none: remove it"
    ):
        load("digits", writers=True)
    with pytest.raises(ConfigError, match="writers of dataset 'mnist' must be true or false"):
        load("mnist", tmp_path, writers="yes")


def test_digits_need_no_files_and_have_no_official_split() -> None:
    digits = load("digits")
    assert tuple(digits.x.shape) == (1797, 1, 8, 8)
    x = held_by_one(digits).x.double()
    assert float(x.mean()) == pytest.approx(0, abs=1e-6)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert torch.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert len(digits.official_test) == 0


def test_every_dataset_is_described_with_its_files() -> None:
    assert list(DATASETS) == [
        "digits", "mnist", "fashion-mnist", "femnist", "cifar10", "cifar100", "gtsrb", "har",
        "chest-xray", "gaussian-clients", "bernoulli-clients",
    ]  # fmt: skip
    assert DATASETS["femnist"].files == ("femnist/data/all_data/all_data_*.json", "femnist.npz")
    assert {name for name, entry in DATASETS.items() if not entry.files} == {
        "digits", "gaussian-clients", "bernoulli-clients",
    }  # fmt: skip
    assert list(DATASETS["mnist"].knobs) == ["writers"]
    assert all(entry.summary.endswith(".") and entry.get for entry in DATASETS.values())


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
    scaled = held_by_one(found).x[torch.from_numpy(found.train_rows)]
    per_channel = scaled.double().mean(dim=(0, 2, 3))
    assert per_channel.tolist() == pytest.approx([0.0] * shape[1], abs=1e-4)
