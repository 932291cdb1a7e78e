"""Training density estimators, and keeping a client's best one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedskew.errors import ConfigError
from fedskew.models.made import BernoulliMade, Made
from fedskew.models.registry import MADE
from fedskew.parts.generative import in_parts
from fedskew.parts.objective import Batch, Bound, Context, Objective
from fedskew.parts.report import Finished, Report, Reported
from fedskew.types import Tensors

if TYPE_CHECKING:
    from fedskew.federate.roster import Roster

BEST, BEST_LOSS = "best_density", "best_density_loss"


@dataclass(frozen=True)
class DensityLoss(Objective):
    """The negative log-density of a sample under a MADE, in nats."""

    needs = MADE
    of_numbers = True
    primary = "loss"
    higher_is_better = False

    def trained_by(self, method: str) -> dict[str, Any]:
        return {"name": "made", "base": method}

    def check(self, module: nn.Module, roster: Roster, batch_size: int) -> None:
        if isinstance(module, BernoulliMade) and not within_unit(roster):
            raise ConfigError(
                f"model 'made' needs values in [0, 1], but these span {roster.low:g} to "
                f"{roster.high:g}: set "
                "federation.normalise = 'unit', or choose 'gaussian-made'."
            )

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        return batch.mean(-log_conditionals(model, batch.x).sum(dim=1))

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        return {"loss": -log_conditionals(model, batch.x).sum(dim=1)}


def within_unit(roster: Roster) -> bool:
    """Whether all values lie in 0..1, as a MADE for binary or grey inputs needs."""
    return roster.low >= 0 and roster.high <= 1


def log_conditionals(model: Bound, x: Tensor) -> Tensor:
    """log p(x_d | earlier inputs) of each sample and input."""
    return made_of(model).log_conditionals(model(x), x)


def made_of(model: Bound) -> Made:
    assert isinstance(model.module, Made)
    return model.module


def explained(model: Bound, x: Tensor) -> Tensor:
    """The same for many samples, in portions, without gradients."""
    with torch.no_grad():
        return torch.cat([log_conditionals(model, part) for part in in_parts(x)])


@dataclass(frozen=True)
class KeepBest(Report):
    """Keeps the client's model of the round with the best likelihood of its validation data.

    A client without validation data keeps its newest model. Nothing is sent.
    """

    tells = ""

    def report(self, finished: Finished) -> Reported:
        x, _ = finished.samples("validation")
        if not len(x):
            return Reported(keeps={BEST: dict(finished.trained)})
        nats = -explained(finished.model(), x).sum(dim=1).mean().double()
        before = finished.private.get(BEST_LOSS)
        if before is not None and not nats < before["nats"]:
            return Reported()
        return Reported(keeps={BEST: dict(finished.trained), BEST_LOSS: {"nats": nats}})
