"""fedskew itself: its engine and its FedAvg on the shared workload."""

from __future__ import annotations

import torch

from benchmarks.protocol import Reply, serve
from benchmarks.workloads import WORKLOADS, Workload, load


def train_rounds(workload: Workload, rounds: int) -> None:
    """Run so many rounds of FedAvg with fedskew's engine."""
    raise NotImplementedError("the fedskew contender is not connected to the engine yet")


class Engine:
    """Keeps the federation and the global model between commands."""

    def setup(self, workload: str, clients: int | None) -> Reply:
        self.workload = WORKLOADS[workload]
        self.data = load(workload, clients)
        return {"versions": {"torch": torch.__version__}, "real_data": self.data.real}

    def train_rounds(self, rounds: int) -> None:
        train_rounds(self.workload, rounds)

    def evaluate(self) -> float:
        raise NotImplementedError("the fedskew contender is not connected to the engine yet")

    def close(self) -> None:
        """Nothing was started."""


if __name__ == "__main__":
    serve(Engine())
