"""A run's findings, the extra results of its method: numbers, files, lines and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.config import Config
from fedskew.errors import FedskewError
from fedskew.methods import find
from fedskew.parts.finding import Arrays, Finding
from fedskew.store import read_arrays

if TYPE_CHECKING:
    from fedskew.canvas import Picture


def findings_of(
    config: Config, result: Mapping[str, Any]
) -> list[tuple[Finding, Mapping[str, Any]]]:
    """The findings of a finished run with their numbers; none if the method's code is missing."""
    try:
        leaves = find(config.method.name).recipe(**config.method.knobs).leaves
    except FedskewError:
        return []
    return [(each, result[each.name]) for each in leaves if result.get(each.name)]


def lines_of(config: Config, result: Mapping[str, Any]) -> list[str]:
    """What ``fedskew show`` says about them."""
    return [line for each, numbers in findings_of(config, result) for line in each.lines(numbers)]


def pictures_of(path: Path, config: Config, result: Mapping[str, Any]) -> Iterator[Picture]:
    """Their figures."""
    for finding, numbers in findings_of(config, result):
        yield from finding.pictures(numbers, load_arrays(path, finding.name), result)


def load_arrays(run: Path, name: str) -> Arrays:
    """The arrays a finding left in a run's folder; none if clients keep them elsewhere."""
    path = run / f"{name}.npz"
    return read_arrays(path) if path.exists() else {}
