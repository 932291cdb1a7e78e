"""Which entries of a model a recipe means."""

from __future__ import annotations

import pytest
from helpers import toy_model
from torch import nn

from fedskew.errors import ConfigError
from fedskew.models.registry import Classifier
from fedskew.parts.select import BATCH_NORM, EVERYTHING, NOTHING, Select, but, only

MODEL = toy_model("batch-norm")
NORM = {
    f"body.1.{entry}"
    for entry in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}
HEAD = {"head.weight", "head.bias"}


def test_everything_is_the_whole_state_with_its_buffers() -> None:
    assert EVERYTHING.names(MODEL) == set(MODEL.state_dict()) == {"body.0.weight", *NORM, *HEAD}


def test_nothing_is_empty() -> None:
    assert NOTHING.names(MODEL) == set()


def test_a_part_is_named_by_its_path() -> None:
    assert only("head").names(MODEL) == HEAD
    assert only("body.0", "head").names(MODEL) == {"body.0.weight", *HEAD}
    assert but("body").names(MODEL) == HEAD
    assert Select(only=("body",), but=("body.1",)).names(MODEL) == {"body.0.weight"}


def test_a_path_does_not_match_its_longer_namesakes() -> None:
    model = nn.ModuleDict({"head": nn.Linear(1, 1), "head2": nn.Linear(1, 1)})
    assert only("head").names(model) == HEAD


def test_batch_norm_is_matched_by_type_and_takes_its_statistics_along() -> None:
    assert only(BATCH_NORM).names(MODEL) == NORM
    assert but(BATCH_NORM).names(MODEL) == {"body.0.weight", *HEAD}


def test_a_layer_called_bn_that_is_none_is_not_matched() -> None:
    body = nn.Sequential()
    body.add_module("bn", nn.Linear(2, 2))
    body.add_module("group", nn.GroupNorm(1, 2))
    model = Classifier(body, nn.Linear(2, 2))
    assert only(BATCH_NORM).names(model) == set()
    assert but(BATCH_NORM).names(model) == set(model.state_dict())


def test_batch_norm_without_statistics_or_scale_has_only_what_it_has() -> None:
    bare = Classifier(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2))
    assert {n.split(".")[1] for n in only(BATCH_NORM).names(bare)} == {
        "running_mean", "running_var", "num_batches_tracked"
    }  # fmt: skip


def test_a_part_the_model_lacks_is_an_error_that_names_those_it_has() -> None:
    with pytest.raises(ConfigError, match="no part 'encoder'; it has body, head"):
        only("encoder").names(MODEL)
    with pytest.raises(ConfigError, match="no part 'encoder'"):
        but("encoder").names(MODEL)
