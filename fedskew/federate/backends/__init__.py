"""Backends, which carry asks to clients: in this process, or on real sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from fedskew.federate.metrics import Measured
from fedskew.federate.plan import Plan
from fedskew.federate.roster import Roster
from fedskew.federate.tasks import Answer, Ask, TogetherTask


class Backend(Protocol):
    """Carries asks to clients and brings back one answer to each, in the same order.

    Data and private state live behind the backend: the server sees a roster and answers. A lost
    answer can be asked for again, because private state is labelled and never changes.
    """

    roster: Roster
    pools: bool
    """Whether all data are in one place, so that they can be used together."""
    apart: bool
    """Whether clients keep private states and results to themselves, and not in the run folder."""
    rides: bool
    """Whether a message costs so much that scores of a round come with the answers of the next."""

    def begin(self, plan: Plan, made_up: Tensor | None = None) -> None:
        """Start a stage; ``made_up`` are samples the server made up to train on itself."""
        ...

    def exchange(self, asks: Sequence[Ask]) -> list[Answer]: ...

    def together(self, task: TogetherTask) -> list[Measured]:
        """What can only be measured if all data are in one place (see ``pools``)."""
        ...
