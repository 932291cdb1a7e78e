"""Successive halving: who trains how far, and who goes on. Pure: it knows scores and prices only.

A ladder has rungs. On each, all who are left train up to so many rounds; the best of them go on.
One contender, training alone, is no rival but the yardstick, and climbs every ladder to its end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedskew.federate.rounds import Score

FINALISTS = 2
"""The fewest that train to the end beside the yardstick: one that is taken, and a runner-up."""
SHAPES: tuple[tuple[tuple[float, float], ...], ...] = (
    ((1.0, 1.0),),
    ((0.4, 0.5), (0.7, 0.25), (1.0, 0.0)),
    ((0.25, 0.4), (0.55, 0.19), (1.0, 0.0)),
    ((0.15, 0.3), (0.4, 0.0), (1.0, 0.0)),
    ((0.15, 0.0), (1.0, 0.0)),
)
"""Ladders from the most careful to the cheapest: parts of all rounds, and of the contenders."""
USUAL = SHAPES[2]


@dataclass(frozen=True)
class Rung:
    """Up to how many rounds who is left trains, and how many contenders go on from there."""

    rounds: int
    keeps: int


Ladder = tuple[Rung, ...]


def ladder(shape: Sequence[tuple[float, float]], contenders: int, rounds: int) -> Ladder:
    """A shape for so many contenders, beside the yardstick, and so many rounds.

    >>> [(rung.rounds, rung.keeps) for rung in ladder(USUAL, contenders=16, rounds=20)]
    [(5, 6), (11, 3), (20, 2)]
    """
    found: list[Rung] = []
    left = contenders
    for part, share in shape:
        until = max(1, round(part * rounds))
        left = min(left, max(FINALISTS, round(share * contenders)))
        rung = Rung(until, left)
        if found and found[-1].rounds == until:
            found[-1] = rung
        elif not found or found[-1].keeps > FINALISTS or until == rounds:
            found.append(rung)
    return tuple(found)


def cost(climbed: Ladder, prices: Mapping[str, float], alone: float, begun: int = 0) -> float:
    """The most a ladder can cost, by what a round of each contender costs, and of the yardstick.

    The dearest are taken to go on. ``begun`` rounds of everybody are paid for elsewhere.

    >>> round(cost(ladder(USUAL, 16, 20), dict.fromkeys(map(str, range(16)), 1.0), alone=1.0))
    163
    """
    dearest = sorted(prices.values(), reverse=True)
    total, before, left = 0.0, begun, len(dearest)
    for rung in climbed:
        new = max(0, rung.rounds - before)
        total += new * (sum(dearest[:left]) + alone)
        before, left = max(before, rung.rounds), rung.keeps
    return total


@dataclass(frozen=True)
class TooSmall(Exception):
    """No ladder fits a budget; the cheapest costs ``least``."""

    least: float


def fitting(
    prices: Mapping[str, float], alone: float, rounds: int, budget: float, begun: int = 0
) -> Ladder:
    """The most careful ladder that fits a budget, which counts what has ``begun`` already.

    >>> fitting(dict.fromkeys("abcd", 1.0), 1.0, rounds=10, budget=100)
    (Rung(rounds=10, keeps=4),)
    """
    paid = begun * (sum(prices.values()) + alone)
    tried = [ladder(shape, len(prices), rounds) for shape in SHAPES]
    costs = [paid + cost(each, prices, alone, begun) for each in tried]
    for each, costs_ in zip(tried, costs, strict=True):
        if costs_ <= budget:
            return each
    raise TooSmall(min(costs))


def ranked(scores: Mapping[str, Score], higher_is_better: bool) -> list[str]:
    """Names by their scores, the best first; equal ones by loss, and then as they were declared.

    >>> ranked({"a": Score(0.5, 0.9), "b": Score(0.7), "c": Score(0.5, 0.8)}, True)
    ['b', 'c', 'a']
    """

    def rank(name: str) -> tuple[bool, float, float]:
        found = scores[name]
        loss = math.inf if math.isnan(found.loss) else found.loss
        if math.isnan(found.value):
            return True, 0.0, loss
        return False, -found.value if higher_is_better else found.value, loss

    return sorted(scores, key=rank)


def going_on(
    scores: Mapping[str, Score], keeps: int, alone: str, higher_is_better: bool
) -> list[str]:
    """The yardstick, and those contenders who go on, in the order in which they were declared."""
    order = [name for name in ranked(scores, higher_is_better) if name != alone]
    kept = {alone, *order[:keeps]}
    return [name for name in scores if name in kept]
