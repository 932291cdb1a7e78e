"""The scores a suite can ask for: what each means, and which way it speaks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from fedskew.errors import unknown

Headline = Literal["clients", "central", "ood"]
"""The scores that have a curve over the rounds, of which a suite shows one."""
At = Literal["last", "selected", "left-out", "oracle"]
"""Of which round a score is: the rules of model selection, "validation" being "selected"."""
ROUNDS: dict[At, str] = {
    "last": "last round",
    "selected": "selected round",
    "left-out": "round with the best score of clients left out of training",
    "oracle": "best round by the score out of domain, which peeks at the test data",
}
"""What a page says of them."""

WEIGHTS: dict[str, str] = {"self-weight": "self_weight", "entropy": "row_entropy"}
"""Scores of the weights a client's model is made with, and the metric each is recorded as."""

CENTRAL_METRICS: dict[str, str] = {
    "reconstruction": "reconstruction", "legacy": "legacy", "ensemble": "ensemble_loss",
    "cas": "cas", "frechet": "frechet", "precision": "precision", "recall": "recall",
}  # fmt: skip
"""Scores on the central test set other than the main one, and the metric of each."""

SHARES: frozenset[str] = frozenset({"cas", "precision", "recall"})
"""Shares of a hundred whatever the task; more is better."""
LOSSES: frozenset[str] = frozenset(
    {"reconstruction", "own-reconstruction", "legacy", "ensemble", "frechet", "aurc", "epsilon"}
)
"""Less is better whatever the task."""
NEUTRAL: frozenset[str] = frozenset(
    {*WEIGHTS, "divergence", "follows", "weight-entropy", "kept", "parameters"}
)
"""Neither good nor bad: a claim that asks for more gets a positive difference."""
CHEAPER = "times-cheaper"
"""The score of an arm that has to be compared with a suite's baselines, see its [effort]."""
WHOLE_RUN: frozenset[str] = frozenset(
    {"rounds", "swing", "first", "follows", "aurc", "epsilon", "parameters", CHEAPER}
)
"""Scores of all rounds together, or of a fixed one."""

CURVES: dict[Headline, str] = {
    "clients": "the clients' mean test score",
    "central": "the global model's score on the central test set",
    "ood": "the score out of domain",
}
"""What the curve of a suite with this headline follows."""

MEANINGS: dict[str, str] = {
    "clients": "mean score over the clients' own test data",
    "worst": "score of the worst client on its own test data",
    "fine-tuned": "mean score over clients after fine-tuning",
    "validation": "mean score over the clients' validation data",
    "central": "score of the global model on the central test set",
    "ood": "score out of domain: mean over the unseen clients' test data or, where there are none, "
    "of the global model on the central test set",
    "rounds": "rounds until {curve} reaches {target}, fewer is better; a run "
    "that never reaches it counts one round more than it had",
    "swing": "mean change from one scored round to the next over the second half of the rounds, "
    "smaller is better",
    "self-weight": "weight a client has in its own model, mean over clients",
    "entropy": "entropy of the weights a client's model is made with (1 if all are equal, 0 if one "
    "has everything), mean over clients",
    "first": "score of the global model on the central test set after the first scored round",
    "own-central": "score of every client's own model on the central test set, mean over clients",
    "ensemble": "loss on the central test set if every sample is left to the client model that "
    "explains it best, smaller is better",
    "own-reconstruction": "reconstruction error of the main models on the clients' own test data, "
    "mean over clients, smaller is better",
    "reconstruction": "reconstruction error of the global model on the central test set, smaller "
    "is better",
    "legacy": "loss on the central test set as the source summed it up (batch means added up, by "
    "the number of samples), smaller is better",
    "cas": "classification accuracy score: how often a classifier is right about real samples that "
    "was trained on samples drawn from the model alone",
    "frechet": "Fréchet distance between features of samples drawn from the model and of real "
    "ones, smaller is better",
    "precision": "share of samples drawn from the model that lie among real ones",
    "recall": "share of real samples that lie among those drawn from the model",
    "divergence": "distance of clients' weights from their mean, mean over clients and entries",
    "follows": "rank correlation (Spearman) over the scored rounds between the clients' divergence "
    "and the change of the central score from the round before; positive if it rises where "
    "clients diverge",
    "weight-entropy": "entropy of the clients' weights in the global model (1 if all are equal, 0 "
    "if one has everything)",
    "kept": "number of clients with a weight above zero in the global model",
    "aurc": "area under the risk-coverage curve: the share of errors among the answers of the main "
    "models to all unseen clients' test data, averaged over answering only the surest up to "
    "answering all; selected round, not adapted, smaller is better",
    "epsilon": "privacy spent over the whole run (epsilon), smaller is better",
    "parameters": "number of trained parameters of the model",
    CHEAPER: "numbers a client of the cheapest baseline sends and receives until that baseline's "
    "best round, divided by those of this arm until {curve} reaches the best of any baseline; a "
    "run that never reaches it counts one round more than it had",
}
"""What a page says of the scores that have a name of their own."""


WHOM = {
    "seen": "the clients' own", "unseen": "the unseen clients'", "odd": "the odd clients' own",
}  # fmt: skip
METRICS = {"macro-f1": "macro_f1"}
EXAMPLES = (
    "unseen", "2-shot", "unseen-2-shot", "unseen-fine-tuned", "odd", "odd-2-shot",
    "odd-fine-tuned", "macro-f1", "unseen-macro-f1", "unseen-2-shot-macro-f1",
)  # fmt: skip
"""Of names that are put together, for whoever mistyped one."""

_PUT_TOGETHER = re.compile(
    r"(?P<on>unseen|odd)?"
    r"(?:(?:^|(?<=.)-)(?P<adapted>(?:0|[1-9]\d*)-shot|fine-tuned))?"
    r"(?:(?:^|(?<=.)-)(?P<metric>macro-f1))?"
)


@dataclass(frozen=True)
class ClientScore:
    """A mean over clients of their main models' test scores: on whom, adapted how, by what.

    ``adapted`` is "none", "fine-tuned" or so many samples a class, as in "2-shot"; ``metric`` is
    None for the main one.
    """

    on: str = "seen"
    adapted: str = "none"
    metric: str | None = None

    @property
    def meaning(self) -> str:
        measure = "score" if self.metric is None else "macro F1 score"
        after = {"none": "", "fine-tuned": ", after fine-tuning on their training data"}
        few = f", adapted on {self.adapted.partition('-')[0]} labelled sample(s) a class"
        return f"mean {measure} over {WHOM[self.on]} test data{after.get(self.adapted, few)}"


AS_TRAINED = ClientScore()


def client_score(name: str) -> ClientScore | None:
    """What a name that is put together asks for; None if it is not such a name.

    >>> client_score("unseen-2-shot")
    ClientScore(on='unseen', adapted='2-shot', metric=None)
    >>> client_score("unseen-0-shot") == client_score("unseen"), client_score("central")
    (True, None)
    """
    if name == "clients":
        return AS_TRAINED
    found = _PUT_TOGETHER.fullmatch(name)
    if not name or found is None:
        return None
    adapted = found["adapted"] or "none"
    metric = METRICS[found["metric"]] if found["metric"] else None
    return ClientScore(found["on"] or "seen", "none" if adapted == "0-shot" else adapted, metric)


def known_score(name: str) -> str:
    """The name, if there is such a score."""
    if name not in MEANINGS and client_score(name) is None:
        raise ValueError(str(unknown("score", name, (*MEANINGS, *EXAMPLES))).removesuffix("."))
    return name


ScoreName = Annotated[str, AfterValidator(known_score)]
"""A name of ``MEANINGS``, or one put together: [unseen-|odd-][K-shot|fine-tuned][-macro-f1]."""


def meaning(score: ScoreName) -> str:
    """What a page says of a score."""
    put_together = client_score(score)
    if score in MEANINGS or put_together is None:
        return MEANINGS[score]
    return put_together.meaning


def is_macro(score: ScoreName) -> bool:
    put_together = client_score(score)
    return put_together is not None and put_together.metric is not None


def in_points(score: ScoreName, main_is_share: bool) -> bool:
    """Whether a score is printed as points of a hundred."""
    if score in SHARES or is_macro(score):
        return True
    return main_is_share and score not in ("rounds", CHEAPER, *NEUTRAL, *LOSSES)
