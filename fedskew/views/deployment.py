"""What clients of a finished run gain from a few labels, or from answering only when sure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedskew.canvas import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    Picture,
    Table,
    blank_figure,
    grid,
    numbers,
)
from fedskew.errors import DataError
from fedskew.federate.confidence import (
    ACCURACY,
    answered,
    aurc,
    choose_threshold,
    fewest_answered,
    risk_coverage,
)
from fedskew.federate.predictions import PREDICTIONS, classified, load_answers
from fedskew.runs.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = {"seen": BLUE, "odd": GREEN, "unseen": ORANGE}
"""Whose scores are shown, and in which colour."""
POINTS = 200
"""The most points of a curve; one per sample would only make the CSV file longer."""
SHOTS = re.compile(r"(\d+)-shot .*")


def deployed_pictures(results: Results) -> Iterator[Picture]:
    """Scores against shots and accuracy against labels asked for, if the run has them."""
    run, result = results.path, results.summary
    title, metric = str(result["method"]), str(result["primary_metric"])
    curves = shots_table(result)
    yield Picture("shots", curves, lambda: shots_figure(curves, metric, title))
    if (run / PREDICTIONS).is_file() and classified(found := load_answers(run)):
        asked = coverage_table(found)
        yield Picture("coverage", asked, lambda: coverage_figure(asked, title))


def shots_in(adapted: str) -> float:
    """How many labels per class an adaptation saw, from its name: infinity if it saw all.

    >>> [shots_in(name) for name in ("none", "2-shot 50", "fine-tuned 10")]
    [0.0, 2.0, inf]
    """
    if adapted == "none":
        return 0.0
    match = SHOTS.fullmatch(adapted)
    return float(match[1]) if match else math.inf


def shots_table(result: Mapping[str, Any]) -> Table:
    """The main model's test scores for every number of shots; empty if there is only one."""
    scores = [
        score
        for score in result["scores"]
        if (score["at"], score["split"]) == ("selected", "test")
        and (score["model"], score["metric"]) == (result["primary_model"], result["primary_metric"])
        and score["on"] in GROUPS
    ]
    if len({score["adapted"] for score in scores} - {"none"}) < 2:
        return []
    scores.sort(key=lambda score: (list(GROUPS).index(score["on"]), shots_in(score["adapted"])))
    spread = ("mean", "std", "worst", "bottom_decile", "clients")
    return [
        {
            "on": score["on"],
            "shots": "all" if math.isinf(k := shots_in(score["adapted"])) else int(k),
            "adapted": score["adapted"],
            **{name: score[name] for name in spread},
        }
        for score in scores
    ]


def shots_figure(table: Table, metric: str, title: str) -> Figure:
    """The mean score of clients against the number of labels per class they adapted on."""
    figure = blank_figure(7.8, 3.8)
    axes = figure.subplots()
    # Positions, not numbers: 0, 1, 2, 5, 10 and all data are evenly spaced.
    counts = sorted({line["shots"] for line in table if line["shots"] != "all"})
    places = [*counts, *(["all"] if any(line["shots"] == "all" for line in table) else [])]
    for on in dict.fromkeys(str(line["on"]) for line in table):
        own = [line for line in table if line["on"] == on]
        x = np.array([places.index(line["shots"]) for line in own], float)
        mean, std = numbers(own, "mean"), numbers(own, "std")
        colour = GROUPS[on]
        axes.errorbar(x, mean, std, color=colour, alpha=0.35, lw=0, elinewidth=1, capsize=3)
        label = f"{own[0]['clients']} {on} client{'s' if own[0]['clients'] > 1 else ''}, mean"
        axes.plot(x, mean, color=colour, lw=1.6, marker="o", ms=4, label=label)
        axes.plot(x, numbers(own, "worst"), color=colour, lw=1, ls=":", label=f"{on}, worst")
    axes.set_xticks(range(len(places)), [str(place) for place in places])
    axes.set_xlabel("labels a class (0: as trained)")
    axes.set_ylabel(f"test {metric}")
    grid(axes)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.set_title(f"{title}: few-shot adaptation (bars: ± deviation over clients)", fontsize=10)
    return figure


def coverage_table(predictions: Mapping[str, NDArray[Any]], accuracy: float = ACCURACY) -> Table:
    """Accuracy on the test samples a model answers, for every share of samples it asks about.

    All clients' samples are one pool, and the least sure are asked about first. ``point`` is
    "curve", or "chosen" for the result of the threshold that was chosen for this accuracy on seen
    clients' validation samples. Curves end where too few samples are answered to measure such an
    accuracy.
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
                "on": on,
                "adapted": name,
                "samples": count,
                "aurc": aurc(confidence[rows], correct[rows]),
            }
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
                        **line,
                        "point": "chosen",
                        "threshold": threshold,
                        "asked": 1.0 - found.coverage,
                        "accuracy": found.accuracy,
                    }
                )
    return table


def coverage_figure(table: Table, title: str) -> Figure:
    """Accuracy on answered samples against the share of samples whose labels are asked for."""
    groups = list(dict.fromkeys(str(line["on"]) for line in table))
    names = list(dict.fromkeys(str(line["adapted"]) for line in table))
    figure = blank_figure(1.2 + 4.4 * len(groups), 4.1 + 0.08 * len(names))
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, on in zip(panels, groups, strict=True):
        for name, colour in zip(names, PALETTE * len(names), strict=False):
            own = [line for line in table if line["on"] == on and line["adapted"] == name]
            if not own:
                continue
            curve = [line for line in own if line["point"] == "curve"]
            label = f"{'as trained' if name == 'none' else name} (AURC {own[0]['aurc']:.3f})"
            axes.plot(
                numbers(curve, "asked"),
                numbers(curve, "accuracy"),
                color=colour,
                lw=1.6,
                label=label,
            )
            chosen = [line for line in own if line["point"] == "chosen"]
            axes.scatter(
                numbers(chosen, "asked"),
                numbers(chosen, "accuracy"),
                s=110,
                marker="*",
                color=colour,
                edgecolor="black",
                lw=0.7,
                zorder=3,
            )
        axes.scatter(
            [],
            [],
            s=110,
            marker="*",
            color="white",
            edgecolor="black",
            lw=0.7,
            label="threshold from validation",
        )
        axes.axhline(ACCURACY, color=GREY, lw=1, ls=":", label=f"wished for: {ACCURACY:g}")
        axes.set_title(f"{on} clients", fontsize=9)
        axes.set_xlabel("share of samples asked about")
        axes.set_xlim(-0.02, 1.0)
        grid(axes)
        # Below the axes: curves may lie anywhere inside.
        axes.legend(
            fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2
        )
    panels[0].set_ylabel("accuracy on the others")
    figure.suptitle(f"{title}: asking for labels where the model is unsure", fontsize=10)
    return figure
