"""The machine's limit: a large matrix product on all cores; one round is one product."""

from __future__ import annotations

import os

import torch

from benchmarks.protocol import Reply, serve

SIZE = 2048
FLOPS = 2 * SIZE**3


class LargeProduct:
    """Answers like a contender, so that it takes its turn among them on the same machine."""

    def setup(self, workload: str, clients: int | None) -> Reply:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.left, self.right = torch.randn(2, SIZE, SIZE).unbind()
        self.out = torch.empty(SIZE, SIZE)
        return {"versions": {"torch": torch.__version__}, "threads": torch.get_num_threads()}

    def train_rounds(self, rounds: int) -> None:
        for _ in range(rounds):
            torch.mm(self.left, self.right, out=self.out)

    def evaluate(self) -> float:
        return 0.0

    def close(self) -> None:
        """Nothing was started."""


if __name__ == "__main__":
    serve(LargeProduct())
