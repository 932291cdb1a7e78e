"""Who carries tasks to clients: this process, or real nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedskew.client import DescribeTask, Outcome, Scored, ScoreTask, TrainTask


class Backend(Protocol):
    """Carries tasks to clients and brings back one answer a task, in the same order.

    Private state lives behind the backend: the server never sees it, only asks that it be kept.
    ``keep`` makes the state of this moment durable and returns how to find it again.
    """

    def train(self, tasks: Sequence[TrainTask]) -> list[Outcome]: ...

    def describe(self, tasks: Sequence[DescribeTask]) -> list[Outcome]: ...

    def score(self, tasks: Sequence[ScoreTask]) -> list[Scored]: ...

    def keep(self, label: str) -> dict[str, str]: ...

    def restore(self, kept: dict[str, str]) -> None: ...
