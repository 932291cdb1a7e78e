"""Sources that give the label away are pointed out, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedskew.data.build import build
from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation
from fedskew.federate.holdings import roster_of


def holding(*labels: str, unseen: tuple[str, ...] = ()) -> Federation:
    """A client for each text, which holds a sample for each letter of it: a, b or c."""
    y = torch.tensor(["abc".index(letter) for text in (*labels, *unseen) for letter in text])
    ends = np.cumsum([len(text) for text in (*labels, *unseen)])
    rows = np.split(np.arange(len(y)), ends[:-1])
    clients = [Client(f"c{i}", part) for i, part in enumerate(rows)]
    return Federation(
        "toy", torch.zeros(len(y), 1), y, ("a", "b", "c"),
        tuple(clients[: len(labels)]), tuple(clients[len(labels) :]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "opening"),
    [
        (("aaa", "ab", "abc"), "1 of 3 clients hold one label only: a model can tell"),
        (("aaa", "bb", "c"), "3 of 3 clients"),
        (("aa", "aa", "a", "bbb"), "4 of 4 clients"),
        (("aa", "aa", "ac", "abc", "bc"), "2 of 5 clients"),
    ],
)
def test_many_clients_of_one_label_are_pointed_out(labels: tuple[str, ...], opening: str) -> None:
    (sentence,) = roster_of(holding(*labels)).warnings
    assert sentence.startswith(opening)
    assert sentence.endswith("and scores per client flatter it.")


@pytest.mark.parametrize(
    "labels",
    [
        ("ab", "abc", "ca"),
        ("aaa", "ab", "abc", "abc"),
        ("aa", "aaa", "a"),
        ("bbb",),
    ],
)
def test_few_such_clients_or_one_label_for_all_are_nothing_to_say(labels: tuple[str, ...]) -> None:
    assert roster_of(holding(*labels)).warnings == ()


def test_unseen_clients_and_rows_that_are_not_trained_on_do_not_count() -> None:
    assert roster_of(holding("ab", "abc", "bc", unseen=("a", "b", "c"))).warnings == ()


def test_digits_warn_only_where_clients_hold_one_class() -> None:
    digits = load("digits")
    assert roster_of(build(digits, partition="iid", clients=10, seed=0)).warnings == ()
    (sentence,) = roster_of(build(digits, partition="one-class", clients=10, seed=0)).warnings
    assert sentence.startswith("10 of 10 clients")


@pytest.mark.real_data
@pytest.mark.parametrize("normal_or_not", [False, True])
def test_six_of_ten_x_ray_sources_hold_one_label(data_dir: Path, normal_or_not: bool) -> None:
    xray = load("chest-xray", data_dir, normal_or_not=normal_or_not)
    (sentence,) = roster_of(build(xray, partition="owner", clients=None, seed=0)).warnings
    assert sentence.startswith("6 of 10 clients hold one label only")
    assert "the source instead of the illness" in sentence


@pytest.mark.real_data
def test_har_subjects_do_everything_and_warn_of_nothing(data_dir: Path) -> None:
    har = load("har", data_dir)
    assert roster_of(build(har, partition="owner", clients=None, seed=0)).warnings == ()
