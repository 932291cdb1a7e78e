"""From scores to verdicts: paired differences over seeds, their intervals, and the controls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedskew.suites.format import Claim, Suite
from fedskew.suites.measure import Measured
from fedskew.suites.numbers import span
from fedskew.suites.scores import CURVES, WHOLE_RUN, ScoreName, meaning
from fedskew.suites.statistics import Interval, interval

Results = Mapping[tuple[str, str, int], Measured]
"""Finished runs by setting, arm and seed."""

Outcome = Literal["reproduced", "not reproduced", "undecided", "the control explains it", "not run"]


@dataclass(frozen=True)
class Comparison:
    """``better`` minus ``other`` on the same seeds; positive speaks for ``better``.

    Where the claim looks beyond a setting, the same difference there is taken off. Without an
    ``other`` it is the score of ``better`` itself, as it is.
    """

    other: str
    difference: Interval
    score: ScoreName
    main_is_share: bool

    @property
    def text(self) -> str:
        return span(self.difference, self.score, self.main_is_share, signed=bool(self.other))


@dataclass(frozen=True)
class Finding:
    """What one setting says about a claim."""

    setting: str
    outcome: Outcome
    reason: str
    against: tuple[Comparison, ...]
    controls: tuple[Comparison, ...]

    @property
    def text(self) -> str:
        return self.outcome + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def text(self) -> str:
        return overall(self.findings)


def compared(suite: Suite, claim: Claim) -> str:
    """What a claim compares, in words."""
    score = claim.side(claim.better).score if claim.kind == "above" else claim.score
    what = meaning(score).format(target=claim.target, curve=CURVES[suite.headline])
    when = "" if score in WHOLE_RUN else f", {claim.at} round"
    less = (
        "" if claim.beyond is None
        else f"; the difference here minus that on {suite.setting(claim.beyond).label}"
    )  # fmt: skip
    wants = {"better": "more than", "no-worse": "no worse, by at most", "above": "itself above"}
    asked = f"; {wants[claim.kind]} {claim.margin:g}"
    bar = "" if claim.kind == "better" and not claim.margin else asked
    control = f" Control: {', '.join(f'`{c}`' for c in claim.control)}." if claim.control else ""
    return f"{what}{when}{less}{bar}.{control} {claim.why}".rstrip()


def judge(claim: Claim, results: Results) -> Verdict:
    """A verdict on a claim from the runs there are."""
    return Verdict(claim, tuple(_finding(claim, setting, results) for setting in claim.on))


def _finding(claim: Claim, setting: str, results: Results) -> Finding:
    if claim.kind == "above":
        against = [alone(claim, setting, results)]
    else:
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
    differences = _differences(claim, setting, other, results)
    if claim.beyond is not None:
        there = _differences(claim, claim.beyond, other, results)
        differences = {seed: d - there[seed] for seed, d in differences.items() if seed in there}
    return _compared(claim, setting, other, list(differences.values()), results)


def alone(claim: Claim, setting: str, results: Results) -> Comparison:
    """The score of one arm over the seeds, for a claim that compares nobody."""
    mine = claim.side(claim.better)
    values = [
        m.score(mine.score, claim.at, claim.target) for m in _runs(setting, mine.arm, results)
    ]
    return _compared(claim, setting, "", values, results)


def _compared(
    claim: Claim, setting: str, other: str, values: Sequence[float], results: Results
) -> Comparison:
    mine = claim.side(claim.better)
    share = all(measured.is_share for measured in _runs(setting, mine.arm, results))
    return Comparison(other, interval(values), mine.score, share)


def _runs(setting: str, arm: str, results: Results) -> list[Measured]:
    return [measured for (s, a, _), measured in results.items() if (s, a) == (setting, arm)]


def _differences(claim: Claim, setting: str, other: str, results: Results) -> dict[int, float]:
    mine, theirs = claim.side(claim.better), claim.side(other)
    differences: dict[int, float] = {}
    for (where, arm, seed), measured in sorted(results.items(), key=lambda item: item[0]):
        partner = results.get((setting, theirs.arm, seed))
        if where != setting or arm != mine.arm or partner is None:
            continue
        difference = measured.score(mine.score, claim.at, claim.target)
        difference -= partner.score(theirs.score, claim.at, claim.target)
        sign = 1 if measured.higher_is_better(mine.score) else -1
        differences[seed] = sign * difference
    return differences


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


def indistinct(
    results: Results, setting: str, score: ScoreName = "clients", more: Sequence[ScoreName] = ()
) -> list[list[str]]:
    """Groups of arms with equal scores on every seed: one method by two names, or a fault."""
    scores: dict[str, list[tuple[int, str]]] = {}
    for (where, arm, seed), measured in results.items():
        if where == setting and not math.isnan(measured.score(score)):
            # As text, since a score nobody has is not equal to itself.
            found = repr([measured.score(name) for name in (score, *more)])
            scores.setdefault(arm, []).append((seed, found))
    groups: dict[tuple[tuple[int, str], ...], list[str]] = {}
    for arm, values in scores.items():
        groups.setdefault(tuple(sorted(values)), []).append(arm)
    return [arms for arms in groups.values() if len(arms) > 1]
