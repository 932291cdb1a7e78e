"""The figures of a run about clients on their own: what a few labels, or a few refusals, buy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.errors import DataError
from fedskew.federate.confidence import (
    ACCURACY,
    answered,
    aurc,
    choose_threshold,
    fewest_answered,
    risk_coverage,
)
from fedskew.federate.predictions import PREDICTIONS, load_predictions
from fedskew.runs.results import Results
from fedskew.views.picture import Picture, Table

GROUPS = ("seen", "odd", "unseen")
POINTS = 200
"""So many points make a curve; a sample each would fill a page of the CSV file with nothing new."""
SHOTS = re.compile(r"(\d+)-shot .*")


def deployed_pictures(results: Results) -> Iterator[Picture]:
    """Scores against shots and accuracy against labels asked for, where the run can tell them."""
    from fedskew.views import deployment_plots as plots

    run, result = results.path, results.summary
    title, metric = str(result["method"]), str(result["primary_metric"])
    curves = shots_table(result)
    yield Picture("shots", curves, lambda: plots.shots(curves, metric, title))
    if (run / PREDICTIONS).is_file():
        asked = coverage_table(load_predictions(run))
        yield Picture("coverage", asked, lambda: plots.coverage(asked, title))


def shots_in(adapted: str) -> float:
    """How many labels a class an adaptation saw, by its name: infinitely many if all there were.

    >>> [shots_in(name) for name in ("none", "2-shot 50", "fine-tuned 10")]
    [0.0, 2.0, inf]
    """
    if adapted == "none":
        return 0.0
    match = SHOTS.fullmatch(adapted)
    return float(match[1]) if match else math.inf


def shots_table(result: Mapping[str, Any]) -> Table:
    """The main model's test scores for every number of shots; none where there are not several."""
    scores = [
        score
        for score in result["scores"]
        if (score["at"], score["split"]) == ("selected", "test")
        and (score["model"], score["metric"]) == (result["primary_model"], result["primary_metric"])
        and score["on"] in GROUPS
    ]
    if len({score["adapted"] for score in scores} - {"none"}) < 2:
        return []
    scores.sort(key=lambda score: (GROUPS.index(score["on"]), shots_in(score["adapted"])))
    numbers = ("mean", "std", "worst", "bottom_decile", "clients")
    return [
        {
            "on": score["on"],
            "shots": "all" if math.isinf(k := shots_in(score["adapted"])) else int(k),
            "adapted": score["adapted"],
            **{name: score[name] for name in numbers},
        }
        for score in scores
    ]


def coverage_table(predictions: Mapping[str, NDArray[Any]], accuracy: float = ACCURACY) -> Table:
    """Accuracy on the test samples a model answers, for every share of samples it asks about.

    All clients' samples are one pool, of which the least sure are asked about first. ``point`` is
    "curve", or "chosen" for what the threshold does that seen clients' validation samples suggest
    for this accuracy. Where fewer samples are answered than can tell such an accuracy, curves end.
    """
    table: Table = []
    confidence, correct = predictions["confidence"], predictions["correct"]
    tested = predictions["split"] == "test"
    names = sorted(set(predictions["adapted"].tolist()), key=lambda name: (shots_in(name), name))
    for on in ("seen", "unseen"):
        for name in names:
            own = predictions["adapted"] == name
            rows = own & tested & (predictions["on"] == on)
            count = int(rows.sum())
            if count < fewest_answered(accuracy):
                continue
            line = {
                "on": on, "adapted": name, "samples": count,
                "aurc": aurc(confidence[rows], correct[rows]),
            }  # fmt: skip
            share, risk = risk_coverage(confidence[rows], correct[rows])
            enough = np.flatnonzero(share * count >= fewest_answered(accuracy) - 0.5)
            kept = enough[np.linspace(0, len(enough) - 1, min(POINTS, len(enough))).astype(int)]
            table += [
                {**line, "point": "curve", "threshold": None, "asked": 1.0 - c, "accuracy": 1.0 - r}
                for c, r in zip(share[kept].tolist(), risk[kept].tolist(), strict=True)
            ]
            held = own & ~tested & (predictions["on"] == "seen")
            try:
                threshold = choose_threshold(confidence[held], correct[held], accuracy)
            except DataError:
                continue
            found = answered(confidence[rows], correct[rows], threshold)
            if found.samples:
                table.append(
                    {
                        **line, "point": "chosen", "threshold": threshold,
                        "asked": 1.0 - found.coverage, "accuracy": found.accuracy,
                    }
                )  # fmt: skip
    return table
