"""Whether synthetic samples are useful for training, and whether they copy real ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedskew.data.federation import Client, Federation
from fedskew.errors import DataError
from fedskew.federate.quality import judge_for
from fedskew.types import Indices
from fedskew.views.generative import test_rows

NEAREST = 0.01
"""A copy is nearer to a training sample than all real samples except this share."""
MANY, CHANCE = 0.05, 0.001
"""A larger share of copies is suspicious, if chance makes it with less than this probability."""
AT_ONCE = 2**24
"""How many distances are held in memory at once."""


@dataclass(frozen=True)
class Usefulness:
    """Accuracy on real test samples of two classifiers with different training data.

    ``cas``, the classification accuracy score, is that of the classifier trained on synthetic
    samples alone; ``real`` that of the one trained on the real training samples.
    """

    cas: float
    real: float
    tested_on: str
    samples: int


@dataclass(frozen=True)
class Copying:
    """How near synthetic samples come to a client's training samples.

    ``synthetic`` and ``held_out`` are the medians of the distances to the nearest training sample,
    of the synthetic ones and of the client's own test samples, and ``ratio`` the first divided by
    the second (None if test samples are copies themselves). ``near`` is the share of synthetic
    samples nearer than the nearest percent of the test samples. Smooth samples are near to
    everything, so that is no proof: ``alone`` is the share whose nearest training sample is nearer
    than the next by as much as for the most extreme percent of the test samples.
    """

    client: str
    synthetic: float
    held_out: float
    ratio: float | None
    near: float
    alone: float
    tested: int

    @property
    def suspicious(self) -> bool:
        """Whether too many are near, and near to one training sample alone.

        The nearest percent of n test samples is about their minimum, below which a share s of
        samples like them lies with probability (1 - s)^n: with few of them, much may be chance.
        """
        limit: float = max(MANY, 1.0 - CHANCE ** (1.0 / self.tested))
        return min(self.near, self.alone) > limit


@dataclass(frozen=True)
class Realism:
    """What real data say about synthetic samples."""

    useful: Usefulness | None
    copying: tuple[Copying, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "reading": self.reading}

    @property
    def reading(self) -> str:
        """What the distances say, in one line."""
        if not self.copying:
            return "nobody has test samples to compare distances with."
        near = max(self.copying, key=lambda found: found.near)
        share = (
            f"{near.near:.1%} at most are nearer to a client's training samples than the nearest "
            f"{NEAREST:.0%} of its test samples"
        )
        for found in self.copying:
            if found.suspicious:
                return (
                    f"some may be copies: {found.near:.1%} are nearer to {found.client}'s training "
                    f"samples than the nearest {NEAREST:.0%} of its test samples, and "
                    f"{found.alone:.1%} to one of them alone."
                )
        if near.near <= MANY:
            return f"no sign of copies: {share}."
        return f"no sign of copies: {share}, but not to one alone: few or smooth samples do that."

    def __str__(self) -> str:
        lines = []
        if self.useful is not None:
            lines.append(
                f"use: a classifier that learned from them alone is right about "
                f"{self.useful.cas:.1%} of {self.useful.tested_on}; from real training data "
                f"{self.useful.real:.1%}"
            )
        ratios = [found.ratio for found in self.copying if found.ratio is not None]
        if ratios:
            lines.append(
                f"distance: {np.median(ratios):.2f} times that of real test samples to training "
                f"samples{f' (median of {len(ratios)} clients)' if len(ratios) > 1 else ''}"
            )
        return "\n".join([*lines, f"reading: {self.reading}", *self.notes])


def realism(
    x: Tensor, y: Indices | None, federation: Federation, seed: int, client: str | None = None
) -> Realism:
    """Synthetic samples compared with real ones of all clients, or of the one that made them."""
    holders = federation.clients if client is None else (federation.by_name[client],)
    copying = [copies(x, federation, holder) for holder in holders if len(holder.test)]
    useful, notes = None, []
    if y is not None:
        try:
            useful = usefulness(x, y, federation, seed, client)
        except DataError as error:
            notes.append(f"not trained on: {error}")
    return Realism(useful, tuple(copying), tuple(notes))


def usefulness(
    x: Tensor, y: Indices, federation: Federation, seed: int, client: str | None = None
) -> Usefulness:
    """How useful the samples are for training, on the central test set or a client's own.

    Both classifiers are the judge of :mod:`fedskew.federate.quality`, with the same first weights.
    """
    if client is None:
        rows, learned = test_rows(federation), federation.pooled().train
        tested_on = f"{len(rows)} test samples"
    else:
        rows, learned = federation.by_name[client].test, federation.by_name[client].train
        tested_on = f"{len(rows)} test samples of {client}"
    real_x, real_y = federation.x[rows], federation.y[rows]
    found = []
    for name, samples, labels in (
        ("synthetic", x, torch.from_numpy(y)),
        ("real", federation.x[learned], federation.y[learned]),
    ):
        lessons = Federation(
            name,
            torch.cat([samples, real_x]),
            torch.cat([labels, real_y]),
            federation.class_names,
            (Client(name, np.arange(len(labels))),),
            central_test=np.arange(len(labels), len(labels) + len(rows)),
        )
        found.append(judge_for(lessons, seed).accuracy)
    return Usefulness(found[0], found[1], tested_on, len(rows))


def copies(x: Tensor, federation: Federation, client: Client) -> Copying:
    """How near samples are to a client's training samples, compared with its test samples."""
    train, test = (
        federation.x[torch.from_numpy(rows)].flatten(start_dim=1)
        for rows in (client.train, client.test)
    )
    made, held = (nearest(points, train) for points in (x.flatten(start_dim=1), test))
    middle, held_out = float(made.first.median()), float(held.first.median())
    return Copying(
        client=client.name,
        synthetic=middle,
        held_out=held_out,
        ratio=middle / held_out if held_out > 0 else None,
        near=_share_below(made.first, held.first),
        alone=_share_below(made.contrast, held.contrast),
        tested=len(test),
    )


def _share_below(made: Tensor, held: Tensor) -> float:
    """The share of values below the smallest percent of the others."""
    return float((made < float(np.quantile(held.numpy(), NEAREST))).double().mean())


class Nearest(NamedTuple):
    """Distances to the nearest sample and to the next, where there is one."""

    first: Tensor
    second: Tensor

    @property
    def contrast(self) -> Tensor:
        """The nearest distance as a share of the next; 0 for a copy."""
        return torch.where(self.second > 0, self.first / self.second, 0.0)


def nearest(points: Tensor, samples: Tensor) -> Nearest:
    """The Euclidean distances of every point to the two samples nearest to it.

    >>> near = nearest(torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [8.0]]))
    >>> near.first.tolist(), near.second.tolist(), near.contrast.tolist()
    ([1.0, 3.0], [8.0, 4.0], [0.125, 0.75])
    """
    # In double precision: distances come from products, which lose the digits of small ones.
    samples, rows = samples.double(), max(1, AT_ONCE // max(1, len(samples)))
    count = min(2, len(samples))
    parts = [
        torch.cdist(part.double(), samples).topk(count, dim=1, largest=False).values
        for part in torch.split(points, rows)
    ]
    found = torch.cat(parts)
    return Nearest(found[:, 0], found[:, -1])
