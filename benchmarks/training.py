"""The client loop of the plain contender and of Flower's clients, the score, and FLOP counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.models import vae_loss
from benchmarks.workloads import Data, Workload


def new_optimizer(workload: Workload, model: nn.Module) -> torch.optim.Optimizer:
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    return kinds[workload.optimizer](model.parameters(), lr=workload.learning_rate)


def train_client(workload: Workload, data: Data, model: nn.Module, client: int) -> int:
    """A client's epochs, each in a fresh order, with a fresh optimiser; returns its size."""
    rows = data.clients[client]
    optimizer = new_optimizer(workload, model)
    for _ in range(workload.epochs):
        order = rows[torch.randperm(len(rows))]
        for batch in order.split(workload.batch):
            optimizer.zero_grad()
            workload.loss(model, data.x[batch], data.y[batch]).backward()
            optimizer.step()
    return len(rows)


@torch.inference_mode()
def held_out_loss(workload: Workload, data: Data, model: nn.Module, client: int) -> float:
    """The loss on what a client does not train on."""
    rows = data.held_out[client]
    return float(workload.loss(model, data.x[rows], data.y[rows]))


@torch.inference_mode()
def score(workload: Workload, model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Summed score: correct answers, or for the VAE the loss with beta = 1."""
    if workload.name == "beta-vae":
        return float(vae_loss(model, x, beta=1.0)) * len(x)
    return float((model(x).argmax(1) == y).sum())


def evaluate(workload: Workload, data: Data, model: nn.Module, batch: int = 1000) -> float:
    """Test accuracy, or the test loss of the VAE."""
    parts = zip(data.test_x.split(batch), data.test_y.split(batch), strict=True)
    return sum(score(workload, model, x, y) for x, y in parts) / len(data.test_y)


def flops_per_sample(workload: Workload, data: Data) -> float:
    """Forward and backward FLOPs of the matrix products and convolutions, per sample.

    They are linear in the batch, so one batch is counted and divided.
    """
    model = workload.model()
    batch = data.clients[0][: workload.batch]
    with FlopCounterMode(display=False) as counter:
        workload.loss(model, data.x[batch], data.y[batch]).backward()
    return counter.get_total_flops() / len(batch)


def samples_per_round(workload: Workload, data: Data) -> float:
    """Mean number of samples trained in a round (exact where all clients take part)."""
    samples = sum(len(rows) for rows in data.clients) * workload.epochs
    return samples * workload.per_round / len(data.clients)
