"""The leaderboard: its rows, and the same columns as plain text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedskew.comparisons.paired import Against
from fedskew.comparisons.statistics import Interval
from fedskew.parts.metrics import is_share


def shown(found: Interval | None, metric: str, sign: str = "") -> str:
    """A mean with half its 95 % t-interval, if there is one.

    >>> shown(Interval(0.91234, 0.90814, 0.91654, 3), "accuracy")
    '0.912 ± 0.004'
    """
    if found is None or math.isnan(found.mean):
        return "–"
    half = f" ± {in_metric(found.half, metric)}" if math.isfinite(found.half) else ""
    return in_metric(found.mean, metric, sign) + half


def in_metric(value: float, metric: str, sign: str = "") -> str:
    """A number as its metric is written.

    >>> in_metric(0.91234, "accuracy"), in_metric(12.34567, "rmse", "+")
    ('0.912', '+12.35')
    """
    return f"{value:{sign}.3f}" if is_share(metric) else f"{value:{sign}.4g}"


@dataclass(frozen=True)
class Effective:
    """The cost until a method reaches the best score of any other method, mean over seeds.

    ``own_best`` counts the seeds in which it never did: there its own best round counts.
    ``megabytes`` and ``parameters`` are what a client sent and received by then; older runs do
    not record the number of parameters.
    """

    rounds: float
    own_best: int
    megabytes: float
    parameters: float | None

    @property
    def shown_rounds(self) -> str:
        """
        >>> Effective(12.33, own_best=1, megabytes=0.5, parameters=1e5).shown_rounds
        '12.3 †'
        """
        return f"{round(self.rounds, 1):g}{' †' if self.own_best else ''}"


@dataclass(frozen=True)
class Standing:
    """One method's row: all scores are of the test split, over clients, averaged over seeds.

    ``model`` says which model was scored: "global", or each client's "personal" one. ``against``
    compares every client with itself trained alone; None for training alone itself, and if that
    did not run; its ``gain`` is positive if the method is better. ``megabytes`` is what a run sent
    both ways, None for the pooled reference. ``effective`` is None for references and methods
    that send nothing.
    """

    method: str
    reference: bool
    model: str
    score: Interval
    against: Against | None
    last: Interval
    worst: Interval
    bottom_decile: Interval
    adapted: Interval | None
    central: Interval | None
    unseen: Interval | None
    megabytes: float | None
    effective: Effective | None
    seconds: float
    runs: tuple[Path, ...]

    @property
    def gain(self) -> Interval | None:
        return None if self.against is None else self.against.gain


GAINS: dict[str, Callable[[Against, str], str]] = {
    "gain over local": lambda a, metric: shown(a.gain, metric, "+"),
    "worse off": lambda a, _: f"{a.worse} of {len(a.clients)}",
}
SCORES: dict[str, Callable[[Standing], Interval | None]] = {
    "mean": lambda s: s.score,
    "worst client": lambda s: s.worst,
    "bottom decile": lambda s: s.bottom_decile,
    "last round": lambda s: s.last,
    "fine-tuned": lambda s: s.adapted,
    "unseen clients": lambda s: s.unseen,
    "central test": lambda s: s.central,
}


EFFECTIVE: dict[str, Callable[[Effective], str]] = {
    "effective rounds": lambda e: e.shown_rounds,
    "effective MB": lambda e: f"{e.megabytes:.2f}",
}


def cells(leaderboard: Sequence[Standing], metric: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text; columns without any value are left out."""
    first, *more = [
        (head, of) for head, of in SCORES.items() if any(of(s) is not None for s in leaderboard)
    ]
    spent = EFFECTIVE if has_effective(leaderboard) else {}
    gains = GAINS if has_gain(leaderboard) else {}
    heads = [first[0], *gains, *(head for head, _ in more)]
    header = ["method", "model", *heads, "MB sent", *spent, "seconds"]
    rows = []
    for standing in leaderboard:
        effective, against = standing.effective, standing.against
        rows.append(
            [
                f"{standing.method} *" if standing.reference else standing.method,
                standing.model,
                shown(first[1](standing), metric),
                *("–" if against is None else show(against, metric) for show in gains.values()),
                *(shown(of(standing), metric) for _, of in more),
                "–" if standing.megabytes is None else f"{standing.megabytes:.1f}",
                *("–" if effective is None else show(effective) for show in spent.values()),
                f"{standing.seconds:.1f}",
            ]
        )
    return header, rows


def has_effective(leaderboard: Sequence[Standing]) -> bool:
    """Whether any method has effective rounds to show."""
    return any(standing.effective is not None for standing in leaderboard)


def has_gain(leaderboard: Sequence[Standing]) -> bool:
    """Whether any method can be compared with training alone."""
    return any(standing.gain is not None for standing in leaderboard)


def footnote(leaderboard: Sequence[Standing]) -> str:
    """What the star means, if there is one."""
    starred = any(standing.reference for standing in leaderboard)
    return "* reference: local is no federation, central is all data pooled." if starred else ""


def to_text(leaderboard: Sequence[Standing], metric: str) -> str:
    """Aligned columns, for a terminal or a log."""
    lines = aligned(*cells(leaderboard, metric), words=2)
    note = footnote(leaderboard)
    return "\n".join([*lines, note] if note else lines)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> list[str]:
    """Lines of a table whose first ``words`` columns are words, the others numbers.

    >>> print(*aligned(["who", "score"], [["ann", "7"]]), sep="\\n")
    who  score
    ───  ─────
    ann      7
    """
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        pairs = list(zip(row, widths, strict=True))
        left = [cell.ljust(width) for cell, width in pairs[:words]]
        right = [cell.rjust(width) for cell, width in pairs[words:]]
        return "  ".join([*left, *right]).rstrip()

    return [line(header), "  ".join("─" * width for width in widths), *map(line, rows)]


def to_markdown(
    leaderboard: Sequence[Standing], metric: str, caption: str, remarks: Sequence[str]
) -> str:
    header, rows = cells(leaderboard, metric)
    rule = ["---", "---", *["---:"] * (len(header) - 2)]
    escaped = [[cell.replace("*", "\\*") for cell in row] for row in rows]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *escaped])
    note = footnote(leaderboard).replace("*", "\\*")
    return (
        "\n\n".join(part for part in ["# Leaderboard", caption, table, note, *remarks] if part)
        + "\n"
    )


def to_csv(leaderboard: Sequence[Standing], metric: str) -> str:
    """One number per cell, unrounded; empty if there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [header.replace(" ", "_").replace("-", "_") for header in SCORES]
    scores = [column for name in names for column in (name, f"{name}_std")]
    spent = ["effective_rounds", "own_best_seeds", "effective_megabytes", "effective_parameters"]
    gain = ["gain_over_local", "gain_over_local_half", "gain_over_local_verdict"]
    off = ["paired_clients", "worse_off_clients", "clearly_worse_off_clients"]
    known = ["method", "reference", "model", "metric"]
    writer.writerow([*known, *scores, "megabytes", *spent, "seconds", "runs", *gain, *off])
    for standing in leaderboard:
        numbers: list[float | None] = []
        for of in SCORES.values():
            found = of(standing)
            numbers += [None, None] if found is None else [found.mean, found.std]
        numbers.append(standing.megabytes)
        e = standing.effective
        numbers += [None] * 4 if e is None else [e.rounds, e.own_best, e.megabytes, e.parameters]
        a = standing.against
        pair = (None, None) if a is None else (a.gain.mean, a.gain.half)
        counts = (None,) * 3 if a is None else (len(a.clients), a.worse, a.clearly_worse)
        writer.writerow(
            [
                *(standing.method, standing.reference, standing.model, metric),
                *map(_csv_cell, numbers),
                round(standing.seconds, 4),
                " ".join(path.name for path in standing.runs),
                *map(_csv_cell, pair),
                "" if a is None else a.verdict,
                *map(_csv_cell, counts),
            ]
        )
    return text.getvalue()


def _csv_cell(number: float | None) -> float | str:
    return "" if number is None or math.isnan(number) else number
