"""What a client could keep, and how right each of it is on the client's samples, one by one.

All is computed from the answers that two finished runs left (``predictions.npz``): nothing is
trained, and no sample is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """One client: how right each candidate is on its samples, for keeping and for testing.

    A sample's score is 1 or 0 for a class that is right or wrong, the share of right labels, or
    minus the squared error of a number. What a client could not make it has no scores of.
    """

    client: str
    keeping: Scores
    test: Scores


def candidates(run: Path, beside: Path, problem: Problem, split: str) -> list[Judged]:
    """All clients that took part, by name; ``split`` are the rows to keep by."""
    mine, alone = load_answers(run), load_answers(beside)
    ways = [NOT_ADAPTED, *sorted(set(mine["adapted"].tolist()) - {NOT_ADAPTED})]
    names = sorted(set(mine["client"][mine["on"] == "seen"].tolist()))
    places, others = _places(mine), _places(alone)
    found = []
    for name in names:
        by_split: dict[str, Scores] = {}
        for part in (split, "test"):
            own = others.get((name, part, NOT_ADAPTED), _NOBODY)
            label = alone["label"][own]
            said = {ALONE: _said(alone, own)}
            for way in ways:
                # A client that could not adapt lacks that candidate.
                rows = places.get((name, part, way))
                if rows is None and (way != NOT_ADAPTED or not len(own)):
                    continue
                if rows is None or not np.array_equal(mine["label"][rows], label):
                    raise RunError(
                        f"{run} and {beside} tell of other samples of client {name!r}: repeat the "
                        "run of clients alone with the settings and data of the first."
                    )
                said[way_name(way)] = _said(mine, rows)
            by_split[part] = dict(_scored(said, label, problem))
        found.append(Judged(name, by_split[split], by_split["test"]))
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


def _scored(
    said: Mapping[str, NDArray[np.float64]], label: NDArray[Any], problem: Problem
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Every candidate's scores: the models', then those of their means with the one alone."""
    for name, each in said.items():
        yield name, sample_scores(each, label, problem)
    for name, each in said.items():
        if name != ALONE:
            yield together(name), sample_scores((said[ALONE] + each) / 2, label, problem)


def sample_scores(
    said: NDArray[np.float64], label: NDArray[Any], problem: Problem
) -> NDArray[np.float64]:
    """How right answers are, sample by sample; more is better."""
    if problem.kind == "regression":
        return -np.square(said - np.asarray(label, np.float64))
    if problem.kind == "multi-label":
        return np.asarray(((said >= HALF) == (label > HALF)).mean(axis=1), np.float64)
    return np.asarray(said.argmax(axis=1) == label, np.float64)


def score_of(scores: Sequence[float] | NDArray[np.float64], problem: Problem) -> float:
    """What people read: the share that is right, or the RMSE of numbers; NaN of nothing."""
    if not len(scores):
        return float("nan")
    mean = float(np.mean(scores))
    return float(np.sqrt(-mean)) if problem.kind == "regression" else mean
