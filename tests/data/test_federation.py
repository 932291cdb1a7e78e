"""Federations and datasets refuse what no method could train on, and count what they hold."""

import numpy as np
import pytest
import torch

from fedskew.data.dataset import Dataset
from fedskew.data.federation import Client, Federation
from fedskew.errors import DataError

ROWS = np.arange(6)
X, Y = torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 1])


def federation(clients=None, **changes):
    clients = clients or (Client("ann", ROWS[:2], ROWS[2:3]), Client("bob", ROWS[3:5], ROWS[5:]))
    fields = {"name": "toy", "x": X, "y": Y, "class_names": ("a", "b", "c"), "clients": clients}
    return Federation(**{**fields, **changes})


def test_class_counts_have_a_row_per_client_and_a_column_per_class():
    assert federation().class_counts().tolist() == [[1, 1, 0], [1, 1, 0]]
    assert federation().class_counts("validation").tolist() == [[0, 0, 1], [0, 1, 0]]


def test_pooled_holds_the_training_and_validation_rows_of_all_clients_but_unseen_ones():
    pooled = federation(
        (Client("ann", ROWS[:2], ROWS[2:3]),), unseen=(Client("eve", ROWS[3:]),)
    ).pooled()
    assert pooled.train.tolist() == [0, 1]
    assert pooled.validation.tolist() == [2]


def test_clients_are_found_by_name_whether_seen_or_unseen():
    made = federation((Client("ann", ROWS[:2]),), unseen=(Client("eve", ROWS[3:]),))
    assert made.by_name["eve"].train.tolist() == [3, 4, 5]
    assert (made.classes, made.sample_shape) == (3, (2,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": ()}, "'toy' has no clients"),
        ({"clients": (Client("ann", ROWS), Client("ann", ROWS))}, "two clients named 'ann'"),
        ({"unseen": (Client("bob", ROWS),)}, "two clients named 'bob'"),
        ({"clients": (Client("ann", ROWS[:0]),)}, "'ann' has no training samples"),
        ({"clients": (Client("ann", ROWS + 1),)}, "'ann' holds row 6, but toy has rows 0..5"),
        ({"clients": (Client("ann", ROWS, ROWS - 1),)}, "'ann' holds row -1"),
        ({"central_test": ROWS + 4}, "central test set holds row 9"),
        ({"environment": torch.zeros(5)}, "5 environment ids for 6 samples"),
        ({"x": torch.zeros(5, 2)}, "5 samples but 6 labels"),
        ({"x": torch.zeros(6, 2, dtype=torch.float64)}, "float32, not torch.float64"),
        ({"x": torch.tensor([[0.0]] * 4 + [[float("nan")]] * 2)}, "sample 4 holds a NaN"),
        ({"class_names": ("a", "b")}, r"label 2 of sample 2 is outside 0\.\.1"),
    ],
)
def test_broken_federations_are_refused_by_name(changes, message):
    fields = {"name": "toy", "x": X, "y": Y, "class_names": ("a", "b", "c")}
    fields["clients"] = (Client("ann", ROWS[:3]), Client("bob", ROWS[3:]))
    with pytest.raises(DataError, match=message):
        Federation(**{**fields, **changes})


def test_with_data_keeps_everything_else():
    before = federation()
    changed = before.with_data(x=X + 1)
    assert changed.x.mean() == 1
    assert changed.clients == before.clients
    assert changed.y is Y


def test_train_rows_are_those_outside_the_published_test_split():
    dataset = Dataset("toy", X, Y, ("a", "b", "c"), official_test=np.array([1, 4]))
    assert dataset.train_rows.tolist() == [0, 2, 3, 5]


@pytest.mark.parametrize("field", ["owner", "segment", "environment"])
def test_a_dataset_needs_one_id_per_sample(field):
    with pytest.raises(DataError, match=f"toy: 5 {field} ids for 6 samples"):
        Dataset("toy", X, Y, ("a", "b", "c"), **{field: torch.zeros(5)})
