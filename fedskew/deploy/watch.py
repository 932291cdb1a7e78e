"""How unsure a model is of samples without labels, and whether that is more than usual."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fedskew.deploy.adapt import NEWCOMER
from fedskew.deploy.model import has_global, run_model
from fedskew.deploy.newcomer import begun
from fedskew.errors import DataError, RunError
from fedskew.federate.confidence import choose_threshold
from fedskew.federate.holdings import Holdings
from fedskew.federate.metrics import MAIN
from fedskew.federate.scoring import score_samples
from fedskew.federate.tasks import ScoreTask
from fedskew.parts.report import PERSONAL, SHARED
from fedskew.parts.scores import classifies, decided
from fedskew.runs.experiment import Run
from fedskew.runs.folder import RunFolder
from fedskew.types import Groups, Tensors

CHANCE = 0.05
"""A client asks if it would be unsure this often by chance with a lower probability."""
WATCHED = 0.1
"""At least this share of validation samples counts as unsure: with a threshold that all of them
pass, a change would hardly show."""
REFERENCES = 50
"""How many clients' validation samples are used to find how sure models are."""


class Counted(NamedTuple):
    """How many of some samples a model was unsure of."""

    unsure: int
    samples: int

    @property
    def share(self) -> float:
        return self.unsure / self.samples


def is_more(now: Counted, then: Counted, chance: float = CHANCE) -> bool:
    """Whether a model is unsure significantly more often than before (Fisher's exact test).

    >>> is_more(Counted(9, 20), Counted(20, 200)), is_more(Counted(3, 20), Counted(20, 200))
    (True, False)
    """
    from scipy.stats import hypergeom

    unsure, samples = now.unsure + then.unsure, now.samples + then.samples
    return bool(hypergeom.sf(now.unsure - 1, samples, unsure, now.samples) < chance)


class Trust(NamedTuple):
    """The confidence below which to ask, and how often that happens on validation samples."""

    threshold: float
    usual: Counted


def trust_in(
    run: Run,
    holdings: Holdings,
    adapt: int | None,
    own: bool,
    threshold: float | None,
    accuracy: float,
) -> Trust:
    """How sure models like the client's are of validation samples, as they are or adapted.

    Seen clients stand in for the client: each starts as the client would, and adapts the same way.
    """
    holders = [client for client in holdings.federation.clients if len(client.validation)]
    places = np.linspace(0, len(holders) - 1, min(REFERENCES, len(holders))).round().astype(int)
    names = [holders[i].name for i in places]
    common = None if own else sent_to(run, holdings, NEWCOMER)
    models = {
        name: owned_by(run, name) if common is None else begun(run, holdings, name, common)
        for name in names
    }
    # As the run itself scores adapted models, bit for bit.
    number = int(run.result["selected_round"])
    tasks = [
        ScoreTask(name, number, models[name], "personal", ("validation",), adapt) for name in names
    ]
    private: dict[str, Groups] = {
        name: {PERSONAL: models[name], **({SHARED: {}} if own else {})} for name in names
    }
    results = score_samples(holdings, tasks, private)
    if not results:
        raise DataError(
            f"{run.path} has no validation samples, which show how sure its models are: set "
            "federation.validation for the run."
        )
    found = [each.values["validation"] for each in results if not each.error]
    if not found:
        raise RunError(f"no client's model could be adapted: {results[0].error}.")
    if not classifies(found[0]):
        raise RunError(f"{run.path} has no classifier, so there are no answers to be unsure of.")
    output, label = (torch.cat([values[name] for values in found]) for name in ("output", "label"))
    confidence, predicted = (answer.numpy() for answer in decided(output))
    if threshold is None:
        wished = choose_threshold(confidence, label.numpy() == predicted, accuracy)
        threshold = max(wished, float(np.quantile(confidence, WATCHED)))
    return Trust(threshold, Counted(int((confidence < threshold).sum()), len(confidence)))


def owned_by(run: Run, client: str) -> Tensors:
    return dict(run_model(run, client).state_dict())


def sent_to(run: Run, holdings: Holdings, client: str) -> Tensors:
    """What a newcomer gets: the global model, or the shared part and the rest untrained."""
    if has_global(run):
        return dict(run_model(run).state_dict())
    sent = RunFolder(run.path).selected(MAIN).state.sent_to(client)
    return {**holdings.plan.initial, **sent}
