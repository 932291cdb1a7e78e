"""A client's samples from its files: npz, CSV, Parquet, or folders of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from fedskew.data.dataset import scaled
from fedskew.data.formats import IMAGE_SUFFIXES, Array, read_csv, read_image, read_npz
from fedskew.data.own import load_own
from fedskew.deploy.preparation import SamplePreparation
from fedskew.errors import DataError
from fedskew.types import Indices

TABLES = (".csv", ".parquet")


class Stored(NamedTuple):
    """Samples as they are stored, with their labels by name or number if they have any."""

    x: Array
    y: Array | None
    origin: Path | str


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as a run's models take them, with the run's class numbers if known."""

    x: Tensor
    y: Indices | None
    origin: Path | str

    def labels(self) -> Indices:
        """The classes; an error if there are none."""
        if self.y is None:
            raise DataError(f"{self.origin}: there are no labels, but adapting needs them.")
        return self.y


def read_samples(
    x: ArrayLike | str | Path,
    y: ArrayLike | None,
    preparation: SamplePreparation,
    label: str = "label",
) -> Stored:
    """Samples given as arrays, or as the file or folder that holds them and their labels.

    An npz holds ``x`` and perhaps ``y``; CSV and Parquet files have one column per feature and
    perhaps the column ``label``; a folder holds images, in folders named by their classes if they
    have any. Classes are given by name, or in an npz without ``class_names`` by the dataset's own
    numbers.
    """
    if not isinstance(x, str | Path):
        return Stored(np.asarray(x), None if y is None else np.asarray(y), "the samples")
    path = Path(x)
    if y is not None:
        raise DataError(f"the labels of {path} must be in that file or folder: leave y out.")
    if path.is_dir():
        return Stored(*_read_images(path, preparation), path)
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    read = _read_table if path.suffix.lower() in TABLES else _read_npz
    return Stored(*read(path, label), path)


def prepared(stored: Stored, preparation: SamplePreparation) -> Samples:
    """Stored samples and labels, converted to what a run's models take."""
    x, y, origin = stored
    if y is not None and len(x) != len(y):
        raise DataError(f"{origin}: {len(x)} samples but {len(y)} labels.")
    made = preparation.samples(x, origin)
    return Samples(made, None if y is None else preparation.labels(y, origin), origin)


def _read_npz(path: Path, label: str) -> tuple[Array, Array | None]:
    found = read_npz(path, ("x", "y", "x_scale", "class_names"))
    if "x" not in found:
        raise DataError(f"{path} has no array 'x'.")
    x, y = found["x"], found.get("y")
    if "x_scale" in found:
        x = scaled(path, x, found["x_scale"])
    if y is None or "class_names" not in found:
        return x, y
    names = found["class_names"].reshape(-1)
    if y.dtype.kind not in "bui" or (len(y) and not 0 <= y.min() <= y.max() < len(names)):
        raise DataError(f"{path}: 'y' must hold whole numbers of the {len(names)} 'class_names'.")
    return x, names[y].astype(str)


def _read_table(path: Path, label: str) -> tuple[Array, Array | None]:
    if path.suffix.lower() == ".csv":
        header, rows = read_csv(path)
        if label not in header and rows:
            return _numbers(path, rows), None
    found = load_own(path, normalise="unit", label=label)
    return found.x.numpy(), np.array(found.class_names)[found.y.numpy()]


def _numbers(path: Path, rows: list[list[str]]) -> Array:
    try:
        if any("_" in cell for row in rows for cell in row):
            raise ValueError("1_000 is no number in a file")
        return np.array(rows, dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{path} holds something other than numbers: {error}.") from error


def _read_images(folder: Path, preparation: SamplePreparation) -> tuple[Array, Array | None]:
    """Images in folders by class (which may lie in folders by owner), or without folders."""
    if len(preparation.taken) != 3:
        raise DataError(f"{folder} is a folder, but the run takes features, not images.")
    for depth in ("*/*/*", "*/*", "*"):
        paths = sorted(p for p in folder.glob(depth) if p.suffix.lower() in IMAGE_SUFFIXES)
        if paths:
            x = np.stack(_alike(paths, preparation))
            return x, None if depth == "*" else np.array([p.parent.name for p in paths])
    raise DataError(f"{folder} has no images: give CLASS/image files, or one npz, CSV or Parquet.")


def _alike(paths: list[Path], preparation: SamplePreparation) -> list[Array]:
    """The images in the size in which the run's are stored; resized later if the run resizes."""
    channels, height, width = preparation.taken
    square = height if height == width and preparation.image is None else None
    grey = channels == 1 if preparation.image is None else None
    images = [read_image(path, square, grey) for path in paths]
    for path, image in zip(paths, images, strict=True):
        if image.shape != images[0].shape:
            raise DataError(
                f"{path} has shape {list(image.shape)}, but {paths[0]} has "
                f"{list(images[0].shape)}; make all images alike."
            )
    return images
