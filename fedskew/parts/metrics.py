"""The table of metrics: names, what they mean, and for which problems.

Each is computed for one client. Where a metric is not defined (no ranking without two kinds of
samples, no R² of one target) it is NaN, and such a client is left out of the mean. That depends on
the labels alone, so the same clients count in every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fedskew.errors import ConfigError, unknown
from fedskew.parts.measures import (
    BINS,
    Answers,
    accuracy,
    all_right,
    auprc,
    auroc,
    brier,
    class_f1,
    ece,
    f1,
    found_among,
    label_f1,
    label_log_loss,
    labels_right,
    log_loss,
    mae,
    pinball,
    positive_f1,
    r2,
    recalls,
    right,
    rmse,
)
from fedskew.problem import Problem
from fedskew.types import Tensors

LOSS = "loss"
"""What the method itself minimises, which every method has."""
POSITIVE, BOTH = "positive samples", "samples of more than one kind"


Measure = Callable[[Answers], float]


@dataclass(frozen=True)
class Metric:
    """A number that tells how good answers are; ``of`` has the way to compute it by problem."""

    name: str
    text: str
    of: Mapping[str, Measure]
    higher_is_better: bool = True
    share: bool = True
    """Whether it lies in 0..1."""
    needs: str = ""
    """What a client's samples must have for it to be defined; none: it always is."""
    right: Mapping[str, Callable[[Answers], NDArray[np.bool_]]] = field(default_factory=dict)
    """Which samples are right, by problem, where it is the share of those."""

    def value(self, kind: str, answers: Answers) -> float:
        """What it is for one client; NaN where it is not defined, or an answer is no number."""
        return float(self.of[kind](answers)) if answers.usable else math.nan


def _classes(measure: Measure) -> dict[str, Measure]:
    return {"classification": measure, "binary": measure}


def _everywhere(of_classes: Measure, of_labels: Measure) -> dict[str, Measure]:
    return {**_classes(of_classes), "multi-label": of_labels}


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "share of samples that are right", _classes(accuracy),
               right={"classification": right, "binary": right}),
        Metric("label_accuracy", "share of labels that are right", {"multi-label": labels_right}),
        Metric("balanced_accuracy", "share found of each class that occurs, the mean",
               _classes(lambda a: float(recalls(a).mean()))),
        Metric("macro_f1", "F1 of each class or label that occurs or is said, the mean",
               _everywhere(class_f1, label_f1), needs=POSITIVE),
        Metric("micro_f1", "F1 of all labels together",
               {"multi-label": lambda a: f1(a.truth, a.predicted)}, needs=POSITIVE),
        Metric("f1", "F1 of the positive class", {"binary": positive_f1}, needs=POSITIVE),
        Metric("sensitivity", "share found of the positive samples",
               {"binary": partial(found_among, wanted=True)}, needs=POSITIVE),
        Metric("specificity", "share of the other samples that is not taken for positive",
               {"binary": partial(found_among, wanted=False)},
               needs="samples that are not positive"),
        Metric("auroc", "area under the ROC curve: of the positive class, else of each against "
               "the others, the mean", _everywhere(auroc, auroc), needs=BOTH),
        Metric("auprc", "average precision: of the positive class, else of each, the mean",
               _everywhere(auprc, auprc), needs=BOTH),
        Metric("subset_accuracy", "share of samples with all labels right",
               {"multi-label": lambda a: float(all_right(a).mean())},
               right={"multi-label": all_right}),
        Metric("hamming", "share of labels that are wrong",
               {"multi-label": lambda a: 1.0 - labels_right(a)}, higher_is_better=False),
        Metric("log_loss", "minus the logarithm of what the right answer was given, the mean",
               _everywhere(log_loss, label_log_loss), higher_is_better=False, share=False),
        Metric("brier", "squared error of probabilities: of the positive class or of labels in "
               "0..1, of several classes their sum in 0..2",
               {"classification": partial(brier, over_classes=True),
                "binary": partial(brier, over_classes=False),
                "multi-label": partial(brier, over_classes=False)},
               higher_is_better=False, share=False),
        Metric("ece", f"gap between confidence and accuracy over {BINS} bins of equal width",
               _classes(ece), higher_is_better=False),
        Metric("rmse", "root of the mean squared error, in the target's units",
               {"regression": rmse}, higher_is_better=False, share=False),
        Metric("mae", "mean absolute error, in the target's units",
               {"regression": mae}, higher_is_better=False, share=False),
        Metric("r2", "share of the target's variance that is explained",
               {"regression": r2}, share=False, needs="targets that differ"),
        Metric("pinball", "loss of a quantile in the target's units: the median's, or "
               "'pinball@0.9'", {"regression": partial(pinball, quantile=0.5)},
               higher_is_better=False, share=False),
    )
}  # fmt: skip
"""All metrics by name; ``evaluate.metric`` may also be "loss", the method's own."""


def fitting(problem: Problem) -> dict[str, Metric]:
    """The metrics of a problem, by name."""
    return {name: metric for name, metric in METRICS.items() if problem.kind in metric.of}


def check_metric(name: str) -> None:
    """Refuse a metric that does not exist."""
    if name != LOSS:
        _known(name)


def metric_for(name: str, problem: Problem) -> Metric:
    """A metric by name, if it says anything about a problem.

    >>> metric_for("pinball@0.9", Problem("regression")).higher_is_better
    False
    """
    metric = _known(name)
    if problem.kind not in metric.of:
        raise ConfigError(
            f"evaluate.metric = {name!r} does not fit {problem.kind}: choose from "
            f"{', '.join([*fitting(problem), LOSS])}."
        )
    return metric


def find_metric(name: str) -> Metric | None:
    """A metric by name; none for one that is a method's own, like its loss."""
    return _known(name) if name.partition("@")[0] in METRICS else None


def answers_of(values: Tensors, problem: Problem, class_names: Sequence[str]) -> Answers | None:
    """What scoring handed over of each sample, in the units results are told in; None if nothing.

    ``class_names`` are those of the federation.
    """
    if "output" not in values:
        return None
    label, output = values["label"], values["output"].double()
    if problem.kind == "regression":
        label, output = problem.in_units(label.double()), problem.in_units(output)
    elif problem.classifies:
        label = label.to(torch.int64)
    positive = problem.positive_place(class_names) if problem.kind == "binary" else None
    return Answers(label.numpy(), output.numpy(), positive)


def measured(answers: Answers, problem: Problem, *more: str) -> dict[str, float]:
    """All metrics that are defined on some answers, and ``more`` by name."""
    known = fitting(problem) | {name: metric_for(name, problem) for name in more if name != LOSS}
    found = {name: metric.value(problem.kind, answers) for name, metric in known.items()}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def rises(name: str, otherwise: bool) -> bool:
    """Whether more of a metric is better; ``otherwise`` is the answer for one not in the table."""
    if name == LOSS:
        return False
    known = METRICS.get(name.partition("@")[0])
    return otherwise if known is None else known.higher_is_better


def is_share(name: str) -> bool:
    """Whether a metric lies in 0..1."""
    known = METRICS.get(name)
    return known is not None and known.share


def needs(name: str) -> str:
    """What a client's samples must have for a metric to be defined; nothing for most."""
    known = METRICS.get(name)
    return "" if known is None else known.needs


def _known(name: str) -> Metric:
    base, at, text = name.partition("@")
    if base not in METRICS:
        raise unknown("evaluate.metric", name, [*METRICS, LOSS])
    if not at:
        return METRICS[base]
    try:
        quantile = float(text)
    except ValueError:
        quantile = math.nan
    if base != "pinball" or not 0.0 < quantile < 1.0:
        raise ConfigError(
            f"evaluate.metric = {name!r} is no metric: only 'pinball' has a quantile, between 0 "
            "and 1, as in 'pinball@0.9'."
        )
    measure = partial(pinball, quantile=quantile)
    return replace(METRICS[base], name=name, of={"regression": measure})
