"""The scores a suite can ask for: what each means, and which way it speaks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from fedskew.errors import unknown

Headline = Literal["clients", "central", "ood"]
"""The scores that have a curve over the rounds, of which a suite shows one."""
Rule = Literal["last", "selected", "environment", "left-out", "oracle"]
"""The rules of model selection, "validation" being "selected"."""
ROUNDS: dict[Rule, str] = {
    "last": "last round",
    "selected": "selected round",
    "environment": "round with the best score on an environment held out of training",
    "left-out": "round with the best score of clients left out of training",
    "oracle": "best round by the score out of domain, which peeks at the test data",
}
"""What a page says of them."""


def _known_round(at: object) -> object:
    if at in ROUNDS or (isinstance(at, int) and at >= 1):
        return at
    raise ValueError(str(unknown("round (nor a number from 1)", str(at), ROUNDS)).removesuffix("."))


At = Annotated[Rule | int, BeforeValidator(_known_round)]
"""Of which round a score is: the one a rule picks, or this one."""


def which_round(at: At) -> str:
    """What a page says of a round.

    >>> which_round("selected"), which_round(2)
    ('selected round', 'round 2')
    """
    return f"round {at}" if isinstance(at, int) else ROUNDS[at]


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
STRUCTURAL: frozenset[str] = frozenset({"parameters", "epsilon"})
"""Follow from the settings: that all seeds agree is no accident."""
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
METRICS = {"macro-f1": "macro_f1", "generic": "generic_accuracy"}
"""Shares other than the main metric that clients are scored by."""
MEASURES = {
    None: "score", "macro_f1": "macro F1 score",
    "generic_accuracy": "accuracy of the head all clients share, without their own,",
}  # fmt: skip
EXAMPLES = (
    "unseen", "2-shot", "unseen-2-shot", "unseen-fine-tuned", "odd", "odd-2-shot",
    "odd-fine-tuned", "macro-f1", "unseen-macro-f1", "unseen-2-shot-macro-f1", "generic",
)  # fmt: skip
"""Of names that are put together, for whoever mistyped one."""

_PUT_TOGETHER = re.compile(
    r"(?P<on>unseen|odd)?"
    r"(?:(?:^|(?<=.)-)(?P<adapted>(?:0|[1-9]\d*)-shot|fine-tuned))?"
    r"(?:(?:^|(?<=.)-)(?P<metric>macro-f1|generic))?"
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
        after = {"none": "", "fine-tuned": ", after fine-tuning on their training data"}
        few = f", adapted on {self.adapted.partition('-')[0]} labelled sample(s) a class"
        whose = f"{WHOM[self.on]} test data{after.get(self.adapted, few)}"
        return f"mean {MEASURES[self.metric]} over {whose}"


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


def how_adapted(label: str) -> str:
    """How a model was adapted, without for how long: "2-shot 50" is "2-shot".

    >>> [how_adapted(label) for label in ("none", "2-shot 50", "fine-tuned 5")]
    ['none', '2-shot', 'fine-tuned']
    """
    return label.partition(" ")[0]


def known_score(name: str) -> str:
    """The name, if there is such a score."""
    if name not in MEANINGS and client_score(name) is None:
        raise ValueError(str(unknown("score", name, (*MEANINGS, *EXAMPLES))).removesuffix("."))
    return name


ScoreName = Annotated[str, AfterValidator(known_score)]
"""A name of ``MEANINGS``, or one put together: whose, adapted how, by which metric, as in
"odd-2-shot-macro-f1"; each part may be left out."""


def meaning(score: ScoreName) -> str:
    """What a page says of a score."""
    put_together = client_score(score)
    if score in MEANINGS or put_together is None:
        return MEANINGS[score]
    return put_together.meaning


def has_own_metric(score: ScoreName) -> bool:
    """Whether it is a share by its name, whatever the main metric is."""
    put_together = client_score(score)
    return put_together is not None and put_together.metric is not None


def in_points(score: ScoreName, main_is_share: bool) -> bool:
    """Whether a score is printed as points of a hundred."""
    if score in SHARES or has_own_metric(score):
        return True
    return main_is_share and score not in ("rounds", CHEAPER, *NEUTRAL, *LOSSES)
