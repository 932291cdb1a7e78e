"""What the server has before the first round, and what a client starts from in every one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from fedskew.engine.streams import torch_seed
from fedskew.models import redrawn
from fedskew.parts.report import SHARED
from fedskew.parts.select import NOTHING, Select
from fedskew.types import Groups, Tensors


@dataclass(frozen=True)
class Opening:
    """What the server has before the first round.

    ``shared`` is what will be sent of the initial model, statistics included; ``clients`` names
    all who may train, and ``seed`` is the server's own.
    """

    module: nn.Module
    shared: Tensors
    clients: Sequence[str] = ()
    seed: int = 0

    @property
    def parameters(self) -> Tensors:
        """What is shared without statistics."""
        known = dict(self.module.named_parameters())
        return {name: t for name, t in self.shared.items() if name in known}

    def another(self, number: int) -> Tensors:
        """What would be sent of a further initial model: every number draws its own."""
        drawn = redrawn(self.module, torch_seed(self.seed, number))
        return {name: drawn[name].to(t.device) for name, t in self.shared.items()}


@dataclass(frozen=True)
class Start:
    """What a client has when it is asked to train or to be scored.

    ``initial`` is the model before anybody trained, ``sent`` what the server sent of it,
    ``private`` and ``broadcast`` are the client's own groups and the server's. ``loss`` gives the
    mean loss of a whole model on the client's training data, of which there are ``samples``;
    ``seed`` is the client's own, the same in every round. ``trains`` says that it is about to
    train and not to be scored.
    """

    module: nn.Module
    initial: Tensors
    sent: Tensors
    private: Groups
    broadcast: Groups
    seed: int
    loss: Callable[[Tensors], float]
    samples: int
    trains: bool

    @property
    def received(self) -> Tensors:
        """What was sent, completed by what the client keeps to itself."""
        return {**self.initial, **self.sent, **self.private.get(SHARED, {})}


@dataclass(frozen=True)
class Begun:
    """The whole model to train or to score, and what was found out on the way.

    Reports see ``found`` (``Finished.found``) and may send it; by itself it does not travel.
    """

    model: Tensors
    found: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class Begin:
    """Starts from what was sent, completed by what the client keeps: the base of all others."""

    personal = False
    """Whether clients that were sent the same may start from different models."""

    @property
    def keeps(self) -> Select:
        """Entries that are shared, but that a client goes on with as it last had them."""
        return NOTHING

    def begin(self, start: Start) -> Begun:
        """What a client trains from, or is scored with, also one that was never seen before."""
        return Begun(start.received)


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

    def begin(self, start: Start) -> Begun:
        if self.apart and start.trains and SHARED not in start.private:
            return Begun(redrawn(start.module, start.seed))
        return super().begin(start)
