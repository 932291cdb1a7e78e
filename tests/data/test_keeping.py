"""Rows by which clients keep: taken out of validation, keyed by client, and nobody else's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import toy_federation

from fedskew.data.federation import Client, Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.data.keeping import with_keeping
from fedskew.errors import ConfigError


def with_validation(*sizes: int) -> Federation:
    """Clients with so many validation rows each."""
    toy = toy_federation(tuple(size + 5 for size in sizes))
    clients = tuple(
        Client(c.name, c.train[:5], c.train[5 : 5 + size], c.test)
        for c, size in zip(toy.clients, sizes, strict=True)
    )
    return toy.with_data(clients=clients)


def test_two_thirds_of_the_validation_rows_are_taken_out_and_nothing_else_changes() -> None:
    before = with_validation(9, 12, 2, 1, 0)
    after = with_keeping(before, 3)
    assert [len(c.keeping) for c in after.clients] == [6, 8, 1, 0, 0]
    for old, new in zip(before.clients, after.clients, strict=True):
        both = np.concatenate([new.validation, new.keeping])
        assert sorted(both.tolist()) == sorted(old.validation.tolist())
        np.testing.assert_array_equal(new.train, old.train)
        np.testing.assert_array_equal(new.test, old.test)
    assert after.unseen == before.unseen


def test_which_rows_depends_on_seed_and_client_and_on_no_other_client() -> None:
    federation = with_validation(30, 30, 30)
    rows = [c.keeping.tolist() for c in with_keeping(federation, 0).clients]
    assert rows == [c.keeping.tolist() for c in with_keeping(federation, 0).clients]
    assert rows != [c.keeping.tolist() for c in with_keeping(federation, 1).clients]
    fewer = federation.with_data(clients=federation.clients[1:])
    assert [c.keeping.tolist() for c in with_keeping(fewer, 0).clients] == rows[1:]
    places = [
        np.array(r) - r0.validation[0] for r, r0 in zip(rows, federation.clients, strict=True)
    ]
    assert places[0].tolist() != places[1].tolist()


def test_data_without_such_rows_keep_their_fingerprint() -> None:
    """The rows are chosen by a setting, not by the data: run folders stay valid."""
    federation = with_validation(9, 9)
    assert fingerprint(with_keeping(federation, 0)) != fingerprint(federation)
    known = "fingerprints of earlier versions know no such field"
    empty = federation.with_data(
        clients=tuple(replace(c, keeping=np.empty(0, np.int64)) for c in federation.clients)
    )
    assert fingerprint(empty) == fingerprint(federation), known


@pytest.mark.parametrize(
    ("sizes", "why"),
    [((9,), "has one client that trains"), ((1, 1, 0), "no client has two of them")],
)
def test_what_cannot_work_is_refused_before_anybody_trains(
    sizes: tuple[int, ...], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        with_keeping(with_validation(*sizes), 0)
