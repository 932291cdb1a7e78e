"""Flower's simulation engine: Ray, two client workers with one core each.

The simulation starts once, in a thread, and its ServerApp then waits for jobs, so Ray stays warm
between commands; a command of R rounds is one ``FedAvg.start`` with R rounds from the present
weights. Ray is the only backend this version of Flower has. Flower draws the clients of a round
at random instead of in turns; where only some take part they all have the same size.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from benchmarks.protocol import Reply, serve

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    FLWR_HOME=tempfile.mkdtemp(prefix="bench-flower-"),
    RAY_USAGE_STATS_ENABLED="0",
    # The parent freezes whoever is not being timed; Ray must not take that for a death.
    RAY_health_check_timeout_ms="3600000",
    RAY_health_check_failure_threshold="1000",
    # Ray would give its workers a lower priority than any other contender has.
    RAY_worker_niceness="0",
)

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.contenders import flower_client
from benchmarks.training import evaluate
from benchmarks.workloads import WORKLOADS, load

Job = Callable[[Grid], Any]
RESOURCES = {
    "init_args": {"num_cpus": 2},
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
}


class CompleteFedAvg(FedAvg):
    """FedAvg that insists on every reply; Flower's own goes on without the failed ones."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != self.min_train_nodes:
            raise RuntimeError(f"{len(replies)} replies, failures: {failed[:1]}")
        return super().aggregate_train(server_round, replies)


class Simulation:
    """Keeps one Flower simulation alive and gives its ServerApp jobs."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[Job | None] = queue.Queue()
        self.results: queue.Queue[Any] = queue.Queue()
        self.thread: threading.Thread | None = None

    def setup(self, workload: str, clients: int | None) -> Reply:
        self.workload = WORKLOADS[workload]
        self.data = load(workload)
        self.model = self.workload.model()
        self.arrays = ArrayRecord(self.model.state_dict())
        fraction = self.workload.per_round / self.workload.clients
        self.strategy = CompleteFedAvg(
            fraction_train=fraction,
            fraction_evaluate=0.0,
            min_train_nodes=self.workload.per_round,
            min_available_nodes=self.workload.clients,
        )
        self.thread = threading.Thread(target=self._simulate, daemon=True)
        self.thread.start()
        self._do(lambda grid: None)
        return {
            "versions": {
                "torch": torch.__version__,
                "flwr": version("flwr"),
                "ray": version("ray"),
            },
            "processes": 2,
            "real_data": self.data.real,
        }

    def _simulate(self) -> None:
        server = ServerApp()
        server.main()(self._serve)
        try:
            run_simulation(server, flower_client.app, self.workload.clients, "ray", RESOURCES)
        except BaseException as error:
            self.results.put(error)
            raise

    def _serve(self, grid: Grid, context: Context) -> None:
        while (job := self.jobs.get()) is not None:
            try:
                self.results.put(job(grid))
            except Exception as error:
                self.results.put(error)

    def _do(self, job: Job) -> Any:
        self.jobs.put(job)
        result = self.results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def train_rounds(self, rounds: int) -> None:
        result = self._do(lambda grid: self._start(grid, rounds))
        self.arrays = result.arrays

    def _start(self, grid: Grid, rounds: int) -> Any:
        config = ConfigRecord({"workload": self.workload.name})
        return self.strategy.start(grid, self.arrays, num_rounds=rounds, train_config=config)

    def evaluate(self) -> float:
        self.model.load_state_dict(self.arrays.to_torch_state_dict())
        return evaluate(self.workload, self.data, self.model)

    def close(self) -> None:
        if self.thread:
            self.jobs.put(None)
            self.thread.join(timeout=20)


if __name__ == "__main__":
    serve(Simulation())
