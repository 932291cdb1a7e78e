"""One npz in fedskew's own format: x and y, and whatever else of it exists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedskew.data.formats import Array, read_npz
from fedskew.data.problem import Wanted, problem_of
from fedskew.data.raw import RawSamples, check_values
from fedskew.errors import DataError
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.types import Indices

SHARED_FORMAT = (
    "x", "y", "owner", "owner_names", "split", "class_names", "x_scale", "segment", "vocabulary",
    "signals",
)  # fmt: skip
UNDECIDED = Problem("regression")


def read_shared(path: Path) -> RawSamples:
    """One npz in fedskew's own format: x and y, and whatever else of it exists."""
    return decided(read_undecided(path))


def read_undecided(path: Path) -> RawSamples:
    """The same while labels without ``class_names`` may still be numbers as well as classes."""
    found = read_npz(path, SHARED_FORMAT)
    for key in ("x", "y"):
        if key not in found:
            raise DataError(f"{path} has no array {key!r}; the format needs 'x' and 'y'.")
    owner, owner_names = _owners(path, found)
    return RawSamples(
        origin=path,
        x=scaled(path, found["x"], found.get("x_scale")),
        y=_labels(path, found),
        class_names=_class_names(found),
        test=_test_rows(path, found.get("split")),
        owner=owner,
        owner_names=owner_names,
        segment=_whole(path, "segment", found["segment"]) if "segment" in found else None,
        problem=CLASSIFICATION if _has_classes(found) else UNDECIDED,
        signals=bool(_number(path, found, "signals")),
        vocabulary=_number(path, found, "vocabulary"),
    )


def decided(raw: RawSamples, wanted: Wanted = "auto", positive: str | None = None) -> RawSamples:
    """What the labels are about, where a file leaves it open."""
    names = raw.class_names if raw.class_names else None
    problem, y, names = problem_of(raw.origin, raw.y, names, wanted, positive)
    return replace(raw, y=y, class_names=names, problem=problem)


def _has_classes(found: dict[str, Array]) -> bool:
    return "class_names" in found and found["y"].ndim == 1


def _labels(path: Path, found: dict[str, Array]) -> Array:
    """Whole numbers where there are names for them, else numbers or a matrix of them."""
    y = found["y"]
    if _has_classes(found):
        return _whole(path, "y", y)
    if y.dtype.kind not in "buif" or y.ndim not in (1, 2):
        raise DataError(
            f"{path}: 'y' must hold a number for each sample, or a row of 0 and 1 for each, not "
            f"{y.dtype} of shape {list(y.shape)}."
        )
    return y if y.dtype.kind == "f" else y.astype(np.int64)


def scaled(path: Path, x: Array, scale: Array | None) -> Array:
    """Samples times the factor that is stored with them, if there is one."""
    if scale is None:
        return x
    check_values(path, x)
    if scale.size != 1 or scale.dtype.kind not in "uif" or not np.isfinite(scale).all():
        raise DataError(f"{path}: 'x_scale' must be one finite number.")
    if scale.item() == 0:
        raise DataError(f"{path}: 'x_scale' must not be 0, which would make all samples the same.")
    return np.multiply(x, np.float32(scale.item()), dtype=np.float32)


def _number(path: Path, found: dict[str, Array], key: str) -> int:
    """One whole number, or 0 where there is none."""
    stored = found.get(key)
    if stored is None:
        return 0
    if stored.size != 1 or stored.dtype.kind not in "bui":
        raise DataError(f"{path}: {key!r} must be one whole number.")
    return int(stored.item())


def _whole(path: Path, key: str, values: Array) -> Indices:
    if values.dtype.kind not in "bui":
        raise DataError(f"{path}: {key!r} must hold whole numbers, not {values.dtype}.")
    return values.astype(np.int64)


def _class_names(found: dict[str, Array]) -> tuple[str, ...]:
    return tuple(str(name) for name in found.get("class_names", np.empty(0)).reshape(-1))


def _test_rows(path: Path, split: Array | None) -> NDArray[np.bool_] | None:
    if split is None:
        return None
    if not np.isin(split, (0, 1)).all():
        raise DataError(f"{path}: 'split' must hold 0 (train) and 1 (test) only.")
    return np.asarray(split == 1)


def _owners(path: Path, found: dict[str, Array]) -> tuple[Indices | None, tuple[str, ...]]:
    if "owner" not in found:
        return None, ()
    owner = found["owner"]
    if "owner_names" in found:
        names = tuple(str(name) for name in found["owner_names"].reshape(-1))
        return _whole(path, "owner", owner), names
    if owner.dtype.kind not in "buiU":
        raise DataError(f"{path}: 'owner' must hold whole numbers or names, not {owner.dtype}.")
    values, index = np.unique(owner, return_inverse=True)
    return index.reshape(owner.shape), tuple(str(value) for value in values)
