"""What a model's answers for a client's samples are worth, each measure computed for one client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedskew.parts import scores

Floats = NDArray[np.float64]
BINS = 15
"""The calibration error looks at confidences in so many bins of equal width, (0, 1/15] first."""
LEAST = float(np.finfo(np.float32).eps)
"""A probability counts as at least this in the log loss, as in scikit-learn for single precision:
one sure and wrong answer would make the mean infinite."""


@dataclass(frozen=True)
class Answers:
    """What was asked of some samples, and what a model said of them.

    ``label`` has class numbers [n], 0 and 1 for each of several labels [n, L], or targets [n];
    ``output`` the probability of each class [n, C] or label [n, L], or a prediction [n]. Targets
    and predictions are in the units that results are told in. ``positive`` is the class that is
    looked for, of two.
    """

    label: NDArray[Any]
    output: Floats
    positive: int | None = None

    @cached_property
    def usable(self) -> bool:
        """Whether there are samples, and every answer is a number."""
        return bool(len(self.label) and np.isfinite(self.output).all())

    @cached_property
    def predicted(self) -> NDArray[Any]:
        """The likeliest class of each sample, or whether it has each label."""
        return self.output > 0.5 if self.label.ndim > 1 else self.output.argmax(axis=1)

    @cached_property
    def truth(self) -> NDArray[np.bool_]:
        """Whether each sample is of each class [n, C]: of two, of the positive one [n, 1]."""
        found: NDArray[np.bool_]
        if self.label.ndim > 1:
            found = self.label > 0.5
        else:
            places = np.arange(self.output.shape[1]) if self.positive is None else self.positive
            found = self.label[:, None] == places
        return found

    @cached_property
    def said(self) -> Floats:
        """The probabilities beside ``truth``."""
        return self.output if self.positive is None else self.output[:, [self.positive]]

    @cached_property
    def counts(self) -> tuple[Floats, Floats]:
        """By class: the right and the wrong samples [C, n] among the first in order of probability.

        Samples of equal probability come together: each position tells what its last one tells.
        """
        order = np.argsort(-self.said.T, axis=1, kind="stable")
        score = np.take_along_axis(self.said.T, order, axis=1)
        truth = np.take_along_axis(self.truth.T, order, axis=1)
        n = score.shape[1]
        ends = np.where(score[:, 1:] != score[:, :-1], np.arange(n - 1), n - 1)
        ends = np.hstack([ends, np.full((len(ends), 1), n - 1)])
        last = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
        right = np.take_along_axis(truth.cumsum(axis=1), last, axis=1).astype(np.float64)
        return right, last + 1 - right

    @cached_property
    def ranked(self) -> NDArray[np.bool_]:
        """By class: whether there are samples of it, and others."""
        return np.not_equal(self.truth.any(axis=0), self.truth.all(axis=0))


def right(answers: Answers) -> NDArray[np.bool_]:
    """Which samples' classes were found."""
    found: NDArray[np.bool_] = answers.predicted == answers.label
    return found


def all_right(answers: Answers) -> NDArray[np.bool_]:
    """Which samples' labels were all found."""
    found: NDArray[np.bool_] = (answers.predicted == answers.truth).all(axis=1)
    return found


def accuracy(answers: Answers) -> float:
    return float(right(answers).mean())


def recalls(answers: Answers) -> Floats:
    """The share found of each class that occurs."""
    classes = answers.output.shape[1]
    counts = np.bincount(answers.label, minlength=classes)
    hits = np.bincount(answers.label[answers.predicted == answers.label], minlength=classes)
    found: Floats = hits[counts > 0] / counts[counts > 0]
    return found


def f1(truth: NDArray[np.bool_], said: NDArray[np.bool_]) -> float:
    """Of all entries together; NaN where there is nothing to find."""
    hits, both = int((truth & said).sum()), int(truth.sum()) + int(said.sum())
    return 2.0 * hits / both if truth.any() else math.nan


def class_f1(answers: Answers) -> float:
    return scores.macro_f1(torch.from_numpy(answers.label), torch.from_numpy(answers.predicted))


def label_f1(answers: Answers) -> float:
    return scores.label_f1(torch.from_numpy(answers.truth), torch.from_numpy(answers.predicted))


def positive_f1(answers: Answers) -> float:
    return f1(answers.truth, (answers.predicted == answers.positive)[:, None])


def found_among(answers: Answers, wanted: bool) -> float:
    """The share of the positive (or of all other) samples that are told to be what they are."""
    rows = answers.truth[:, 0] == wanted
    right = answers.predicted[rows] == answers.label[rows]
    return float(right.mean()) if len(right) else math.nan


def auroc(answers: Answers) -> float:
    """Of each class against the others, the mean over those with samples of both kinds."""
    right, wrong = (counts[answers.ranked] for counts in answers.counts)
    if not len(right):
        return math.nan
    width = np.diff(wrong, axis=1, prepend=0.0)
    height = right - np.diff(right, axis=1, prepend=0.0) / 2.0
    return float(((width * height).sum(axis=1) / (right[:, -1] * wrong[:, -1])).mean())


def auprc(answers: Answers) -> float:
    """The average precision of each class, the mean over those with samples of both kinds."""
    right, wrong = (counts[answers.ranked] for counts in answers.counts)
    if not len(right):
        return math.nan
    gained = np.diff(right, axis=1, prepend=0.0)
    return float(((gained * right / (right + wrong)).sum(axis=1) / right[:, -1]).mean())


def log_loss(answers: Answers) -> float:
    chosen = np.take_along_axis(answers.output, answers.label[:, None], axis=1)
    return float(-np.log(np.clip(chosen, LEAST, 1.0)).mean())


def label_log_loss(answers: Answers) -> float:
    chosen = np.where(answers.truth, answers.output, 1.0 - answers.output)
    return float(-np.log(np.clip(chosen, LEAST, 1.0)).mean())


def brier(answers: Answers, over_classes: bool) -> float:
    """The squared error of the probabilities: their sum over all classes, or their mean."""
    squares = np.square(answers.said - answers.truth)
    return float(squares.sum(axis=1).mean() if over_classes else squares.mean())


def ece(answers: Answers) -> float:
    """How far confidence and accuracy are apart, over bins of confidence weighted by samples."""
    confidence = answers.output.max(axis=1)
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, confidence - (answers.predicted == answers.label), minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def errors(answers: Answers) -> Floats:
    return answers.label.astype(np.float64) - answers.output


def rmse(answers: Answers) -> float:
    return float(np.sqrt(np.square(errors(answers)).mean()))


def mae(answers: Answers) -> float:
    return float(np.abs(errors(answers)).mean())


def r2(answers: Answers) -> float:
    """The share of the targets' variance that is explained; NaN where they do not vary."""
    spread = float(np.square(answers.label - answers.label.mean(dtype=np.float64)).sum())
    return 1.0 - float(np.square(errors(answers)).sum()) / spread if spread > 0 else math.nan


def pinball(answers: Answers, quantile: float) -> float:
    short = errors(answers)
    return float(np.maximum(quantile * short, (quantile - 1.0) * short).mean())


def labels_right(answers: Answers) -> float:
    return float((answers.predicted == answers.truth).mean())
