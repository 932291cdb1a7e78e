"""The page a suite ends in: what was run, our numbers beside the source's, and the verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedskew.engine.arithmetic import differences
from fedskew.papers import boxes
from fedskew.papers.claims import Claim
from fedskew.papers.clients import Data, client_table
from fedskew.papers.effort import effort_tables
from fedskew.papers.entries import Fallback
from fedskew.papers.excerpt import EVERYTHING, Excerpt
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell, keys_of
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
    stopped: Mapping[str, str] = field(default_factory=dict)
    """By run, why it stopped: none of its numbers is on the page."""
    excerpt: Excerpt = EVERYTHING


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
    if facts.excerpt.is_part:
        parts.append("A part of the suite: what the command does not name was not looked at.")
    if facts.fallback is not None:
        parts.append(
            "**The datasets of this suite were not found. These numbers are from the scale's "
            "fallback data and say nothing about the claims.**"
        )
    if facts.stopped:
        parts.append("Runs that stopped, of which no number counts:")
        parts.append("\n".join(f"- {name}: {why}" for name, why in facts.stopped.items()))
    reading = scale.reading if facts.fallback is None else []
    return parts + list(suite.notes) + (["## In short", *reading] if reading else [])


def _verdicts(facts: Reproduction) -> list[str]:
    if not facts.verdicts:
        return []
    rows = [(_named(v.claim), v.claim.says, f"**{v.text}**") for v in facts.verdicts]
    scale, asked = facts.suite.scale(facts.scale), facts.excerpt.seeds
    others = {} if asked else scale.seeds_on
    more = "".join(f", {count} on {setting}" for setting, count in others.items())
    seeds = f"{_count(asked or scale.seeds)}{more}"
    how = (
        f"Each verdict rests on differences between two arms on the same seed ({seeds}), "
        "with a 95 % t-interval over the seeds; positive speaks for the claim. Intervals are of "
        "single comparisons; what decides is p, of the paired t-test against what the claim asks "
        "for, after Holm's correction over all comparisons of the claim. A seed draws the split, "
        "the initial model, and the order of batches anew. Where all seeds give the same number, "
        "nothing is decided. A claim is put down to its control if the method does not beat the "
        "control and the control is shown to reach more than half of the method's gain; if "
        "neither is shown, it is undecided against the control."
    )
    if any(verdict.claim.kind == "above" for verdict in facts.verdicts):
        how += " A claim about one number rests on that number's own interval over the seeds."
    parts = ["## Verdicts", table(("claim", "it says", "verdict"), rows), how]
    return parts + [_one_verdict(facts.suite, verdict) for verdict in facts.verdicts]


def _named(claim: Claim) -> str:
    return f"{claim.name} (our variant)" if claim.ours else claim.name


def _count(seeds: int) -> str:
    return "one seed, so no intervals" if seeds == 1 else f"{seeds} seeds"


def _one_verdict(suite: Suite, verdict: Verdict) -> str:
    claim = verdict.claim
    lines = [
        f"### {claim.name}: {verdict.text}",
        f"“{claim.says}” ({claim.source})",
        f"Compared: {compared(suite, claim, verdict.in_points)}",
    ]
    if claim.ours:
        lines.append(f"This judges {claim.ours}. To the letter: `{claim.letter}`.")
    alone = claim.kind == "above"
    # The outcome is the setting's, from all its rows: said once, beside the first.
    rows = [
        (
            suite.setting(finding.setting).label,
            *([] if alone else [f"`{difference.other}`"]),
            difference.text,
            _shown_p(difference.p),
            "" if n else finding.text,
        )
        for finding in verdict.findings
        if finding.outcome != "not run"
        for n, difference in enumerate((*finding.against, *finding.controls))
    ]
    if rows:
        less = "" if claim.beyond is None else f" less that on `{claim.beyond}`"
        heads = ["setting", f"`{claim.better}` against", f"difference{less}", "p (Holm)", "outcome"]
        if alone:
            heads = ["setting", f"score of `{claim.side(claim.better).arm}`", "p (Holm)", "outcome"]
        lines.append(table(heads, rows))
    left_out = [f.setting for f in verdict.findings if f.outcome == "not run"]
    if left_out:
        there = "" if claim.beyond is None else f", there or on {claim.beyond}"
        lines.append(f"Without numbers at this scale{there}: {', '.join(left_out)}.")
    return "\n\n".join(lines)


def _shown_p(p: float) -> str:
    """
    >>> [_shown_p(p) for p in (0.0304, 0.00012, float("nan"))]
    ['0.030', '< 0.001', '–']
    """
    if math.isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _tables(facts: Reproduction) -> list[str]:
    suite, results = facts.suite, facts.results
    settings = list(dict.fromkeys(cell.setting for cell in facts.plan))
    stopped = keys_of(facts.plan, facts.stopped)
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
            parts.append(results_table(suite, setting, listed, others, stopped))
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
    used = [each for measured in every for each in measured.result.get("made_on", ())]
    elsewhere = sorted({differences(each, made.arithmetic) for each in used} - {""})
    failures = sum(measured.result["failures"] for measured in every)
    computing = sum(measured.result["seconds"] for measured in every)
    lines = sum(measured.folder is None for measured in every)
    again = f" and {len(folds)} that leave a client out" if folds else ""
    rows = [
        ("fedskew", made.code),
        *([("runs finished by other code", "; ".join(other))] if other else ()),
        ("machine", f"{made.cores} cores, {made.processor}, {made.memory}"),
        ("software", f"Python {made.python}"),
        ("arithmetic", ", ".join(f"{n} {v}" for n, v in made.arithmetic.items() if v)),
        *([("runs made with other arithmetic", "; ".join(elsewhere))] if elsewhere else ()),
        ("runs", f"{len(facts.results)}{again}, in which clients failed {failures} times"),
        *([("of these known by their lines alone", str(lines))] if lines else ()),
        ("training and scoring, all runs", _minutes(computing)),
        ("this command, runs already finished not counted", _minutes(facts.wall_seconds)),
    ]
    return ["## Made with", table(("what", ""), rows)]


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
