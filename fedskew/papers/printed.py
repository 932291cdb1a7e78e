"""The source's numbers of several scores: a table of their own, ours beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedskew.comparisons.statistics import Interval, interval
from fedskew.papers.entries import Number
from fedskew.papers.format import Suite
from fedskew.papers.markdown import table
from fedskew.papers.measure import Measured
from fedskew.papers.numbers import cell
from fedskew.papers.scores import ScoreName, client_score, in_points, which_round
from fedskew.papers.verdict import Results


def stand_apart(suite: Suite) -> bool:
    """Whether the source has more than its number of the headline to stand beside ours."""
    return any(
        number.word
        or number.client
        or (number.score or suite.headline) != suite.headline
        or number.at != "last"
        or suite.in_matrix(number.arm)
        for number in suite.numbers
    )


def source_table(suite: Suite, setting: str, results: Results) -> list[str]:
    """A heading and the table; nothing where none of the source's arms has run."""
    if not stand_apart(suite):
        return []
    lines = []
    for number in suite.numbers:
        runs = [m for (s, a, _), m in results.items() if (s, a) == (setting, number.arm)]
        if number.setting == setting and runs:
            score = number.score or suite.headline
            whose = f" of client {number.client}" if number.client else ""
            ours = _ours(suite, number, runs, score)
            when = "" if number.at == "last" else f", {which_round(number.at)}"
            what = f"{score}{whose}{when}"
            lines.append([number.where, suite.arm(number.arm).label, what, source(number), ours])
    if not lines:
        return []
    heads = ("where", "arm", "score", "the source's", "ours")
    about = "Ours are of the last round, unless the score names another."
    return ["#### The source's numbers beside ours", about, table(heads, lines)]


def source(number: Number) -> str:
    """What the source printed."""
    if number.value is None:
        return number.word
    spread = "" if number.spread is None else f" ± {number.spread:g}"
    return f"{number.value:g}{spread}"


def _ours(suite: Suite, number: Number, runs: Sequence[Measured], score: ScoreName) -> str:
    if number.client:
        found = [of_client(run, score, number.client) for run in runs]
        values = interval([value for value in found if not math.isnan(value)])
    else:
        values = interval([run.score(score, number.at) for run in runs])
    text = cell(values, score, runs[0].is_share)
    # One run says too little to put a word on.
    if not number.word or math.isnan(values.mean) or values.n < 2:
        return text
    return f"{word(suite, values, in_points(score, runs[0].is_share))} ({text})"


def of_client(run: Measured, score: ScoreName, client: str) -> float:
    """One client's test score after the last round; NaN where it has none."""
    asked = client_score(score)
    if asked is None:
        return math.nan
    scores = run.by_client(asked.metric or run.result["primary_metric"], asked)
    return scores.get(client, math.nan)


def word(suite: Suite, found: Interval, points: bool) -> str:
    """The source's word for a mean: that of the highest band it reaches."""
    mean = found.mean * (100 if points else 1)
    reached = [(begins, name) for name, begins in suite.bands.items() if mean >= begins]
    return max(reached)[1] if reached else "–"
