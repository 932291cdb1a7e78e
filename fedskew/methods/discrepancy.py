"""Aggregation weights from how far each client's data are from the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Card, Recipe, Reduction, find, method
from fedskew.parts.discrepancy import AllZero, ByDiscrepancy, LabelDiscrepancy, Metric

ALL_ZERO = "where nobody has weight: 'size', or 'best' for the best client alone"


def based_on(base: str | Mapping[str, Any]) -> tuple[str, Recipe]:
    """The name and the recipe of a method another is built on."""
    knobs: dict[str, Any] = dict(base) if isinstance(base, Mapping) else {"name": base}
    name = knobs.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"base must name a method, like 'fedprox', not {base!r}.")
    return name, find(name).recipe(**knobs)


@method(
    "feddisco",
    Card(
        summary="Any method by size, with less weight for clients whose labels are lopsided.",
        paper="Ye et al. 2023, FedDisco.",
        update="p_k ∝ max(0, n_k - α·d_k + b), d_k the distance of the client's label shares from "
        "equal ones",
        knobs={"base": "the method whose weights are replaced, a name or {name = …, knob = …}",
               "alpha": "what a unit of discrepancy takes from a client's share, ≥ 0",
               "b": "added to every client's share",
               "metric": "'kl', 'l1', 'l2' or 'cosine'",
               "normalise": "divide discrepancies by their sum (none: for 'kl' only, as published)",
               "all_zero": ALL_ZERO},
        reduces=(Reduction({"alpha": 0.0, "b": 0.0}, "fedavg"),),
        sends="what the base sends, and one number: how lopsided the client's labels are",
        fails="it takes weight from clients with rare classes, too, if they have few classes",
    ),
)  # fmt: skip
def feddisco(
    base: str | Mapping[str, Any] = "fedavg",
    alpha: float = 0.5,
    b: float = 0.1,
    metric: Metric = "kl",
    normalise: bool | None = None,
    all_zero: AllZero = "size",
) -> Recipe:
    name, recipe = based_on(base)
    report = LabelDiscrepancy(metric)
    weighting = ByDiscrepancy(
        alpha, b, metric == "kl" if normalise is None else normalise, all_zero
    )
    aggregates = recipe.aggregates.reweighted(weighting)
    if aggregates is None:
        raise ConfigError(f"base = {name!r} weighs no clients, so there is nothing to replace.")
    return replace(recipe, reports=(*recipe.reports, report), aggregates=aggregates)
