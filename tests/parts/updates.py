"""Updates of three clients and how alike they are, which tests of mixing work out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedskew.parts.aggregate import ServerState, Update


def near(values: Any) -> Any:
    return pytest.approx(values, abs=1e-6)


def update(client: str, value: float, fingerprint: list[float] | None = None) -> Update:
    reports = {} if fingerprint is None else {"fingerprint": {"v": torch.tensor(fingerprint)}}
    tensors = {"w": torch.tensor([value, -value]), "n": torch.tensor(int(value))}
    return Update(client, tensors, size=1, steps=1, reports=reports)


def start() -> ServerState:
    return ServerState({"w": torch.zeros(2), "n": torch.tensor(0)})


THREE = [
    update("a", 1.0, [1.0, 0.0]),
    update("b", 4.0, [0.6, 0.8]),
    update("c", 10.0, [0.0, -1.0]),
]
"""Products: a·b = 0.6, a·c = 0, b·c = -0.8, which counts as 0."""


def first(state: ServerState, client: str) -> float:
    return float(state.personal[client]["w"][0])
