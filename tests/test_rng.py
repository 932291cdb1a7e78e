"""Random generators: the same for the same purpose, unrelated for any other."""

from __future__ import annotations

import numpy as np
import pytest

from fedskew.rng import keyed_rng, stream, torch_seed


def draws(*key: str | int) -> list[float]:
    return list(stream(0, *key).standard_normal(1000))


def test_a_stream_depends_on_its_key_alone() -> None:
    first = draws("batches", "ann", 3)
    draws("batches", "bob", 3)
    assert draws("batches", "ann", 3) == first


@pytest.mark.parametrize(
    "other", [("batches", "ann", 4), ("batches", "bob", 3), ("noise", "ann", 3), ("batches", "ann")]
)
def test_streams_of_other_purposes_are_uncorrelated(other: tuple[str | int, ...]) -> None:
    """The correlation of 1000 independent pairs stays within four deviations, 4/√1000."""
    ours, theirs = draws("batches", "ann", 3), draws(*other)
    assert ours != theirs
    assert abs(np.corrcoef(ours, theirs)[0, 1]) < 4 / np.sqrt(1000)


def test_another_seed_is_another_stream() -> None:
    assert stream(0, "a").integers(2**60) != stream(1, "a").integers(2**60)


def test_parts_of_a_key_are_not_simply_joined() -> None:
    assert draws("ab", "c") != draws("a", "bc")
    assert draws("a", 11) != draws("a", 1, 1)


def test_a_seed_for_torch_is_repeatable_and_not_negative() -> None:
    seeds = [torch_seed(5, "model", i) for i in range(50)]
    assert seeds == [torch_seed(5, "model", i) for i in range(50)]
    assert len(set(seeds)) == 50
    assert min(seeds) >= 0


def test_generators_of_different_keys_differ() -> None:
    draws = {
        int(keyed_rng(*key).integers(2**62))
        for key in [(0, "a", "b"), (0, "b", "a"), (0, "ab"), (1, "a", "b"), (0, "a")]
    }
    assert len(draws) == 5


def test_both_draw_the_bits_of_recorded_runs() -> None:
    data = keyed_rng(3, "partition", "ann").integers(10**9, size=3)
    training = stream(3, "batches", "ann", 1).integers(10**9, size=3)
    assert data.tolist() == [129240024, 782751708, 430055134]
    assert training.tolist() == [766906855, 485764121, 23809477]
