"""The matrix on a page: a table for each rule of selection, heat maps, and what each side gains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedskew.comparisons.selection import MEANING, RULES
from fedskew.papers.board import AT, Board, board
from fedskew.papers.figure import png
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell
from fedskew.papers.markdown import table
from fedskew.papers.numbers import cell, readable
from fedskew.papers.scores import in_points
from fedskew.papers.statistics import Interval
from fedskew.papers.verdict import Results
from fedskew.store import write_atomically, write_csv
from fedskew.views.domain_plots import rule_maps

ABOUT = (
    "In a matrix rows are what clients minimise, columns who aggregates. Numbers are means over "
    "seeds, ± is half the 95 % t-interval, the best of a table is bold. A rule of selection says "
    "which round's model counts:"
)
ABOUT_GAINS = (
    "Differences between two pairs on the same seed that share the other side; positive is better, "
    "± is half the 95 % t-interval over the seeds' means, bold is what it keeps apart from zero."
)
FIELDS = ("objective", "aggregator", "rule", "seed", "round", "ood", "in_domain")


def about_rules() -> list[str]:
    """What the tables of a matrix show, in words."""
    return [ABOUT, "\n".join(f"- {rule}: {MEANING[rule]}." for rule in RULES)]


def matrix_tables(suite: Suite, setting: str, results: Results) -> list[str]:
    """Every rule's table, the score in domain, and both sides' gains; nothing where none ran."""
    found = board(suite, setting, results)
    if found is None:
        return []
    metric = found.any_run.result["primary_metric"]
    parts = [f"#### Out of domain: test {metric} {found.target}"]
    for rule in RULES:
        if rule in found.rules:
            spans = found.spans("ood", rule)
            parts += [f"Rule *{rule}*{_remark(found, rule)}:", _matrix(found, spans)]
    missing = [rule for rule in RULES if rule not in found.rules]
    parts += [f"Without numbers here: rule {', '.join(missing)}."] if missing else []
    within = found.spans("clients", "validation")
    if any(not math.isnan(span.mean) for span in within.values()):
        title = f"#### In domain: test {metric} on the training clients' own data"
        parts += [title, "Rule *validation*:", _matrix(found, within)]
    return parts + _gains(found)


def _remark(found: Board, rule: str) -> str:
    if rule == "left-out":
        folds = max(len(run.folds) for run in found.runs.values())
        return f" ({folds} of the training clients, one at a time)"
    return " (peeks at the test data)" if rule == "oracle" else ""


def _matrix(found: Board, spans: Mapping[tuple[str, str], Interval]) -> str:
    means = [span.mean for span in spans.values() if not math.isnan(span.mean)]
    best = (max if found.any_run.higher_is_better("ood") else min)(means, default=math.nan)
    rows = [
        [o, *(_bold(_cell(found, spans[o, a]), spans[o, a].mean == best) for a in found.columns)]
        for o in found.rows
    ]
    return table(("objective", *found.columns), rows)


def _cell(found: Board, span: Interval) -> str:
    return cell(span, "ood", found.any_run.is_share)


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text


def _gains(found: Board) -> list[str]:
    """What it changes to replace the plain objective, and the mean at the server."""
    plain, usual = found.matrix.plain, found.matrix.mean
    sides: list[tuple[str, str, str, Sequence[str], Callable[[str, str], Interval]]] = [
        ("objective", plain, "aggregators", found.rows, found.of_objective),
        ("aggregator", usual, "objectives", found.columns, found.of_aggregator),
    ]
    parts = []
    for side, reference, others, names, gain in sides:
        rows = [
            [name, *(_gain(found, gain(name, rule)) for rule in found.rules)]
            for name in names
            if name != reference
        ]
        if found.rules and reference in names and rows:
            parts += [
                f"Each {side} against {reference}, mean over the {others} both ran with:",
                table((side, *found.rules), rows),
            ]
    return ["#### What each side gains out of domain", ABOUT_GAINS, *parts] if parts else []


def _gain(found: Board, span: Interval) -> str:
    if math.isnan(span.mean):
        return "–"
    points = in_points("ood", found.any_run.is_share)
    factor, style = (100.0, ".2f") if points else (1.0, readable(span.mean))
    text = f"{factor * span.mean:+{style}}"
    if math.isfinite(span.half):
        text += f" ± {factor * span.half:{style}}"
    return _bold(text, abs(span.mean) > span.half)


def draw_maps(
    suite: Suite, plan: Sequence[Cell], results: Results, folder: Path
) -> dict[str, Path]:
    """By setting: heat maps, one for each rule that has numbers; a CSV of all seeds beside them."""
    pictures = {}
    for setting in dict.fromkeys(place.setting for place in plan):
        found = board(suite, setting, results)
        if found is None or not found.rules:
            continue
        write_csv(folder / f"{setting}-matrix.csv", [FIELDS, *_lines(found)])
        lines = [
            {"rule": rule, "objective": o, "aggregator": a, "mean": span.mean}
            for rule in found.rules
            for (o, a), span in found.spans("ood", rule).items()
        ]
        metric = found.any_run.result["primary_metric"]
        better = found.any_run.higher_is_better("ood")
        figure = rule_maps(lines, metric, found.target, better)
        label = suite.setting(setting).label
        figure.suptitle(f"{label}: test {metric} {found.target}", fontsize=11)
        pictures[setting] = folder / f"{setting}-matrix.png"
        write_atomically(pictures[setting], png(figure))
    return pictures


def _lines(found: Board) -> list[tuple[object, ...]]:
    return [
        (o, a, rule, seed, run.by_round.round_of(AT[rule]), value, run.score("clients", AT[rule]))
        for (o, a, seed), run in found.runs.items()
        for rule in found.rules
        if not math.isnan(value := run.score("ood", AT[rule]))
    ]
