"""All metrics of a run's test answers, as a table of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedskew.parts.metrics import is_share
from fedskew.views.leaderboard import aligned

Found = Mapping[str, Any]


def metric_lines(result: Mapping[str, Any]) -> list[str]:
    """A line for each metric: of seen clients as trained the spread, of all others the mean.

    "pooled" is of all clients' test samples together. Where a metric is not defined on some
    clients' samples, the number of those that it is the mean over stands behind it.
    """
    groups: dict[tuple[str, str], dict[str, Found]] = {}
    for found in result.get("metrics", ()):
        groups.setdefault((found["on"], found["adapted"]), {})[found["metric"]] = found
    if not groups:
        return []
    (_, first), *others = groups.items()
    most = max(found["clients"] for found in first.values())
    pools = any(found["pooled"] is not None for found in first.values())
    header = ["test", "mean", "worst client", *(["pooled"] if pools else [])]
    header += [on if how == "none" else f"{on}, {how}" for (on, how), _ in others]
    rows = []
    for name, found in first.items():
        of = f" ({found['clients']} of {most})" if found["clients"] < most else ""
        numbers = [found["mean"], found["worst"], *([found["pooled"]] if pools else [])]
        numbers += [its[name]["mean"] if name in its else None for _, its in others]
        rows.append([f"{name}{of}", *(_number(name, value) for value in numbers)])
    return ["", f"all metrics at round {result['selected_round']}:", *_lines(header, rows)]


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    first, _, *others = aligned(header, rows)
    return [first, *others]


def _number(metric: str, value: float | None) -> str:
    if value is None:
        return "–"
    plain = is_share(metric) or 0.1 <= abs(value) < 100.0
    return f"{value:.3f}" if plain else f"{value:.4g}"
