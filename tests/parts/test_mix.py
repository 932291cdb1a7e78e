"""One model per client: row weights and mixed models worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from updates import THREE, first, near, start, update

from fedskew.errors import ConfigError
from fedskew.parts import mix
from fedskew.parts.mix import (
    BySimilarity,
    SelfMix,
    nobody_at_self,
    row_entropy,
    shared_out,
)


def test_rows_of_the_similarity_matrix_weigh_the_models() -> None:
    """a: (1·1 + 0.6·4)/1.6; b: (0.6·1 + 1·4)/1.6; c: itself. The mean is (1 + 4 + 10)/3."""
    state = BySimilarity().aggregate(start(), THREE, 3)
    assert [first(state, c) for c in "abc"] == near([3.4 / 1.6, 4.6 / 1.6, 10.0])
    assert state.personal["a"]["w"].tolist() == near([3.4 / 1.6, -3.4 / 1.6])
    assert state.shared["w"].tolist() == near([5.0, -5.0])
    assert [int(state.personal[c]["n"]) for c in "abc"] == [1, 4, 10]


def test_every_row_is_recorded_with_its_self_weight_and_entropy() -> None:
    """a: 1/1.6 = 0.625 and 0.375; entropy 0.6616 of at most log 3."""
    measured = BySimilarity().aggregate(start(), THREE, 3).measured
    assert measured["a"]["self_weight"] == near(0.625)
    assert measured["a"]["row_entropy"] == pytest.approx(0.6616 / 1.0986, abs=1e-4)
    assert measured["c"] == {"self_weight": near(1.0), "row_entropy": near(0.0)}


def test_the_similarity_matrix_is_kept_for_the_record() -> None:
    matrices = BySimilarity().aggregate(start(), THREE, 3).matrices
    assert matrices["similarity"].clients == ("a", "b", "c")
    expected = torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(matrices["similarity"].values, expected)


def weights(others: list[float], **knobs: Any) -> list[float]:
    """The weights of one row, its own first."""
    own, rest = shared_out(torch.tensor([others]), **knobs)
    return [float(own[0]), *rest[0].tolist()]


def test_sharpening_raises_similarities_to_a_power() -> None:
    assert weights([0.5, 0.2], sharpen=2.0) == near([1 / 1.29, 0.25 / 1.29, 0.04 / 1.29])
    assert weights([0.5, 0.0, -1.0], sharpen=0.0) == near([1 / 3, 1 / 3, 1 / 3, 0.0])


def test_only_the_nearest_neighbours_count() -> None:
    assert weights([0.5, 0.2, 0.4], neighbours=2) == near([1 / 1.9, 0.5 / 1.9, 0.0, 0.4 / 1.9])
    assert weights([0.5, 0.2], neighbours=9) == near([1 / 1.7, 0.5 / 1.7, 0.2 / 1.7])


def test_a_fixed_self_weight_leaves_the_rest_in_proportion() -> None:
    assert weights([0.6, 0.2], self_weight=0.2) == near([0.2, 0.6, 0.2])
    assert weights([0.6, 0.2], self_weight=1.0) == near([1.0, 0.0, 0.0])


def test_a_row_like_nobody_keeps_its_own_model_whatever_the_self_weight() -> None:
    for knobs in ({}, {"self_weight": 0.0}, {"self_weight": 0.3, "cap": 0.1}, {"neighbours": 1}):
        assert weights([0.0, 0.0, -1.0], **knobs) == near([1.0, 0.0, 0.0, 0.0])


def test_what_exceeds_the_cap_goes_back_to_the_own_model() -> None:
    """1/2.2 and 0.2/2.2 with a cap of 0.25: 1/2.2 - 0.25 goes home."""
    capped = weights([1.0, 0.2], cap=0.25)
    assert capped == near([1 / 2.2 + 1 / 2.2 - 0.25, 0.25, 0.2 / 2.2])
    assert sum(capped) == near(1.0)


def test_blocks_of_rows_give_the_same_models_as_all_rows_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prints = torch.nn.functional.normalize(torch.randn(23, 5).abs(), dim=1)
    updates = [update(f"c{i:02d}", float(i), prints[i].tolist()) for i in range(23)]
    whole = BySimilarity(sharpen=2.0, neighbours=4, cap=0.3).aggregate(start(), updates, 23)
    monkeypatch.setattr(mix, "ROWS", 4)
    blocked = BySimilarity(sharpen=2.0, neighbours=4, cap=0.3).aggregate(start(), updates, 23)
    for name, tensors in whole.personal.items():
        torch.testing.assert_close(blocked.personal[name]["w"], tensors["w"])
        assert blocked.measured[name] == near(whole.measured[name])


def test_few_neighbours_among_many_clients_give_what_the_dense_product_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 400
    prints = torch.nn.functional.normalize(torch.randn(count, 5, generator=generator), dim=1)
    updates = [update(f"c{i:03d}", float(i), prints[i].tolist()) for i in range(count)]
    state = BySimilarity(neighbours=3).aggregate(start(), updates, count)
    others = nobody_at_self((prints @ prints.T).clamp(0, 1), slice(0, count))
    own, rest = shared_out(others, neighbours=3)
    values = torch.arange(float(count))
    for i in (0, 17, 399):
        assert first(state, f"c{i:03d}") == pytest.approx(
            float(own[i] * values[i] + rest[i] @ values), rel=1e-5
        )


def test_a_newcomer_is_sent_the_mean_and_then_moves_to_its_own_weights() -> None:
    state = BySimilarity().aggregate(start(), THREE[:2], 3)
    assert float(state.sent_to("c")["w"][0]) == near(2.5)
    state = BySimilarity().aggregate(state, [update("c", 7.0, [1.0, 0.0])], 3)
    assert float(state.sent_to("c")["w"][0]) == near(7.0)


def test_an_absent_client_keeps_its_place_by_what_it_last_reported() -> None:
    """a was given 3.4/1.6 = 2.125; only b takes part again, and a is 0.6 like it:
    (2.125 + 0.6·8)/1.6."""
    state = BySimilarity().aggregate(start(), THREE, 3)
    state = BySimilarity().aggregate(state, [update("b", 8.0, [0.6, 0.8])], 3)
    assert first(state, "a") == near((2.125 + 0.6 * 8) / 1.6)
    assert first(state, "b") == near(8.0)
    assert first(state, "c") == near(10.0)
    assert state.measured["a"]["self_weight"] == near(0.625)


def test_the_entropy_of_the_absent_counts_their_own_model_as_one_more() -> None:
    own, rest = torch.tensor([0.5, 1 / 3]), torch.tensor([[0.0, 0.5], [1 / 3, 1 / 3]])
    assert row_entropy(own, rest, start=1, present=2).tolist() == near([1.0, 1.0])


def test_a_fingerprint_of_another_size_is_like_nothing() -> None:
    wrong = update("d", 100.0, [1.0, 0.0, 0.0])
    state = BySimilarity().aggregate(start(), [*THREE, wrong], 4)
    assert first(state, "d") == near(100.0)
    assert first(state, "a") == near(3.4 / 1.6)
    assert state.notes == ("d sent a fingerprint of 3 numbers, the others 2: it is like nobody",)


def test_a_fingerprint_longer_than_honest_ones_is_cut_to_their_length() -> None:
    """(6, 8) is (0.6, 0.8) made ten times as long: to a it is still 0.6 alike, not 1."""
    boasting = update("b", 4.0, [6.0, 8.0])
    honest = BySimilarity().aggregate(start(), THREE, 3)
    state = BySimilarity().aggregate(start(), [THREE[0], boasting, THREE[2]], 3)
    assert [first(state, c) for c in "abc"] == near([first(honest, c) for c in "abc"])
    believed = BySimilarity(longest=float("inf")).aggregate(start(), [THREE[0], boasting], 2)
    assert first(believed, "a") == near(2.5)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"sharpen": -1.0}, r"sharpen must be a number of at least 0, not -1\.0\."),
        ({"self_weight": 1.5}, r"self_weight must be a number from 0 to 1 or none, not 1\.5\."),
        ({"neighbours": 0}, r"neighbours must be a whole number of at least 1 or none, not 0\."),
        ({"cap": 0.0}, r"cap must be a number above 0 and of at most 1, not 0\.0\."),
    ],
)
def test_impossible_settings_are_refused(knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BySimilarity(**knobs)


def test_self_mix_spreads_what_is_left_evenly() -> None:
    """0.4·1 + 0.3·4 + 0.3·10 = 4.6."""
    state = SelfMix(self_weight=0.4).aggregate(start(), THREE, 3)
    assert first(state, "a") == near(4.6)
    assert state.measured["b"]["self_weight"] == near(0.4)


def test_self_mix_measures_the_mean_self_weight_of_the_similarities() -> None:
    """Self-weights 0.625, 0.625 and 1 have the mean 0.75: 0.75·1 + 0.125·(4 + 10) = 2.5."""
    state = SelfMix(measured=BySimilarity()).aggregate(start(), THREE, 3)
    assert first(state, "a") == near(2.5)
    assert [state.measured[c]["self_weight"] for c in "abc"] == near([0.75] * 3)


def test_self_mix_refreshes_the_absent_too() -> None:
    state = SelfMix(self_weight=0.5).aggregate(start(), THREE[:2], 3)
    state = SelfMix(self_weight=0.5).aggregate(state, [update("b", 8.0)], 3)
    assert first(state, "a") == near(0.5 * 2.5 + 0.5 * 8)
