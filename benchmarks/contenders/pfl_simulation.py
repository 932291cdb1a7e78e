"""pfl's simulator: ``python -m benchmarks.contenders.pfl_simulation PROCESSES``.

With two processes each has one thread and they meet through ``PFL_WORKER_ADDRESSES`` and
``PFL_WORKER_RANK``, as pfl's guide to distributed simulations says. The process the parent talks
to is rank 0; it starts the other one and hands every command on to it, so both enter pfl's
``run`` together. One process keeps PyTorch's default threads: its own way of using both cores.

pfl owns its loop, but ``run`` may be called again to carry on, so a command of R rounds is one
call that ends R iterations later. Work it does differently from the others: the batches of a
client are cut once and not shuffled.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.protocol import Reply, serve
from benchmarks.training import score
from benchmarks.workloads import SEED, WORKLOADS, Data, Workload, load

NEVER = 10**9


class Module(nn.Module):
    """A workload's model with the two methods pfl asks for."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.workload = workload
        self.model = workload.model()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.workload.loss(self.model, x, y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        from pfl.metrics import Weighted

        return {"score": Weighted(score(self.workload, self.model, x, y), len(x))}


class Simulator:
    """pfl's FedAvg on its simulated backend, weighting the clients by their size."""

    def setup(self, workload: str, clients: int | None) -> Reply:
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.internal.ops import get_ops

        self.workload = WORKLOADS[workload]
        self.data = load(workload, clients)
        # Seeded alike on every rank: pfl draws the cohorts on each of them independently.
        np.random.seed(SEED)  # noqa: NPY002
        self.module = Module(self.workload)
        self.model = self._model()
        self.backend = self._backend(self.data)
        self.evaluation = self._evaluation()
        self.algorithm = FederatedAveraging()
        self.rounds = 0
        return {
            "versions": {"torch": torch.__version__, "pfl": version("pfl")},
            "threads": torch.get_num_threads(),
            "processes": get_ops().distributed.world_size,
            "real_data": self.data.real,
        }

    def _model(self) -> Any:
        from pfl.model.pytorch import PyTorchModel

        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        return PyTorchModel(
            model=self.module,
            local_optimizer_create=kinds[self.workload.optimizer],
            central_optimizer=torch.optim.SGD(self.module.parameters(), lr=1.0),
        )

    def _backend(self, data: Data) -> Any:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.data.sampling import get_user_sampler

        # Kept as objects because a pfl dataset caches its batches: the quickest it offers.
        users = [
            PyTorchTensorDataset((data.x[rows], data.y[rows]), user_id=str(client))
            for client, rows in enumerate(data.clients)
        ]
        sizes = {client: len(rows) for client, rows in enumerate(data.clients)}
        ragged = len(set(sizes.values())) > 1
        federation = FederatedDataset(
            users.__getitem__,
            get_user_sampler("minimize_reuse", list(sizes)),
            # Lets pfl balance unequal clients over its processes, at the price of a queue.
            user_id_to_weight=sizes if ragged else None,
        )
        return SimulatedBackend(federation, federation, postprocessors=[WeightByDatapoints()])

    def _evaluation(self) -> Any:
        from pfl.callback.central_evaluation import CentralEvaluationCallback
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.hyperparam import NNEvalHyperParams

        return CentralEvaluationCallback(
            PyTorchTensorDataset((self.data.test_x, self.data.test_y)),
            NNEvalHyperParams(local_batch_size=1000),
        )

    def train_rounds(self, rounds: int) -> None:
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams

        self.rounds += rounds
        self.model = self.algorithm.run(
            NNAlgorithmParams(
                central_num_iterations=self.rounds,
                # Iteration 0 is evaluated all the same; it belongs to the untimed first round.
                evaluation_frequency=NEVER,
                train_cohort_size=self.workload.per_round,
                val_cohort_size=None,
            ),
            self.backend,
            self.model,
            NNTrainHyperParams(
                local_num_epochs=1,
                local_learning_rate=self.workload.learning_rate,
                local_batch_size=self.workload.batch,
            ),
            NNEvalHyperParams(local_batch_size=None),
            send_metrics_to_platform=False,
        )

    def evaluate(self) -> float:
        metrics = self.evaluation.on_train_begin(model=self.model)
        return float(metrics.to_simple_dict()["Central val | score"])

    def close(self) -> None:
        """pfl ends its own helpers when the process exits."""


class FirstRank:
    """Rank 0 of two: hands every command on to rank 1 before doing its own half."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        addresses = ",".join(f"127.0.0.1:{_free_port()}" for _ in range(2))
        os.environ.update(PFL_WORKER_ADDRESSES=addresses, PFL_WORKER_RANK="0")
        self.other = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contenders.pfl_simulation", "worker"],
            env={**os.environ, "PFL_WORKER_RANK": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _tell(self, **command: Any) -> None:
        self.other.stdin.write(json.dumps(command) + "\n")
        self.other.stdin.flush()

    def _check(self) -> None:
        reply = json.loads(self.other.stdout.readline() or '{"error": "rank 1 ended"}')
        if "error" in reply:
            raise RuntimeError(f"rank 1: {reply['error']}")

    def setup(self, workload: str, clients: int | None) -> Reply:
        self._tell(cmd="setup", workload=workload, clients=clients)
        reply = self.simulator.setup(workload, clients)
        self._check()
        return reply

    def train_rounds(self, rounds: int) -> None:
        self._tell(cmd="train", rounds=rounds)
        self.simulator.train_rounds(rounds)
        self._check()

    def evaluate(self) -> float:
        self._tell(cmd="evaluate")
        value = self.simulator.evaluate()
        self._check()
        return value

    def close(self) -> None:
        # Closing the pipe would not do: pfl's sampling process has inherited its other end.
        self._tell(cmd="quit")
        self.other.wait(timeout=20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    role = sys.argv[1]
    if role == "1":
        serve(Simulator())
    else:
        torch.set_num_threads(1)
        serve(Simulator() if role == "worker" else FirstRank(Simulator()))
