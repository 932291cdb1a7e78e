"""Scores of single clients: in one run, and under all methods of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedskew.canvas import (
    BLACK,
    BLUE,
    FEW_CLIENTS,
    ORANGE,
    Table,
    blank_figure,
    clean,
    grid,
    numbers,
)
from fedskew.federate.metrics import MAIN
from fedskew.runs.experiment import Run
from fedskew.runs.results import Results
from fedskew.views.deployment import shots_in
from fedskew.views.learning import limit_score, tested

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW_METHODS = 20
"""Up to this number of methods, rows of boxes have room to spare."""


def client_table(results: Results, model: str, metric: str, round_number: int) -> Table:
    """Every seen client's test score, before and after adaptation, lowest first.

    If there are several adaptations, the one that saw the most labels is shown.
    """
    rows = results.rows.where(
        stage=MAIN, round=round_number, model=model, on="seen", split="test", metric=metric
    )
    how = max(rows.names("adapted"), key=shots_in, default="none")
    adapted = rows.where(adapted=how).by_client() if how != "none" else {}
    table: Table = [
        {
            "client": r.client,
            "test_samples": r.n,
            metric: r.value,
            "adapted": adapted.get(r.client),
            "how": how,
        }
        for r in rows.where(adapted="none").rows()
    ]
    return sorted(table, key=lambda line: float(line[metric]))


def client_figure(table: Table, metric: str, selected: int, method: str) -> Figure:
    """Every client's score, lowest first, and its score after adaptation."""
    figure = blank_figure(9, 3.8)
    axes = figure.subplots()
    values, adapted = numbers(table, metric), numbers(table, "adapted")
    place = np.arange(len(table))
    few = len(table) <= FEW_CLIENTS
    if few:
        axes.bar(place, values, color=BLUE, alpha=0.75, width=0.8, label="as trained")
        names = [str(line["client"]) for line in table]
        axes.set_xticks(place, names, rotation=45, ha="right", fontsize=7)
    else:
        axes.fill_between(place, values, step="mid", color=BLUE, alpha=0.35, lw=0)
        axes.step(place, values, where="mid", color=BLUE, lw=1.2, label="as trained")
        axes.set_xlabel(f"{len(table)} clients, lowest score first")
    if not np.isnan(adapted).all():
        size = 22 if few else 5
        axes.scatter(place, adapted, s=size, color=ORANGE, zorder=3, label=str(table[0]["how"]))
    mean = float(np.nanmean(values))
    axes.axhline(mean, color=BLACK, lw=1, ls="--", label=f"mean {mean:.3f}")
    axes.set_xlim(-0.6, len(table) - 0.4)
    axes.set_ylabel(f"test {metric}")
    limit_score(axes, metric)
    # Beside the axes: bars may fill all of them.
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    clean(axes)
    axes.set_title(f"{method}: test {metric} of every client at round {selected}")
    return figure


def compared_client_table(runs: Mapping[str, Sequence[Run]], metric: str) -> Table:
    """Every client's test score under every method and seed, at the selected round."""
    table: Table = []
    for method, group in runs.items():
        for run in group:
            rows = tested(run, metric).where(round=run.result["selected_round"])
            table += [
                {"method": method, "seed": run.result["seed"], "client": client, metric: value}
                for client, value in zip(rows.texts("client"), rows.value.tolist(), strict=True)
            ]
    return table


def compared_client_figure(table: Table, metric: str) -> Figure:
    """How each method's scores spread over clients: a box, and every client as a point."""
    methods = list(dict.fromkeys(str(line["method"]) for line in table))
    groups = [np.array([r[metric] for r in table if r["method"] == m], float) for m in methods]
    figure = blank_figure(9, 1.6 + (0.5 if len(methods) <= FEW_METHODS else 0.25) * len(methods))
    axes = figure.subplots()
    place = np.arange(len(methods))[::-1]
    axes.boxplot(
        groups,
        positions=list(place),
        orientation="horizontal",
        widths=0.55,
        showfliers=False,
        showmeans=True,
        manage_ticks=False,
        medianprops={"color": BLACK},
        meanprops={
            "marker": "D",
            "markersize": 5,
            "markerfacecolor": ORANGE,
            "markeredgecolor": "white",
        },
    )
    rng = np.random.default_rng(0)
    for at, values in zip(place, groups, strict=True):
        jitter = at + rng.uniform(-0.18, 0.18, len(values))
        size = 12 if len(values) <= 200 else 3
        axes.scatter(values, jitter, s=size, color=BLUE, alpha=0.45, lw=0, zorder=2)
    axes.set_yticks(place, methods)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.set_xlabel(f"test {metric} of a client (box: quartiles, line: median, diamond: mean)")
    axes.set_title("Scores over clients, best method first")
    grid(axes, "x")
    return figure
