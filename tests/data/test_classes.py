"""A choice of classes: which rows stay, under which numbers and names, and whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_data import held_by_one

from fedskew.data.build import build
from fedskew.data.datasets import load
from fedskew.data.own import load_own
from fedskew.errors import ConfigError, DataError


def write(path: Path) -> Path:
    """Eight rows of one feature, the row's number: classes a b c a b c a b."""
    np.savez(
        path,
        x=np.arange(8, dtype=np.float32)[:, None],
        y=[0, 1, 2, 0, 1, 2, 0, 1],
        split=[0, 0, 0, 0, 0, 0, 1, 1],
        segment=[0, 1, 2, 0, 1, 2, 3, 4],
        owner=["ann", "ann", "bob", "ann", "ann", "cy", "ann", "dan"],
        class_names=["a", "b", "c"],
    )
    return path


def test_classes_are_numbered_in_the_order_given_and_keep_their_names(tmp_path: Path) -> None:
    found = load_own(write(tmp_path / "own.npz"), normalise="unit", classes=[2, 0])
    assert found.x[:, 0].tolist() == [0, 2, 3, 5, 6]
    assert found.y.tolist() == [1, 0, 1, 0, 1]
    assert found.class_names == ("c", "a")
    assert found.official_test.tolist() == [4], "the published test split is chosen from too"
    assert found.segment is not None
    assert found.segment.tolist() == [0, 2, 0, 2, 3]


def test_a_list_among_the_classes_makes_several_into_one(tmp_path: Path) -> None:
    found = load_own(write(tmp_path / "own.npz"), normalise="unit", classes=[[2, 0], 1])
    assert found.y.tolist() == [0, 1, 0, 0, 1, 0, 0, 1]
    assert found.class_names == ("c+a", "b")
    some = load_own(write(tmp_path / "own.npz"), normalise="unit", classes=[[1, 2]])
    assert some.x[:, 0].tolist() == [1, 2, 4, 5, 7]
    assert some.y.tolist() == [0, 0, 0, 0, 0]


def test_owners_left_without_rows_disappear(tmp_path: Path) -> None:
    found = load_own(write(tmp_path / "own.npz"), normalise="unit", classes=[2])
    assert found.owner is not None
    assert [found.owner_names[i] for i in found.owner] == ["bob", "cy"]
    assert found.owner_names == ("bob", "cy")


def test_standard_scales_by_the_rows_that_stay(tmp_path: Path) -> None:
    found = held_by_one(load_own(write(tmp_path / "own.npz"), classes=[0]))
    # The training rows are 0 and 3: mean and deviation 1.5; row 6 is the test row.
    assert found.x[:, 0].tolist() == pytest.approx([-1, 1, 3])


def test_a_single_class_is_fine() -> None:
    digits = load("digits", normalise="unit")
    eights = load("digits", normalise="unit", classes=[8])
    assert torch.equal(eights.x, digits.x[digits.y == 8])
    assert (eights.class_names, eights.y.tolist()) == (("8",), [0] * 174)


def test_all_classes_in_their_own_order_change_nothing() -> None:
    digits, same = load("digits"), load("digits", classes=list(range(10)))
    assert torch.equal(digits.x, same.x)
    assert torch.equal(digits.y, same.y)


def test_tables_and_folders_choose_classes_too(tmp_path: Path) -> None:
    for name, kind in (("ann", "cat"), ("bob", "dog"), ("cy", "cow")):
        (tmp_path / f"{name}.csv").write_text(f"size,label\n1,{kind}\n2,{kind}\n")
    found = load_own(tmp_path, classes=[2, 0])  # by name: cat cow dog
    assert (found.class_names, found.owner_names) == (("dog", "cat"), ("ann", "bob"))
    assert found.y.tolist() == [1, 1, 0, 0]


def test_thinning_counts_the_rows_that_stay() -> None:
    pair = load("digits", classes=[3, 5])
    with pytest.raises(ConfigError, match=r"samples=1000 is more than the 365 training samples"):
        build(pair, partition="iid", clients=2, seed=0, samples=1000)


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        ([0, 12], r"classes names class 12, but digits numbers its classes 0\.\.9\."),
        ([-1], r"classes names class -1, but digits numbers its classes 0\.\.9\."),
        ([4, 3, 4], r"class 4 stands twice in classes: name it once\."),
        ([], r"classes must name at least one class: leave it out to keep all\."),
        ([[4, 3], 4], r"class 4 stands twice in classes: name it once\."),
        ([[0], []], r"classes must name at least one class: leave it out to keep all\."),
        ([[1, 12]], r"classes names class 12, but digits numbers its classes 0\.\.9\."),
        ([1.0], r"classes must be a list of class numbers like \[1, 2\], not \[1\.0\]\."),
        ([True], r"classes must be a list of class numbers like \[1, 2\], not \[True\]\."),
        ("12", r"classes must be a list of class numbers like \[1, 2\], not '12'\."),
    ],
)
def test_classes_that_cannot_be_chosen_are_refused_in_one_sentence(
    classes: Any, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        load("digits", classes=classes)


def test_classes_without_rows_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.eye(2), y=[0, 2], split=[0, 1], class_names=list("abc"))
    with pytest.raises(DataError, match=r"own\.npz has no samples of classes \[1\]\."):
        load_own(tmp_path / "own.npz", classes=[1])
    with pytest.raises(DataError, match="every row is marked as test; none is left to train on"):
        load_own(tmp_path / "own.npz", classes=[2, 1])


@pytest.mark.real_data
def test_real_femnist_digits_are_its_first_ten_classes(data_dir: Path) -> None:
    chosen = load("femnist", data_dir, normalise="unit", classes=list(range(10)))
    digits = load("femnist", data_dir, normalise="unit", digits_only=True)
    stored = load("femnist", data_dir, normalise="unit")
    assert torch.equal(chosen.x, stored.x[stored.y < 10])
    assert torch.equal(chosen.x, digits.x)
    assert chosen.class_names == digits.class_names == tuple("0123456789")
    assert chosen.owner_names == digits.owner_names
