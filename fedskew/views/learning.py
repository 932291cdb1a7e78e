"""Learning curves: of one run over its clients, of a comparison over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedskew.canvas import (
    BLUE,
    GREY,
    ORANGE,
    Dashes,
    Table,
    blank_figure,
    draw_band,
    draw_line,
    line_styles,
    numbers,
    rounds_axis,
)
from fedskew.comparisons.crossing import TIMES
from fedskew.comparisons.statistics import interval
from fedskew.federate.metrics import MAIN
from fedskew.methods import METHODS
from fedskew.parts.metrics import is_share
from fedskew.runs.experiment import Run
from fedskew.runs.results import Results
from fedskew.runs.rows import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def learning_table(results: Results, model: str, metric: str, higher_is_better: bool) -> Table:
    """Training loss and scores of every round of the main stage."""
    rows = results.as_trained.where(model=model, metric=metric, on="seen")
    tests = rows.where(split="test").by_round()
    validations = rows.where(split="validation").by_round()
    worst, best = (min, max) if higher_is_better else (max, min)
    table: Table = []
    for record in results.records:
        if record.stage != MAIN:
            continue
        test, validation = tests.get(record.round), validations.get(record.round)
        table.append(
            {
                "round": record.round,
                "train_loss": record.train_loss,
                "test_mean": statistics.fmean(test) if test else None,
                "test_worst": worst(test) if test else None,
                "test_best": best(test) if test else None,
                "validation_mean": statistics.fmean(validation) if validation else None,
            }
        )
    return table


def learning_figure(table: Table, metric: str, selected: int, method: str) -> Figure:
    """Training loss, and the score over rounds with the band from worst to best client."""
    figure = blank_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    rounds = numbers(table, "round")
    draw_line(left, rounds, numbers(table, "train_loss"), BLUE, "mean over clients")
    left.set_ylabel("training loss")
    mean = numbers(table, "test_mean")
    scored = ~np.isnan(mean)
    at = rounds[scored]
    low, high = numbers(table, "test_worst")[scored], numbers(table, "test_best")[scored]
    right.fill_between(at, low, high, color=BLUE, alpha=0.15, lw=0, label="worst to best client")
    draw_line(right, at, mean[scored], BLUE, "test, mean over clients")
    validation = numbers(table, "validation_mean")
    if not np.isnan(validation).all():
        draw_line(right, at, validation[scored], ORANGE, "validation, mean over clients", "--")
    right.axvline(selected, color=GREY, lw=1, ls=":", label=f"selected round ({selected})")
    right.set_ylabel(metric)
    limit_score(right, metric)
    right.legend(fontsize=8, frameon=False, loc="best")
    for axes in (left, right):
        rounds_axis(axes)
    figure.suptitle(f"{method}: learning curves")
    return figure


def compared_learning_table(runs: Mapping[str, Sequence[Run]], metric: str) -> Table:
    """Per method and round: the mean over clients, then mean and 95 % interval over seeds."""
    table: Table = []
    for method, group in runs.items():
        by_round: dict[int, list[float]] = {}
        for run in group:
            for number, mean in tested(run, metric).curve(statistics.fmean).items():
                by_round.setdefault(number, []).append(mean)
        for number, means in sorted(by_round.items()):
            found = interval(means)
            low, high = (None, None) if len(means) < 2 else (found.low, found.high)
            table.append(
                {"method": method, "round": number, "mean": found.mean, "low": low, "high": high}
            )
    return table


def compared_learning_figure(table: Table, metric: str) -> Figure:
    """One curve per method, with the interval over seeds around it."""
    figure = blank_figure(9, 4.6)
    axes = figure.subplots()
    methods = list(dict.fromkeys(str(line["method"]) for line in table))
    for method, (colour, dashes) in zip(methods, method_styles(methods), strict=True):
        own = [line for line in table if line["method"] == method]
        draw_band(axes, own, colour, method, dashes)
    axes.set_ylabel(f"test {metric}, mean over clients")
    rounds_axis(axes)
    several = any(line["low"] is not None for line in table)
    axes.set_title("Learning curves" + (" (bands: 95 % interval over seeds)" * several))
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def method_styles(methods: Sequence[str]) -> list[tuple[str, Dashes]]:
    """A colour and dashes for each method; the references look the same in every figure."""
    roles = {name: known.card.reference or "method" for name, known in METHODS.items()}
    return line_styles([roles.get(method, "method") for method in methods])


def tested(run: Run, metric: str) -> Rows:
    """The test scores of seen clients as trained, of the run's main model."""
    return run.results.as_trained.where(
        model=run.result["primary_model"], metric=metric, on="seen", split="test"
    )


def limit_score(axes: Axes, metric: str) -> None:
    """Show what lies between 0 and 1 on the whole of that scale."""
    if is_share(metric):
        axes.set_ylim(0, 1.02)


def crossed_learning(table: Table, metric: str) -> Figure:
    """Learning curves in a panel for each aggregator: in one panel pairs would hide each other.

    An objective has the same colour everywhere; methods that are no pair are in every panel.
    """
    methods = list(dict.fromkeys(str(line["method"]) for line in table))
    parts = {method: method.partition(f" {TIMES} ") for method in methods}
    columns = list(dict.fromkeys(after for _, _, after in parts.values() if after))
    names = list(dict.fromkeys(before for before, _, _ in parts.values()))
    style = dict(zip(names, method_styles(names), strict=True))
    across = min(3, len(columns))
    down = math.ceil(len(columns) / across)
    figure = blank_figure(3.4 * across + 1.6, max(2.6 * down + 0.4, 0.9 + 0.17 * len(names)))
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for axes, column in zip(panels, columns, strict=False):
        for method, (name, _, own) in parts.items():
            if own in ("", column):
                curve = [line for line in table if line["method"] == method]
                colour, dashes = style[name]
                draw_band(axes, curve, colour, name, dashes)
        rounds_axis(axes)
        axes.set_title(column, fontsize=10)
    for axes in panels[len(columns) :]:
        axes.set_visible(False)
    found = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    shown = [name for name in names if name in found]
    figure.legend(
        [found[name] for name in shown], shown, fontsize=8, frameon=False,
        loc="outside right upper", handlelength=3,
    )  # fmt: skip
    figure.supylabel(f"test {metric}, mean over clients", fontsize=9)
    figure.suptitle("Learning curves by aggregator", fontsize=11)
    return figure
