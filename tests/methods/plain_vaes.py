"""What plain autoencoders share."""

from __future__ import annotations

from plain_loops import Weights
from torch import Tensor

from fedskew.runs.experiment import Run

SEED, ROUNDS, EPOCHS, BATCH, LR = 7, 2, 2, 20, 1e-3
CLOSE = 5e-5
"""Adam divides by the size of a gradient, so that roundings of tiny ones show."""


def affine(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def final(done: Run, client: str | None = None) -> Weights:
    return dict(done.model(client, round="last").state_dict())
