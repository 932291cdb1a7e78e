"""Aggregation weights from how far each client's data are from the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Recipe
from fedskew.methods.common import Base, based_on
from fedskew.methods.registry import Card, ReducesTo, method
from fedskew.parts.discrepancy import AllZero, Alpha, Bonus, ByDiscrepancy, LabelDiscrepancy
from fedskew.registry.knobs import Knob

KL = LabelDiscrepancy()


@method(
    "feddisco",
    Card(
        summary="Any method weighted by size, with less weight for clients with unbalanced labels.",
        paper="Ye et al. 2023, FedDisco.",
        update="p_k ∝ max(0, n_k - α·d_k + b), d_k the distance of the client's label shares from "
        "equal ones",
        reduces=(ReducesTo("fedavg", at={"alpha": 0.0, "b": 0.0}),),
        sends="what the base sends, and one number: how unbalanced the client's labels are",
        fails="it also takes weight from clients with rare classes, if they have few classes",
    ),
)
def feddisco(
    base: Base = "fedavg",
    alpha: Alpha = 0.5,
    b: Bonus = 0.1,
    report: LabelDiscrepancy = KL,
    normalise: Annotated[
        bool | None,
        Knob("divide discrepancies by their sum; none: for 'kl' only, as published"),
    ] = None,
    all_zero: AllZero = "size",
) -> Recipe:
    name, recipe = based_on(base)
    divides = report.metric == "kl" if normalise is None else normalise
    aggregates = recipe.aggregates.reweighted(ByDiscrepancy(alpha, b, divides, all_zero))
    if aggregates is None:
        raise ConfigError(f"base = {name!r} does not weigh clients: it has no weights to replace.")
    return replace(recipe, reports=(*recipe.reports, report), aggregates=aggregates)
