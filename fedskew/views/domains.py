"""Scores out of domain: objectives × aggregators, as tables and as heat maps.

Only the functions that draw import matplotlib, so that tables do not wait for it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields
from itertools import product
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedskew.canvas import (
    HEAT,
    ORANGE,
    Picture,
    Table,
    blank_figure,
    short,
)
from fedskew.comparisons.selection import MEANING, RULES, Curves, chosen
from fedskew.comparisons.statistics import Interval, interval
from fedskew.parts.metrics import is_share
from fedskew.views.leaderboard import aligned, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Cell = tuple[str, str]
"""An objective and an aggregator, as the table names them."""
UNSEEN, CENTRAL_TEST = "of clients nobody trained with", "on the central test set"
MISSING = {
    "validation": "No client has validation data; federation.validation sets some aside.",
    "environment": "No environment was held out; federation.held_out_environment does it.",
    "left-out": "Not measured: --leave-out (leave_out) adds the runs it takes.",
}
ACROSS = 16
"""Up to this number of columns, the panels of all rules fit side by side."""
LONGEST = 32
"""The most letters of a name beside a panel."""


@dataclass(frozen=True)
class Pick:
    """What a rule chose in one seed of a pair: a round, and the test scores there."""

    objective: str
    aggregator: str
    rule: str
    seed: int
    round: int
    ood: float
    in_domain: float | None


@dataclass(frozen=True)
class Matrix:
    """What every rule chose for every pair; ``target`` says which samples are scored.

    ``silent`` are clients that could not be left out because they have no validation data;
    ``remarks`` are the warnings of the runs.
    """

    objectives: tuple[str, ...]
    aggregators: tuple[str, ...]
    metric: str
    higher_is_better: bool
    target: str
    seeds: int
    picks: tuple[Pick, ...]
    silent: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def score(self, rule: str, cell: Cell, in_domain: bool = False) -> Interval:
        """A pair's score over seeds, out of domain or in domain; NaN unless every seed has one."""
        picks = [p for p in self.picks if (p.rule, p.objective, p.aggregator) == (rule, *cell)]
        found = [p.in_domain if in_domain else p.ood for p in picks]
        known = [value for value in found if value is not None]
        return interval(known if len(known) >= self.seeds else [])

    def scores(self, rule: str, in_domain: bool = False) -> dict[Cell, Interval]:
        cells = product(self.objectives, self.aggregators)
        return {cell: self.score(rule, cell, in_domain) for cell in cells}

    @property
    def rules(self) -> list[str]:
        """The rules that chose anything."""
        found = {pick.rule for pick in self.picks}
        return [rule for rule in RULES if rule in found]

    @property
    def caption(self) -> str:
        many = self.seeds > 1
        over = f", mean ± half the 95 % t-interval over {self.seeds} seeds" if many else ""
        return (
            f"Out of domain: test {self.metric} {self.target}{over}; rows are what clients "
            "minimise, columns who aggregates."
        )

    def __str__(self) -> str:
        parts = [f"{self.caption} Brackets mark the best."]
        for rule in RULES:
            parts.append(f"{rule}: {MEANING[rule]}.{self._note(rule)}")
            if rule in self.rules:
                parts[-1] += "\n" + "\n".join(aligned(*self._table(rule, "[{}]")))
        return "\n\n".join([*parts, *self.remarks])

    def to_markdown(self) -> str:
        """One table per rule."""
        parts = ["# Objectives × aggregators", f"{self.caption} The best is bold."]
        for rule in RULES:
            parts += [f"## {rule}", f"Chosen: {MEANING[rule]}.{self._note(rule)}"]
            if rule in self.rules:
                header, rows = self._table(rule, "**{}**")
                lines = [header, ["---", *["---:"] * len(self.aggregators)], *rows]
                parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return "\n\n".join([*parts, *self.remarks]) + "\n"

    def _note(self, rule: str) -> str:
        """Why a rule has no numbers, or what they leave out."""
        if rule not in self.rules:
            return f" – {MISSING.get(rule, 'Nothing was scored.')}"
        if rule == "left-out" and self.silent:
            return f" Never left out, for want of validation data: {', '.join(self.silent)}."
        return ""

    def table(
        self, scores: Mapping[Cell, Interval], show: Callable[[Interval], str], mark: str
    ) -> tuple[list[str], list[list[str]]]:
        """Header and rows, the best score put into ``mark``."""
        means = [score.mean for score in scores.values() if not math.isnan(score.mean)]
        best = (max if self.higher_is_better else min)(means, default=math.nan)

        def marked(score: Interval) -> str:
            text = show(score)
            return mark.format(text) if score.mean == best else text

        rows = [[o, *(marked(scores[o, a]) for a in self.aggregators)] for o in self.objectives]
        return ["objective", *self.aggregators], rows

    def _table(self, rule: str, mark: str) -> tuple[list[str], list[list[str]]]:
        return self.table(self.scores(rule), lambda score: shown(score, self.metric), mark)

    def to_csv(self) -> str:
        """One line per pair, rule and seed, unrounded."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([field.name for field in fields(Pick)])
        writer.writerows(astuple(pick) for pick in self.picks)
        return text.getvalue()

    def picture(self) -> Picture:
        """The same as heat maps."""
        table: Table = [
            {
                "rule": rule,
                "objective": o,
                "aggregator": a,
                "mean": score.mean,
                "std": None if math.isnan(score.std) else score.std,
            }
            for rule in self.rules
            for (o, a), score in self.scores(rule).items()
        ]

        return Picture(
            "matrix",
            table,
            lambda: rule_maps(table, self.metric, self.target, self.higher_is_better),
        )


def picks_of(cell: Cell, seed: int, curves: Curves) -> list[Pick]:
    """What each rule chose for one seed of a pair; rules without data choose nothing."""
    rounds = {rule: chosen(rule, curves) for rule in RULES}
    return [
        Pick(*cell, rule, seed, number, curves.ood[number].value, curves.in_domain.get(number))
        for rule, number in rounds.items()
        if number is not None and number in curves.ood
    ]


def rule_maps(table: Table, metric: str, target: str, higher_is_better: bool) -> Figure:
    """One panel per rule, all with the same colour scale; the best cell of each has a frame."""
    rules, objectives, aggregators = (
        list(dict.fromkeys(str(line[name]) for line in table))
        for name in ("rule", "objective", "aggregator")
    )
    across = len(rules) if len(rules) * len(aggregators) <= ACROSS else 2
    down = math.ceil(len(rules) / across)
    names = [short(name, LONGEST) for name in objectives]
    beside = 0.07 * max(map(len, names)) + 1.1
    width, height = max(1.9, 0.75 * len(aggregators)), 1.2 + 0.34 * len(objectives)
    figure = blank_figure(across * width + beside, down * height + 0.5)
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    scale = _scale(np.array([line["mean"] for line in table], float))
    for axes, rule in zip(panels, rules, strict=False):
        own = np.array([line["mean"] for line in table if line["rule"] == rule], float)
        _panel(axes, own.reshape(len(objectives), -1), metric, scale, higher_is_better)
        axes.set_title("oracle (peeks)" if rule == "oracle" else rule, fontsize=10)
        axes.set_xticks(range(len(aggregators)), [short(a, LONGEST) for a in aggregators])
        axes.set_yticks(range(len(objectives)), names)
        axes.tick_params(labelsize=8, length=0)
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
    for axes in panels[len(rules) :]:
        axes.set_visible(False)
    shown = list(panels[: len(rules)])
    bar = figure.colorbar(shown[0].images[0], ax=shown, fraction=0.03)
    bar.ax.tick_params(labelsize=8)
    title = f"Out of domain: test {metric} {target}"
    figure.suptitle("\n".join(wrap(title, int(9 * figure.get_figwidth()))), fontsize=11)
    return figure


def _scale(means: NDArray[np.float64]) -> Normalize:
    from matplotlib.colors import Normalize

    known = means[np.isfinite(means)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    return Normalize(low, high if high > low else low + 1.0)


def _panel(
    axes: Axes,
    values: NDArray[np.float64],
    metric: str,
    scale: Normalize,
    higher_is_better: bool,
) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    axes.imshow(values, aspect="auto", cmap=HEAT, norm=scale)
    digits = ".3f" if is_share(metric) else ".4g"
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            axes.text(column, row, "–", ha="center", va="center", fontsize=8)
            continue
        red, green, blue, _ = colormaps[HEAT](scale(value))
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        axes.text(
            column, row, f"{value:{digits}}", ha="center", va="center", fontsize=8,
            color="black" if light else "white",
        )  # fmt: skip
    if np.isfinite(values).any():
        at = np.nanargmax(values) if higher_is_better else np.nanargmin(values)
        best_row, best_column = np.unravel_index(at, values.shape)
        corner = (float(best_column) - 0.5, float(best_row) - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=ORANGE, lw=2.5, clip_on=False))
    for side in axes.spines.values():
        side.set_visible(False)
