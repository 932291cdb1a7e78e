"""How each named dataset is laid out on disk, and how its files become samples."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedskew.data.formats import (
    Array,
    existing,
    find_file,
    read_cifar_binary,
    read_csv,
    read_idx,
    read_leaf,
    read_numbers,
    read_text,
)
from fedskew.data.images.one import read_image
from fedskew.data.images.reading import Wish
from fedskew.data.images.samples import read_image_folders
from fedskew.data.pickles import read_cifar_pickle, read_names
from fedskew.data.raw import RawSamples, check_labels, check_values, concatenate, numbered
from fedskew.errors import DataError
from fedskew.types import Indices

DIGITS = tuple(string.digits)
CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
CLOTHES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
OBJECTS = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
ACTIVITIES = (
    "WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING",
)  # fmt: skip
SIGNS = (
    "speed limit 20", "speed limit 30", "speed limit 50", "speed limit 60", "speed limit 70",
    "speed limit 80", "end of speed limit 80", "speed limit 100", "speed limit 120", "no passing",
    "no passing for trucks", "right of way", "priority road", "yield", "stop", "no vehicles",
    "no trucks", "no entry", "general caution", "curve left", "curve right", "double curve",
    "bumpy road", "slippery road", "road narrows", "road work", "traffic signals", "pedestrians",
    "children", "bicycles", "ice or snow", "wild animals", "end of limits", "turn right ahead",
    "turn left ahead", "ahead only", "straight or right", "straight or left", "keep right",
    "keep left", "roundabout", "end of no passing", "end of no passing for trucks",
)  # fmt: skip

# MNIST and Fashion-MNIST use the same file names; how each opens tells them apart.
_FIRST_LABELS = {
    "mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
}
IDX_FILES = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip
QMNIST_FILES = ("qmnist-train-labels-idx2-int", "qmnist-test-labels-idx2-int")


def embedded_digits() -> RawSamples:
    """scikit-learn's own copy, which makes the demo work without any download."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = (found.images / 16).astype(np.float32)
    return RawSamples("digits", x, found.target.astype(np.int64), DIGITS)


def read_idx_folder(folder: Path, name: str, class_names: tuple[str, ...]) -> RawSamples:
    """MNIST's four idx files: training rows first, then the test rows."""
    train = _read_idx_pair(folder, *IDX_FILES[:2], class_names)
    test = _read_idx_pair(folder, *IDX_FILES[2:], class_names)
    for other, labels in _FIRST_LABELS.items():
        if other != name and tuple(train.y[: len(labels)]) == labels:
            raise DataError(f"{folder} holds the files of {other}, not of {name}.")
    return with_test(folder, train, test)


def _read_idx_pair(
    folder: Path, images: str, labels: str, class_names: tuple[str, ...]
) -> RawSamples:
    path = existing(folder, labels)
    x, y = read_idx(existing(folder, images), 3), read_idx(path, 1).astype(np.int64)
    if len(x) != len(y):
        raise DataError(f"{path} has {len(y)} labels for {len(x)} images.")
    return RawSamples(path, x, y, class_names)


def with_test(origin: Path, train: RawSamples, test: RawSamples) -> RawSamples:
    """Training rows followed by the published test rows."""
    both = concatenate(origin, (train, test))
    return replace(both, test=np.arange(len(both.y)) >= len(train.y))


def with_writers(raw: RawSamples, folder: Path) -> RawSamples:
    """MNIST rows owned by the people who wrote them, from QMNIST's extended labels."""
    rows = [read_idx(existing(folder, name), 2) for name in QMNIST_FILES]
    if raw.test is None or any(table.shape[1] < 3 for table in rows):
        raise DataError(f"{folder}: QMNIST labels need at least three columns.")
    train, test = int((~raw.test).sum()), int(raw.test.sum())
    labels = np.concatenate([rows[0][:train], rows[1][:test]])
    if len(labels) != len(raw.y) or not np.array_equal(labels[:, 0], raw.y):
        raise DataError(f"{folder}: QMNIST labels do not match the MNIST labels row by row.")
    writers, owner = np.unique(labels[:, 2], return_inverse=True)
    return replace(raw, owner=owner, owner_names=tuple(f"writer_{w:04d}" for w in writers))


def read_leaf_folder(folder: Path) -> RawSamples:
    """LEAF FEMNIST: every user of every all_data_*.json, white background left at 1.0."""
    names: list[str] = []
    x: list[Array] = []
    y: list[Array] = []
    for path in sorted(folder.glob("all_data_*.json"), key=_number_in_name):
        for user, pixels, labels in read_leaf(path, 28 * 28):
            if user in names:
                raise DataError(f"{path}: user {user!r} is already in an earlier file.")
            if len(labels) == 0:
                raise DataError(f"{path}: user {user!r} has no samples.")
            check_values(f"{path}: user {user!r}", pixels)
            check_labels(f"{path}: user {user!r}", labels, len(CHARACTERS))
            names.append(user)
            x.append(pixels.reshape(-1, 28, 28))
            y.append(labels)
    if not names:
        raise DataError(f"{folder}: the LEAF files hold no users.")
    owner = np.repeat(np.arange(len(names)), [len(labels) for labels in y])
    return RawSamples(
        folder, np.concatenate(x), np.concatenate(y), CHARACTERS,
        owner=owner, owner_names=tuple(names),
    )  # fmt: skip


def _number_in_name(path: Path) -> tuple[int, str]:
    digits = re.findall(r"\d+", path.stem)
    return (int(digits[0]) if digits else 0, path.name)


def inverted(raw: RawSamples) -> RawSamples:
    """Images with light and dark exchanged."""
    white = 255 if raw.x.dtype == np.uint8 else 1
    return replace(raw, x=white - raw.x)


CIFAR10_PICKLES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR10_BINARIES = tuple(f"{name}.bin" for name in CIFAR10_PICKLES)


def _cifar(
    folder: Path, files: Sequence[str], read: Callable[[Path], tuple[Array, Array]],
    class_names: tuple[str, ...],
) -> RawSamples:  # fmt: skip
    """Batches of which the last is the test set."""
    paths = [existing(folder, name) for name in files]
    parts = [RawSamples(path, *read(path), class_names) for path in paths]
    return with_test(folder, concatenate(folder, parts[:-1]), parts[-1])


def read_cifar10_pickles(folder: Path) -> RawSamples:
    """The folder cifar-10-batches-py."""
    return _cifar(folder, CIFAR10_PICKLES, lambda p: read_cifar_pickle(p, "labels"), OBJECTS)


def read_cifar10_binaries(folder: Path) -> RawSamples:
    """The folder cifar-10-batches-bin."""
    return _cifar(folder, CIFAR10_BINARIES, lambda p: read_cifar_binary(p, 1), OBJECTS)


def read_cifar100_pickles(folder: Path) -> RawSamples:
    """The folder cifar-100-python, with its hundred fine labels."""
    names = numbered(100)
    if (meta := find_file(folder, "meta")) is not None:
        names = read_names(meta, "fine_label_names")
    return _cifar(folder, ("train", "test"), lambda p: read_cifar_pickle(p, "fine_labels"), names)


def read_cifar100_binaries(folder: Path) -> RawSamples:
    """The folder cifar-100-binary: a coarse and a fine label before each image."""
    names = numbered(100)
    if (listing := find_file(folder, "fine_label_names.txt")) is not None:
        names = tuple(read_text(listing).split())
    return _cifar(folder, ("train.bin", "test.bin"), lambda p: read_cifar_binary(p, 2), names)


def read_gtsrb_folder(folder: Path, training: str) -> RawSamples:
    """Traffic signs: a CSV beside each class of training images, one CSV for the test images.

    The latter is a separate download, which may be unpacked in any of three places.
    """
    train = [_read_signs(table, table.parent) for table in sorted(folder.glob(training))]
    images, answers = folder / "Final_Test" / "Images", "GT-final_test.csv"
    table = next(
        (p / answers for p in (images, folder, folder.parent) if (p / answers).exists()), None
    )
    if table is None:
        raise DataError(f"{images / answers} is missing; it holds the labels of the test images.")
    return with_test(folder, concatenate(folder, train), _read_signs(table, images))


def _read_signs(table: Path, images: Path) -> RawSamples:
    header, rows = read_csv(table, delimiter=";")
    for column in ("Filename", "ClassId"):
        if column not in header:
            raise DataError(f"{table} has no column {column!r}, only {', '.join(header)}.")
    file, label = header.index("Filename"), header.index("ClassId")
    try:
        y = np.array([int(row[label]) for row in rows], dtype=np.int64)
    except ValueError as error:
        raise DataError(f"{table}: 'ClassId' must hold whole numbers.") from error
    if not rows:
        raise DataError(f"{table} lists no images.")
    x = np.stack([read_image(_ppm_or_png(images / row[file]), 32, grey=False) for row in rows])
    return RawSamples(table, x, y, SIGNS)


def _ppm_or_png(path: Path) -> Path:
    png = path.with_suffix(".png")
    return png if not path.exists() and png.exists() else path


HAR_FILES = tuple(
    f"{part}/{stem}_{part}.txt" for part in ("train", "test") for stem in ("X", "y", "subject")
)


def read_har_folder(folder: Path) -> RawSamples:
    """UCI HAR: 561 features per window; windows overlap inside a run of one activity."""
    train, test = (_read_har_part(folder, HAR_FILES[i : i + 3]) for i in (0, 3))
    x, activity, who = (np.concatenate(pair) for pair in zip(train, test, strict=True))
    is_test = np.arange(len(x)) >= len(train[0])
    people, owner = np.unique(who, return_inverse=True)
    return RawSamples(
        folder, x, activity - 1, _activities(folder), test=is_test, owner=owner,
        owner_names=tuple(f"subject_{p:02d}" for p in people),
        segment=_runs(activity, who, is_test),
    )  # fmt: skip


def _read_har_part(folder: Path, names: Sequence[str]) -> tuple[Array, Array, Array]:
    x = read_numbers(existing(folder, names[0]))
    columns = [read_numbers(existing(folder, name), np.int64)[:, 0] for name in names[1:]]
    for name, column in zip(names[1:], columns, strict=True):
        if len(column) != len(x):
            raise DataError(f"{folder / name} has {len(column)} rows for {len(x)} windows.")
    return x, columns[0], columns[1]


def _runs(*columns: Array) -> Indices:
    """Number the runs of consecutive rows on which no column changes."""
    changes = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.concatenate([[0], np.cumsum(changes)]).astype(np.int64)


def _activities(folder: Path) -> tuple[str, ...]:
    """The names of activity_labels.txt, whose lines read like '1 WALKING'."""
    listing = find_file(folder, "activity_labels.txt")
    if listing is None:
        return ACTIVITIES
    return tuple(line.split()[-1] for line in read_text(listing).splitlines() if line.strip())


def read_chest_folder(folder: Path) -> RawSamples:
    """X-rays by source; a tree of splits looks the same, but its owners would be the splits."""
    raw = read_image_folders(folder, Wish(size=32, grey=True))
    if raw.owner is None:
        raise DataError(
            f"{folder} is not sorted by source: put the images into SOURCE/CLASS/ folders."
        )
    return raw


def normal_or_not(raw: RawSamples) -> RawSamples:
    """X-rays in two classes: normal ones, and all others as abnormal."""
    is_normal = np.array([name.lower() == "normal" for name in raw.class_names])
    if not is_normal.any():
        raise DataError(
            f"{raw.origin} has no class 'normal', only {', '.join(raw.class_names)}: leave "
            "normal_or_not out."
        )
    abnormal = (~is_normal[raw.y]).astype(np.int64)
    return replace(raw, y=abnormal, class_names=("normal", "abnormal"))
