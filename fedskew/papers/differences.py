"""Differences between arms of a suite, seed by seed: what verdicts rest on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fedskew.comparisons.statistics import Interval, interval, mean, p_value
from fedskew.papers.claims import Claim
from fedskew.papers.measure import Measured
from fedskew.papers.numbers import span
from fedskew.papers.pairs import filled, is_pattern
from fedskew.papers.scores import STRUCTURAL, ScoreName, in_points

Key = tuple[str, str, int]
"""Setting, arm and seed."""
Results = Mapping[Key, Measured]
"""Finished runs."""
BySeed = dict[int, float]


@dataclass(frozen=True)
class ArmDifference:
    """``better`` minus ``other`` on the same seeds; positive speaks for ``better``.

    Where the claim looks beyond a setting, the same difference there is taken off. Without an
    ``other`` it is the score of ``better`` itself, as it is. Seeds in which an arm ``diverged``
    are not in it: by arm, how many of how many. ``p`` is against the claim's bar, and after
    Holm's correction over all comparisons of the claim.
    """

    other: str
    by_seed: BySeed
    score: ScoreName
    main_is_share: bool
    diverged: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    p: float = math.nan

    @property
    def difference(self) -> Interval:
        return interval(list(self.by_seed.values()))

    @property
    def text(self) -> str:
        return span(self.difference, self.score, self.main_is_share, signed=bool(self.other))

    @property
    def in_points(self) -> bool:
        return in_points(self.score, self.main_is_share)

    @property
    def is_chance(self) -> bool:
        """Whether all seeds agree to the last digit, although nothing makes them."""
        return self.difference.is_constant and self.score not in STRUCTURAL

    @property
    def is_same(self) -> bool:
        """Whether both arms score the same on every seed: one method by two names."""
        return bool(self.other) and not any(self.by_seed.values())

    def tested(self, bar: float) -> float:
        """The p-value before any correction.

        What follows from the settings needs no test, nor does it take one to see that two arms
        that score the same are no worse than each other.
        """
        if self.difference.is_constant and (not self.is_chance or (self.is_same and bar < 0)):
            return 0.0 if self.difference.mean != bar else 1.0
        return p_value(self.difference, bar)


@dataclass(frozen=True)
class ControlDifference(ArmDifference):
    """``better`` minus an arm without the method's idea.

    ``explains`` is the corrected p-value of: the control beats every rival, and by more than
    half of what ``better`` gains.
    """

    explains: float = math.nan


def compare_arms(
    claim: Claim, setting: str, other: str, results: Results, stopped: Collection[Key] = ()
) -> ArmDifference:
    """Differences between two arms, paired by seed; a run that stopped has diverged."""
    places = [setting] if claim.beyond is None else [setting, claim.beyond]
    here, *there = [_gaps(claim, place, other, results, stopped) for place in places]
    found = here if not there else _less(here, there[0])
    lost = _diverged(claim, places, [claim.better, other], results, stopped)
    return _compared(claim, setting, other, found, lost, results)


def alone(
    claim: Claim, setting: str, results: Results, stopped: Collection[Key] = ()
) -> ArmDifference:
    """The score of one arm over the seeds, for a claim that compares nobody."""
    mine = claim.side(claim.better)
    arms = list(filled(mine.arm, _arms(setting, [*results, *stopped])).values())
    found = _scores(claim, setting, arms, mine.score, results, stopped)
    lost = _diverged(claim, [setting], [claim.better], results, stopped)
    return _compared(claim, setting, "", found, lost, results)


def explaining(gains: Sequence[ArmDifference], gap: ArmDifference) -> float:
    """The p-value, before any correction, of a control reaching over half of what is gained.

    ``gains`` are over the rivals, ``gap`` over the control: it is above a rival by gain - gap,
    and above the middle between rival and method by gain / 2 - gap.
    """
    p_values = []
    for gain in gains:
        seeds = [seed for seed in gain.by_seed if seed in gap.by_seed]
        for share in (1.0, 0.5):
            above = interval([share * gain.by_seed[s] - gap.by_seed[s] for s in seeds])
            p_values.append(p_value(above) if above.mean > 0 else 1.0)
    # All have to hold, so the weakest decides; what cannot be tested does not hold.
    return max((1.0 if math.isnan(p) else p for p in p_values), default=1.0)


def _compared(
    claim: Claim,
    setting: str,
    other: str,
    found: BySeed,
    diverged: Mapping[str, tuple[int, int]],
    results: Results,
) -> ArmDifference:
    mine = claim.side(claim.better)
    arms = filled(mine.arm, _arms(setting, results)).values()
    share = all(m.is_share for (s, a, _), m in results.items() if s == setting and a in arms)
    return ArmDifference(other, found, mine.score, share, diverged)


def _arms(setting: str, runs: Collection[Key]) -> list[str]:
    return list(dict.fromkeys(arm for where, arm, _ in runs if where == setting))


def _diverged(
    claim: Claim,
    settings: Sequence[str],
    references: Sequence[str],
    results: Results,
    stopped: Collection[Key],
) -> dict[str, tuple[int, int]]:
    """By arm, in how many of how many seeds it diverged; those that never did are left out."""
    found: dict[str, tuple[int, int]] = {}
    for setting in settings:
        for side in map(claim.side, references):
            for arm in filled(side.arm, _arms(setting, [*results, *stopped])).values():
                runs = [run for (s, a, _), run in results.items() if (s, a) == (setting, arm)]
                ended = sum((s, a) == (setting, arm) for s, a, _ in stopped)
                lost = ended + sum(_is_lost(run, _score(claim, run, side.score)) for run in runs)
                if lost:
                    found[arm] = (lost, ended + len(runs))
    return found


def _score(claim: Claim, run: Measured | None, score: ScoreName) -> float:
    return math.nan if run is None else run.score(score, claim.at, claim.target)


def _is_lost(run: Measured | None, score: float) -> bool:
    """Whether a score is missing because the run diverged, not because nobody took it."""
    return run is not None and (math.isinf(score) or (math.isnan(score) and run.diverged))


def _gaps(
    claim: Claim, setting: str, other: str, results: Results, stopped: Collection[Key]
) -> BySeed:
    """By seed, by how much one side is better than the other."""
    mine, theirs = claim.side(claim.better), claim.side(other)
    ran = _arms(setting, [*results, *stopped])
    here, there = filled(mine.arm, ran), filled(theirs.arm, ran)
    if is_pattern(mine.arm) and is_pattern(theirs.arm):
        # Like with like: where one side ran with more partners, only those of both count.
        here, there = (
            {star: arm for star, arm in side.items() if star in here.keys() & there.keys()}
            for side in (here, there)
        )
    ours = _scores(claim, setting, list(here.values()), mine.score, results, stopped)
    others = _scores(claim, setting, list(there.values()), theirs.score, results, stopped)
    falls = any(
        not measured.higher_is_better(mine.score)
        for (where, arm, _), measured in results.items()
        if where == setting and arm in here.values()
    )
    return _less(others, ours) if falls else _less(ours, others)


def _less(ours: BySeed, others: BySeed) -> BySeed:
    return {seed: ours[seed] - others[seed] for seed in ours if seed in others}


def _scores(
    claim: Claim,
    setting: str,
    arms: Sequence[str],
    score: ScoreName,
    results: Results,
    stopped: Collection[Key],
) -> BySeed:
    """By seed, the mean over some arms; NaN where one of them did not run with that seed.

    A seed in which one of them diverged is left out.
    """
    seeds = sorted({seed for where, arm, seed in results if where == setting and arm in arms})
    found: BySeed = {}
    for seed in seeds:
        runs = [results.get((setting, arm, seed)) for arm in arms]
        values = [_score(claim, run, score) for run in runs]
        ended = any((setting, arm, seed) in stopped for arm in arms)
        if not ended and not any(map(_is_lost, runs, values)):
            found[seed] = mean(values)
    return found
