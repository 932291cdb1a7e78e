"""How far a client's data are from what all should hold, and weights based on that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedskew.parts.aggregate import BySize, ServerState, Update, Weighting
from fedskew.parts.report import Finished, Report, Reported
from fedskew.registry.knobs import Knob, check_fields
from fedskew.types import Groups

Metric = Literal["kl", "l1", "l2", "cosine"]
AllZero = Annotated[
    Literal["size", "best"],
    Knob("weights if all would be zero: by size, or only the best client"),
]
Alpha = Annotated[
    float,
    Knob("how much one unit of discrepancy lowers a client's share", ge=0, tries=(0.1, 0.5, 0.9)),
]
Bonus = Annotated[float, Knob("added to every client's share")]

DISCREPANCY = "discrepancy"


def label_discrepancy(counts: Tensor, metric: Metric) -> float:
    """How far class counts are from being equal.

    >>> label_discrepancy(torch.tensor([3.0, 1.0]), "l1")
    0.5
    """
    share = counts / counts.sum()
    equal = torch.full_like(share, 1.0 / len(share))
    # Rounding can make this slightly negative for equal shares, and negative means unknown.
    if metric == "kl":
        return max(0.0, float(torch.special.xlogy(share, share / equal).sum()))
    if metric == "cosine":
        return max(0.0, float(1.0 - (share @ equal) / (share.norm() * equal.norm())))
    return float((share - equal).norm(p=1 if metric == "l1" else 2))


@dataclass(frozen=True)
class LabelDiscrepancy(Report):
    """Sends one number: how far the client's labels are from being equally frequent."""

    metric: Annotated[Metric, Knob("distance of the client's label shares from equal ones")] = "kl"
    group: str = DISCREPANCY
    tells = "how lopsided their labels are"
    classes_for = "to measure how unequal a client's shares of them are"

    def __post_init__(self) -> None:
        check_fields(self)

    def report(self, finished: Finished) -> Reported:
        labels = finished.samples()[1]
        counts = torch.bincount(labels, minlength=finished.classes).to(torch.float64)
        value = torch.tensor(label_discrepancy(counts, self.metric), dtype=torch.float64)
        return Reported(sends={self.group: {"d": value}})


@dataclass(frozen=True)
class ByDiscrepancy(Weighting):
    """max(0, n_k - α·d_k + b), n_k the share of all samples; ``normalise`` divides d by its sum.

    A client's d is what it reported now, or what the server remembers; a client that never
    reported has the mean of the others. Before any report, weights are by size. A negative d
    could not be computed and counts as the largest. If every weight is zero, weights are by size
    or, with ``all_zero="best"``, only the client with the largest n_k - α·d_k + b has weight.
    """

    alpha: Alpha
    b: Bonus
    normalise: Annotated[bool, Knob("divide discrepancies by their sum")]
    all_zero: AllZero = "size"

    def __post_init__(self) -> None:
        check_fields(self)

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
    """The discrepancies of the clients that sent one, now or earlier."""
    remembered = numbers(state.memory, DISCREPANCY, "d")
    sent = [u for u in updates if DISCREPANCY in u.reports]
    return {**remembered, **{u.client: float(u.reports[DISCREPANCY]["d"]) for u in sent}}


def _recorded(
    weights: Mapping[str, float], found: Mapping[str, float], memory: Groups
) -> dict[str, dict[str, float]]:
    """By client: its weight, and the numbers known about it."""
    active = numbers(memory, DISCREPANCY, "active")
    columns = {"weight": weights, "discrepancy": found, "active_dimensions": active}
    return {
        client: {name: of[client] for name, of in columns.items() if client in of}
        for client in weights
    }


def numbers(memory: Groups, group: str, name: str) -> dict[str, float]:
    """What clients sent under a name, by client, from the server's memory."""
    ending = f"/{name}"
    return {
        key.removesuffix(ending): float(value)
        for key, value in memory.get(group, {}).items()
        if key.endswith(ending)
    }


def one_hot(place: int, like: Tensor) -> Tensor:
    """All weight on one client."""
    weights = torch.zeros_like(like)
    weights[place] = 1.0
    return weights


Control = Annotated[
    Literal["none", "best", "random", "labels"],
    Knob(
        "what replaces the weights, to see what they add: nothing; only the 'best' client; "
        "as many clients at 'random'; FedDisco's 'labels' weights, equally uneven"
    ),
]
LABELS = "label-discrepancy"


@dataclass(frozen=True)
class FixedWeights(Weighting):
    """Weights computed once, by ``rule`` from the discrepancies an earlier stage handed over.

    Clients without weight are not asked to train. ``control`` replaces the weights by some that
    lack the method's idea: "best" gives everything to the client with the largest weight; "random"
    keeps as many clients as the rule does, drawn at random, weighted by size; "labels" takes label
    discrepancies, with the α that makes the weights as uneven as the rule's.
    """

    rule: ByDiscrepancy
    control: Control = "none"

    def __post_init__(self) -> None:
        check_fields(self)

    def fixed(self, memory: Groups) -> dict[str, float]:
        """The weight of every client in the memory."""
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
        fixed = self.fixed(state.memory)
        return [c for c in clients if fixed.get(c, 0.0) > 0] or clients

    def weights(self, updates: Sequence[Update], state: ServerState) -> Tensor:
        fixed = self.fixed(state.memory)
        if not fixed:
            return BySize().weights(updates, state)
        return torch.tensor([fixed.get(u.client, 0.0) for u in updates], dtype=torch.float64)

    def measured(
        self, updates: Sequence[Update], weights: Sequence[float], state: ServerState
    ) -> dict[str, dict[str, float]]:
        """The numbers of all clients, including those that were not asked."""
        used = {u.client: weight for u, weight in zip(updates, weights, strict=True)}
        found = numbers(state.memory, DISCREPANCY, "d")
        everybody = {client: used.get(client, 0.0) for client in found}
        return _recorded(everybody, found, state.memory)


def entropy(weights: Tensor) -> float:
    """The entropy of weights that need not sum to one; 0 if one client has all, or there is none.

    >>> round(entropy(torch.tensor([1.0, 1.0, 0.0])), 4)
    0.6931
    """
    share = weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
    return float(-torch.special.xlogy(share, share).sum())


def as_uneven(weights: Tensor, sizes: Tensor, found: Tensor) -> Tensor:
    """FedDisco's weights for other discrepancies, with α chosen so that the entropy is equal.

    Between two values of α at which a client loses its last weight, entropy changes smoothly.
    If no α matches, the nearest of those values is taken.
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
