"""What a client starts from, in training and in scoring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fedskew.models import redrawn
from fedskew.parts.objective import Tensors
from fedskew.parts.report import SHARED, Groups
from fedskew.parts.select import NOTHING, Select


@dataclass(frozen=True)
class Start:
    """What a client has when it is asked to train or to be scored.

    ``initial`` is the model before anybody trained, ``sent`` what the server sent of it,
    ``private`` and ``broadcast`` are the client's own groups and the server's. ``loss`` gives the
    mean loss of a whole model on the client's training data, ``seed`` is the client's own, the
    same in every round. ``trains`` says that it is about to train and not to be scored.
    """

    module: nn.Module
    initial: Tensors
    sent: Tensors
    private: Groups
    broadcast: Groups
    seed: int
    loss: Callable[[Tensors], float]
    trains: bool

    @property
    def received(self) -> Tensors:
        """What was sent, completed by what the client keeps to itself."""
        return {**self.initial, **self.sent, **self.private.get(SHARED, {})}


@dataclass(frozen=True)
class Begin:
    """Starts from what was sent, completed by what the client keeps: the base of all others."""

    personal = False
    """Whether clients that were sent the same may start from different models."""

    @property
    def keeps(self) -> Select:
        """Entries that are shared, but that a client goes on with as it last had them."""
        return NOTHING

    def model(self, start: Start) -> Tensors:
        """The whole model to train or to score."""
        return start.received


@dataclass(frozen=True)
class Own(Begin):
    """Goes on with its own entries although they are shared; newcomers get the server's.

    With ``apart`` clients that keep everything begin with models drawn at random, each its own.
    """

    entries: Select
    apart: bool = False
    personal = True

    @property
    def keeps(self) -> Select:
        return self.entries

    def model(self, start: Start) -> Tensors:
        if self.apart and start.trains and SHARED not in start.private:
            return redrawn(start.module, start.seed)
        return start.received
