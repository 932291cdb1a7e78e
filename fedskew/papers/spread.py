"""Clients of ours beside other clients of the source: only how their scores spread can compare."""

from __future__ import annotations

from collections.abc import Sequence

from fedskew.comparisons.statistics import Interval, mean
from fedskew.papers.clients import Data
from fedskew.papers.format import Suite
from fedskew.papers.markdown import table
from fedskew.papers.numbers import cell
from fedskew.papers.verdict import Results

SEED = 0


def spread_tables(suite: Suite, setting: str, results: Results, data: Data) -> list[str]:
    """Mean, least and most over the clients, ours and the source's, and each of ours."""
    lines: list[list[str]] = []
    columns: dict[str, list[str]] = {}
    metric = ""
    for numbers in suite.client_numbers:
        run = results.get((setting, numbers.arm, SEED))
        if numbers.same or numbers.setting != setting or run is None:
            continue
        metric = run.result["primary_metric"]
        scores = run.by_client(metric)
        label = suite.arm(numbers.arm).label
        ours = [_one(value, run.is_share) for value in _spread(list(scores.values()))]
        theirs = [f"{value:.4g}" for value in _spread(list(numbers.values.values()))]
        lines.append([label, "ours", *ours, str(len(scores))])
        lines.append([label, f"the source's ({numbers.where})", *theirs, str(len(numbers.values))])
        columns[label] = [
            _one(scores[client], run.is_share) if client in scores else "–"
            for client in data.samples
        ]
    if not lines:
        return []
    about = (
        f"The {metric} of each client's main model on the client's own test data after the last "
        f"round, seed {SEED}. The source's clients are others than ours."
    )
    clients = [
        [client, str(samples), *(columns[label][place] for label in columns)]
        for place, (client, samples) in enumerate(data.samples.items())
    ]
    return [
        "#### How the clients' scores spread",
        about,
        table(("arm", "whose", "mean", "least", "most", "clients"), lines),
        table(("client", "training samples", *columns), clients),
    ]


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return mean(values), min(values), max(values)


def _one(value: float, is_share: bool) -> str:
    return cell(Interval(value, value, float("nan"), 1), "clients", is_share)
