"""The scores a suite can ask for: what each means, and which way it speaks."""

from __future__ import annotations

from fedskew.suites.entries import Headline, ScoreName

WEIGHTS: dict[ScoreName, str] = {"self-weight": "self_weight", "entropy": "row_entropy"}
"""Scores of the weights a client's model is made with, and the metric each is recorded as."""

CENTRAL_METRICS: dict[ScoreName, str] = {
    "reconstruction": "reconstruction", "legacy": "legacy", "ensemble": "ensemble_loss",
    "cas": "cas", "frechet": "frechet", "precision": "precision", "recall": "recall",
}  # fmt: skip
"""Scores on the central test set other than the main one, and the metric of each."""

SHARES: frozenset[ScoreName] = frozenset({"cas", "precision", "recall"})
"""Shares of a hundred whatever the task; more is better."""
LOSSES: frozenset[ScoreName] = frozenset(
    {"reconstruction", "own-reconstruction", "legacy", "ensemble", "frechet"}
)
"""Less is better whatever the task."""
NEUTRAL: frozenset[ScoreName] = frozenset(
    {*WEIGHTS, "divergence", "follows", "weight-entropy", "kept"}
)
"""Neither good nor bad: a claim that asks for more gets a positive difference."""
WHOLE_RUN: frozenset[ScoreName] = frozenset({"rounds", "swing", "first", "follows"})
"""Scores of all rounds together, or of a fixed one."""

CURVES: dict[Headline, str] = {
    "clients": "the clients' mean test score",
    "central": "the global model's score on the central test set",
}
"""What the curve of a suite with this headline follows."""

MEANINGS: dict[ScoreName, str] = {
    "clients": "mean score over the clients' own test data",
    "worst": "score of the worst client on its own test data",
    "fine-tuned": "mean score over clients after fine-tuning",
    "validation": "mean score over the clients' validation data",
    "central": "score of the global model on the central test set",
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
}
"""What a page says of each score."""


def in_points(score: ScoreName, main_is_share: bool) -> bool:
    """Whether a score is printed as points of a hundred."""
    if score in SHARES:
        return True
    return main_is_share and score not in ("rounds", *NEUTRAL, *LOSSES)
