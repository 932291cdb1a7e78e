"""What each method tried before a comparison, what it chose, and by which validation score."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence

from fedskew.comparisons.tuning import Tuned
from fedskew.views.leaderboard import aligned, in_metric

HEADER = ("tuned", "chosen", "validation", "settings tried")
CAPTION = (
    "Settings were chosen by the mean validation score over the clients of the first seed, at the "
    "round selected on the same data; of equal scores the first in order. Test data had no say."
)


def tuning_rows(tuned: Sequence[Tuned]) -> list[list[str]]:
    return [
        [
            each.method,
            str(each.setting),
            "–" if math.isnan(each.score) else in_metric(each.score, each.metric),
            _tried(each),
        ]
        for each in tuned
    ]


def tuning_text(tuned: Sequence[Tuned]) -> str:
    """The table for a terminal, and what is to be said of it."""
    lines = aligned(HEADER, tuning_rows(tuned), words=2)
    return "\n".join([*lines, "", CAPTION, *tuning_remarks(tuned)])


def tuning_markdown(tuned: Sequence[Tuned]) -> str:
    rule = ["---", "---", "---:", "---:"]
    rows = [f"| {' | '.join(row)} |" for row in [HEADER, rule, *tuning_rows(tuned)]]
    return "\n\n".join(["## Tuning", "\n".join(rows), CAPTION, *tuning_remarks(tuned)])


def tuning_remarks(tuned: Sequence[Tuned]) -> Iterator[str]:
    """Choices on the edge of what was tried, budgets that differ, and trials that stopped."""
    for each in tuned:
        for edge in each.edges:
            what, more = ("largest", "larger") if edge.largest else ("smallest", "smaller")
            yield (
                f"{each.method}: {edge.name}={edge.value} is the {what} value tried; the best may "
                f"be {more} still."
            )
    counts = {each.method: len(each.trials) for each in tuned}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        yield (
            f"Not all tried as many settings ({told}), which favours those with more: --trials "
            f"{min(counts.values())} gives all of them the same number."
        )
    for each in tuned:
        if each.chosen is None:
            yield f"{each.method}: no trial has a validation score, so it is as configured."


def trials_csv(tuned: Sequence[Tuned]) -> str:
    """A row for each trial, in the order tried."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "trial", "setting", "metric", "validation", "chosen", "run", "why"])
    for each in tuned:
        for place, trial in enumerate(each.trials):
            writer.writerow(
                [
                    *(each.method, place + 1, trial.setting, each.metric),
                    "" if math.isnan(trial.score) else trial.score,
                    place == each.chosen,
                    "" if trial.run is None else trial.run.name,
                    trial.stopped,
                ]
            )
    return text.getvalue()


def _tried(tuned: Tuned) -> str:
    failed = sum(math.isnan(trial.score) for trial in tuned.trials)
    return f"{len(tuned.trials)}" + (f", {failed} without a score" if failed else "")
