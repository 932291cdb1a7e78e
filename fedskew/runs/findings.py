"""What a run's method left for people: its numbers, its file, its lines and its figures."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.config import Config
from fedskew.errors import FedskewError, RunError
from fedskew.federate.recipe import find
from fedskew.parts.finding import Arrays, Finding

if TYPE_CHECKING:
    from fedskew.views.picture import Picture


def findings_of(
    config: Config, result: Mapping[str, Any]
) -> list[tuple[Finding, Mapping[str, Any]]]:
    """The findings of a finished run with their numbers; none where the method's code is gone."""
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
    """The arrays a finding left in a run's folder; none where clients keep theirs elsewhere."""
    path = run / f"{name}.npz"
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {entry: stored[entry] for entry in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise RunError(f"could not read {path}, which the run's method left: {error}.") from error
