"""The set-up on a page: who the arms are, and what the runs have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell, cells, flat
from fedskew.papers.markdown import table
from fedskew.papers.pairs import ANYTHING, filled, pair


def set_up(suite: Suite, scale: str, plan: Sequence[Cell]) -> list[str]:
    """Every arm, what all runs share, and what the paper's scale has otherwise."""
    arms = dict.fromkeys(cell.arm for cell in plan)
    listed: list[tuple[str, str, str, str]] = [
        (suite.arm(a).label, f"`{a}`", suite.arm(a).role, _knobs(suite, plan, a))
        for a in arms
        if not suite.in_matrix(a)
    ]
    listed += _sides(suite, list(arms))
    here = _settings_of(plan)
    common = ", ".join(
        f"{key} = {next(iter(found))}" for key, found in here.items() if len(found) == 1
    )
    parts = [
        "## Set-up",
        table(("arm", "name", "role", "what it is"), listed),
        f"The same in every run: {common}.",
    ]
    return parts + _against_paper(suite, scale, plan, here)


def _sides(suite: Suite, arms: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """The objectives and aggregators of the matrix, instead of all their pairs."""
    matrix = suite.matrix
    if matrix is None:
        return []
    sides = [
        ("objective", pair(objective.name, ANYTHING), objective, matrix.objective_config)
        for objective in matrix.objectives
    ] + [
        ("aggregator", pair(ANYTHING, aggregator.name), aggregator, matrix.aggregator_config)
        for aggregator in matrix.aggregators
    ]
    return [
        (
            f"any × {choice.name}" if role == "aggregator" else f"{choice.name} × any",
            f"`{pattern}`",
            role,
            "; ".join(_told({"name": choice.name, **choice.knobs}, configs.get(choice.name, {}))),
        )
        for role, pattern, choice, configs in sides
        if filled(pattern, arms)
    ]


def _told(method: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """A method and what else is set for it."""
    texts = [*flat({"method": method}).values()]
    return texts + [f"{key} = {value}" for key, value in flat(config).items() if key]


def _knobs(suite: Suite, plan: Sequence[Cell], name: str) -> str:
    arm = suite.arm(name)
    places = {cell.setting for cell in plan}
    places |= {cell.config.federation.dataset for cell in plan}
    texts = [
        *_told({"name": arm.method.name, **arm.method.knobs}, arm.config),
        *(
            f"on {dataset}: {key} = {value}"
            for dataset, config in arm.on.items()
            for key, value in flat(config).items()
            if dataset in places
        ),
    ]
    return "; ".join(str(text) for text in texts)


def _settings_of(plan: Sequence[Cell]) -> dict[str, set[str]]:
    """Every setting and the values it takes in these runs, but for what arms and seeds are."""
    found: dict[str, set[str]] = {}
    times: dict[str, int] = {}
    for cell in plan:
        for key, value in flat(cell.config.resolved()).items():
            if key not in ("seed", "method"):
                found.setdefault(key, set()).add(_plain(value))
                times[key] = times.get(key, 0) + 1
    for key, count in times.items():
        # Tables without a name differ in their keys: what some runs do not have is not the same.
        if count < len(plan):
            found[key].add("not set")
    return found


def _plain(value: Any) -> str:
    text = "none" if value is None or value == {} else str(value)
    # Where somebody keeps their data is nobody else's business.
    return PurePath(text).name if PurePath(text).is_absolute() else text


def _against_paper(
    suite: Suite, scale: str, plan: Sequence[Cell], here: Mapping[str, set[str]]
) -> list[str]:
    if scale == "paper" or "paper" not in suite.scales:
        return []
    whole = cells(suite, "paper")
    there = _settings_of(whole)
    rows = [("seeds", str(_seeds(plan)), str(_seeds(whole)))]
    rows += [
        (key, _values(here.get(key, set())), _values(there.get(key, set())))
        for key in dict.fromkeys((*here, *there))
        if here.get(key) != there.get(key)
    ]
    return [f"What differs between this scale and the paper's ({len(whole)} runs):",
            table(("setting", f"here ({scale})", "paper scale"), rows)]  # fmt: skip


def _seeds(plan: Sequence[Cell]) -> int:
    return len({cell.seed for cell in plan})


def _values(values: set[str]) -> str:
    return " / ".join(sorted(values)) or "–"
