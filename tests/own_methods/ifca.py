"""IFCA in a file of a user's own: several models, and every client begins with its best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedskew import Aggregator, Begin, Begun, Recipe, Report, Reported
from fedskew.parts.aggregate import ServerState, Update, weighted_mean
from fedskew.parts.begin import Opening, Start
from fedskew.parts.report import Finished, Groups

CLUSTERS, CHOICE = "clusters", "choice"


@dataclass(frozen=True)
class Best(Begin):
    """Begins with the cluster's model that has the least loss on the client's training data."""

    personal = True

    def begin(self, start: Start) -> Begun:
        if not start.samples:
            return super().begin(start)
        stacked = start.broadcast[CLUSTERS]
        count = len(next(iter(stacked.values())))
        models = [{**start.received, **{n: t[k] for n, t in stacked.items()}} for k in range(count)]
        best = min(range(count), key=lambda k: start.loss(models[k]))
        return Begun(models[best], {CHOICE: {"cluster": torch.tensor(best)}})


@dataclass(frozen=True)
class Chosen(Report):
    """Tells the server which cluster the client began with."""

    def report(self, finished: Finished) -> Reported:
        return Reported(sends={CHOICE: finished.found[CHOICE]})


@dataclass(frozen=True)
class InClusters(Aggregator):
    """The mean inside each cluster; the global model is that of the one with most samples."""

    clusters: int = 2
    broadcasts = (CLUSTERS,)
    several = True

    def start(self, opening: Opening) -> Groups:
        models = [opening.shared, *(opening.another(k) for k in range(1, self.clusters))]
        return {CLUSTERS: {n: torch.stack([m[n] for m in models]) for n in opening.shared}}

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        chosen = {u.client: int(u.reports[CHOICE]["cluster"]) for u in updates}
        stacked = {n: t.clone() for n, t in state.memory[CLUSTERS].items()}
        sizes = [0] * self.clusters
        for k in set(chosen.values()):
            members = [u for u in updates if chosen[u.client] == k]
            sizes[k] = sum(u.size for u in members)
            for n, mean in weighted_mean(members, [u.size / sizes[k] for u in members]).items():
                stacked[n][k] = mean
        largest = {n: t[sizes.index(max(sizes))].clone() for n, t in stacked.items()}
        told = {client: {"cluster": float(k)} for client, k in chosen.items()}
        memory = {**state.memory, CLUSTERS: stacked}
        return replace(state, shared=largest, memory=memory, measured=told)


def ifca(clusters: int = 2) -> Recipe:
    """Ghosh et al. 2020, An Efficient Framework for Clustered Federated Learning."""
    return Recipe(begins=Best(), reports=(Chosen(),), aggregates=InClusters(clusters))
