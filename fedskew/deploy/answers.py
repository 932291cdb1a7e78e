"""What a model answers, of whatever kind: classes, several labels, or numbers; and in counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedskew.data.profile import Counted, counted, furthest
from fedskew.data.tables.kinds import Column
from fedskew.federate.predictions import load_answers, probabilities
from fedskew.problem import Problem
from fedskew.types import Indices

ANSWER, CONFIDENCE, RIGHT, ERROR = "answer", "confidence", "right", "error"
HALF = 0.5
"""A label is given from this probability on."""


def in_words(problem: Problem, logits: Tensor) -> Tensor:
    """What a model's outputs say: probabilities [N, classes or labels], or numbers [N] in the
    target's units.
    """
    if problem.classifies:
        return logits.softmax(dim=1)
    if problem.kind == "multi-label":
        return logits.sigmoid()
    return problem.in_units(logits[:, 0])


def confidence_of(problem: Problem, said: NDArray[Any]) -> NDArray[np.float32]:
    """The probability of the answer: of the class, or of the label that is least sure."""
    if problem.kind == "regression":
        return np.full(len(said), np.nan, dtype=np.float32)
    if problem.kind == "multi-label":
        said = np.maximum(said, 1 - said)
        return np.asarray(said.min(axis=1), np.float32)
    return np.asarray(said.max(axis=1), np.float32)


def answer_columns(
    problem: Problem, class_names: Sequence[str], said: NDArray[Any]
) -> tuple[Column, ...]:
    """Answers as columns: which class how often, how often each label, or which numbers; and how
    sure.
    """
    if problem.kind == "regression":
        return (Column(ANSWER, "number", said.astype(np.float64)),)
    sure = Column(CONFIDENCE, "number", confidence_of(problem, said).astype(np.float64))
    if problem.kind == "multi-label":
        given = (said >= HALF).astype(np.float64)
        return (
            *(
                Column(f"{ANSWER} {name}", "boolean", given[:, place])
                for place, name in enumerate(class_names)
            ),
            sure,
        )
    chosen = said.argmax(axis=1).astype(np.float64)
    return Column(ANSWER, "category", chosen, tuple(class_names)), sure


def truth_columns(problem: Problem, said: NDArray[Any], truth: NDArray[Any]) -> tuple[Column, ...]:
    """How right answers are: right or not, or by how much a number is off."""
    if problem.kind == "regression":
        return (Column(ERROR, "number", np.abs(said.astype(np.float64) - truth)),)
    if problem.kind == "multi-label":
        right = ((said >= HALF) == (truth > HALF)).all(axis=1)
    else:
        right = said.argmax(axis=1) == truth
    return (Column(RIGHT, "boolean", right.astype(np.float64)),)


def usual_answers(
    run: Path, problem: Problem, class_names: Sequence[str], adapted: str
) -> tuple[Counted, ...]:
    """A run's answers for validation samples of seen clients, in counts.

    Those of models adapted in the same way, if the run scored any: others would be less sure.
    """
    found = load_answers(run)
    kept = (found["split"] == "validation") & (found["on"] == "seen")
    rows = np.flatnonzero(kept & (found["adapted"] == adapted))
    if not len(rows):
        return ()
    said = _said(found, problem, len(class_names))[rows]
    names = found["client"][rows]
    holders = [np.flatnonzero(names == name) for name in np.unique(names)]
    made = answer_columns(problem, class_names, said)
    made = (*made, *truth_columns(problem, said, found["label"][rows]))
    return tuple(_all_classes(column, class_names, holders) for column in made)


def _said(found: dict[str, NDArray[Any]], problem: Problem, classes: int) -> NDArray[Any]:
    if problem.kind == "regression":
        return found["predicted"]
    told = probabilities(found)
    if told is not None:
        return told
    # Folders of earlier versions kept the probability of the answer alone.
    made = np.zeros((len(found["predicted"]), classes))
    made[np.arange(len(made)), found["predicted"]] = found["confidence"]
    return made


def _all_classes(column: Column, class_names: Sequence[str], holders: Sequence[Indices]) -> Counted:
    """A column in counts; every class has a bin, whether it was ever the answer or not."""
    made = counted(column, holders)
    if column.kind != "category":
        return made
    made = replace(made, words=tuple(class_names))
    told = [made.count(column.take(rows)) for rows in holders]
    counts = tuple(int(n) for n in np.sum(told, axis=0))
    return replace(made, counts=counts, apart=furthest(told))
