"""Means inside groups by hand, and groups found without being told how many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import opening
from torch import Tensor
from updates import THREE, first, near, start, update

from fedskew.errors import ConfigError
from fedskew.parts.aggregate import ServerState
from fedskew.parts.groups import InGroups, found_groups


def in_groups(*groups: tuple[Any, ...], **knobs: Any) -> tuple[InGroups, ServerState]:
    part = InGroups(groups=groups, **knobs)
    memory = part.start(opening({}, "a", "b", "c"))
    return part, replace(start(), memory=memory)


def test_given_groups_average_inside() -> None:
    part, state = in_groups(("a", "c"), ("b",))
    state = part.aggregate(state, THREE, 3)
    assert [first(state, c) for c in "abc"] == near([5.5, 4.0, 5.5])
    assert [state.measured[c]["group"] for c in "abc"] == [0.0, 1.0, 0.0]


def test_groups_may_be_given_by_place_among_the_sorted_names() -> None:
    part, state = in_groups((0, 2), (1,))
    assert first(part.aggregate(state, THREE, 3), "a") == near(5.5)


def test_an_absent_client_gets_its_groups_mean_or_keeps_what_it_has() -> None:
    part, state = in_groups(("a", "c"), ("b",))
    state = part.aggregate(state, THREE, 3)
    state = part.aggregate(state, [update("c", 20.0)], 3)
    assert [first(state, c) for c in "abc"] == near([20.0, 4.0, 20.0])


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ((("a", "b"),), "client 'c' is in no group"),
        ((("a", "b"), ("b", "c")), "client 'b' is in two groups"),
        ((("a", "b", "x"), ("c",)), "there is no client 'x'"),
        (((0, 1, 7), (2,)), "there is no client 7"),
    ],
)
def test_impossible_groups_are_refused(groups: tuple[tuple[Any, ...], ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        in_groups(*groups)


def blocks(sizes: tuple[int, ...], inside: float, outside: float) -> Tensor:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    same = labels[:, None] == labels[None, :]
    noise = 0.05 * torch.rand(len(labels), len(labels), generator=torch.Generator().manual_seed(0))
    return (torch.where(same, inside, outside) + noise).fill_diagonal_(1.0)


@pytest.mark.parametrize("sizes", [(5, 5), (3, 4, 8), (4, 4, 4, 4, 4)])
def test_groups_are_found_without_being_told_how_many(sizes: tuple[int, ...]) -> None:
    found = found_groups(blocks(sizes, 0.8, 0.2))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    members = [found[s : s + size] for s, size in zip(starts, sizes, strict=True)]
    assert [len(set(group)) for group in members] == [1] * len(sizes)
    assert len(set(found)) == len(sizes)


def test_clients_that_do_not_differ_stay_one_group() -> None:
    assert set(found_groups(torch.ones(8, 8))) == {0}
    assert set(found_groups(blocks((12,), 0.5, 0.5))) == {0}


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_clients_are_one_group(n: int) -> None:
    assert found_groups(torch.eye(n)) == [0] * n


def test_found_groups_average_inside() -> None:
    prints = [[1.0, 0.0], [0.99, 0.14], [0.0, 1.0], [0.1, 0.99]]
    updates = [
        update(c, v, p) for c, v, p in zip("abcd", (1.0, 3.0, 10.0, 20.0), prints, strict=True)
    ]
    state = InGroups().aggregate(start(), updates, 4)
    assert [first(state, c) for c in "abcd"] == near([2.0, 2.0, 15.0, 15.0])
