"""Two clients with one weight, which the tests of law 6 work out with pencil and paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Run, make_holdings, run
from torch import Tensor, nn

from fedskew.data.federation import Client, Federation
from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.models.registry import Classifier
from fedskew.parts.objective import Batch, Bound, Context, Objective
from fedskew.types import Tensors


@dataclass(frozen=True)
class HalfSquare(Objective):
    """(f(x) - y)²/2, the label taken as a number."""

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        return batch.mean((model(batch.x)[:, 0] - batch.y) ** 2 / 2)

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        return {"accuracy": model(batch.x)[:, 0]}


def two_clients(x: list[float], y: list[int], ann: int) -> Federation:
    rows = np.arange(len(y))
    return Federation(
        name="by hand",
        x=torch.tensor(x).reshape(-1, 1),
        y=torch.tensor(y),
        class_names=("0", "1", "2", "3", "4"),
        clients=(Client("ann", rows[:ann]), Client("bob", rows[ann:])),
    )


def worked(
    name: str,
    knobs: dict[str, Any] | None = None,
    rounds: int = 1,
    batch_size: int = 4,
    momentum: float = 0.0,
) -> Run:
    """The run of the page above: one weight from 0, two epochs a round."""
    model = Classifier(nn.Identity(), nn.Linear(1, 1, bias=False))
    nn.init.zeros_(next(model.head.parameters()))
    recipe = replace(find(name).recipe(**(knobs or {})), objective=HalfSquare())
    settings = Settings(Optimiser("sgd", 0.5, momentum), epochs=2, batch_size=batch_size)
    federation = two_clients([1.0] * 6, [4, 4, 1, 1, 1, 1], ann=2)
    return run(make_holdings(recipe, federation, model, settings), rounds)


def number(tensors: Tensors, name: str = "head.weight") -> float:
    return float(tensors[name].reshape(()))


def is_(value: float | list[float]) -> Any:
    return pytest.approx(value, abs=1e-6)


@pytest.fixture(autouse=True)
def noise_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training draws a one wherever it would draw from N(0, 1)."""

    def ones(work: Any, kind: str, steps: int, shape: tuple[int, ...]) -> Any:
        return np.ones((steps, *shape), dtype=np.float32)

    monkeypatch.setattr("fedskew.engine.batches._draw", ones)
