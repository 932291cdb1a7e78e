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
from fedskew.federate.roster import Member, Roster


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


def sized(name: str, test: int, validation: int, seen: bool = True) -> Member:
    return Member(name, {"train": 9, "test": test, "validation": validation}, (5, 4), seen=seen)


def test_clients_without_test_or_validation_samples_are_named() -> None:
    members = (sized("ann", 3, 0), sized("bob", 0, 2), sized("cas", 0, 2, seen=False))
    tested, validated = Roster("toy", (2,), ("a", "b"), members).unscored
    assert tested.startswith("2 of 3 clients have no test samples (bob, cas):")
    assert validated.startswith("1 of 2 clients has no validation samples (ann):")


def test_where_nobody_has_validation_samples_that_is_a_setting() -> None:
    members = tuple(sized(name, 3, 0) for name in ("ann", "bob"))
    assert Roster("toy", (2,), ("a", "b"), members).unscored == ()


def test_where_nobody_has_test_samples_it_says_so() -> None:
    members = tuple(sized(name, 0, 1) for name in ("ann", "bob"))
    (sentence,) = Roster("toy", (2,), ("a", "b"), members).unscored
    assert sentence == "no client has test samples, so there are no test scores of clients."


def test_of_many_names_the_first_are_told() -> None:
    members = tuple(sized(f"c{i}", int(i > 6), 1) for i in range(9))
    (sentence,) = Roster("toy", (2,), ("a", "b"), members).unscored
    assert "7 of 9 clients have no test samples (c0, c1, c2, c3, c4 and 2 more)" in sentence
