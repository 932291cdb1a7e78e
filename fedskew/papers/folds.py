"""The runs of a suite again, without one client each: what rule "left-out" chooses rounds by."""

from __future__ import annotations

from fedskew.comparisons.selection import Count, Members, folds, left_out_of
from fedskew.errors import ConfigError
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell
from fedskew.papers.outcome import Outcome
from fedskew.papers.pairs import matches
from fedskew.papers.running import Done
from fedskew.runs.experiment import Run


def fold_cells(suite: Suite, scale_name: str, finished: Done) -> list[Cell]:
    """The further runs a scale asks for; those on the same data come one after the other.

    Finished runs say who their clients are, so that no data have to be read.
    """
    count = suite.scale(scale_name).folds
    count = suite.selection.folds if count is None else count
    members: dict[tuple[str, int], Members] = {}
    found: dict[tuple[str, int, int], list[Cell]] = {}
    for cell, run in finished if count else ():
        if not _is_asked(suite, cell):
            continue
        key = (cell.config.federation.model_dump_json(), cell.config.split_seed)
        if key not in members:
            members[key] = _members(run)
        try:
            configs = folds(cell.config, members[key], _at_most(count, members[key]))
        except ConfigError as error:
            raise ConfigError(f"suite {suite.name!r}, setting {cell.setting!r}: {error}") from None
        for number, config in enumerate(configs):
            fold = Cell(cell.setting, cell.arm, cell.seed, config, left_out_of(config))
            found.setdefault((cell.setting, cell.seed, number), []).append(fold)
    return [cell for cells in found.values() for cell in cells]


def _members(run: Run | Outcome) -> Members:
    if isinstance(run, Outcome):
        return run.members
    return Members.found_in(run.results.as_trained.where(metric=run.result["primary_metric"]))


def _is_asked(suite: Suite, cell: Cell) -> bool:
    asked = suite.selection
    if asked.settings is not None and cell.setting not in asked.settings:
        return False
    if asked.arms is None:
        return suite.arm(cell.arm).role != "reference"
    return matches(cell.arm, asked.arms)


def _at_most(count: Count, members: Members) -> Count:
    """Settings of a suite differ in how many clients they have."""
    return count if count == "all" else min(count, max(1, len(members.validated)))
