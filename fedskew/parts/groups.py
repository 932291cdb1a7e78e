"""Averaging inside groups of clients: given, or found by clustering the similarity matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedskew.errors import ConfigError
from fedskew.parts.aggregate import ServerState, Update
from fedskew.parts.begin import Opening
from fedskew.parts.mix import (
    Mix,
    Shown,
    Weigh,
    Weights,
    compared,
    fingerprints,
    nobody_at_self,
    with_fingerprints,
)
from fedskew.parts.similarity import FINGERPRINT, similarities
from fedskew.types import Groups


@dataclass(frozen=True)
class InGroups(Mix):
    """The mean inside a client's group: groups given, or found from the similarity matrix.

    An absent client gets its group's mean, or keeps what it has if none of its group took part.
    """

    groups: tuple[tuple[str | int, ...], ...] | None = None
    longest: float = 1.0

    def start(self, opening: Opening) -> Groups:
        if self.groups is None:
            return {}
        ordered, labels = sorted(opening.clients), {}
        for number, members in enumerate(self.groups):
            for member in members:
                name = _member(member, ordered)
                if name in labels:
                    raise ConfigError(f"groups: client {name!r} is in two groups.")
                labels[name] = torch.tensor(number)
        missing = [name for name in ordered if name not in labels]
        if missing:
            raise ConfigError(f"groups: client {missing[0]!r} is in no group.")
        return {"group": labels}

    def remember(self, state: ServerState, updates: Sequence[Update]) -> Groups:
        if self.groups is not None:
            return state.memory
        memory = with_fingerprints(state, updates, self.longest)
        found = replace(state, memory=memory)
        names = sorted(memory[FINGERPRINT])
        prints = fingerprints(found, names)
        labels = found_groups(nobody_at_self(similarities(prints, prints), slice(0, len(names))))
        pairs = zip(names, labels, strict=True)
        return {**memory, "group": {name: torch.tensor(label) for name, label in pairs}}

    def known(self, state: ServerState) -> list[str]:
        return sorted(state.memory["group"])

    def rows(self, state: ServerState, clients: Sequence[str], updates: Sequence[Update]) -> Weigh:
        group = state.memory["group"]
        labels = torch.stack([group[name] for name in clients])
        sizes = self.weighting.weights(updates, state).to(torch.float32)
        mine = torch.cat([sizes, torch.zeros(len(clients) - len(updates))])

        def weigh(here: slice) -> Weights:
            same = labels[here, None] == labels[None, : len(updates)]
            others = nobody_at_self(torch.where(same, sizes, 0.0), here).clamp(min=0)
            total = mine[here] + others.sum(dim=1)
            alone = total <= 0
            own = torch.where(alone, 1.0, mine[here] / total.clamp(min=1e-30))
            return own, others / torch.where(alone, 1.0, total)[:, None]

        return weigh

    def show(self, state: ServerState, updates: Sequence[Update]) -> Shown:
        labels = {n: {"group": float(label)} for n, label in state.memory["group"].items()}
        return replace(compared(state, updates) if self.groups is None else Shown(), numbers=labels)


def _member(member: str | int, ordered: Sequence[str]) -> str:
    """A client by its name, or by its position among the sorted names."""
    if isinstance(member, int) and 0 <= member < len(ordered):
        return ordered[member]
    if member in ordered:
        return str(member)
    raise ConfigError(
        f"groups: there is no client {member!r}; there are {len(ordered)}, "
        f"{ordered[0]!r} to {ordered[-1]!r}."
    )


def found_groups(similarity: Tensor, least: float = 0.1, most: int = 30) -> list[int]:
    """Groups by hierarchical clustering, as many as give the best mean silhouette.

    All clients are one group if no division reaches a silhouette of ``least``, so that clients
    that do not differ are not divided.
    """
    n = len(similarity)
    if n < 3:
        return [0] * n
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics import silhouette_score

    distance = np.array((1.0 - similarity).clamp(0.0, 1.0).fill_diagonal_(0.0).tolist())
    distance = (distance + distance.T) / 2
    best, labels = least, [0] * n
    for count in range(2, min(n - 1, most) + 1):
        tree = AgglomerativeClustering(count, metric="precomputed", linkage="average")
        found = tree.fit_predict(distance)
        score = float(silhouette_score(distance, found, metric="precomputed"))
        if score > best and not math.isnan(score):
            best, labels = score, [int(label) for label in found]
    return labels
