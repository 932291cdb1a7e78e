"""What a client could keep, and how right each of it is on the client's samples, one by one.

All is computed from the answers that two finished runs left (``predictions.npz``): nothing is
trained, and no sample is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.errors import RunError
from fedskew.federate.predictions import Arrays, load_answers, probabilities
from fedskew.problem import Problem
from fedskew.runs.kept import ALONE, FEDERATED, JOINED

NOT_ADAPTED = "none"
HALF = 0.5
"""A label is given from this probability on."""
Scores = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Judged:
    """One client: scores of each candidate on its samples, those to keep by and those of its test.

    ``keeping`` are :func:`kept_by`, ``test`` are :func:`rightness`. What a client could not make,
    it has no scores of.
    """

    client: str
    keeping: Scores
    test: Scores


@dataclass(frozen=True)
class Answered:
    """What every candidate said of one client's samples of a split, and what was right."""

    client: str
    label: NDArray[Any]
    said: Mapping[str, NDArray[np.float64]]


def candidates(run: Path, beside: Path, problem: Problem, split: str) -> list[Judged]:
    """All clients that took part, by name; ``split`` are the rows to keep by."""
    by_split = (answered(run, beside, part) for part in (split, "test"))
    return [
        Judged(keeping.client, _each(kept_by, keeping, problem), _each(rightness, test, problem))
        for keeping, test in zip(*by_split, strict=True)
    ]


def answered(run: Path, beside: Path, split: str) -> list[Answered]:
    """The answers of a run and of the one of clients alone, and their means, by client."""
    mine, alone = load_answers(run), load_answers(beside)
    ways = [NOT_ADAPTED, *sorted(set(mine["adapted"].tolist()) - {NOT_ADAPTED})]
    places, others = _places(mine), _places(alone)
    found = []
    for name in sorted({client for client, _, _ in places}):
        own = others.get((name, split, NOT_ADAPTED), _NOBODY)
        label = alone["label"][own]
        said = {ALONE: _said(alone, own)}
        for way in ways:
            rows = places.get((name, split, way))
            # A client that could not adapt lacks that candidate.
            if rows is None and (way != NOT_ADAPTED or not len(own)):
                continue
            if rows is None or not np.array_equal(mine["label"][rows], label):
                raise RunError(
                    f"{run} and {beside} tell of other samples of client {name!r}: repeat the run "
                    "of clients alone with the settings and data of the first."
                )
            said[way_name(way)] = _said(mine, rows)
        means = {together(n): (said[ALONE] + s) / 2 for n, s in said.items() if n != ALONE}
        found.append(Answered(name, label, said | means))
    return found


def way_name(adapted: str) -> str:
    """What a candidate of the run is called, by how its model was adapted.

    >>> way_name("none"), way_name("fine-tuned 5")
    ('federated', 'fine-tuned 5')
    """
    return FEDERATED if adapted == NOT_ADAPTED else adapted


def together(candidate: str) -> str:
    """The mean of a candidate's answers and those of the client's model trained alone."""
    return f"{ALONE}{JOINED}{candidate}"


_NOBODY: NDArray[np.int64] = np.empty(0, np.int64)


def _places(found: Arrays) -> dict[tuple[str, str, str], NDArray[np.int64]]:
    """By client, split and adaptation, where the answers of seen clients stand, in their order."""
    seen = np.flatnonzero(found["on"] == "seen")
    groups: dict[tuple[str, str, str], list[int]] = {}
    keys = zip(*(found[name][seen].tolist() for name in ("client", "split", "adapted")),
               strict=True)  # fmt: skip
    for place, key in zip(seen.tolist(), keys, strict=True):
        groups.setdefault(key, []).append(place)
    return {key: np.array(places, np.int64) for key, places in groups.items()}


def _said(found: Arrays, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Probabilities [N, classes or labels], or numbers [N]."""
    part = {name: values[rows] for name, values in found.items()}
    told = probabilities(part)
    return np.asarray(part["predicted"] if told is None else told, np.float64)


Score = Callable[[NDArray[np.float64], NDArray[Any], Problem], NDArray[np.float64]]


def _each(score: Score, told: Answered, problem: Problem) -> Scores:
    return {name: score(said, told.label, problem) for name, said in told.said.items()}


def rightness(
    said: NDArray[np.float64], label: NDArray[Any], problem: Problem
) -> NDArray[np.float64]:
    """How right answers are, sample by sample; more is better.

    1 or 0 for a class, the share of right labels, or minus the squared error of a number.
    """
    if problem.kind == "regression":
        return -np.square(said - np.asarray(label, np.float64))
    if problem.kind == "multi-label":
        return np.asarray(((said >= HALF) == (label > HALF)).mean(axis=1), np.float64)
    return np.asarray(said.argmax(axis=1) == label, np.float64)


def kept_by(
    said: NDArray[np.float64], label: NDArray[Any], problem: Problem
) -> NDArray[np.float64]:
    """By what clients choose: half how right an answer is, half its Brier score.

    A strictly proper score like the latter, which tells more of ten samples than ten times right
    or wrong does; and one that does not prefer a model for being better calibrated alone.
    """
    right = rightness(said, label, problem)
    if problem.kind == "regression":
        return right
    if problem.kind == "multi-label":
        return np.asarray((right + 1 - np.square(said - label).mean(axis=1)) / 2, np.float64)
    truth = np.eye(said.shape[1])[np.asarray(label, np.int64)]
    return np.asarray((right + 1 - np.square(said - truth).sum(axis=1) / 2) / 2, np.float64)


def score_of(scores: Sequence[float] | NDArray[np.float64], problem: Problem) -> float:
    """What people read: the share that is right, or the RMSE of numbers; NaN of nothing."""
    if not len(scores):
        return float("nan")
    mean = float(np.mean(scores))
    return float(np.sqrt(-mean)) if problem.kind == "regression" else mean
