"""What the server has before the first round, and what a client starts from in each round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from fedskew.models import redrawn
from fedskew.parts.report import SHARED
from fedskew.parts.select import NOTHING, Select
from fedskew.rng import torch_seed
from fedskew.types import Groups, Tensors


@dataclass(frozen=True)
class Opening:
    """What the server has before the first round.

    ``shared`` is the part of the initial model that will be sent, with its statistics; ``clients``
    names all clients that may train, and ``seed`` is the server's own.
    """

    module: nn.Module
    shared: Tensors
    clients: Sequence[str] = ()
    seed: int = 0

    @property
    def parameters(self) -> Tensors:
        """The shared entries without statistics."""
        known = dict(self.module.named_parameters())
        return {name: t for name, t in self.shared.items() if name in known}

    def another(self, number: int) -> Tensors:
        """The shared part of a further initial model; each number gives a different one."""
        drawn = redrawn(self.module, torch_seed(self.seed, number))
        return {name: drawn[name].to(t.device) for name, t in self.shared.items()}


@dataclass(frozen=True)
class Start:
    """What a client has when it is asked to train or to be scored.

    ``initial`` is the model before any training, ``sent`` the part that the server sent,
    ``private`` and ``broadcast`` are the client's own groups and the server's. ``loss`` gives the
    mean loss of a whole model on the client's training data, of which there are ``samples``;
    ``seed`` is the client's own, the same in every round. ``trains`` says that the client is about
    to train and not to be scored.
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
        """What was sent, completed by the client's private entries."""
        return {**self.initial, **self.sent, **self.private.get(SHARED, {})}


@dataclass(frozen=True)
class Begun:
    """The whole model to train or to score, and what was found when choosing it.

    Reports see ``found`` (``Finished.found``) and may send it; otherwise it is not sent.
    """

    model: Tensors
    found: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class Begin:
    """Starts from what was sent, completed by what the client keeps; base of all others."""

    personal = False
    """Whether clients that were sent the same tensors may start from different models."""

    @property
    def keeps(self) -> Select:
        """Shared entries that a client nevertheless continues with as it last had them."""
        return NOTHING

    def begin(self, start: Start) -> Begun:
        """The model a client trains from or is scored with; unseen clients too."""
        return Begun(start.received)


@dataclass(frozen=True)
class Own(Begin):
    """Continues with the client's own entries although they are shared; newcomers get the server's.

    With ``apart``, clients that keep everything start from different random models.
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
