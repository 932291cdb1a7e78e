"""From differences over seeds to verdicts: corrected tests, controls, and what is left open."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedskew.comparisons.statistics import holm
from fedskew.papers.claims import Claim
from fedskew.papers.differences import (
    ArmDifference,
    ControlDifference,
    Key,
    Results,
    alone,
    compare_arms,
    explaining,
)
from fedskew.papers.format import Suite
from fedskew.papers.numbers import amount
from fedskew.papers.scores import CURVES, WHOLE_RUN, ScoreName, meaning, which_round

__all__ = [
    "Key",
    "Outcome",
    "Results",
    "SettingVerdict",
    "Verdict",
    "compared",
    "decide",
    "indistinct",
    "judge",
    "overall",
]  # fmt: skip

LEVEL = 0.05
"""Corrected p-values below it decide."""

Outcome = Literal[
    "reproduced",
    "the control explains it",
    "undecided against the control",
    "undecided",
    "not reproduced",
    "diverged",
    "not run",
]
ORDER: tuple[Outcome, ...] = (
    "reproduced", "the control explains it", "undecided against the control", "undecided",
    "not reproduced", "diverged",
)  # fmt: skip
"""In which outcomes of several settings are told."""


@dataclass(frozen=True)
class SettingVerdict:
    """What one setting says about a claim."""

    setting: str
    outcome: Outcome
    reason: str
    against: tuple[ArmDifference, ...]
    controls: tuple[ControlDifference, ...]

    @property
    def text(self) -> str:
        return self.outcome + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Verdict:
    """What all settings say; ``unjudged`` is why a scale cannot say anything about it."""

    claim: Claim
    findings: tuple[SettingVerdict, ...]
    unjudged: str = ""

    @property
    def text(self) -> str:
        if self.unjudged:
            return f"not run at this scale ({self.unjudged})"
        return overall(self.findings)

    @property
    def in_points(self) -> bool:
        """Whether its numbers are printed as points of a hundred."""
        ran = [found for found in self.findings if found.outcome != "not run"]
        return bool(ran) and all(difference.in_points for f in ran for difference in f.against)


def compared(suite: Suite, claim: Claim, points: bool = False) -> str:
    """What a claim compares, in words; ``points`` says that it is about points of a hundred."""
    score = claim.side(claim.better).score if claim.kind == "above" else claim.score
    what = meaning(score).format(target=claim.target, curve=CURVES[suite.headline])
    when = "" if score in WHOLE_RUN else f", {which_round(claim.at)}"
    when += f" ({claim.at_why})" if when and claim.at_why else ""
    less = (
        "" if claim.beyond is None
        else f"; the difference here minus that on {suite.setting(claim.beyond).label}"
    )  # fmt: skip
    wants = {"better": "more than", "no-worse": "no worse, by at most", "above": "itself above"}
    asked = f"; {wants[claim.kind]} {amount(claim.margin, points)}"
    bar = "" if claim.kind == "better" and not claim.margin else asked
    floor = (
        "" if claim.floor is None
        else f"; judged where `{claim.better}` reaches {amount(claim.floor, points)}"
    )  # fmt: skip
    control = f" Control: {', '.join(f'`{c}`' for c in claim.control)}." if claim.control else ""
    return f"{what}{when}{less}{bar}{floor}.{control} {claim.why}".rstrip()


def judge(
    claim: Claim, results: Results, unjudged: str = "", stopped: Collection[Key] = ()
) -> Verdict:
    """A verdict on a claim from the runs there are; ``unjudged`` is why there can be none.

    Runs that ``stopped`` because no client could go on count as diverged.
    """
    if unjudged:
        return Verdict(claim, (), unjudged)
    bar = -claim.margin if claim.kind == "no-worse" else claim.margin
    against = {
        setting: [alone(claim, setting, results, stopped)]
        if claim.kind == "above"
        else [compare_arms(claim, setting, other, results, stopped) for other in claim.than]
        for setting in claim.on
    }
    controls = {
        setting: [compare_arms(claim, setting, other, results, stopped) for other in claim.control]
        for setting in claim.on
    }
    tested = _corrected(against, bar)
    held = _controls(against, _corrected(controls, 0.0))
    return Verdict(
        claim,
        tuple(
            _finding(claim, setting, tested[setting], held[setting], bar, results, stopped)
            for setting in claim.on
        ),
    )


def _corrected(
    by_setting: Mapping[str, Sequence[ArmDifference]], bar: float
) -> dict[str, list[ArmDifference]]:
    """The same with p-values after Holm's correction over all of them."""
    every = [found for several in by_setting.values() for found in several]
    adjusted = iter(holm([found.tested(bar) for found in every]))
    return {
        setting: [replace(found, p=next(adjusted)) for found in several]
        for setting, several in by_setting.items()
    }


def _controls(
    against: Mapping[str, Sequence[ArmDifference]], controls: Mapping[str, Sequence[ArmDifference]]
) -> dict[str, list[ControlDifference]]:
    """The controls, and whether each explains what is gained; corrected over all of them."""
    raw = [explaining(against[s], gap) for s, several in controls.items() for gap in several]
    adjusted = iter(holm(raw))
    return {
        setting: [
            ControlDifference(
                gap.other, gap.by_seed, gap.score, gap.main_is_share, gap.diverged, gap.p,
                explains=next(adjusted),
            )
            for gap in several
        ]
        for setting, several in controls.items()
    }  # fmt: skip


def _finding(
    claim: Claim,
    setting: str,
    against: Sequence[ArmDifference],
    controls: Sequence[ControlDifference],
    bar: float,
    results: Results,
    stopped: Collection[Key],
) -> SettingVerdict:
    outcome, reason = decide(against, controls, bar)
    if claim.floor is not None and outcome != "not run":
        own = alone(claim, setting, results, stopped)
        if not own.difference.mean >= claim.floor:
            outcome = "undecided"
            least = amount(claim.floor, own.in_points)
            reason = f"`{claim.better}` has not learnt enough to judge by: it is below {least}"
    return SettingVerdict(setting, outcome, reason, tuple(against), tuple(controls))


def decide(
    against: Sequence[ArmDifference], controls: Sequence[ControlDifference], bar: float = 0.0
) -> tuple[Outcome, str]:
    """The outcome of one setting, and why.

    Above the bar against everyone: reproduced; below it against anyone: not reproduced; else
    undecided; all by corrected p-values. A control that is not beaten takes the credit only if
    it is shown to reach more than half of the gain. A seed that diverged lets nothing count as
    reproduced.
    """
    everything = [*against, *controls]
    lost = dict(item for found in everything for item in found.diverged.items())
    told = "; ".join(f"{arm} diverged in {n} of {of} seeds" for arm, (n, of) in lost.items())
    if any(not f.by_seed or math.isnan(f.difference.mean) for f in everything):
        empty = [f for f in everything if not f.by_seed]
        if empty and all(f.diverged for f in empty):
            return "diverged", told
        return "not run", "an arm has no such score at this scale"
    outcome, reason = _compare(against, controls, bar)
    if lost:
        open_ = outcome != "not reproduced"
        return "undecided" if open_ else outcome, "; ".join(filter(None, (reason, told)))
    return outcome, reason


def _compare(
    against: Sequence[ArmDifference], controls: Sequence[ControlDifference], bar: float
) -> tuple[Outcome, str]:
    """The same for arms that all have finite scores."""
    if any(found.difference.n == 1 for found in (*against, *controls)):
        return "undecided", "one seed gives no interval"
    asked = amount(bar, all(found.in_points for found in against))
    decided = [found.p < LEVEL for found in against]
    above = [found.difference.mean > bar for found in against]
    if any(yes and not high for yes, high in zip(decided, above, strict=True)):
        return "not reproduced", f"the interval lies below {asked}"
    if not all(decided):
        return "undecided", _why_open([f for f in against if not f.p < LEVEL], bar, asked)
    if bar < 0:
        if any(found.difference.high < 0 for found in against):
            return "reproduced", f"worse, but by less than {asked.removeprefix('-')}"
        return "reproduced", "the same on every seed" if all(f.is_same for f in against) else ""
    unbeaten = [c for c in controls if not (c.p < LEVEL and c.difference.mean > 0)]
    if explains := [c.other for c in unbeaten if c.explains < LEVEL]:
        return "the control explains it", f"over half of the gain without it: {', '.join(explains)}"
    if unbeaten:
        names = ", ".join(c.other for c in unbeaten)
        return "undecided against the control", f"neither above {names} nor shown to be no better"
    return "reproduced", ""


def _why_open(undecided: Sequence[ArmDifference], bar: float, asked: str) -> str:
    if any(found.is_chance for found in undecided):
        return "all seeds gave the same number"
    if any(found.difference.low <= bar <= found.difference.high for found in undecided):
        return f"the interval contains {asked}"
    return f"not beyond {asked} once corrected for the number of comparisons"


def overall(findings: Sequence[SettingVerdict]) -> str:
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
    parts = [f"{o} on {', '.join(places[o])}" for o in ORDER if o in places]
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
