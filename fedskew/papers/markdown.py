"""Markdown for pages."""

from __future__ import annotations

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars inside cells are escaped.

    >>> print(table(("a", "b"), [("1", "x|y")]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = [list(heads), ["---"] * len(heads), *([*row] for row in rows)]
    texts = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    marked = ["| " + " | ".join(line) + " |" for line in texts]
    marked[1] = "|" + "---|" * len(heads)
    return "\n".join(marked)
