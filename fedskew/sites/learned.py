"""What all sites together learn of a sample: the same thing everywhere, in common units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedskew.config import FederationSection
from fedskew.data.moments import Moments, figures
from fedskew.data.problem import classes_problem
from fedskew.errors import RunError
from fedskew.problem import Problem

Told = Mapping[str, Mapping[str, Any]]


def problem_of_sites(
    section: FederationSection, told: Told, class_names: Sequence[str], targets: Told
) -> Problem:
    """The problem of all sites, told by each; ``targets`` are sums of those who train."""
    kinds = {site: _sort(each["learns"]) for site, each in told.items()}
    first, *others = kinds
    for site in others:
        if kinds[site] != kinds[first]:
            raise RunError(
                f"labels of site {site} are for {told[site]['learns']}, those of {first} for "
                f"{told[first]['learns']}: set federation.task."
            )
        if kinds[site] == "multi-label":
            _check_labels(first, site, told)
    if kinds[first] == "regression":
        sums = [Moments.read(targets[client]) for client in sorted(targets)]
        mean, deviation = (found.item() for found in figures(sums))
        said = (
            f"the labels of all sites are numbers: their mean is {mean:g}, deviation {deviation:g}."
        )
        return Problem("regression", units=(mean, deviation), said=said)
    if kinds[first] == "multi-label":
        said = f"samples of all sites may have any of {len(class_names)} labels."
        return Problem("multi-label", said=said)
    names, said = tuple(class_names), "all sites together"
    return classes_problem("sites", names, section.task, section.positive, said)


def _sort(kind: str) -> str:
    """Two classes at one site may be two of many."""
    return "classification" if kind == "binary" else kind


def _check_labels(first: str, other: str, told: Told) -> None:
    mine, theirs = told[first]["class_names"], told[other]["class_names"]
    if mine != theirs:
        raise RunError(
            f"the labels of site {other} are {', '.join(theirs)}, those of {first} "
            f"{', '.join(mine)}: name the same, in the same order."
        )


def as_plain(problem: Problem) -> dict[str, Any]:
    """A problem as it travels."""
    return {"kind": problem.kind, "positive": problem.positive, "units": problem.units}


def from_plain(values: Mapping[str, Any]) -> Problem:
    units = values["units"]
    return Problem(values["kind"], values["positive"], None if units is None else tuple(units))
