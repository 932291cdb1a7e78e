"""The page a suite ends in: what was run, our numbers beside the source's, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedskew.papers import boxes
from fedskew.papers.clients import Data, client_table
from fedskew.papers.effort import effort_tables
from fedskew.papers.entries import Fallback
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell
from fedskew.papers.machine import Provenance
from fedskew.papers.markdown import table
from fedskew.papers.matrix import about_rules, matrix_tables
from fedskew.papers.measure import Measured
from fedskew.papers.printed import source_table
from fedskew.papers.setup import set_up
from fedskew.papers.spread import spread_tables
from fedskew.papers.tables import about_columns, results_table
from fedskew.papers.verdict import Results, Verdict, compared, indistinct

__all__ = ["Reproduction", "page", "table"]


@dataclass(frozen=True)
class Reproduction:
    """Everything a page tells."""

    suite: Suite
    scale: str
    command: str
    plan: Sequence[Cell]
    fallback: Fallback | None
    results: Results
    verdicts: Sequence[Verdict]
    figures: Mapping[str, Sequence[str]]
    series: Mapping[str, str]
    provenance: Provenance
    wall_seconds: float
    data: Mapping[str, Data] = field(default_factory=dict)


def page(facts: Reproduction) -> str:
    """The page as Markdown."""
    parts = [
        *_opening(facts),
        *_verdicts(facts),
        *_tables(facts),
        *set_up(facts.suite, facts.scale, facts.plan),
        *_made_with(facts),
    ]
    return "\n\n".join(parts) + "\n"


def _opening(facts: Reproduction) -> list[str]:
    suite, scale = facts.suite, facts.suite.scale(facts.scale)
    parts = [
        f"# {suite.title}",
        suite.question,
        f"Source: {suite.source}",
        f"Scale: **{facts.scale}**. {scale.note}".rstrip(),
        f"```\n{facts.command}\n```",
    ]
    if facts.fallback is not None:
        parts.append(
            "**The datasets of this suite were not found. These numbers are from the scale's "
            "fallback data and say nothing about the claims.**"
        )
    reading = scale.reading if facts.fallback is None else []
    return parts + list(suite.notes) + (["## In short", *reading] if reading else [])


def _verdicts(facts: Reproduction) -> list[str]:
    if not facts.verdicts:
        return []
    rows = [(v.claim.name, v.claim.says, f"**{v.text}**") for v in facts.verdicts]
    scale = facts.suite.scale(facts.scale)
    more = "".join(f", {count} on {setting}" for setting, count in scale.seeds_on.items())
    seeds = f"{_count(scale.seeds)}{more}"
    how = (
        f"Each verdict rests on differences between two arms on the same seed ({seeds}), "
        "with a 95 % t-interval over the seeds; positive speaks for the claim. The intervals are "
        "not corrected for the number of comparisons. A seed draws the split, the initial model, "
        "and the order of batches anew. A claim whose control does as well within the interval "
        "is put down to the control."
    )
    if any(verdict.claim.kind == "above" for verdict in facts.verdicts):
        how += " A claim about one number rests on that number's own interval over the seeds."
    parts = ["## Verdicts", table(("claim", "it says", "verdict"), rows), how]
    return parts + [_one_verdict(facts.suite, verdict) for verdict in facts.verdicts]


def _count(seeds: int) -> str:
    return "one seed, so no intervals" if seeds == 1 else f"{seeds} seeds"


def _one_verdict(suite: Suite, verdict: Verdict) -> str:
    claim = verdict.claim
    lines = [
        f"### {claim.name}: {verdict.text}",
        f"“{claim.says}” ({claim.source})",
        f"Compared: {compared(suite, claim)}",
    ]
    alone = claim.kind == "above"
    # The outcome is the setting's, from all its rows: said once, beside the first.
    rows = [
        (
            suite.setting(finding.setting).label,
            *([] if alone else [f"`{comparison.other}`"]),
            comparison.text,
            "" if n else finding.text,
        )
        for finding in verdict.findings
        if finding.outcome != "not run"
        for n, comparison in enumerate((*finding.against, *finding.controls))
    ]
    if rows:
        less = "" if claim.beyond is None else f" less that on `{claim.beyond}`"
        heads = ["setting", f"`{claim.better}` against", f"difference{less}", "outcome"]
        if alone:
            heads = ["setting", f"score of `{claim.side(claim.better).arm}`", "outcome"]
        lines.append(table(heads, rows))
    left_out = [f.setting for f in verdict.findings if f.outcome == "not run"]
    if left_out:
        there = "" if claim.beyond is None else f", there or on {claim.beyond}"
        lines.append(f"Without numbers at this scale{there}: {', '.join(left_out)}.")
    return "\n\n".join(lines)


def _tables(facts: Reproduction) -> list[str]:
    suite, results = facts.suite, facts.results
    settings = list(dict.fromkeys(cell.setting for cell in facts.plan))
    # The pairs of a matrix have tables of their own, where fifty of them can be seen together.
    others = {key: run for key, run in results.items() if not suite.in_matrix(key[1])}
    parts = ["## Results", *about_columns(suite, settings, others)]
    parts += about_rules() if suite.matrix else []
    labels = {series.name: series.label for series in suite.series}
    labels |= {trade.name: trade.label for trade in suite.trades}
    for name, label in labels.items():
        if name in facts.series:
            parts += [f"### {label}", f"![{label}]({facts.series[name]})"]
    if found := effort_tables(suite, settings, results):
        title = "Effective communication"
        parts += [f"### {title}", *found, *_drawn(facts, "effort", title)]
    if "boxes" in facts.series:
        title = "Scores of all clients"
        parts += [f"### {title}", boxes.ABOUT, *_drawn(facts, "boxes", title)]
    for setting in settings:
        arms = list(dict.fromkeys(cell.arm for cell in facts.plan if cell.setting == setting))
        label = suite.setting(setting).label
        parts.append(f"### {label}")
        if listed := [arm for arm in arms if not suite.in_matrix(arm)]:
            parts.append(results_table(suite, setting, listed, others))
        parts += matrix_tables(suite, setting, results)
        parts += [
            f"The same to the last digit, whatever the seed: {', '.join(same)}."
            for same in indistinct(results, setting, suite.headline, suite.columns)
        ]
        parts += source_table(suite, setting, results)
        if setting in facts.data:
            parts += client_table(suite, setting, arms, results, facts.data[setting])
            parts += spread_tables(suite, setting, results, facts.data[setting])
        parts += [f"![{label}]({picture})" for picture in facts.figures.get(setting, ())]
    return parts


def _drawn(facts: Reproduction, name: str, title: str) -> list[str]:
    return [f"![{title}]({facts.series[name]})"] if name in facts.series else []


def _made_with(facts: Reproduction) -> list[str]:
    made = facts.provenance
    folds = [Measured(fold) for measured in facts.results.values() for fold in measured.folds]
    every = [*facts.results.values(), *folds]
    other = sorted({measured.code for measured in every} - {made.code})
    failures = sum(measured.result["failures"] for measured in every)
    computing = sum(measured.result["seconds"] for measured in every)
    again = f" and {len(folds)} that leave a client out" if folds else ""
    rows = [
        ("fedskew", made.code),
        *([("runs finished by other code", "; ".join(other))] if other else ()),
        ("machine", f"{made.cores} cores, {made.processor}, {made.memory}"),
        ("software", f"Python {made.python}, torch {made.torch}, {made.threads} torch thread(s)"),
        ("runs", f"{len(facts.results)}{again}, in which clients failed {failures} times"),
        ("training and scoring, all runs", _minutes(computing)),
        ("this command, runs already finished not counted", _minutes(facts.wall_seconds)),
    ]
    return ["## Made with", table(("what", ""), rows)]


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
