"""How far a client is from what all should hold, and weights that take it into account."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from fedskew.errors import ConfigError
from fedskew.parts.aggregate import BySize, ServerState, Update, Weighting
from fedskew.parts.report import Finished, Report, Reported
from fedskew.types import Groups

Metric = Literal["kl", "l1", "l2", "cosine"]
AllZero = Literal["size", "best"]

DISCREPANCY = "discrepancy"


def label_discrepancy(counts: Tensor, metric: Metric) -> float:
    """How far class counts are from being equal.

    >>> label_discrepancy(torch.tensor([3.0, 1.0]), "l1")
    0.5
    """
    share = counts / counts.sum()
    equal = torch.full_like(share, 1.0 / len(share))
    # Rounding can take equal shares below zero, and below zero means unknown.
    if metric == "kl":
        return max(0.0, float(torch.special.xlogy(share, share / equal).sum()))
    if metric == "cosine":
        return max(0.0, float(1.0 - (share @ equal) / (share.norm() * equal.norm())))
    return float((share - equal).norm(p=1 if metric == "l1" else 2))


@dataclass(frozen=True)
class LabelDiscrepancy(Report):
    """Sends one number: how far the client's labels are from being equally frequent."""

    metric: Metric = "kl"
    group: str = DISCREPANCY

    def __post_init__(self) -> None:
        if self.metric not in ("kl", "l1", "l2", "cosine"):
            raise ConfigError(f"metric must be one of kl, l1, l2, cosine, not {self.metric!r}.")

    def report(self, finished: Finished) -> Reported:
        labels = finished.samples()[1]
        counts = torch.bincount(labels, minlength=finished.classes).to(torch.float64)
        value = torch.tensor(label_discrepancy(counts, self.metric), dtype=torch.float64)
        return Reported(sends={self.group: {"d": value}})


@dataclass(frozen=True)
class ByDiscrepancy(Weighting):
    """max(0, n_k - α·d_k + b), n_k the share of all samples; d is divided by its sum if asked.

    A client's d is what it reported now, or what the server remembers of it; whoever was never
    heard of counts as the mean of those who were. Before anybody was, sizes decide. A negative d
    could not be computed and counts as the largest. Where every weight is zero the sizes take
    over, or, with ``all_zero="best"``, the client with the largest n_k - α·d_k + b alone.
    """

    alpha: float
    b: float
    normalise: bool
    all_zero: AllZero = "size"

    def __post_init__(self) -> None:
        for name in ("alpha", "b"):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(f"{name} must be a finite number, not {getattr(self, name)}.")
        if self.alpha < 0:
            raise ConfigError(f"alpha must not be negative, not {self.alpha}.")
        if self.all_zero not in ("size", "best"):
            raise ConfigError(f"all_zero must be 'size' or 'best', not {self.all_zero!r}.")

    def raw(self, sizes: Tensor, found: Tensor) -> Tensor:
        """n_k - α·d_k + b."""
        found = torch.where(found < 0, found.max().clamp(min=0.0), found)
        total = found.sum()
        if self.normalise and total > 0:
            found = found / total
        return sizes / sizes.sum() - self.alpha * found + self.b

    def apply(self, sizes: Tensor, found: Tensor) -> Tensor:
        """The weights, not yet summing to one."""
        raw = self.raw(sizes, found)
        if self.all_zero == "best" and not (raw > 0).any():
            return one_hot(int(raw.argmax()), raw)
        return raw.clamp(min=0.0)

    def weights(self, updates: Sequence[Update], state: ServerState) -> Tensor:
        sizes = BySize().weights(updates, state)
        known = _known(updates, state)
        if not known:
            return sizes
        heard = [d for d in known.values() if d >= 0]
        usual = sum(heard) / len(heard) if heard else 0.0
        found = torch.tensor([known.get(u.client, usual) for u in updates], dtype=sizes.dtype)
        return self.apply(sizes, found)

    def measured(
        self, updates: Sequence[Update], weights: Sequence[float], state: ServerState
    ) -> dict[str, dict[str, float]]:
        used = {u.client: weight for u, weight in zip(updates, weights, strict=True)}
        return _recorded(used, _known(updates, state), state.memory)


def _known(updates: Sequence[Update], state: ServerState) -> dict[str, float]:
    """The discrepancies of those who sent one, now or earlier."""
    remembered = numbers(state.memory, DISCREPANCY, "d")
    sent = [u for u in updates if DISCREPANCY in u.reports]
    return {**remembered, **{u.client: float(u.reports[DISCREPANCY]["d"]) for u in sent}}


def _recorded(
    weights: Mapping[str, float], found: Mapping[str, float], memory: Groups
) -> dict[str, dict[str, float]]:
    """By client: its weight, and what is known about it."""
    active = numbers(memory, DISCREPANCY, "active")
    columns = {"weight": weights, "discrepancy": found, "active_dimensions": active}
    return {
        client: {name: of[client] for name, of in columns.items() if client in of}
        for client in weights
    }


def numbers(memory: Groups, group: str, name: str) -> dict[str, float]:
    """What clients sent under a name, by client, as the server's memory holds it."""
    ending = f"/{name}"
    return {
        key.removesuffix(ending): float(value)
        for key, value in memory.get(group, {}).items()
        if key.endswith(ending)
    }


def one_hot(place: int, like: Tensor) -> Tensor:
    """All weight in one place."""
    weights = torch.zeros_like(like)
    weights[place] = 1.0
    return weights


Control = Literal["none", "best", "random", "labels"]
LABELS = "label-discrepancy"


@dataclass(frozen=True)
class Settled(Weighting):
    """Weights made once, from what an earlier stage handed over: ``rule`` on every client's d.

    Who has none is not asked to train. ``control`` puts something in the weights' place that
    lacks the method's idea: "best" gives everything to the client the rule likes most; "random"
    keeps as many clients as the rule does, drawn by lot, by size; "labels" takes label
    discrepancies, with the α that makes the weights as uneven as the rule's.
    """

    rule: ByDiscrepancy
    control: Control = "none"

    def __post_init__(self) -> None:
        if self.control not in ("none", "best", "random", "labels"):
            raise ConfigError(
                f"control must be one of none, best, random, labels, not {self.control!r}."
            )

    def settled(self, memory: Groups) -> dict[str, float]:
        """The weight of every client the memory knows."""
        known = numbers(memory, DISCREPANCY, "d")
        clients = sorted(known)
        if not clients:
            return {}

        def column(group: str, name: str) -> Tensor:
            values = numbers(memory, group, name)
            return torch.tensor([values[client] for client in clients], dtype=torch.float64)

        sizes, found = column(DISCREPANCY, "n"), column(DISCREPANCY, "d")
        weights = self.rule.apply(sizes, found)
        if self.control == "best":
            weights = one_hot(int(self.rule.raw(sizes, found).argmax()), weights)
        elif self.control == "random":
            kept = int((weights > 0).sum()) or len(clients)
            drawn = column(DISCREPANCY, "lot").argsort()[:kept]
            weights = torch.zeros_like(sizes)
            weights[drawn] = sizes[drawn]
        elif self.control == "labels":
            weights = as_uneven(weights, sizes, column(LABELS, "d"))
        return dict(zip(clients, weights.tolist(), strict=True))

    def wanted(self, clients: Sequence[str], state: ServerState) -> Sequence[str]:
        settled = self.settled(state.memory)
        return [c for c in clients if settled.get(c, 0.0) > 0] or clients

    def weights(self, updates: Sequence[Update], state: ServerState) -> Tensor:
        settled = self.settled(state.memory)
        if not settled:
            return BySize().weights(updates, state)
        return torch.tensor([settled.get(u.client, 0.0) for u in updates], dtype=torch.float64)

    def measured(
        self, updates: Sequence[Update], weights: Sequence[float], state: ServerState
    ) -> dict[str, dict[str, float]]:
        """Everybody's numbers, also of those who were not asked."""
        used = {u.client: weight for u, weight in zip(updates, weights, strict=True)}
        found = numbers(state.memory, DISCREPANCY, "d")
        everybody = {client: used.get(client, 0.0) for client in found}
        return _recorded(everybody, found, state.memory)


def entropy(weights: Tensor) -> float:
    """Of weights that need not sum to one; 0 if all of it, or nothing, is in one place.

    >>> round(entropy(torch.tensor([1.0, 1.0, 0.0])), 4)
    0.6931
    """
    share = weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
    return float(-torch.special.xlogy(share, share).sum())


def as_uneven(weights: Tensor, sizes: Tensor, found: Tensor) -> Tensor:
    """FedDisco's weights for other discrepancies, α chosen so that their entropy is the same.

    Between two values of α at which a client loses its last weight, entropy changes smoothly.
    Where none is right, the nearest of those values is taken.
    """
    from scipy.optimize import brentq

    wanted = entropy(weights if weights.any() else sizes)

    def tried(alpha: float) -> Tensor:
        return ByDiscrepancy(alpha, 0.0, normalise=True).apply(sizes, found)

    def gap(alpha: float) -> float:
        return entropy(tried(alpha)) - wanted

    apart = found > 0
    ends = sorted(set((sizes / sizes.sum() * found.sum())[apart].div(found[apart]).tolist()))
    steps = [0.0, *(ends[:-1] if bool(apart.all()) else ends)]
    for low, high in pairwise(steps):
        if gap(low) * gap(high) <= 0:
            return tried(float(brentq(gap, low, high)))
    return tried(min(steps, key=lambda alpha: abs(gap(alpha))))
