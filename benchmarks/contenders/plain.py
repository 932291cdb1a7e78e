"""The loop a careful researcher writes: one model, one client after another, averaged by size.

Where clients stay apart, each has a state of its own and keeps the one that did best so far.

``python -m benchmarks.contenders.plain [THREADS]``; without a number PyTorch keeps its default.
"""

from __future__ import annotations

import math
import sys
from statistics import fmean

import torch
from torch import Tensor

from benchmarks.protocol import Reply, serve
from benchmarks.training import evaluate, held_out_loss, train_client
from benchmarks.workloads import WORKLOADS, load


class PlainLoop:
    """FedAvg with ``load_state_dict`` per client and data indexed in memory."""

    def setup(self, workload: str, clients: int | None) -> Reply:
        self.workload = WORKLOADS[workload]
        self.data = load(workload, clients)
        self.model = self.workload.model()
        self.state = _copied(self.model)
        self.round = 0
        self.own = [self.state] * len(self.data.clients)
        self.best = list(self.own)
        self.least = [math.inf] * len(self.own)
        return {
            "versions": {"torch": torch.__version__},
            "threads": torch.get_num_threads(),
            "real_data": self.data.real,
        }

    def train_rounds(self, rounds: int) -> None:
        for _ in range(rounds):
            if self.workload.apart:
                self._train_apart()
            else:
                self._train_round()

    def _train_round(self) -> None:
        cohort = self.data.cohort(self.round, self.workload.per_round)
        samples = sum(len(self.data.clients[client]) for client in cohort)
        mean = {name: torch.zeros_like(value) for name, value in self.state.items()}
        for client in cohort:
            self.model.load_state_dict(self.state)
            size = train_client(self.workload, self.data, self.model, client)
            for name, value in self.model.state_dict().items():
                mean[name].add_(value, alpha=size / samples)
        self.state = mean
        self.round += 1

    def _train_apart(self) -> None:
        for client, state in enumerate(self.own):
            self.model.load_state_dict(state)
            train_client(self.workload, self.data, self.model, client)
            trained = _copied(self.model)
            self.own[client] = trained
            loss = held_out_loss(self.workload, self.data, self.model, client)
            if loss < self.least[client]:
                self.least[client], self.best[client] = loss, trained

    def evaluate(self) -> float:
        if self.workload.apart:
            return fmean(map(self._own_loss, range(len(self.own))))
        self.model.load_state_dict(self.state)
        return evaluate(self.workload, self.data, self.model)

    def _own_loss(self, client: int) -> float:
        self.model.load_state_dict(self.own[client])
        return held_out_loss(self.workload, self.data, self.model, client)

    def close(self) -> None:
        """Nothing was started."""


def _copied(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    serve(PlainLoop())
