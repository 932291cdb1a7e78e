"""Law 4: a round dealt to workers, some of which end, is the round of one process to the bit."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from helpers import assert_same_bits, method_holdings, run, standard_run
from workers import OpenDealt, ThreadPool

from fedskew.federate.backends.dealer import Dealer
from fedskew.methods import METHODS


@cache
def graphs_of(name: str, kind: str) -> dict[Any, Any]:
    return {}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "mlp") for name in sorted(METHODS)),
        *((name, "batch-norm") for name in ("fedavg", "fedbn", "fedshibu", "vae")),
    ],
)
def test_workers_that_end_change_nothing(name: str, kind: str) -> None:
    holdings = method_holdings(name, kind)
    pool = ThreadPool(3, ends={2, 3, 7}, graphs=graphs_of(name, kind))
    dealt = run(holdings, backend=OpenDealt(holdings, Dealer(pool, pause=0.0)))
    here = standard_run(name, kind)
    assert_same_bits(dealt.everything(), here.everything())
    assert dealt.journal.rows == here.journal.rows
    assert dealt.journal.records == here.journal.records
    if holdings.plan.recipe.pools:
        assert pool.submitted == 0
    else:
        assert pool.lost >= 3
