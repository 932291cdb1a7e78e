"""What is to be learned of a sample: its class, several labels at once, or a number.

A fact about data that a server may know; how it is found out is in :mod:`fedskew.data.problem`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from fedskew.errors import DataError, unknown

Kind = Literal["classification", "binary", "multi-label", "regression"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Problem:
    """What a federation's labels ``y`` are.

    "classification": class numbers [N], int64. "binary": the same with two classes, of which
    ``positive`` is the one that is looked for. "multi-label": float32 [N, labels] of 0 and 1.
    "regression": float32 [N]; the federation's ``y`` is (target - centre) / scale where ``units``
    are given. ``said`` tells a user in one sentence how it was found out.

    >>> Problem("regression", units=(150.0, 50.0)).in_units(torch.tensor([-1.0, 0.0])).tolist()
    [100.0, 150.0]
    """

    kind: Kind = "classification"
    positive: str | None = None
    units: tuple[float, float] | None = None
    said: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("problem", str(self.kind), KINDS)
        if self.units is not None:
            centre, scale = self.units
            if not (math.isfinite(centre) and math.isfinite(scale) and scale > 0):
                raise DataError(f"targets cannot be scaled by centre {centre} and scale {scale}.")

    @property
    def classifies(self) -> bool:
        """Whether each sample has one class."""
        return self.kind in ("classification", "binary")

    def outputs(self, class_names: Sequence[str]) -> int:
        """How many numbers a model gives for a sample."""
        return 1 if self.kind == "regression" else len(class_names)

    def nothing(self, class_names: Sequence[str]) -> Tensor:
        """The label of a sample that nobody has: of the first class, without labels, or 0."""
        if self.kind == "multi-label":
            return torch.zeros(1, len(class_names))
        return torch.zeros(1, dtype=torch.int64 if self.classifies else torch.float32)

    def positive_place(self, class_names: Sequence[str]) -> int:
        """The number of the class that is looked for: of two, the last unless one is named."""
        return len(class_names) - 1 if self.positive is None else class_names.index(self.positive)

    def in_units(self, values: Tensor) -> Tensor:
        """Targets, or answers of a model, in the units they were given in."""
        if self.units is None:
            return values
        centre, scale = self.units
        return values * scale + centre

    def check(self, name: str, y: Tensor, class_names: Sequence[str]) -> None:
        """Refuse labels that are not what this problem says."""
        if self.kind == "regression":
            _check_floats(name, y, (len(y),))
        elif self.kind == "multi-label":
            _check_floats(name, y, (len(y), len(class_names)))
            if bool(((y != 0) & (y != 1)).any()):
                row = int(((y != 0) & (y != 1)).any(dim=1).nonzero()[0, 0])
                raise DataError(f"{name}: a label of sample {row} is neither 0 nor 1.")
        else:
            _check_classes(name, y, len(class_names))
            check_positive(name, self.kind, self.positive, class_names)


CLASSIFICATION = Problem()


def _check_floats(name: str, y: Tensor, shape: tuple[int, ...]) -> None:
    if y.dtype != torch.float32 or tuple(y.shape) != shape:
        raise DataError(
            f"{name}: labels must be float32 of shape {list(shape)}, not {y.dtype} of shape "
            f"{list(y.shape)}."
        )
    bad = ~torch.isfinite(y.reshape(len(y), -1)).all(dim=1)
    if bool(bad.any()):
        raise DataError(
            f"{name}: the label of sample {int(bad.nonzero()[0, 0])} is NaN or infinite."
        )


def _check_classes(name: str, y: Tensor, classes: int) -> None:
    if y.dtype != torch.int64:
        raise DataError(f"{name}: labels must be whole numbers (int64), not {y.dtype}.")
    if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        row = int(((y < 0) | (y >= classes)).nonzero()[0, 0])
        raise DataError(f"{name}: label {int(y[row])} of sample {row} is outside 0..{classes - 1}.")


def check_positive(name: str, kind: str, positive: str | None, class_names: Sequence[str]) -> None:
    """Refuse a binary problem without two classes, and a positive class that is not there."""
    if kind == "binary" and len(class_names) != 2:
        raise DataError(
            f"{name}: federation.task = 'binary' needs two classes, not {len(class_names)}: choose "
            "'classification', or join classes with federation.classes."
        )
    if positive is not None and positive not in class_names:
        raise unknown(f"federation.positive of {name}", positive, class_names)
