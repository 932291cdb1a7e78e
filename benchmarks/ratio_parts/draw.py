"""The figures of the study, and their numbers as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.ratio_parts.measure import (
    MEASURES,
    Floats,
    Result,
    over_seeds,
    scaled,
    true_weights,
)
from benchmarks.ratio_parts.plan import ESTIMATORS, Setting
from fedskew.canvas import GREY, PALETTE, blank_figure, clean, grid, save_figure
from fedskew.runs.findings import load_arrays
from fedskew.store import write_csv

COLOURS = dict(zip(ESTIMATORS, PALETTE, strict=False))
MARKS = dict(zip(ESTIMATORS, ("o-", "s--", "^-.", "D:"), strict=True))


def draw(results: Sequence[Result], folder: Path) -> list[str]:
    """Write what can be drawn of these results; the names of the pictures."""
    write_csv(folder / "runs.csv", _runs(results))
    drawn = []
    if any(_in_curves(result) for result in results):
        save_figure(correlations(results), folder / "correlation.png")
        drawn.append("correlation")
    if clients := one_client_each(results):
        save_figure(samples(clients), folder / "samples.png")
        write_csv(folder / "samples.csv", _points(clients))
        drawn.append("samples")
    return drawn


def _runs(results: Sequence[Result]) -> list[tuple[object, ...]]:
    """Every run's means over its clients; empty where there is no number."""
    rows: list[tuple[object, ...]] = [
        ("law", "dimensions", "shift", "seed", "estimator", *MEASURES)
    ]
    for result in results:
        setting, found = result.setting, [result.measures[measure] for measure in MEASURES]
        rows.append(
            (setting.law, setting.dimensions, f"{setting.shift:g}", result.seed, result.estimator,
             *("" if math.isnan(value) else f"{value:.6g}" for value in found))
        )  # fmt: skip
    return rows


def _in_curves(result: Result) -> bool:
    """Real digits come in one number of dimensions only."""
    return result.setting.shift > 0 and result.setting.law != "digits"


def correlations(results: Sequence[Result]) -> Figure:
    """Pearson's correlation by the number of dimensions: a column a law, a row a shift."""
    shown = [result for result in results if _in_curves(result)]
    laws = list(dict.fromkeys(result.setting.law for result in shown))
    shifts = sorted({result.setting.shift for result in shown})
    figure = blank_figure(5.0 * len(laws), 2.9 * len(shifts) + 0.8)
    panels = figure.subplots(len(shifts), len(laws), squeeze=False, sharex=True, sharey=True)
    for i, shift in enumerate(shifts):
        for axes, law in zip(panels[i], laws, strict=True):
            own = [r for r in shown if (r.setting.law, r.setting.shift) == (law, shift)]
            _curves(axes, own)
            axes.set_title(f"{law}, shift {shift:g}", fontsize=10)
        panels[i, 0].set_ylabel("correlation")
    for axes in panels[-1]:
        axes.set_xlabel("dimensions")
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, ncols=len(names), loc="outside lower center")
    figure.suptitle("Log weights against true log ratios (bars: range over seeds)", fontsize=11)
    return figure


def _curves(axes: Axes, results: Sequence[Result]) -> None:
    dimensions = sorted({result.setting.dimensions for result in results})
    axes.axhline(0, color=GREY, lw=0.8)
    for number, estimator in enumerate(ESTIMATORS):
        spreads = [
            over_seeds(
                [r for r in results if (r.setting.dimensions, r.estimator) == (d, estimator)],
                "pearson",
            )
            for d in dimensions
        ]
        mean = np.array([spread.mean for spread in spreads])
        bars = [
            [spread.mean - spread.least for spread in spreads],
            [spread.most - spread.mean for spread in spreads],
        ]
        # Side by side, for bars that hide each other tell nothing.
        place = np.array(dimensions) * 1.05 ** (number - 1.5)
        axes.errorbar(
            place, mean, bars, fmt=MARKS[estimator], color=COLOURS[estimator], lw=1.6, ms=4,
            elinewidth=1, capsize=2, label=estimator,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(dimensions, [str(d) for d in dimensions])
    axes.minorticks_off()
    grid(axes)


@dataclass(frozen=True)
class OneClient:
    """Log weights of one client's training samples: true ones, and those of each estimator."""

    setting: Setting
    client: str
    true: Floats
    estimated: dict[str, Floats]


def one_client_each(results: Sequence[Result]) -> list[OneClient]:
    """The first client of some federations' first seed."""
    found: dict[Setting, OneClient] = {}
    for result in results:
        if result.setting.drawn and result.seed == 0:
            stored = load_arrays(result.path, "sample_weights")
            client = str(min(stored["client"]))
            own = stored["client"] == client
            true = np.log(true_weights(stored["truth"][own].astype(np.float64)))
            one = found.setdefault(result.setting, OneClient(result.setting, client, true, {}))
            one.estimated[result.estimator] = np.log(scaled(stored["weight"][own].astype(float)))
    return list(found.values())


def samples(clients: Sequence[OneClient]) -> Figure:
    """Every training sample of one client: a row a federation, a column an estimator."""
    figure = blank_figure(2.6 * len(ESTIMATORS) + 0.4, 2.7 * len(clients) + 0.6)
    panels = figure.subplots(len(clients), len(ESTIMATORS), squeeze=False)
    for row, one in zip(panels, clients, strict=True):
        values = np.concatenate([one.true, *one.estimated.values()])
        margin = 0.05 * np.ptp(values)
        limits = (values.min() - margin, values.max() + margin)
        for axes, (estimator, ours) in zip(row, one.estimated.items(), strict=True):
            axes.plot(limits, limits, color=GREY, lw=0.8)
            axes.scatter(one.true, ours, s=6, lw=0, alpha=0.5, color=COLOURS[estimator])
            axes.set(xlim=limits, ylim=limits)
            axes.set_title(estimator, fontsize=10)
            clean(axes)
        row[0].set_ylabel(f"{one.setting.label}\nestimated log weight", fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("true log weight")
    named = ", ".join(dict.fromkeys(one.client for one in clients))
    figure.suptitle(f"Training samples of one client ({named}); on the line weights are true")
    return figure


def _points(clients: Sequence[OneClient]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("federation", "client", "true_log_weight", *ESTIMATORS)]
    for one in clients:
        columns = zip(one.true, *one.estimated.values(), strict=True)
        rows += [
            (one.setting.label, one.client, *(f"{value:.4f}" for value in line)) for line in columns
        ]
    return rows
