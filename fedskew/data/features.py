"""Choosing features, and scaling them per client: what clients do before they train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.data.federation import Client, Ends, Federation, training_rows
from fedskew.data.skew_tools import need_numbers, scaled_apart
from fedskew.errors import ConfigError, DataError, at_least, unknown
from fedskew.types import Indices

SETTINGS = ("top", "scale")
SCALES = ("client", "feature")


@dataclass(frozen=True)
class Features:
    """Which features are kept and how they are scaled, checked before anything is computed.

    ``top`` keeps the features that separate classes best: those whose class means, over the
    training rows of all seen clients, vary most. ``scale`` maps each client's training rows to
    0..1: "client" by the smallest and largest value among all its features, "feature" by those of
    each feature. Its other rows are scaled by the same numbers, and may leave that range.
    """

    top: int | None = None
    scale: str | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> Features:
        """From the settings a user writes: ``{"top": 144, "scale": "client"}``, or one of them."""
        for name in settings or {}:
            if name not in SETTINGS:
                raise unknown("setting of features", str(name), SETTINGS)
        return cls(**(settings or {}))

    def __post_init__(self) -> None:
        if self.top is not None:
            if type(self.top) is not int:
                raise ConfigError(f"top of features must be a whole number, not {self.top!r}.")
            at_least("top of features", self.top, 1)
        if self.scale is not None and self.scale not in SCALES:
            raise unknown("scale of features", str(self.scale), SCALES)


@dataclass(frozen=True)
class ClassSums:
    """All that a client sends about its features: their sum over each class, and class sizes."""

    sums: NDArray[np.float64]
    counts: NDArray[np.int64]


def client_sums(x: Tensor, y: Tensor, classes: int) -> ClassSums:
    """What a client sends of its training rows: [classes, features] sums and [classes] counts.

    >>> sent = client_sums(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 1]), 2)
    >>> sent.sums.tolist(), sent.counts.tolist()
    ([[0.0, 0.0], [4.0, 6.0]], [0, 2])
    """
    values, labels = x.numpy(), y.numpy()
    sums = [values[labels == label].sum(axis=0, dtype=np.float64) for label in range(classes)]
    return ClassSums(np.stack(sums), np.bincount(labels, minlength=classes))


def choose(sent: Sequence[ClassSums], top: int) -> Indices:
    """The features whose class means vary most, in their original order; of equals, the first.

    The server adds up what clients sent and knows nothing else. A class that no client holds has
    no mean.
    """
    sums = np.sum([each.sums for each in sent], axis=0)
    counts = np.sum([each.counts for each in sent], axis=0)
    held = counts > 0
    variance = (sums[held] / counts[held, None]).var(axis=0)
    return np.sort(np.argsort(-variance, kind="stable")[:top])


@dataclass(frozen=True)
class Range:
    """Smallest and largest values: numbers, or one for each feature."""

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, x: Tensor, scale: str) -> Range:
        """The range of these rows, over all features or of each."""
        return cls(*(x.aminmax(dim=0) if scale == "feature" else x.aminmax()))

    @classmethod
    def around(cls, ranges: Sequence[Range]) -> Range:
        """The range of all rows together, from the clients' ranges."""
        return cls(
            torch.stack([each.low for each in ranges]).amin(dim=0),
            torch.stack([each.high for each in ranges]).amax(dim=0),
        )

    @property
    def ends(self) -> Ends:
        low, high = (tuple(end.reshape(-1).tolist()) for end in (self.low, self.high))
        return low, high

    def scaled(self, x: Tensor) -> Tensor:
        """Rows with this range mapped to 0..1; a constant becomes 0 and is not rescaled."""
        width = self.high - self.low
        # Rounding noise around a constant is not a range: dividing by it would amplify it.
        noise = 1e-6 * torch.maximum(self.low.abs(), self.high.abs())
        return (x - self.low) / torch.where(width > noise, width, 1.0)


def with_features(
    federation: Federation, features: Features, central: Sequence[Client] = ()
) -> Federation:
    """The federation with fewer or scaled features.

    Seen clients choose which features are kept. Every client, unseen ones too, scales by its own
    training rows, for which no label is needed. ``central`` are the clients the central test set
    was collected from, with the rows it has of their test splits: these are scaled as their clients
    scale them. Rows that come from no client are scaled by the range of all seen clients' training
    rows.
    """
    if features == Features():
        return federation
    need_numbers("federation.features", federation)
    shape = federation.sample_shape
    if len(shape) != 1:
        raise DataError(
            f"federation.features needs samples that are lists of features, but a sample of "
            f"{federation.name} has shape {shape}: leave it out."
        )
    if features.top is not None:
        federation = _with_top(federation, features.top)
    return federation if features.scale is None else _scaled(federation, features.scale, central)


def _with_top(federation: Federation, top: int) -> Federation:
    federation.need_classes("top of federation.features")
    (count,) = federation.sample_shape
    if top > count:
        raise ConfigError(
            f"top of features is {top}, but {federation.name} has only {count} features."
        )
    sent = [
        client_sums(federation.x[rows], federation.y[rows], federation.classes)
        for rows in training_rows(federation.clients)
    ]
    kept = choose(sent, top)
    return federation.with_data(x=federation.x[:, kept], features=tuple(kept.tolist()))


def _scaled(federation: Federation, scale: str, central: Sequence[Client]) -> Federation:
    own = {
        client.name: Range.of(federation.x[client.train], scale)
        for client in federation.by_name.values()
        if len(client.train)
    }
    seen = Range.around([own[client.name] for client in federation.clients])
    scaled = {name: each.scaled for name, each in own.items()}
    made = scaled_apart(federation, scaled, seen.scaled, central)
    return made.with_data(ranges={name: each.ends for name, each in {**own, "": seen}.items()})
