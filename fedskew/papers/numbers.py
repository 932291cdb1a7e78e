"""How numbers are printed: points of a hundred, small weights, and losses of any size."""

from __future__ import annotations

import math

from fedskew.comparisons.statistics import Interval
from fedskew.papers.scores import CHEAPER, WEIGHTS, ScoreName, in_points

CELLS: dict[ScoreName, str] = {
    **dict.fromkeys(WEIGHTS, ".2f"), "weight-entropy": ".2f", "follows": ".2f", "kept": ".1f",
    "parameters": ",.0f", CHEAPER: ".2f",
}  # fmt: skip
# A hundred clients share one: two digits would not tell their weights apart.
DIFFERENCES: dict[ScoreName, str] = {
    **dict.fromkeys(WEIGHTS, ".4f"), "weight-entropy": ".4f", "kept": ".2f", "rounds": ".2f",
    "parameters": ",.0f", CHEAPER: ".2f",
}  # fmt: skip


def readable(*values: float) -> str:
    """A format that shows four significant digits of the largest of these numbers.

    >>> [format(x, readable(x)) for x in (0.0031, 2.5, 517.35, 4.2e9)]
    ['0.003100', '2.500', '517.35', '4.200e+09']
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0:
        return ".2f"
    if not 1e-5 <= largest < 1e7:
        return ".3e"
    return f".{max(2, 3 - math.floor(math.log10(largest)))}f"


def cell(found: Interval, score: ScoreName, main_is_share: bool) -> str:
    """A mean over seeds with half its interval; a dash where there is none.

    >>> cell(Interval(517.352, 515.1, 519.604, 3), "central", False)
    '517.35 ± 2.25'
    """
    if math.isnan(found.mean):
        return "–"
    points = in_points(score, main_is_share)
    factor = 100.0 if points else 1.0
    style = ".2f" if points else CELLS.get(score) or readable(found.mean)
    text = format(factor * found.mean, style)
    # A model is as large whatever the seed.
    shown = math.isfinite(found.half) and score != "parameters"
    return f"{text} ± {factor * found.half:{style}}" if shown else text


def amount(value: float, points: bool) -> str:
    """What a claim asks for, in the unit of its numbers.

    >>> amount(-0.015, True), amount(0.01, True), amount(1.0, False), amount(0.0, True)
    ('-1.5 points', '1 point', '1', '0')
    """
    if not points or value == 0:
        return f"{value:g}"
    text = f"{100 * value:g}"
    return f"{text} point" if text in ("1", "-1") else f"{text} points"


def span(found: Interval, score: ScoreName, main_is_share: bool, signed: bool) -> str:
    """A number of a claim and its interval; shares as points of a hundred."""
    points = in_points(score, main_is_share)
    factor = 100.0 if points else 1.0
    numbers = [factor * value for value in (found.mean, found.low, found.high)]
    style = ".2f" if points else DIFFERENCES.get(score) or readable(*numbers)
    mean, low, high = (format(number, f"+{style}" if signed else style) for number in numbers)
    return (f"{mean} [{low}, {high}]" if found.n > 1 else mean) + (" points" if points else "")
