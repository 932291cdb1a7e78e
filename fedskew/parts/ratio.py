"""Estimators of α = p(x)/q_k(x), the density of a sample in all data over that at a client."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.models.made import BernoulliMade
from fedskew.parts.density import explained, made_of
from fedskew.parts.generative import in_parts
from fedskew.parts.objective import Bound

Estimator = Literal["likelihood", "sampled", "cross-fitted", "literal", "oracle", "equal"]
FOLDS, UNITS, EPOCHS, PATIENCE, LEAST_GAIN = 5, 100, 50, 5, 5e-3
"""Of classifiers: folds of the data, hidden units, most epochs, epochs without improvement."""
PLATEAU, MOST_EPOCHS = 1e-4, 200
"""Of the published classifier, whose loss falls slowly: the least gain that counts."""
HALVINGS = 30


@dataclass(frozen=True)
class Evidence:
    """What an estimator may use: a client's samples, the shared model and the client's own.

    ``truth`` is the log ratio itself, if the distribution of the data is known.
    """

    x: Tensor
    validation: Tensor
    everybody: Bound
    own: Bound
    rng: np.random.Generator
    truth: Tensor | None = None


class TooFew(Exception):
    """A client has too few samples for an estimate."""


@dataclass(frozen=True)
class Estimate:
    """log α of each training sample, and the power it was tempered with, if it was."""

    log_weights: Tensor
    power: float = math.nan


def likelihood(evidence: Evidence) -> Estimate:
    """The ratio of two exact MADE densities, tempered on the client's validation data.

    In many dimensions small errors of both models add up to large ones of the ratio.
    """
    if not len(evidence.validation):
        raise TooFew
    power = tempered(_log_ratio(evidence, evidence.validation))
    return Estimate(power * _log_ratio(evidence, evidence.x), power)


def _log_ratio(evidence: Evidence, x: Tensor) -> Tensor:
    """log p - log q of each sample, added up in double precision."""
    of_all, of_own = (explained(m, x).double() for m in (evidence.everybody, evidence.own))
    return (of_all - of_own).sum(dim=1)


def tempered(log_ratio: Tensor) -> float:
    """The power, at most 1, at which ratios of a client's held-out samples average 1.

    A true p/q averages exactly 1 over q. Ratios that are off average more, dominated by a few;
    a power below 1 (a temperature above) flattens them until they do not. If the shared model
    has a better likelihood of the client's samples than its own, the difference is unknown: 0.

    >>> tempered(torch.tensor([0.5, 1.5]).log()), tempered(torch.tensor([1.5, 1.0]).log())
    (1.0, 0.0)
    """
    if not _finite(log_ratio):
        return math.nan
    if float(log_ratio.mean()) >= 0:
        return 0.0
    low, high = 0.0, 1.0
    if _log_mean(log_ratio) > 0:
        # The logarithm of the mean is convex in the power, 0 at 0, and falls there.
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if _log_mean(middle * log_ratio) > 0 else (middle, high)
        return low
    return high


def _log_mean(logs: Tensor) -> float:
    return float(torch.logsumexp(logs, dim=0)) - math.log(len(logs))


def sampled(evidence: Evidence) -> Estimate:
    """Held-out odds of a classifier between the client's samples and draws from the shared model.

    A MADE of grey pixels draws black or white ones, so the client's grey pixels are also drawn:
    white with the probability of their value.
    """
    made = made_of(evidence.everybody)
    if not _finite(*evidence.everybody.tensors.values()):
        # Drawn bits would hide it: no number is below a probability that is NaN.
        return Estimate(torch.full((len(evidence.x),), math.nan))
    drawn = made_like(evidence.everybody).sample(len(evidence.x), evidence.rng).flatten(1)
    own = made.prepared(evidence.x).flatten(1)
    if isinstance(made, BernoulliMade):
        uniform = torch.from_numpy(evidence.rng.random(own.shape, dtype=np.float32))
        own = (uniform.to(own) < own).to(own)
    return Estimate(_held_out_odds(own, drawn, evidence.rng))


def cross_fitted(evidence: Evidence) -> Estimate:
    """The published estimator, but each sample is judged by a classifier that never saw it."""
    own, of_all = (_outputs(m, evidence.x) for m in (evidence.own, evidence.everybody))
    return Estimate(_held_out_odds(own, of_all, evidence.rng))


def literal(evidence: Evidence) -> Estimate:
    """The published estimator: a classifier between two models' outputs on the same samples.

    It is asked about the same outputs it was trained to call the client's own, and no sample of
    another client is used: for replication only.
    """
    own, of_all = (_outputs(m, evidence.x) for m in (evidence.own, evidence.everybody))
    if len(own) < 2:
        raise TooFew
    if not _finite(own, of_all):
        return Estimate(torch.full((len(own),), math.nan))
    judge = _judge(evidence.rng, solver="sgd", learning_rate_init=0.01, momentum=0.0)
    both, labels = np.concatenate([own.numpy(), of_all.numpy()]), np.repeat([0, 1], len(own))
    least, waited = math.inf, 0
    for _ in range(MOST_EPOCHS):
        judge.partial_fit(both, labels, classes=[0, 1])
        gained = judge.loss_ < least - PLATEAU
        least, waited = (judge.loss_, 0) if gained else (least, waited + 1)
        if waited == PATIENCE:
            break
    return Estimate(torch.from_numpy(_odds(judge, own.numpy())))


def oracle(evidence: Evidence) -> Estimate:
    """The truth, if it is known: what the best estimator could do."""
    assert evidence.truth is not None
    return Estimate(evidence.truth)


def equal(evidence: Evidence) -> Estimate:
    """All weights equal."""
    return Estimate(torch.zeros(len(evidence.x)))


ESTIMATORS: dict[str, Callable[[Evidence], Estimate]] = {
    "likelihood": likelihood, "sampled": sampled, "cross-fitted": cross_fitted,
    "literal": literal, "oracle": oracle, "equal": equal,
}  # fmt: skip


def made_like(model: Bound) -> Any:
    """A copy of the model that holds the tensors bound to it."""
    copied = copy.deepcopy(model.module)
    copied.load_state_dict(model.tensors)
    return copied


def _outputs(model: Bound, x: Tensor) -> Tensor:
    """What the published estimator uses: the mean of each input given the earlier ones."""
    made = made_of(model)
    with torch.no_grad():
        return torch.cat([made.means(model(part)) for part in in_parts(x)])


def _judge(rng: np.random.Generator, **settings: Any) -> Any:
    from sklearn.neural_network import MLPClassifier

    seed = int(rng.integers(2**31))
    return MLPClassifier((UNITS,), random_state=seed, alpha=0.0, **settings)


def _held_out_odds(own: Tensor, other: Tensor, rng: np.random.Generator) -> Tensor:
    """log P(other)/P(own) at the client's samples, each by a classifier fitted without it.

    All folds' classifiers stop after the epoch with the smallest loss on held-out samples.
    """
    a, b = own.numpy(), other.numpy()
    if len(a) < 2 * FOLDS:
        raise TooFew
    if not _finite(own, other):
        return torch.full((len(a),), math.nan)
    fold = rng.permutation(len(a)) % FOLDS
    judges = [_judge(rng, solver="adam") for _ in range(FOLDS)]
    best, least, waited = np.zeros(len(a)), math.inf, 0
    for _ in range(EPOCHS):
        odds, of_others = np.empty(len(a)), np.empty(len(a))
        for number, judge in enumerate(judges):
            kept, away = fold != number, fold == number
            labels = np.repeat([0, 1], int(kept.sum()))
            judge.partial_fit(np.concatenate([a[kept], b[kept]]), labels, classes=[0, 1])
            odds[away] = _odds(judge, a[away])
            of_others[away] = _odds(judge, b[away])
        loss = float(np.logaddexp(0.0, odds).mean() + np.logaddexp(0.0, -of_others).mean())
        if loss < least - LEAST_GAIN:
            best, least, waited = odds, loss, 0
        else:
            waited += 1
        if waited == PATIENCE:
            break
    return torch.from_numpy(best)


def _finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def _odds(judge: Any, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    log_probability = judge.predict_log_proba(rows)
    return np.asarray(log_probability[:, 1] - log_probability[:, 0], dtype=np.float64)
