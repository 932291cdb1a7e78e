"""From scores to verdicts: paired differences over seeds, their intervals, and the controls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedskew.papers.format import Claim, Suite
from fedskew.papers.measure import Measured
from fedskew.papers.numbers import span
from fedskew.papers.pairs import filled, is_pattern
from fedskew.papers.scores import CURVES, ROUNDS, WHOLE_RUN, ScoreName, meaning
from fedskew.papers.statistics import Interval, interval, mean

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
    when = "" if score in WHOLE_RUN else f", {ROUNDS[claim.at]}"
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
    arms = list(filled(mine.arm, _arms(setting, results)).values())
    scores = _scores(claim, setting, arms, mine.score, results)
    return _compared(claim, setting, "", list(scores.values()), results)


def _compared(
    claim: Claim, setting: str, other: str, values: Sequence[float], results: Results
) -> Comparison:
    mine = claim.side(claim.better)
    arms = filled(mine.arm, _arms(setting, results)).values()
    share = all(m.is_share for (s, a, _), m in results.items() if s == setting and a in arms)
    return Comparison(other, interval(values), mine.score, share)


def _arms(setting: str, results: Results) -> list[str]:
    return list(dict.fromkeys(arm for where, arm, _ in results if where == setting))


def _differences(claim: Claim, setting: str, other: str, results: Results) -> dict[int, float]:
    mine, theirs = claim.side(claim.better), claim.side(other)
    ran = _arms(setting, results)
    here, there = filled(mine.arm, ran), filled(theirs.arm, ran)
    if is_pattern(mine.arm) and is_pattern(theirs.arm):
        # Like with like: where one side ran with more partners, only those of both count.
        here, there = (
            {star: arm for star, arm in side.items() if star in here.keys() & there.keys()}
            for side in (here, there)
        )
    ours = _scores(claim, setting, list(here.values()), mine.score, results)
    others = _scores(claim, setting, list(there.values()), theirs.score, results)
    falls = any(
        not measured.higher_is_better(mine.score)
        for (where, arm, _), measured in results.items()
        if where == setting and arm in here.values()
    )
    sign = -1 if falls else 1
    return {seed: sign * (ours[seed] - others[seed]) for seed in ours if seed in others}


def _scores(
    claim: Claim, setting: str, arms: Sequence[str], score: ScoreName, results: Results
) -> dict[int, float]:
    """By seed, the mean over some arms; NaN where one of them did not run with that seed."""
    seeds = sorted({seed for where, arm, seed in results if where == setting and arm in arms})
    return {
        seed: mean(
            [
                results[setting, arm, seed].score(score, claim.at, claim.target)
                if (setting, arm, seed) in results
                else math.nan
                for arm in arms
            ]
        )
        for seed in seeds
    }


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
