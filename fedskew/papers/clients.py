"""Every client's own score, the clients named by the class they have most of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from fedskew.comparisons.statistics import interval
from fedskew.data.federation import Federation
from fedskew.errors import ConfigError, unknown
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell
from fedskew.papers.markdown import table
from fedskew.papers.measure import Measured
from fedskew.papers.numbers import cell
from fedskew.papers.verdict import Results
from fedskew.runs.experiment import make_federation

LEGACY = "legacy"
SHOWN = 10
"""So many samples of a model are shown; as many real images give their range of grey."""


@dataclass(frozen=True, eq=False)
class Data:
    """What a page needs of a setting's data, which run folders do not hold."""

    majority: Mapping[str, str]
    """By client: the class it has most of."""
    images: Tensor
    """Some of the test data, a class after the other."""
    samples: Mapping[str, int] = field(default_factory=dict)
    """By client: how many it trains on."""
    classes: tuple[str, ...] = ()
    """Their names."""


def data_of_settings(
    suite: Suite, plan: Sequence[Cell], data_dir: Path | None, fallback: bool = False
) -> dict[str, Data]:
    """The data of every setting whose clients or images the page shows, as seed 0 splits them.

    Before anything runs, so that a wrong class name in the suite costs nobody an hour. Fallback
    data may have other classes than the source's.
    """
    shown = {*suite.clients_of, *suite.pictures}
    spread = {(numbers.setting, numbers.arm) for numbers in suite.client_numbers}
    found: dict[str, Data] = {}
    for place in plan:
        wanted = place.arm in shown or (place.setting, place.arm) in spread
        if wanted and place.seed == 0 and place.setting not in found:
            federation = make_federation(place.config, data_dir)
            if not fallback:
                _check_classes(suite, place.setting, federation)
            found[place.setting] = Data(
                federation.majority_classes(),
                real_images(federation),
                {client.name: len(client.train) for client in federation.clients},
                federation.class_names,
            )
    return found


def _check_classes(suite: Suite, setting: str, federation: Federation) -> None:
    known = {name.casefold() for name in federation.class_names}
    for numbers in suite.client_numbers:
        for name in numbers.values if numbers.same and numbers.setting == setting else ():
            if name.casefold() not in known:
                error = unknown(f"class of {federation.name}", name, federation.class_names)
                raise ConfigError(f"suite {suite.name!r}: client_numbers: {error}")


def real_images(federation: Federation, most: int = SHOWN) -> Tensor:
    """Test samples, one of each class in turn, sorted by class."""
    rows = federation.central_test
    if not len(rows):
        rows = np.concatenate([client.test for client in federation.clients])
    labels = federation.y.numpy()[rows]
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], labels[order], side="left")
    turn = np.arange(len(rows)) - starts
    chosen = order[np.sort(np.argsort(turn, kind="stable")[:most])]
    return federation.x[rows[chosen]]


def client_table(
    suite: Suite, setting: str, arms: Sequence[str], results: Results, data: Data
) -> list[str]:
    """A heading, a sentence and the table; nothing where none of the suite's arms has run."""
    lines: list[list[str]] = []
    metric = ""
    for arm in (name for name in suite.clients_of if name in arms):
        runs = [m for (s, a, _), m in results.items() if (s, a) == (setting, arm)]
        metric = runs[0].result["primary_metric"]
        for name in (metric, LEGACY):
            scores = _over_seeds(runs, name, list(data.majority))
            if any(score != "–" for score in scores):
                lines.append([suite.arm(arm).label, name, *scores])
        lines += _sources(suite, setting, arm, data)
    if not lines:
        return []
    about = (
        f"The {metric} of each client's main model on the client's own test data after the last "
        "round, mean over seeds; ± is half the 95 % t-interval. A client goes by the class it has "
        "most training samples of (seed 0)."
    )
    heads = ("arm", "number", *column_names(data.majority))
    return ["#### Every client's own score", about, table(heads, lines)]


def column_names(majority: Mapping[str, str]) -> list[str]:
    """The classes; where several clients have the same one, with their own names.

    >>> column_names({"c0": "cat", "c1": "dog", "c2": "cat"})
    ['cat (c0)', 'dog', 'cat (c2)']
    """
    classes = list(majority.values())
    return [
        name if classes.count(name) == 1 else f"{name} ({client})"
        for client, name in majority.items()
    ]


def _over_seeds(runs: Sequence[Measured], metric: str, clients: Sequence[str]) -> list[str]:
    scores = [run.by_client(metric) for run in runs]
    return [
        cell(
            interval([found[client] for found in scores if client in found]),
            "legacy" if metric == LEGACY else "clients",
            runs[0].is_share,
        )
        for client in clients
    ]


def _sources(suite: Suite, setting: str, arm: str, data: Data) -> list[list[str]]:
    lines = []
    for numbers in suite.client_numbers:
        if numbers.same and (numbers.setting, numbers.arm) == (setting, arm):
            values = {name.casefold(): f"{value:g}" for name, value in numbers.values.items()}
            printed = [values.get(name.casefold(), "–") for name in data.majority.values()]
            if set(printed) != {"–"}:
                lines.append([suite.arm(arm).label, f"the source's ({numbers.where})", *printed])
    return lines
