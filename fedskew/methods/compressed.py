"""Smaller updates for the clients of other methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Recipe, Stage
from fedskew.methods.common import Base, based_on
from fedskew.methods.registry import Card, ReducesTo, method
from fedskew.parts.packing import Half, Packing, TopK
from fedskew.parts.select import NOTHING
from fedskew.registry.knobs import Knob

LARGEST = TopK()


def sends_nothing(recipe: Recipe) -> bool:
    """Whether no parameters travel to a server."""
    return recipe.pools or recipe.shares == NOTHING


def in_the_way(recipe: Recipe) -> str | None:
    """Why the updates of a recipe cannot be compressed, if they cannot."""
    if recipe.pools and recipe.invents is None:
        return "it pools raw data, and no update travels"
    if sends_nothing(recipe):
        return "its clients send no parameters"
    return hindrance(recipe)


def hindrance(recipe: Recipe) -> str | None:
    """Why the parameters that a recipe's clients send cannot be compressed, if they cannot."""
    if recipe.packs != Packing():
        return "its updates are packed already"
    if recipe.begins.personal:
        return "its clients do not begin with what the server sent, to which changes refer"
    return None


def packed(stage: Stage, packing: Packing) -> Stage:
    """An earlier stage with the same packing, where it sends parameters that allow it."""
    if sends_nothing(stage.recipe) or hindrance(stage.recipe):
        return stage
    return replace(stage, recipe=replace(stage.recipe, packs=packing))


@method(
    "compressed",
    Card(
        summary="Any method whose clients send parameters, with updates half as long, or a "
        "fiftieth.",
        paper="Stich et al. 2018, Sparsified SGD with Memory; Karimireddy et al. 2019, Error "
        "Feedback Fixes SignSGD; a client's change in a round takes the gradient's place.",
        update="half: w + fp16(w_k - w). top-k: p_k = w_k - w + e_k; the share of p_k that is "
        "largest in absolute value travels, and e_k ← p_k less what travelled; the base's server "
        "takes w + what came for w_k",
        reduces=(ReducesTo("fedavg", at={"share": 1.0}),),
        sends="what the base sends, its parameters' changes in two bytes each, or in eight those "
        "that are chosen; reports, BatchNorm's statistics and what the server sends are as long "
        "as ever, see docs/results/compression.md",
        fails="half precision leaves out who moves by more than 65504 in a round; small shares "
        "where clients take part seldom: what they have not sent is old by then; servers that "
        "count signs or take medians, to whom a change that did not travel is none; with feedback "
        "every client keeps as much as the model",
        defaults="1 % is a fiftieth of the bytes and cost 1.4 and 3.9 points where it was "
        "measured; half precision, and 10 % with feedback, cost none that was shown",
    ),
)
def compressed(
    base: Base = "fedavg",
    how: Annotated[
        Literal["half", "top-k"],
        Knob("half: all changes, in half precision; top-k: the largest ones, as they are"),
    ] = "top-k",
    largest: TopK = LARGEST,
) -> Recipe:
    name, recipe = based_on(base)
    if why := in_the_way(recipe):
        raise ConfigError(f"base = {name!r} cannot be compressed: {why}.")
    packing = Half() if how == "half" else largest
    prepares = tuple(packed(stage, packing) for stage in recipe.prepares)
    return replace(recipe, packs=packing, prepares=prepares)
