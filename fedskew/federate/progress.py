"""How far a stage is: what is written down after each round, and what the next begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedskew.federate.metrics import Row
from fedskew.federate.rounds import Choice
from fedskew.parts.aggregate import ServerState
from fedskew.types import Groups


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round, besides its scores."""

    stage: str
    round: int
    participants: int
    train_loss: float
    bytes_down: int
    bytes_up: int
    failures: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    update_norms: dict[str, float] = field(default_factory=dict)
    """By client whose update was used, how far it went from what it was sent."""


@dataclass(frozen=True)
class Progress:
    """Everything needed to go on after a round: the checkpoint."""

    stage: str
    round: int
    state: ServerState
    selected: Choice
    finished: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)
    """By client, the label of its newest private state."""
    kept_then: Mapping[str, str] = field(default_factory=dict)
    """The same after the selected round."""
    unless_last: Choice | None = None
    """The choice without this round, if it is scored only because it is the last."""


class Journal(Protocol):
    """Where a stage's rounds are written down; the run folder is one, tests use a list."""

    def resume(self, stage: str) -> Progress | None: ...

    def commit(self, progress: Progress, rows: Sequence[Row], record: RoundRecord) -> None: ...


@dataclass(frozen=True)
class Handed:
    """What a stage begins with: the server's memory of the one before, and what that cost.

    ``kept`` labels what the clients were left with, ``before`` what they were left with it from.
    """

    memory: Groups = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, str] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass
class Trained:
    """A round that is trained and aggregated; its models may still have to be scored."""

    round: int
    state: ServerState
    kept: Mapping[str, str]
    record: RoundRecord
    rows: list[Row] = field(default_factory=list)
