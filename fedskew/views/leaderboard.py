"""The leaderboard: its rows, and the same columns as plain text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and, with more than one seed, the sample standard deviation."""

    mean: float
    std: float | None = None

    def show(self, metric: str) -> str:
        """
        >>> Spread(0.91234, 0.0042).show("accuracy")
        '0.912 ± 0.004'
        """
        if math.isnan(self.mean):
            return "–"
        digits = ".3f" if metric == "accuracy" else ".4g"
        spread = "" if self.std is None else f" ± {self.std:{digits}}"
        return f"{self.mean:{digits}}{spread}"


@dataclass(frozen=True)
class Effective:
    """What it took a method to score what the best other ever scored, mean over seeds.

    ``own_best`` counts the seeds in which it never did: there its own best round counts.
    ``megabytes`` and ``parameters`` are what a client sent and received by then; older runs do
    not tell how many parameters.
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

    ``model`` says which model was scored: "global", or each client's "personal" one.
    ``megabytes`` is what a run sent both ways; the pooled reference has none to tell.
    ``effective`` is None for references and for whoever sends nothing.
    """

    method: str
    reference: bool
    model: str
    score: Spread
    last: Spread
    worst: Spread
    bottom_decile: Spread
    adapted: Spread | None
    central: Spread | None
    unseen: Spread | None
    megabytes: float | None
    effective: Effective | None
    seconds: float
    runs: tuple[Path, ...]


SCORES: dict[str, Callable[[Standing], Spread | None]] = {
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
    """Header and rows as text; columns that concern nobody are left out."""
    kept = {h: of for h, of in SCORES.items() if any(of(s) is not None for s in leaderboard)}
    spent = EFFECTIVE if has_effective(leaderboard) else {}
    header = ["method", "model", *kept, "MB sent", *spent, "seconds"]
    rows = []
    for standing in leaderboard:
        spreads = [of(standing) for of in kept.values()]
        effective = standing.effective
        rows.append(
            [
                f"{standing.method} *" if standing.reference else standing.method,
                standing.model,
                *("–" if spread is None else spread.show(metric) for spread in spreads),
                "–" if standing.megabytes is None else f"{standing.megabytes:.1f}",
                *("–" if effective is None else show(effective) for show in spent.values()),
                f"{standing.seconds:.1f}",
            ]
        )
    return header, rows


def has_effective(leaderboard: Sequence[Standing]) -> bool:
    """Whether anybody has effective rounds to show."""
    return any(standing.effective is not None for standing in leaderboard)


def footnote(leaderboard: Sequence[Standing]) -> str:
    """What the star means, where there is one."""
    starred = any(standing.reference for standing in leaderboard)
    return "* reference: local is no federation, central is all data pooled." if starred else ""


def to_text(leaderboard: Sequence[Standing], metric: str) -> str:
    """Aligned columns, for a terminal or a log."""
    lines = aligned(*cells(leaderboard, metric), words=2)
    note = footnote(leaderboard)
    return "\n".join([*lines, note] if note else lines)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> list[str]:
    """Lines of a table whose first columns are words, the others numbers.

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
    """One number a cell, unrounded; empty where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [header.replace(" ", "_").replace("-", "_") for header in SCORES]
    spreads = [column for name in names for column in (name, f"{name}_std")]
    spent = [
        "effective_rounds", "own_best_seeds", "effective_megabytes", "effective_parameters",
    ]  # fmt: skip
    writer.writerow(
        ["method", "reference", "model", "metric", *spreads, "megabytes", *spent, "seconds", "runs"]
    )
    for standing in leaderboard:
        numbers: list[float | None] = []
        for of in SCORES.values():
            spread = of(standing)
            numbers += [None, None] if spread is None else [spread.mean, spread.std]
        numbers.append(standing.megabytes)
        e = standing.effective
        numbers += [None] * 4 if e is None else [e.rounds, e.own_best, e.megabytes, e.parameters]
        known = ["" if n is None or math.isnan(n) else n for n in numbers]
        runs = " ".join(path.name for path in standing.runs)
        writer.writerow(
            [
                *(standing.method, standing.reference, standing.model, metric),
                *(*known, round(standing.seconds, 4), runs),
            ]
        )
    return text.getvalue()
