"""Rounds whose updates come as one mean, because nobody may see the single ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from helpers import (
    OpenBackend,
    assert_close,
    copied,
    method_holdings,
    run,
    toy_model,
)

from fedskew.errors import RunError
from fedskew.federate.accepting import accept, update_norms
from fedskew.federate.rounds import Rounds
from fedskew.federate.tasks import Answer, Ask
from fedskew.parts.aggregate import BySize, BySteps, Mean, ServerState, Uniform, Update


class Summing(OpenBackend):
    """Returns the mean of all updates to everybody; ``broken`` spoils it."""

    broken = False

    def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
        answers = super().exchange(asks)
        updates = [answer.update for answer in answers if answer.update is not None]
        if not updates:
            return answers
        weights = torch.tensor([float(u.size) for u in updates], dtype=torch.float64)
        mean = {
            name: (
                sum(w * u.tensors[name].double() for w, u in zip(weights, updates, strict=True))
                / weights.sum()
                * (math.nan if self.broken else 1)
            ).to(updates[0].tensors[name].dtype)
            for name in updates[0].tensors
        }
        names = tuple(update.client for update in updates)
        one = Update("two sites", mean, int(weights.sum()), 0, of=names, came=12345)
        return [replace(a, update=one, loss=math.nan) if a.update else a for a in answers]


def test_the_mean_of_everybody_is_the_next_model_and_all_are_counted() -> None:
    holdings = method_holdings("fedavg")
    plain = run(holdings, 2)
    summed = run(holdings, 2, Summing(holdings))
    assert_close(plain.shared, summed.shared, 1e-6)
    for one, other in zip(plain.journal.records, summed.journal.records, strict=True):
        assert (one.participants, other.participants) == (4, 4)
        assert other.bytes_up == 12345
        assert one.bytes_down == other.bytes_down
        assert one.update_norms.keys() == {"c0", "c1", "c2", "c3"}
        assert other.update_norms == {}
        assert math.isnan(other.train_loss)


def test_clients_in_a_mean_count_as_so_many_updates() -> None:
    holdings = method_holdings("fedavg")
    done = run(holdings, Rounds(1, min_clients=4), Summing(holdings))
    assert done.journal.records[0].notes == ()


def test_a_mean_that_cannot_be_used_fails_everybody_in_it() -> None:
    holdings = method_holdings("fedavg")
    whole = copied(toy_model().state_dict())
    bent = Update("s", {**whole, "head.bias": torch.zeros(4)}, 7, 0, of=("c0", "c1"))
    answers = [Answer("c0", update=bent), Answer("c1", update=bent), Answer("c2", update=bent)]
    used, failures = accept(answers, holdings.plan, ServerState(whole))
    assert used == []
    assert failures == {
        "c0": "head.bias has shape (4,)",
        "c1": "head.bias has shape (4,)",
        "c2": "it answers for 's'",
    }
    fine = Update("s", whole, 7, 0, of=("c0", "c1"))
    answers = [Answer("c0", update=fine), Answer("c1", update=fine)]
    used, failures = accept(answers, holdings.plan, ServerState(whole))
    assert used == [fine]
    assert failures == {}
    assert update_norms(used, ServerState(whole)) == {}


def test_a_broken_mean_leaves_nobody() -> None:
    holdings = method_holdings("fedavg")
    backend = Summing(holdings)
    backend.broken = True
    with pytest.raises(RunError, match=r"every client failed in the first round; 'c0': .*finite"):
        run(holdings, 1, backend)


def test_a_weighting_says_what_a_client_counts_if_its_size_tells() -> None:
    assert BySize().of_size(17) == 17
    assert Uniform().of_size(17) == 1
    assert BySteps().of_size(17) is None


def test_a_mean_that_records_distances_looks_at_single_clients() -> None:
    assert not Mean().looks
    assert Mean(divergence=True).looks
    assert Mean(divergence=True).averages
