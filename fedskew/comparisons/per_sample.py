"""A client's gain sample by sample: how far chance in its test samples could have moved it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedskew.federate.predictions import PREDICTIONS, load_answers, probabilities
from fedskew.parts.measures import Answers, Floats
from fedskew.parts.metrics import find_metric
from fedskew.runs.experiment import Run
from fedskew.runs.preparation import FILE, load_preparation

GROUPS = 40
"""A metric that is no share of right samples is measured again without each of so many groups."""


@dataclass(frozen=True, eq=False)
class Answered:
    """A model's answers for one client's test samples.

    ``right`` says which are right, where that is what the metric counts; otherwise there are the
    ``answers`` and the function that measures them.
    """

    label: NDArray[np.generic]
    right: NDArray[np.bool_] | None
    answers: Answers | None = None
    measure: Callable[[Answers], float] | None = None

    def spread(self) -> Floats:
        """Numbers, one for each sample or group of samples, whose mean is the score.

        Their standard error is that of the score: right or wrong as 1 or 0, and of other metrics
        the pseudo-values of the delete-a-group jackknife.
        """
        if self.right is not None:
            return self.right.astype(np.float64)
        answers, measure = self.answers, self.measure
        assert answers is not None
        assert measure is not None
        groups = min(len(self.label), GROUPS)
        group = np.arange(len(self.label)) % groups
        without = [measure(_only(answers, group != g)) for g in range(groups)]
        return groups * measure(answers) - (groups - 1) * np.array(without)


@dataclass(frozen=True, eq=False)
class Differences:
    """The gain of one model over another by sample or group; ``counted``: of right samples."""

    values: Floats
    counted: bool


def answered(run: Run, metric: str, adapted: str = "none") -> dict[str, Answered]:
    """By seen client, the answers of the selected round; nothing where they are not stored.

    Those of models as trained, or ``adapted`` in the way of this name.
    """
    known = find_metric(metric)
    if known is None or not all((run.path / name).is_file() for name in (PREDICTIONS, FILE)):
        return {}
    prepared = load_preparation(run.path)
    problem, stored = prepared.problem, load_answers(run.path)
    said = stored["predicted"] if problem.kind == "regression" else probabilities(stored)
    if said is None or problem.kind not in known.of:
        return {}
    mine = (stored["split"] == "test") & (stored["on"] == "seen") & (stored["adapted"] == adapted)
    positive = problem.positive_place(prepared.class_names) if problem.kind == "binary" else None
    of_all = Answers(stored["label"][mine], said[mine].astype(np.float64), positive)
    judge = known.right.get(problem.kind)
    right = None if judge is None else judge(of_all)
    names, owner = np.unique(stored["client"][mine], return_inverse=True)
    ends = np.cumsum(np.bincount(owner, minlength=len(names)))
    of_each = np.split(np.argsort(owner, kind="stable"), ends[:-1])
    measure = partial(known.value, problem.kind)
    return {
        name: Answered(of_all.label[rows], right[rows])
        if right is not None
        else Answered(of_all.label[rows], None, _only(of_all, rows), measure)
        for name, rows in zip(names.tolist(), of_each, strict=True)
    }


def differences(ours: Answered, alone: Answered, higher: bool) -> Differences | None:
    """By how much ``ours`` is better; None of fewer than two samples, or of others than alone.

    Neither where the metric is not defined without some of the samples.
    """
    if len(ours.label) < 2 or not np.array_equal(ours.label, alone.label):
        return None
    values = ours.spread() - alone.spread()
    if not np.isfinite(values).all():
        return None
    return Differences(values if higher else -values, ours.right is not None)


def _only(answers: Answers, rows: NDArray[np.generic]) -> Answers:
    return Answers(answers.label[rows], answers.output[rows], answers.positive)
