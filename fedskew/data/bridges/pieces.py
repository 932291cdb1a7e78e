"""What a program holds of a client as arrays or a table, whatever library made it.

No library but torch, numpy and Pillow is imported: data frames and datasets of others are told by
what they offer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fedskew.data.bridges.columns import arrow_table, hugging_face, is_hugging_face
from fedskew.data.bridges.pictures import as_stored, stacked
from fedskew.data.formats import Array
from fedskew.data.tables.reading import Table, table_of
from fedskew.errors import DataError

SPLITS = ("train", "validation", "test")
KINDS = (
    "a pair (x, y) of arrays, a torch Dataset of such pairs, a data frame, a Hugging Face dataset, "
    "or a dict of those by split"
)


@dataclass(frozen=True)
class Wished:
    """Which columns hold samples and labels, where there are columns; how images are resized."""

    x: str | None = None
    label: str | Sequence[str] | None = None
    image: Mapping[str, int] | None = None


@dataclass(frozen=True, eq=False)
class Arrays:
    """Samples and their labels, as numbers or words; ``names`` of classes that ``y`` numbers."""

    origin: str
    x: Array
    y: Array
    names: tuple[str, ...] | None = None


Piece = Arrays | Table


def splits_of(origin: str, data: Any) -> dict[str, Any]:
    """What a client holds by split; all of it is "train" where no splits are told."""
    if not isinstance(data, Mapping) or not set(data) & set(SPLITS):
        return {"train": data}
    for name in data:
        if name not in SPLITS:
            raise DataError(f"{origin}: split {name!r} is none of {', '.join(SPLITS)}: rename it.")
    if "train" not in data:
        raise DataError(f"{origin} has no split 'train'.")
    return dict(data)


def piece_of(origin: str, data: Any, wished: Wished) -> Piece:
    """One split of a client, by what kind of thing it is."""
    if is_hugging_face(data):
        found = hugging_face(origin, data, wished.x, wished.label)
        if isinstance(found, Table):
            return found
        x, y, names = found
        return arrays_of(origin, x, y, names, wished)
    if isinstance(data, tuple) and len(data) == 2:
        return arrays_of(origin, *data, None, wished)
    if isinstance(data, Mapping) and set(data) == {"x", "y"}:
        return arrays_of(origin, data["x"], data["y"], None, wished)
    if isinstance(data, DataLoader):
        raise DataError(f"{origin} is a DataLoader: give its dataset.")
    if isinstance(data, IterableDataset):
        raise DataError(
            f"{origin} is an IterableDataset, which has no length: read it into a list of samples "
            "and give (x, y)."
        )
    if hasattr(data, "column_names") and hasattr(data, "to_pandas"):
        return arrow_table(origin, data)
    if isinstance(data, Mapping) or (hasattr(data, "columns") and hasattr(data, "iloc")):
        return table_of(origin, data)
    if hasattr(data, "columns") and hasattr(data, "schema"):  # polars
        return table_of(origin, data)
    if isinstance(data, Tensor | np.ndarray):
        raise DataError(f"{origin} has no labels: give a pair (x, y).")
    if isinstance(data, Dataset):
        return _of_dataset(origin, data, wished)
    hint = ""
    if isinstance(data, str | Path):
        hint = "; files are read by federation.dataset"
    raise DataError(f"{origin} is of type {type(data).__name__}: it must be {KINDS}{hint}.")


def arrays_of(origin: str, x: Any, y: Any, names: Sequence[str] | None, wished: Wished) -> Arrays:
    """Samples and labels as arrays, one row each."""
    if x is None or y is None:
        raise DataError(f"{origin} has no {'samples' if x is None else 'labels'}: they are None.")
    samples = stacked(origin, x, wished.image) if _is_list(x) else as_stored(origin, x)
    labels = _labels(origin, y)
    if len(samples) != len(labels):
        raise DataError(f"{origin}: {len(samples)} samples but {len(labels)} labels.")
    if not len(samples):
        raise DataError(f"{origin} has no samples: give it at least one, or leave it out.")
    return Arrays(origin, samples, labels, None if names is None else tuple(map(str, names)))


def _is_list(x: Any) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, str | bytes)


def _labels(origin: str, y: Any) -> Array:
    """Numbers, or words as objects."""
    if isinstance(y, Tensor):
        y = y.detach().cpu()
    elif not hasattr(y, "__len__"):
        raise DataError(f"{origin}: labels must be one for each sample, not {type(y).__name__}.")
    try:
        found = np.asarray(y)
    except ValueError as error:
        raise DataError(f"{origin}: labels differ in shape: {error}.") from error
    if found.dtype.kind in "buif":
        return found.astype(np.int64) if found.dtype.kind == "b" else found
    if found.dtype.kind == "O" and all(isinstance(label, int | np.integer) for label in found):
        return found.astype(np.int64)
    if found.ndim != 1 or not all(isinstance(label, str) for label in found.tolist()):
        odd = [row for row, v in enumerate(found.tolist()) if not isinstance(v, str | int | float)]
        what = f"that of sample {odd[0]} is {found[odd[0]]!r:.60}" if odd else "they are both"
        raise DataError(f"{origin}: labels must all be numbers or all be words, but {what}.")
    return found.astype(object)


def _of_dataset(origin: str, data: Any, wished: Wished) -> Arrays:
    """A torch dataset; one of tensors at once, any other sample by sample."""
    names = _classes_of(data)
    rows, inner = None, data
    while type(inner) is Subset:
        held = np.asarray(inner.indices, dtype=np.int64)
        rows, inner = held if rows is None else held[rows], inner.dataset
    if type(inner) is TensorDataset and len(inner.tensors) == 2:
        x, y = (t if rows is None else t[rows] for t in inner.tensors)
        return arrays_of(origin, x, y, names, wished)
    if not hasattr(data, "__len__"):
        raise DataError(f"{origin} is a {type(data).__name__} without a length: give (x, y).")
    samples, labels = [], []
    for row in range(len(data)):
        sample, label = _pair(origin, row, data[row], wished)
        samples.append(sample)
        labels.append(label.item() if isinstance(label, Tensor) and not label.ndim else label)
    if any(isinstance(label, Tensor) for label in labels):
        labels = [np.asarray(label) for label in labels]
    return arrays_of(origin, samples, labels, names, wished)


def _pair(origin: str, row: int, item: Any, wished: Wished) -> tuple[Any, Any]:
    """Sample and label of an item: a pair, or a dict with their names."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    label = wished.label or "label"
    if isinstance(item, Mapping) and isinstance(label, str) and wished.x is not None:
        lacking = [key for key in (wished.x, label) if key not in item]
        if lacking:
            raise DataError(f"{origin}: sample {row} has no {lacking[0]!r}; it has {list(item)}.")
        return item[wished.x], item[label]
    shown = f"a dict of {list(item)}" if isinstance(item, Mapping) else type(item).__name__
    hint = (
        ": name its sample with x= and its label with label=" if isinstance(item, Mapping) else ""
    )
    raise DataError(f"{origin}: sample {row} is {shown}, not a pair (x, y){hint}.")


def _classes_of(data: Any) -> tuple[str, ...] | None:
    """The names of classes, as torchvision's datasets tell them."""
    while isinstance(data, Subset):
        data = data.dataset
    names = getattr(data, "classes", None)
    if isinstance(names, list | tuple) and names:
        return tuple(" ".join(map(str, n)) if isinstance(n, tuple) else str(n) for n in names)
    return None
