"""What scoring hands over of each sample, and the scores of a client that come of it."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from fedskew.parts.losses import SQUARED, Loss, task_losses
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.types import Tensors

ANSWERS = ("label", "output")
"""What was asked of a sample and what a model said: not scores, but what these are made of."""
RANKED_BY = {
    "classification": ("accuracy", True),
    "binary": ("accuracy", True),
    "multi-label": ("macro_f1", True),
    "regression": ("rmse", False),
}
"""By problem, the metric that tables rank by, and whether more of it is better."""


def ranks_among(metrics: Collection[str]) -> tuple[str, bool]:
    """The same, by the metrics that a task's scores have.

    >>> ranks_among({"loss", "mae", "rmse"})
    ('rmse', False)
    """
    return next(each for each in (*RANKED_BY.values(), ("loss", False)) if each[0] in metrics)


def answered(outputs: Tensor, y: Tensor, loss: Loss = SQUARED) -> Tensors:
    """One value per sample and metric, from a model's outputs.

    ``label`` is ``y``. ``output`` is, of classes, the probability of each [N, classes]; of several
    labels that of each [N, labels]; of a number the prediction [N], in the unit of ``y``.
    """
    losses = task_losses(outputs, y, loss)
    if not y.is_floating_point():
        probabilities = outputs.softmax(dim=1)
        right = (probabilities.max(dim=1).indices == y).to(torch.float32)
        return {"loss": losses, "accuracy": right, "label": y, "output": probabilities}
    if y.ndim > 1:
        return {"loss": losses, "label": y, "output": outputs.sigmoid()}
    return {"loss": losses, "label": y, "output": outputs[:, 0]}


def classifies(values: Tensors) -> bool:
    """Whether these are the answers of a classifier: a probability of each class, and one right."""
    return "output" in values and values["output"].ndim == 2 and values["label"].ndim == 1


def decided(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of the likeliest class, in double precision, and its number."""
    confidence, predicted = probabilities.max(dim=1)
    return confidence.to(torch.float64), predicted


def scores_of(values: Tensors, problem: Problem = CLASSIFICATION) -> dict[str, float]:
    """A client's scores from one value per sample and metric: means, and what is no mean.

    Errors of a regression are in the target's own units.
    """
    scores = {m: float(found.mean()) for m, found in values.items() if m not in ANSWERS}
    if "output" not in values:
        return scores
    label, output = values["label"], values["output"]
    if problem.kind == "regression":
        return scores | _errors(problem.in_units(label), problem.in_units(output))
    if problem.kind == "multi-label":
        truth, said = label > 0.5, output > 0.5
        scores["label_accuracy"] = float((truth == said).double().mean())
        scores["macro_f1"] = label_f1(truth, said)
        return scores
    scores["macro_f1"] = macro_f1(label, decided(output)[1])
    return scores


def _errors(target: Tensor, predicted: Tensor) -> dict[str, float]:
    """RMSE, MAE and R²; the last is NaN where the target does not vary."""
    error = predicted.double() - target.double()
    spread = float((target.double() - target.double().mean()).square().mean())
    squares = float(error.square().mean())
    return {
        "rmse": squares**0.5,
        "mae": float(error.abs().mean()),
        "r2": 1.0 - squares / spread if spread > 0 else math.nan,
    }


def label_f1(truth: Tensor, said: Tensor) -> float:
    """The F1 of each label that occurs or is predicted, and their mean; NaN where none occurs."""
    if not bool(truth.any()):
        return math.nan
    hits = (truth & said).sum(dim=0)
    both = truth.sum(dim=0) + said.sum(dim=0)
    known = both > 0
    return float((2.0 * hits[known].double() / both[known]).mean())


def macro_f1(label: Tensor, predicted: Tensor) -> float:
    """The F1 of each class that occurs or is predicted, and their mean (micro F1 is accuracy).

    >>> macro_f1(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    0.6666666666666666
    """
    label, predicted = label.to(torch.int64), predicted.to(torch.int64)
    least = int(torch.maximum(label.max(), predicted.max())) + 1
    hits = torch.bincount(label[label == predicted], minlength=least)
    both = torch.bincount(label, minlength=least) + torch.bincount(predicted, minlength=least)
    known = both > 0
    return float((2.0 * hits[known].double() / both[known]).mean())
