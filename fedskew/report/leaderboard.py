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
class Standing:
    """One method's row: all scores are of the test split, over clients, averaged over seeds.

    ``model`` says which model was scored: "global", or each client's "personal" one.
    ``megabytes`` is what a run sent both ways; the pooled reference has none to tell.
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


def cells(leaderboard: Sequence[Standing], metric: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text; columns that concern nobody are left out."""
    kept = {h: of for h, of in SCORES.items() if any(of(s) is not None for s in leaderboard)}
    header = ["method", "model", *kept, "MB sent", "seconds"]
    rows = []
    for standing in leaderboard:
        spreads = [of(standing) for of in kept.values()]
        rows.append(
            [
                f"{standing.method} *" if standing.reference else standing.method,
                standing.model,
                *("–" if spread is None else spread.show(metric) for spread in spreads),
                "–" if standing.megabytes is None else f"{standing.megabytes:.1f}",
                f"{standing.seconds:.1f}",
            ]
        )
    return header, rows


def footnote(leaderboard: Sequence[Standing]) -> str:
    """What the star means, where there is one."""
    starred = any(standing.reference for standing in leaderboard)
    return "* reference: local is no federation, central is all data pooled." if starred else ""


def to_text(leaderboard: Sequence[Standing], metric: str) -> str:
    """Aligned columns, for a terminal or a log."""
    header, rows = cells(leaderboard, metric)
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        return "  ".join([*left, *right]).rstrip()

    lines = [line(header), "  ".join("─" * width for width in widths), *map(line, rows)]
    note = footnote(leaderboard)
    return "\n".join([*lines, note] if note else lines)


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
    writer.writerow(
        ["method", "reference", "model", "metric", *spreads, "megabytes", "seconds", "runs"]
    )
    for standing in leaderboard:
        numbers: list[float | None] = []
        for of in SCORES.values():
            spread = of(standing)
            numbers += [None, None] if spread is None else [spread.mean, spread.std]
        known = ["" if n is None or math.isnan(n) else n for n in [*numbers, standing.megabytes]]
        runs = " ".join(path.name for path in standing.runs)
        writer.writerow(
            [
                *(standing.method, standing.reference, standing.model, metric),
                *(*known, round(standing.seconds, 4), runs),
            ]
        )
    return text.getvalue()
