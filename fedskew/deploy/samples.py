"""A client's samples from its files: npz, CSV, Parquet, or folders of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedskew.data.formats import Array, read_npz, read_text
from fedskew.data.images.one import IMAGE_SUFFIXES
from fedskew.data.images.reading import Wish, read_images
from fedskew.data.shared_format import scaled
from fedskew.data.tables.cells import text_of
from fedskew.data.tables.encoder import lacks
from fedskew.data.tables.kinds import column_of
from fedskew.data.tables.reading import SUFFIXES, Table, read_table, table_of
from fedskew.data.tables.samples import words_in
from fedskew.data.texts import SUFFIX
from fedskew.errors import DataError
from fedskew.runs.preparation import SamplePreparation
from fedskew.types import Indices

LABEL = "label"
SAMPLE = "sample"
UNKNOWN = -1
"""Stands for the class of a sample whose label is not known, where others are."""


@dataclass(frozen=True, eq=False)
class Stored:
    """Samples as they are stored, with their labels by name or number if they have any.

    ``ids`` name the samples, by their number unless something else does; ``carried`` are columns
    of a table that no model reads.
    """

    x: Array | Table
    y: Array | None
    origin: Path | str
    ids: Sequence[Any] = ()
    id_name: str = SAMPLE
    carried: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.x.rows if isinstance(self.x, Table) else len(self.x)

    @property
    def names(self) -> list[str]:
        """What each sample is called."""
        given = self.ids if len(self.ids) else range(self.rows)
        return ["" if text_of(each) is None else str(text_of(each)) for each in given]


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as a run's models take them, with their true answers if known.

    Where only some are known, the others are -1 (classes) or NaN.
    """

    x: Tensor
    y: NDArray[Any] | None
    origin: Path | str

    def labels(self) -> Indices:
        """The classes; an error if there are none, or not of every sample."""
        if self.y is None:
            raise DataError(f"{self.origin}: there are no labels, but adapting needs them.")
        unknown = ~known(self.y)
        if unknown.any():
            raise DataError(
                f"{self.origin}: row {int(unknown.argmax()) + 1} has no label, but adapting needs "
                "all of them: leave the row out."
            )
        return self.y


def known(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Of which samples the true answer is known."""
    if y.dtype.kind in "bui":
        told: NDArray[np.bool_] = y != UNKNOWN
    else:
        told = ~np.isnan(y.reshape(len(y), -1)).any(axis=1)
    return told


def read_samples(
    x: ArrayLike | str | Path | Any,
    y: ArrayLike | None,
    preparation: SamplePreparation,
    label: str | None = None,
    id_column: str | None = None,
) -> Stored:
    """Samples given as arrays or a data frame, or as the file or folder that holds them.

    An npz holds ``x`` and perhaps ``y``; CSV and Parquet files have one column per feature and
    perhaps the column ``label`` (none: that of the run); a folder holds images, in folders named by
    their classes if they have any. Classes are given by name, or in an npz without
    ``class_names`` by the dataset's own numbers. The column or array ``id_column`` names samples
    and is never a feature.
    """
    if not isinstance(x, str | Path):
        return _given(x, y, preparation, label, id_column)
    path = Path(x)
    if y is not None:
        raise DataError(f"the labels of {path} must be in that file or folder: leave y out.")
    if path.is_dir():
        if id_column is not None:
            raise DataError(f"{path} is a folder, whose samples their files name: leave id out.")
        return (_read_images if preparation.text is None else _read_texts)(path, preparation)
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    if path.suffix.lower() in SUFFIXES:
        return _of_table(read_table(path), preparation, label, id_column)
    return _read_npz(path, id_column)


def _given(
    x: Any,
    y: ArrayLike | None,
    preparation: SamplePreparation,
    label: str | None,
    id_column: str | None,
) -> Stored:
    origin = "the samples"
    labels = None if y is None else np.asarray(y)
    if not isinstance(x, Mapping) and not hasattr(x, "columns"):
        return Stored(np.asarray(x), labels, origin)
    found = _of_table(table_of(origin, x), preparation, label, id_column)
    if labels is None:
        return found
    return Stored(found.x, labels, origin, found.ids, found.id_name, found.carried)


def prepared(stored: Stored, preparation: SamplePreparation) -> Samples:
    """Stored samples and labels, converted to what a run's models take."""
    if isinstance(stored.x, Table) and not stored.rows:
        raise DataError(f"{stored.origin} has no rows: there is nothing to answer.")
    y = stored.y
    if y is not None and stored.rows != len(y):
        raise DataError(f"{stored.origin}: {stored.rows} samples but {len(y)} labels.")
    made = preparation.settled(stored.x, stored.origin).samples(stored.x, stored.origin)
    return Samples(made, None if y is None else _truths(y, preparation, stored.origin),
                   stored.origin)  # fmt: skip


def _truths(y: Array, preparation: SamplePreparation, origin: Path | str) -> NDArray[Any] | None:
    """True answers; None if not a single one is known."""
    if y.dtype.kind != "O":
        return preparation.truths(y, origin)
    told = np.array([all(cell is not None for cell in np.atleast_1d(row)) for row in y], bool)
    if not told.any():
        return None
    cells = y[told] if y.ndim > 1 else np.array([str(cell) for cell in y[told]])
    found = preparation.truths(cells, origin)
    unknown = UNKNOWN if preparation.problem.classifies else np.nan
    made = np.full((len(y), *found.shape[1:]), unknown, dtype=found.dtype)
    made[told] = found
    return made


def _of_table(
    table: Table, preparation: SamplePreparation, label: str | None, id_column: str | None
) -> Stored:
    """Rows of a table: features by name, and labels, ids and the rest apart from them."""
    encoder = preparation.encoder
    if label is not None and label not in table.columns:
        raise DataError(lacks(table, [label]))
    if id_column is not None and id_column not in table.columns:
        raise DataError(lacks(table, [id_column]))
    text = preparation.text
    features = () if encoder is None else tuple(column.name for column in encoder.columns)
    if text is not None and text.column:
        features = (text.column,)
        if text.column not in table.columns:
            raise DataError(lacks(table, features))
    for what, name in (("the label", label), ("an id", id_column)):
        if name in features:
            raise DataError(
                f"{table.origin}: column {name!r} cannot be {what}, for the run learned from it as "
                "a feature: name another one."
            )
    usual = encoder.label if encoder and encoder.label else (LABEL,)
    labels = [name for name in ((label,) if label else usual) if name in table.columns]
    y = None
    if labels and len(labels) == len((label,) if label else usual):
        y = _cells(table, labels)
    apart = {*labels, *((id_column,) if id_column else ())}
    rest = table.without(apart)
    ids = table.columns[id_column].tolist() if id_column else ()
    id_name = id_column or SAMPLE
    if encoder is None and not features:
        return Stored(_numbers(rest), y, table.origin, ids, id_name)
    carried = {
        name: [text_of(cell) or "" for cell in cells.tolist()]
        for name, cells in rest.columns.items()
        if name not in features
    }
    x = rest if encoder else np.array(words_in(rest.columns[features[0]]), dtype=object)
    return Stored(x, y, table.origin, ids, id_name, carried)


def _cells(table: Table, labels: Sequence[str]) -> Array:
    """Labels as text, None where a row has none; a column for each if there are several."""
    made = np.empty((table.rows, len(labels)), dtype=object)
    for place, name in enumerate(labels):
        made[:, place] = [text_of(cell) for cell in table.columns[name].tolist()]
    return made[:, 0] if len(labels) == 1 else made


def _numbers(table: Table) -> Array:
    """The columns of a table for a run that knows no names: in their order."""
    if not table.columns:
        raise DataError(f"{table.origin} has no column besides the label.")
    columns = [column_of(table, name, "number").values for name in table.columns]
    return np.stack(columns, axis=1).astype(np.float32)


def _read_npz(path: Path, id_column: str | None) -> Stored:
    wanted = ("x", "y", "x_scale", "class_names", *((id_column,) if id_column else ()))
    found = read_npz(path, wanted)
    if "x" not in found:
        raise DataError(f"{path} has no array 'x'.")
    ids: Sequence[Any] = ()
    if id_column is not None:
        if id_column not in found:
            raise DataError(f"{path} has no array {id_column!r} to name its samples by.")
        ids = found[id_column].reshape(-1).tolist()
        if len(ids) != len(found["x"]):
            raise DataError(f"{path}: {len(found['x'])} samples but {len(ids)} of {id_column!r}.")
    x, y = found["x"], found.get("y")
    if "x_scale" in found:
        x = scaled(path, x, found["x_scale"])
    if y is not None and "class_names" in found and y.ndim == 1:
        names = found["class_names"].reshape(-1)
        if y.dtype.kind not in "bui" or (len(y) and not 0 <= y.min() <= y.max() < len(names)):
            raise DataError(
                f"{path}: 'y' must hold whole numbers of the {len(names)} 'class_names'."
            )
        y = names[y].astype(str)
    return Stored(x, y, path, ids, id_column or SAMPLE)


def _read_images(folder: Path, preparation: SamplePreparation) -> Stored:
    """Images in folders by class (which may lie in folders by owner), or without folders."""
    if len(preparation.taken) != 3:
        raise DataError(f"{folder} is a folder, but the run takes features, not images.")
    for depth in ("*/*/*", "*/*", "*"):
        paths = sorted(p for p in folder.glob(depth) if p.suffix.lower() in IMAGE_SUFFIXES)
        if paths:
            x = read_images(folder, paths, _wish(preparation)).x
            y = None if depth == "*" else np.array([p.parent.name for p in paths])
            return Stored(x, y, folder, [p.relative_to(folder).as_posix() for p in paths])
    raise DataError(f"{folder} has no images: give CLASS/image files, or one npz, CSV or Parquet.")


def _read_texts(folder: Path, preparation: SamplePreparation) -> Stored:
    """Texts in folders by class (which may lie in folders by owner), or without folders."""
    for depth in ("*/*/*", "*/*", "*"):
        paths = sorted(p for p in folder.glob(depth) if p.suffix.lower() == SUFFIX)
        if paths:
            texts = np.array([read_text(path) for path in paths], dtype=object)
            y = None if depth == "*" else np.array([p.parent.name for p in paths])
            return Stored(texts, y, folder, [p.relative_to(folder).as_posix() for p in paths])
    raise DataError(f"{folder} has no texts: give text.txt files, or a table.")


def _wish(preparation: SamplePreparation) -> Wish:
    """What the run's own images became when they were read, whatever these are stored as."""
    channels, height, width = preparation.taken
    if preparation.image is None:
        return Wish(height if height == width else None, channels == 1)
    grey = None if "channels" in preparation.image else channels == 1
    return Wish(grey=grey, image=preparation.image)
