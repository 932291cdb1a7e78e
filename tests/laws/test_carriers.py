"""Law 4: whoever carries asks and answers, weights, memory, private state and rows are the same."""

from __future__ import annotations

import pytest
from helpers import (
    OpenBackend,
    Run,
    assert_same_bits,
    every_method,
    method_holdings,
    over_the_wire,
    standard_run,
)

from fedskew.errors import ConfigError
from fedskew.federate.backends.carrier import Carrier
from fedskew.federate.rounds import Rounds
from fedskew.federate.server import federate
from fedskew.methods import find


@every_method
@pytest.mark.parametrize("kind", ["mlp", "batch-norm"])
def test_a_carrier_of_bytes_changes_nothing(name: str, kind: str) -> None:
    holdings = method_holdings(name, kind)
    if holdings.plan.recipe.pools:
        pytest.skip("pools raw data, and is refused where clients keep theirs")
    carried, here = over_the_wire(holdings), standard_run(name, kind)
    assert_same_bits(carried.everything(), here.everything())
    assert carried.journal.rows == here.journal.rows
    assert carried.journal.records == here.journal.records


class Riding(Carrier):
    """Scores of a round come with the answers of the next."""

    rides = True


@every_method
def test_scores_that_ride_on_the_next_message_change_nothing(name: str) -> None:
    holdings = method_holdings(name)
    if holdings.plan.recipe.pools:
        pytest.skip("pools raw data, and is refused where clients keep theirs")
    clients = OpenBackend(holdings)
    carrier = Riding(clients)
    ridden = Run(holdings, clients)
    ridden.progress = federate(holdings.plan, carrier, Rounds(3), ridden.journal)
    here = standard_run(name)
    assert_same_bits(ridden.everything(), here.everything())
    assert ridden.journal.rows == here.journal.rows
    assert ridden.journal.records == here.journal.records


@pytest.mark.parametrize("name", ["central", "vae"])
def test_what_pools_data_is_refused_where_clients_keep_theirs(name: str) -> None:
    knobs = {"base": "central"} if name == "vae" else {}
    assert find(name).recipe(**knobs).pools
    holdings = method_holdings(name, knobs=knobs)
    with pytest.raises(ConfigError, match="all data in one place"):
        over_the_wire(holdings, backend=Carrier(OpenBackend(holdings)))
