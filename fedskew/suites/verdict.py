"""From scores to verdicts: paired differences over seeds, their intervals, and the controls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedskew.suites.format import Claim
from fedskew.suites.measure import Interval, Measured, interval

Results = Mapping[tuple[str, str, int], Measured]
"""Finished runs by setting, arm and seed."""

Outcome = Literal["reproduced", "not reproduced", "undecided", "the control explains it", "not run"]


@dataclass(frozen=True)
class Comparison:
    """``better`` minus ``other`` on the same seeds; positive speaks for ``better``."""

    other: str
    difference: Interval
    is_share: bool


@dataclass(frozen=True)
class Finding:
    """What one setting says about a claim."""

    setting: str
    outcome: Outcome
    reason: str
    against: tuple[Comparison, ...]
    controls: tuple[Comparison, ...]


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def text(self) -> str:
        return overall(self.findings)


def judge(claim: Claim, results: Results) -> Verdict:
    """A verdict on a claim from the runs there are."""
    return Verdict(claim, tuple(_finding(claim, setting, results) for setting in claim.on))


def _finding(claim: Claim, setting: str, results: Results) -> Finding:
    against = [compare_arms(claim, setting, other, results) for other in claim.than]
    controls = [compare_arms(claim, setting, other, results) for other in claim.control]
    outcome, reason = decide(
        [c.difference for c in against],
        {c.other: c.difference for c in controls},
        -claim.margin if claim.kind == "no-worse" else claim.margin,
    )
    return Finding(setting, outcome, reason, tuple(against), tuple(controls))


def compare_arms(claim: Claim, setting: str, other: str, results: Results) -> Comparison:
    """Differences between two arms, seed by seed, so what a seed does to both falls out."""
    mine, theirs = claim.side(claim.better), claim.side(other)
    differences: list[float] = []
    share = False
    for (where, arm, seed), measured in sorted(results.items(), key=lambda item: item[0]):
        partner = results.get((setting, theirs.arm, seed))
        if where != setting or arm != mine.arm or partner is None:
            continue
        difference = measured.score(mine.score, claim.at, claim.target)
        difference -= partner.score(theirs.score, claim.at, claim.target)
        sign = 1 if measured.higher_is_better(mine.score) else -1
        share = measured.is_share and mine.score != "rounds"
        differences.append(sign * difference)
    return Comparison(other, interval(differences), share)


def decide(
    against: Sequence[Interval], controls: Mapping[str, Interval], bar: float = 0.0
) -> tuple[Outcome, str]:
    """The outcome of one setting.

    The whole interval above the bar against everyone: reproduced; below it against anyone: not
    reproduced; else undecided. A control the method does not beat with its whole interval above
    zero takes the credit from it.
    """
    everything = [*against, *controls.values()]
    if any(found.n == 0 or math.isnan(found.mean) for found in everything):
        return "not run", "an arm has no such score at this scale"
    if any(found.n == 1 for found in everything):
        return "undecided", "one seed gives no interval"
    if any(found.high < bar for found in against):
        return "not reproduced", f"the interval lies below {bar:g}"
    if not all(found.low > bar for found in against):
        return "undecided", f"the interval contains {bar:g}"
    explained = [name for name, found in controls.items() if not found.low > 0]
    if bar >= 0 and explained:
        return "the control explains it", f"not above {', '.join(explained)} beyond the interval"
    return "reproduced", ""


def overall(findings: Sequence[Finding]) -> str:
    """One line for all settings of a claim."""
    ran = [finding for finding in findings if finding.outcome != "not run"]
    if not ran:
        return "not run at this scale"
    places: dict[Outcome, list[str]] = {}
    for finding in ran:
        places.setdefault(finding.outcome, []).append(finding.setting)
    if len(places) == 1:
        reasons = {finding.reason for finding in ran} - {""}
        return ran[0].outcome + (f" ({'; '.join(sorted(reasons))})" if reasons else "")
    order: tuple[Outcome, ...] = (
        "reproduced", "the control explains it", "undecided", "not reproduced",
    )  # fmt: skip
    parts = [f"{o} on {', '.join(places[o])}" for o in order if o in places]
    if "reproduced" in places:
        parts[0] = parts[0].replace("reproduced on", "reproduced only on", 1)
    return "; ".join(parts)


def indistinct(results: Results, setting: str) -> list[list[str]]:
    """Groups of arms with equal scores on every seed: one method by two names, or a fault."""
    scores: dict[str, list[tuple[int, float]]] = {}
    for (where, arm, seed), measured in results.items():
        if where == setting:
            scores.setdefault(arm, []).append((seed, measured.score("clients")))
    groups: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for arm, found in scores.items():
        groups.setdefault(tuple(sorted(found)), []).append(arm)
    return [arms for arms in groups.values() if len(arms) > 1]
