"""The hash of a federation sees every bit of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import toy_federation

from fedskew.config import make_config
from fedskew.data.federation import Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.data.remarks import Remarks
from fedskew.runs.experiment import make_federation

TOY = toy_federation()


def _flipped(values: torch.Tensor, place: int) -> torch.Tensor:
    """The same values with the lowest bit of one of them flipped."""
    flipped = values.clone()
    flat = flipped.view(-1).numpy().view(np.uint8)
    flat[place * values.element_size()] ^= 1
    return flipped


@pytest.fixture(scope="module")
def large() -> Federation:
    """Far more values than a sample of them would look at."""
    federation = toy_federation((40,) * 4, features=5000)
    owner = torch.zeros(len(federation.y), dtype=torch.int64)
    return replace(federation, owner=owner, log_ratio=torch.zeros(len(owner)))


@pytest.mark.parametrize("field", ["x", "y", "environment", "owner", "log_ratio"])
def test_one_bit_anywhere_is_other_data(field: str, large: Federation) -> None:
    values = getattr(large, field)
    seen = {fingerprint(large)}
    places = [0, 1, values.numel() // 2 + 1, values.numel() - 1]
    for place in places:
        changed = _flipped(values, place)
        if field == "y":
            changed = changed.clamp(0, 2)
        if not torch.equal(changed, values):
            seen.add(fingerprint(replace(large, **{field: changed})))
    assert len(seen) > len(places) - 1


def test_who_holds_what_is_part_of_the_data() -> None:
    first, *others = TOY.clients
    moved = replace(first, train=first.train[:-1], test=np.append(first.test, first.train[-1]))
    changes: list[dict[str, Any]] = [
        {"clients": (moved, *others)},
        {"clients": (replace(first, name="eve"), *others)},
        {"clients": (*others, first)},
        {"clients": (first, *others[1:]), "unseen": (*TOY.unseen, others[0])},
        {"public": np.array([], dtype=np.int64), "central_test": TOY.central_test[:-1]},
        {"class_names": ("x", *TOY.class_names[1:])},
        {"odd": (first.name,)},
        {"same_law": not TOY.same_law},
    ]
    prints = [fingerprint(replace(TOY, **change)) for change in changes]
    assert len({fingerprint(TOY), *prints}) == len(changes) + 1
    assert fingerprint(replace(TOY, name="another")) == fingerprint(TOY)
    assert fingerprint(replace(TOY, x=TOY.x.clone())) == fingerprint(TOY)


def test_the_same_bytes_in_another_shape_are_other_data() -> None:
    flat = replace(TOY, x=TOY.x.reshape(-1, 2, 3))
    assert fingerprint(flat) != fingerprint(TOY)
    # Not contiguous in memory, but the same values.
    turned = replace(TOY, x=TOY.x.T.contiguous().T)
    assert fingerprint(turned) == fingerprint(TOY)


def test_the_same_split_has_the_same_fingerprint() -> None:
    config = make_config({"federation": {"seed": 1, "partition": "iid"}})
    one, again = make_federation(config), make_federation(config)
    assert fingerprint(one) == fingerprint(again)
    other = make_federation(make_config({"federation": {"seed": 2, "partition": "iid"}}))
    assert fingerprint(other) != fingerprint(one)


def test_what_was_said_of_the_files_is_not_the_data() -> None:
    said = replace(TOY, remarks=Remarks(("a file is broken",), ("a.png",)))
    assert fingerprint(said) == fingerprint(TOY)
