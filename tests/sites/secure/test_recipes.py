"""Which methods can be had with secure aggregation, and why the others cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedskew.config import make_config
from fedskew.errors import ConfigError
from fedskew.federate.metrics import MAIN
from fedskew.federate.recipe import Stage
from fedskew.methods import METHODS, find
from fedskew.sites.secure.recipes import why_not_secure
from fedskew.sites.study import study_config

PAGE = Path(__file__).parents[3] / "docs" / "secure-aggregation.md"


def why_not(name: str) -> str | None:
    recipe = find(name).recipe()
    return why_not_secure([*recipe.prepares, Stage(MAIN, recipe)])


def test_the_page_lists_every_method_that_is_refused_with_its_reason() -> None:
    listed = dict(re.findall(r"^\| `([a-z-]+)` \| ([^|]+?) \|", PAGE.read_text(), re.MULTILINE))
    refused = {name: why for name in METHODS if (why := why_not(name)) is not None}
    assert listed == refused


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("scaffold", "'scaffold' clients send more: the change of their control variates"),
        ("fedgma", "the server looks at the models one by one"),
        ("private", "the server itself bounds each client's update and adds the noise"),
        ({"name": "vae", "divergence": True}, "the server looks at the models one by one"),
        ({"name": "vae", "weights": "batches"}, "weight does not follow from its number of"),
        ({"name": "vae", "weights": "loss"}, "clients send more: their training loss"),
        ("latent-weights", r"dimensions \(stage 'baseline'\): leave secure out"),
    ],
)
def test_a_study_that_needs_single_updates_is_refused(method: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        study_config(make_config({"method": method, "secure": True}))


@pytest.mark.parametrize(
    "method",
    ["fedavg", "fedprox", "fedbn", "feddisk", "local", {"name": "vae", "weights": "uniform"}],
)
def test_a_study_that_needs_a_mean_is_taken(method: object) -> None:
    assert study_config(make_config({"method": method, "secure": True})).secure is not None
