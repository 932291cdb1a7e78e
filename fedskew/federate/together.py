"""What is measured of all clients' models together: only if all data are in one place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedskew.federate.holdings import Holdings
from fedskew.federate.metrics import CENTRAL, Measured
from fedskew.federate.private import States
from fedskew.federate.scoring import on_central_test, personal_model, told
from fedskew.federate.tasks import TogetherTask
from fedskew.parts.generative import from_prior
from fedskew.parts.objective import Bound, ranked_by
from fedskew.rng import stream
from fedskew.types import Tensors


def measured_together(holdings: Holdings, task: TogetherTask, private: States) -> list[Measured]:
    """What is measured once for generative models: their samples, and all models together.

    The clients' own models are scored on the central test set, one by one and, if the score is a
    loss, as an ensemble: every sample by the model with the smallest loss.
    """
    plan = holdings.plan
    found: list[Measured] = []
    if plan.has_global_model and task.generated:
        whole = {"": {**plan.initial, **task.shared}}
        found.append(Measured("global", CENTRAL, _judged(holdings, whole, task.generated)))
    if plan.has_personal_models:
        own = {
            client.name: personal_model(
                holdings, client.name, task.sent[client.name], private[client.name], task.broadcast
            )
            for client in holdings.federation.clients
        }
        values = on_central_test(holdings, own)
        for client, each in values.items():
            found.append(Measured("personal", client, told(holdings, each)))
        best: dict[str, float] = {}
        primary, higher_is_better = ranked_by(plan.recipe.objective, plan.problem)
        if not higher_is_better:
            losses = torch.stack([each[primary] for each in values.values()])
            best[f"ensemble_{primary}"] = float(losses.min(dim=0).values.mean())
        if task.generated:
            best |= _judged(holdings, own, task.generated)
        found.append(Measured("personal", CENTRAL, best))
    return found


def _judged(holdings: Holdings, models: Mapping[str, Tensors], count: int) -> dict[str, float]:
    """Scores of samples of some models, in proportion to the clients' shares of all data."""
    from fedskew.federate.quality import judged

    return judged(_drawn(holdings, models, count), holdings.federation, holdings.plan.seed)


def _drawn(holdings: Holdings, models: Mapping[str, Tensors], count: int) -> Tensor:
    plan = holdings.plan
    rng = stream(plan.seed, plan.stage, "generated")
    sizes = np.array([len(holdings.clients[n].train) if n else 1 for n in models], np.float64)
    shares = rng.multinomial(count, sizes / sizes.sum())
    module = plan.evaluation.here()
    return torch.cat(
        [
            from_prior(Bound(module, tensors), int(share), rng)
            for tensors, share in zip(models.values(), shares, strict=True)
            if share
        ]
    )
