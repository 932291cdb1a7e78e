"""The loop a careful researcher writes: one model, one client after another, averaged by size.

``python -m benchmarks.contenders.plain [THREADS]``; without a number PyTorch keeps its default.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.protocol import Reply, serve
from benchmarks.training import evaluate, train_client
from benchmarks.workloads import WORKLOADS, load


class PlainLoop:
    """FedAvg with ``load_state_dict`` per client and data indexed in memory."""

    def setup(self, workload: str, clients: int | None) -> Reply:
        self.workload = WORKLOADS[workload]
        self.data = load(workload, clients)
        self.model = self.workload.model()
        self.state = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.round = 0
        return {
            "versions": {"torch": torch.__version__},
            "threads": torch.get_num_threads(),
            "real_data": self.data.real,
        }

    def train_rounds(self, rounds: int) -> None:
        for _ in range(rounds):
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

    def evaluate(self) -> float:
        self.model.load_state_dict(self.state)
        return evaluate(self.workload, self.data, self.model)

    def close(self) -> None:
        """Nothing was started."""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    serve(PlainLoop())
