"""Which studies can have secure aggregation: those that use nothing but a weighted mean."""

from __future__ import annotations

from collections.abc import Sequence

from fedskew.config import Config
from fedskew.errors import ConfigError
from fedskew.federate.metrics import MAIN
from fedskew.federate.privacy import PARAMETERS, sent_in
from fedskew.federate.recipe import Recipe, Stage
from fedskew.methods import find
from fedskew.parts.select import NOTHING


def check_secure(config: Config) -> None:
    """Refuse a study whose server has to see what single clients send."""
    recipe = find(config.method.name).recipe(**config.method.knobs)
    if why := why_not_secure([*recipe.prepares, Stage(MAIN, recipe)]):
        raise ConfigError(
            f"secure aggregation shows the server nothing but a weighted mean of models, and of "
            f"{config.method.name!r} {why}: leave secure out, or take another method."
        )


def why_not_secure(stages: Sequence[Stage]) -> str | None:
    """Why sums are not all that the server of these stages needs; none if they are."""
    for stage in stages:
        if why := _in_the_way(stage):
            return why if len(stages) == 1 else f"{why} (stage {stage.name!r})"
    return None


def _in_the_way(stage: Stage) -> str | None:
    recipe = stage.recipe
    beside = [one.what for one in sent_in(stage) if one.what != PARAMETERS]
    if beside:
        return f"clients send more: {', '.join(beside)}"
    if not sends_models(recipe):
        return None
    if recipe.packs.says:
        return "clients pack what they send, and packed changes cannot be summed"
    if recipe.aggregates.noising is not None:
        return "the server itself bounds each client's update and adds the noise"
    if recipe.aggregates.looks:
        return "the server looks at the models one by one"
    if weight_of(recipe, 1) is None:
        return "a client's weight does not follow from its number of training samples"
    return None


def sends_models(recipe: Recipe) -> bool:
    """Whether there is anything to hide."""
    return not recipe.pools and recipe.shares != NOTHING


def weight_of(recipe: Recipe, size: int) -> int | None:
    """What a client with so many training samples counts."""
    weighting = recipe.aggregates.weighting
    return None if weighting is None else weighting.of_size(size)
