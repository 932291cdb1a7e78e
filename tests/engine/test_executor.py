"""The executor is chosen by the model's shape, so the same model always gets the same one."""

from __future__ import annotations

import pytest
from torch import nn

from fedskew.engine.executor import MOST_STACKED, STACKED_PARAMETERS, choose


def sized(parameters: int) -> nn.Module:
    return nn.Linear(parameters, 1, bias=False)


def test_small_models_are_stacked_as_long_as_the_stack_fits() -> None:
    size = STACKED_PARAMETERS // 10
    found = choose(sized(size))
    assert (found.executor, found.chunk) == ("vectorised", 10)


def test_a_stack_never_grows_without_bound() -> None:
    assert choose(sized(1)).chunk == MOST_STACKED


def test_large_models_and_convolutions_get_one_client_a_thread() -> None:
    assert choose(sized(STACKED_PARAMETERS)).executor == "threads"
    assert choose(nn.Sequential(nn.Conv2d(1, 1, 3))).chunk == 1


def test_attention_gets_one_client_a_thread_and_recurrent_layers_are_stacked() -> None:
    assert choose(nn.TransformerEncoderLayer(8, 2)).executor == "threads"
    assert choose(nn.GRU(8, 8)).executor == "vectorised"
    assert choose(nn.MultiheadAttention(8, 2), "vectorised", 4).chunk == 4


def test_batch_norm_is_never_stacked_not_even_when_asked() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert choose(model, "vectorised", 8).chunk == 1


def test_what_is_asked_for_is_given() -> None:
    assert choose(sized(4), "threads").chunk == 1
    assert choose(nn.Conv2d(1, 1, 3), "vectorised", 5).chunk == 5
    assert choose(sized(4), chunk=3).chunk == 3


@pytest.mark.parametrize("model", [sized(4), nn.Conv2d(1, 1, 3), nn.BatchNorm1d(2)])
def test_one_by_one_is_given_to_any_model_and_is_the_only_plain_one(model: nn.Module) -> None:
    found = choose(model, "one-by-one")
    assert (found.executor, found.chunk, found.is_plain) == ("one-by-one", 1, True)
    assert not any(choose(model, other).is_plain for other in ("auto", "threads", "vectorised"))


def test_the_choice_repeats_and_can_be_written_down() -> None:
    found = choose(sized(1000))
    assert found == choose(sized(1000))
    assert found.as_dict() == {
        "executor": found.executor,
        "chunk": found.chunk,
        "reason": found.reason,
    }
