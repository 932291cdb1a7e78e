"""What a server asks of clients and what they answer: all that is ever sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fedskew.engine.evaluate import Scores
from fedskew.federate.plan import ModelKind
from fedskew.parts.aggregate import Update
from fedskew.types import Groups, Tensors


@dataclass(frozen=True)
class TrainTask:
    """Train from what the server sent and answer with an update."""

    client: str
    round: int
    sent: Tensors
    broadcast: Groups = field(default_factory=dict)
    lr_factor: float = 1.0


@dataclass(frozen=True)
class DescribeTask:
    """Answer the plan's last reports about a finished model, without training it."""

    client: str
    round: int
    sent: Tensors
    broadcast: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class ScoreTask:
    """Score the global model, or the client's personal one, as it is or adapted.

    ``adapt`` is the position of the adaptation in the plan. With ``samples`` the client saves the
    model's answer for every sample, and tells every metric of its test samples.
    """

    client: str
    round: int
    sent: Tensors
    model: ModelKind
    splits: tuple[str, ...]
    adapt: int | None = None
    samples: bool = False
    broadcast: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class SaveTask:
    """Save the client's model of a round with its results, under a name."""

    client: str
    name: str
    round: int
    sent: Tensors
    broadcast: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class FindTask:
    """Return the numbers of the recipe's findings; ``total`` counts all training samples."""

    client: str
    total: int


@dataclass(frozen=True)
class Scored:
    """Scores by split, or why there are none.

    ``final`` has all metrics of the test samples, if they were asked for; one that is not defined
    on them is not in it.
    """

    client: str
    scores: dict[str, Scores]
    error: str | None = None
    final: Scores = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """Everything that one client is asked at once.

    First models are scored, then the client trains or describes, saves its own model, and returns
    its recipe's findings. ``since`` labels the private state it starts from (none: it has none yet)
    and ``until`` the one it ends with; states never change, so asking twice gives the same answer
    twice. Of older states only those in ``keep`` will be used again.
    """

    client: str
    scores: tuple[ScoreTask, ...] = ()
    train: TrainTask | None = None
    describe: DescribeTask | None = None
    save: SaveTask | None = None
    find: FindTask | None = None
    since: str = ""
    until: str = ""
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The result of an ask: scores in their order, an update, or why there is none.

    ``label`` names the client's newest private state, ``found`` are the numbers of findings.
    """

    client: str
    scored: tuple[Scored, ...] = ()
    update: Update | None = None
    loss: float = math.nan
    error: str | None = None
    label: str = ""
    found: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class TogetherTask:
    """What is measured of all clients' models together, if their data are in one place.

    ``shared`` is the global model and ``sent`` what each client was sent, ``since`` labels their
    private states; ``generated`` samples are drawn from a generative model.
    """

    round: int
    shared: Tensors
    sent: Mapping[str, Tensors]
    since: Mapping[str, str]
    broadcast: Groups
    generated: int


def not_finite(*groups: Tensors) -> str | None:
    """The name of a tensor that holds a NaN or an infinity, if there is one."""
    for group in groups:
        for name, tensor in group.items():
            # Any NaN or infinity shows in the sum, which needs one pass and no copy.
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor.sum())):
                return name
    return None
