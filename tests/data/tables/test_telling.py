"""What columns were taken for, in lines to read before training."""

from __future__ import annotations

from fedskew.data.tables.encoder import Encoding, TableEncoder
from fedskew.data.tables.telling import columns_told

ROBUST = {"spread": 2.0, "limit": 6.0}


def test_numbers_only_are_a_line() -> None:
    columns = (Encoding("a", "number", spread=2.0), Encoding("b", "number", spread=3.0))
    assert columns_told(TableEncoder(columns, ("ill",))) == (
        "2 columns become 2 features, all of them numbers; label: ill"
    )


def test_columns_alike_that_stand_together_share_a_line() -> None:
    words = tuple("abcdefg")
    encoder = TableEncoder(
        (
            Encoding("r1", "number", **ROBUST),
            Encoding("r2", "number", **ROBUST),
            Encoding("age", "number", flagged=True, **ROBUST),
            Encoding("ward", "category", levels=words),
            Encoding("code", "hash", flagged=True),
            Encoding("old", "boolean"),
            Encoding("seen", "date"),
        ),
        ("ill", "dead"),
        {"id": "as you say"},
    )
    assert columns_told(encoder).splitlines() == [
        "7 columns become 46 features; label: ill, dead (federation.columns changes what columns "
        "are)",
        "  column       kind      what is made of it",
        "  r1 … r2 (2)  number    scaled by median and quartiles",
        "  age          number    scaled by median and quartiles; missing ones flagged",
        "  ward         category  0 or 1 for each of: a, b, c, d, e, … (7)",
        "  code         hash      words hashed to 32 features; missing ones flagged",
        "  old          boolean   0 or 1",
        "  seen         date      days, as stored",
        "  id           ignored   as you say",
    ]


def test_clients_that_scale_by_themselves_are_said_to() -> None:
    encoder = TableEncoder((Encoding("a", "number"), Encoding("b", "boolean")), ("ill",))
    line = columns_told(encoder, apart=True).splitlines()[2]
    assert line == "  a       number   scaled by each client's own median and quartiles"
    plain = TableEncoder((Encoding("a", "number"),), ("ill",))
    assert columns_told(plain, apart=True).endswith(
        "all of them numbers, scaled by each client's own mean and deviation; label: ill"
    )
