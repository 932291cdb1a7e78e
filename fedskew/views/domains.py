"""Scores out of domain: objectives by aggregators, a table for each rule of model selection."""

from __future__ import annotations

import csv
import io
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedskew.comparisons.selection import MEANING, RULES, Curves, chosen
from fedskew.views.leaderboard import Spread, aligned
from fedskew.views.picture import Picture, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, str]
"""An objective and an aggregator, as the table names them."""
UNSEEN, CENTRAL_TEST = "of clients nobody trained with", "on the central test set"
MISSING = {
    "validation": "No client has validation data; federation.validation sets some aside.",
    "left-out": "Not measured: --leave-out (leave_out) adds the runs it takes.",
}


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
    """What every rule chose for every pair; ``target`` says on whom it is scored.

    ``silent`` are clients that could not be left out, for want of validation data; ``remarks``
    are what runs warned of.
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

    def spread(self, rule: str, cell: Cell) -> Spread:
        """Mean and deviation over seeds; NaN unless all seeds have a number."""
        found = [p.ood for p in self.picks if (p.rule, p.objective, p.aggregator) == (rule, *cell)]
        if len(found) < self.seeds:
            return Spread(math.nan)
        return Spread(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None)

    def spreads(self, rule: str) -> dict[Cell, Spread]:
        return {
            (o, a): self.spread(rule, (o, a)) for o in self.objectives for a in self.aggregators
        }

    @property
    def rules(self) -> list[str]:
        """The rules that chose anything."""
        found = {pick.rule for pick in self.picks}
        return [rule for rule in RULES if rule in found]

    @property
    def caption(self) -> str:
        over = f", mean ± standard deviation over {self.seeds} seeds" if self.seeds > 1 else ""
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
        """A table a rule."""
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

    def _table(self, rule: str, mark: str) -> tuple[list[str], list[list[str]]]:
        spreads = self.spreads(rule)
        means = [spread.mean for spread in spreads.values() if not math.isnan(spread.mean)]
        best = (max if self.higher_is_better else min)(means, default=math.nan)

        def shown(spread: Spread) -> str:
            text = spread.show(self.metric)
            return mark.format(text) if spread.mean == best else text

        rows = [[o, *(shown(spreads[o, a]) for a in self.aggregators)] for o in self.objectives]
        return ["objective", *self.aggregators], rows

    def to_csv(self) -> str:
        """One line a pair, rule and seed, unrounded."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["objective", "aggregator", "rule", "seed", "round", "ood", "in_domain"])
        for p in self.picks:
            writer.writerow(
                [p.objective, p.aggregator, p.rule, p.seed, p.round, p.ood, p.in_domain]
            )
        return text.getvalue()

    def picture(self) -> Picture:
        """The same as heat maps."""
        table: Table = [
            {"rule": rule, "objective": o, "aggregator": a, "mean": spread.mean, "std": spread.std}
            for rule in self.rules
            for (o, a), spread in self.spreads(rule).items()
        ]

        def draw() -> Figure:
            from fedskew.views.domain_plots import rule_maps

            return rule_maps(table, self.metric, self.target, self.higher_is_better)

        return Picture("matrix", table, draw)


def picks_of(cell: Cell, seed: int, curves: Curves) -> list[Pick]:
    """What each rule chose in one seed of a pair, but for rules without anything to go by."""
    rounds = {rule: chosen(rule, curves) for rule in RULES}
    return [
        Pick(*cell, rule, seed, number, curves.ood[number], curves.in_domain.get(number))
        for rule, number in rounds.items()
        if number is not None and number in curves.ood
    ]
