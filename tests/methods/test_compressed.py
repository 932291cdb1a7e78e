"""Shorter updates on whole runs: what travels, what stays, who may, and what others make of it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    OpenBackend,
    assert_close,
    assert_same_bits,
    copied,
    make_holdings,
    method_holdings,
    over_the_wire,
    run,
    spent_on,
    toy_federation,
    toy_model,
)
from torch import nn

from fedskew.errors import ConfigError
from fedskew.federate.accepting import accept
from fedskew.federate.asking import participants
from fedskew.federate.backends.carrier import Carrier
from fedskew.federate.backends.wire import decode_answers
from fedskew.federate.privacy import remembers
from fedskew.federate.rounds import Rounds
from fedskew.federate.tasks import Answer
from fedskew.methods import find
from fedskew.models.registry import Classifier
from fedskew.parts.aggregate import ServerState, Update
from fedskew.parts.packing import Half, Packing, TopK

HALF: dict[str, Any] = {"how": "half"}
LOGISTIC = 4 * (6 * 3 + 3)
"""Bytes of the weights and biases of six features and three classes, in float32."""


class Listening(Carrier):
    """Keeps the answers of every message that trains, and their lengths."""

    def __init__(self, clients: OpenBackend) -> None:
        super().__init__(clients)
        self.clients = clients
        self.trained: list[tuple[int, list[Answer]]] = []

    def carry(self, message: bytes) -> bytes:
        reply = super().carry(message)
        answers = decode_answers(reply)
        if answers and answers[0].update is not None:
            self.trained.append((len(reply), answers))
        return reply


@pytest.mark.parametrize(
    ("knobs", "up"),
    [
        ({}, 8),  # one of 21 parameters: a place and a value
        ({"share": 0.2}, None),
        ({"share": 1.0}, LOGISTIC),
        (HALF, LOGISTIC // 2),
    ],
)
def test_what_is_counted_is_what_travels(knobs: dict[str, Any], up: int | None) -> None:
    """Down goes the model as ever; four of 21 parameters take 32 bytes, or 12 if three of them are
    in the bias, which then travels whole beside eight for the fourth."""
    model = Classifier(nn.Identity(), nn.Linear(6, 3))
    holdings = make_holdings(find("compressed").recipe(**knobs), module=model)
    carrier = Listening(OpenBackend(holdings))
    result = over_the_wire(holdings, 2, carrier)
    for (_, answers), record in zip(carrier.trained, result.journal.records, strict=True):
        sent = [sum(t.nbytes for t in a.update.tensors.values()) for a in answers if a.update]
        assert record.bytes_up == sum(sent)
        assert record.bytes_down == 4 * LOGISTIC
        assert sent == [up] * 4 if up is not None else set(sent) <= {32, 28, 20}


def test_a_message_is_as_much_shorter_as_is_counted() -> None:
    """Two layers of 200,003 parameters: names and heads add some 520 bytes a client."""
    model = Classifier(nn.Linear(6, 20000), nn.Linear(20000, 3))
    shortest = {}
    for name, knobs in (("fedavg", {}), ("compressed", HALF), ("compressed", {"share": 0.01})):
        holdings = make_holdings(find(name).recipe(**knobs), module=model)
        carrier = Listening(OpenBackend(holdings))
        record = over_the_wire(holdings, 1, carrier).journal.records[0]
        ((length, _),) = carrier.trained
        assert record.bytes_up <= length < record.bytes_up + 4 * 550
        shortest[str(knobs)] = record.bytes_up
    whole, half, few = shortest.values()
    assert half == whole / 2
    assert few == pytest.approx(whole * 2 * 0.01, rel=1e-4)


@pytest.mark.parametrize(
    "base", ["scaffold", "fednova", "fedbn", "ditto", "fedshibu", "feddisco", "fedper", "fedrod"]
)
@pytest.mark.parametrize("kind", ["mlp", "batch-norm"])
def test_all_of_the_largest_changes_are_the_base_itself(base: str, kind: str) -> None:
    ours = run(method_holdings("compressed", kind, {"base": base, "share": 1.0}))
    theirs = run(method_holdings(base, kind))
    assert_close(ours.shared, theirs.shared, 1e-5)
    assert [r.bytes_up for r in ours.journal.records] == [
        r.bytes_up for r in theirs.journal.records
    ]
    for client, model in theirs.progress.state.personal.items():
        assert_close(ours.progress.state.sent_to(client), model, 1e-5)


@pytest.mark.parametrize("base", ["scaffold", "fedbn", "fedshibu", "ditto"])
@pytest.mark.parametrize("knobs", [{"share": 0.1}, HALF], ids=["top-k", "half"])
def test_bytes_carry_what_a_base_needs(base: str, knobs: dict[str, Any]) -> None:
    holdings = method_holdings("compressed", "batch-norm", {"base": base, **knobs})
    carried, here = over_the_wire(holdings), run(holdings)
    assert_same_bits(carried.everything(), here.everything())
    assert carried.journal.records == here.journal.records


def test_statistics_and_counters_travel_as_they_are() -> None:
    holdings = method_holdings("compressed", "batch-norm", HALF)
    carrier = Listening(OpenBackend(holdings))
    over_the_wire(holdings, 1, carrier)
    update = carrier.trained[0][1][0].update
    assert update is not None
    types = {name: t.dtype for name, t in update.tensors.items()}
    assert {n.rpartition(".")[2] for n, t in types.items() if t == torch.float32} == {
        "running_mean", "running_var",
    }  # fmt: skip
    assert types.pop("body.1.num_batches_tracked") == torch.int64
    assert all(types[n] == torch.float16 for n in types if "running" not in n)


def test_who_does_not_take_part_keeps_what_was_not_sent() -> None:
    """Round by round: it changes at participants and at nobody else; newcomers never have any."""
    holdings = method_holdings("compressed", knobs={"share": 0.1})
    names = [client.name for client in holdings.federation.clients]
    rounds = [run(holdings, Rounds(n, clients_per_round=2)).backend for n in (1, 2, 3, 4)]
    for number, (before, after) in enumerate(itertools.pairwise(rounds), start=2):
        took_part = participants(names, 2, holdings.plan, number)
        for name in names:
            then, now = before.private_of(name), after.private_of(name)
            if name in took_part:
                assert any(
                    not torch.equal(t, then.get("unsent", {}).get(n, torch.zeros_like(t)))
                    for n, t in now["unsent"].items()
                )
            else:
                assert then.keys() == now.keys()
                assert_same_bits(now.get("unsent", {}), then.get("unsent", {}))
    assert rounds[-1].private_of("c4") == {}


def test_feedback_sends_what_a_small_share_would_never_send() -> None:
    """The largest change is that of other parameters round after round."""
    with_it = run(method_holdings("compressed", knobs={"share": 0.1}), 30)
    without = run(method_holdings("compressed", knobs={"share": 0.1, "feedback": False}), 30)
    start = copied(toy_model().state_dict())
    untouched = [
        sum(int((r.shared[n] == t).sum()) for n, t in start.items()) for r in (with_it, without)
    ]
    assert untouched[0] < untouched[1]


def test_who_moves_beyond_half_precision_is_left_out_with_that_reason() -> None:
    """The others' round goes on, and is the one they would have without it."""
    federation = toy_federation()
    wild = federation.x.clone()
    wild[torch.from_numpy(federation.clients[1].train)] *= 1e7
    model = Classifier(nn.Identity(), nn.Linear(6, 3))
    recipe = find("compressed").recipe(how="half")
    result = run(make_holdings(recipe, federation.with_data(x=wild), model), 1)
    ((client, reason),) = result.journal.records[0].failures.items()
    assert client == "c1"
    assert reason.endswith("changed by more than 65504, the most that half precision holds")
    others = tuple(c for c in federation.clients if c.name != "c1")
    without = run(make_holdings(recipe, federation.with_data(clients=others), model), 1)
    assert_close(result.shared, without.shared, 1e-6)


def test_a_server_refuses_what_nobody_packed() -> None:
    holdings = method_holdings("compressed")
    whole = copied(holdings.plan.initial)
    state = ServerState(whole)
    empty = {n: torch.zeros(0, dtype=torch.uint8) for n in whole}
    for wrong, reason in (
        (torch.zeros(5, dtype=torch.uint8), "head.bias did not come as places and values"),
        (torch.full((3,), float("nan")), "head.bias is not finite"),
        (torch.tensor([9, 0, 0, 0, 0, 0, 0, 0]).byte(), "head.bias came with places that"),
    ):
        answer = Answer("c0", update=Update("c0", {**empty, "head.bias": wrong}, 7, 1))
        updates, failures = accept([answer], holdings.plan, state)
        assert updates == []
        assert failures["c0"].startswith(reason)
    (update,), _ = accept([Answer("c0", update=Update("c0", empty, 7, 1))], holdings.plan, state)
    assert_same_bits(update.tensors, whole)


@pytest.mark.parametrize(
    ("base", "why"),
    [
        ("central", "it pools raw data, and no update travels"),
        ("local", "its clients send no parameters"),
        ("distilled-vae", "its clients send no parameters"),
        ("compressed", "its updates are packed already"),
        ({"name": "vae", "sync": False}, "its clients do not begin with what the server sent"),
    ],
)
def test_a_base_that_has_nothing_to_compress_is_refused(base: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be compressed: {why}"):
        find("compressed").recipe(base=base)


def test_earlier_stages_that_send_parameters_send_shorter_ones() -> None:
    recipe = find("compressed").recipe(base="feddisk", share=0.1)
    assert [stage.recipe.packs for stage in recipe.prepares if stage.name == "density"] == [
        TopK(0.1)
    ]
    apart = [s.recipe.packs for s in recipe.prepares if s.name == "local-density"]
    assert apart == [Packing()]


def test_private_and_compressed_are_one_recipe_in_either_order() -> None:
    """The server clips and noises what it unpacked, so the promise is the same; with feedback
    clients remember, and only an ε towards somebody who knows who took part is left."""
    noise = {"clip": 0.5, "noise": 2.0}
    for knobs, packs in ((HALF, Half()), ({"share": 0.1}, TopK(0.1))):
        outside = find("compressed").recipe(base={"name": "private", **noise}, **knobs)
        inside = find("private").recipe(base={"name": "compressed", **knobs}, **noise)
        assert outside.packs == inside.packs == packs
        assert outside.aggregates.noising == inside.aggregates.noising
        assert remembers(outside) is remembers(inside) is (packs != Half())
        ours, theirs = run(make_holdings(outside), 2), run(make_holdings(inside), 2)
        assert ours.journal.records == theirs.journal.records
    plain = find("private").recipe(**noise)
    half = find("compressed").recipe(base={"name": "private", **noise}, how="half")
    few = find("compressed").recipe(base={"name": "private", **noise})
    known = find("private").recipe(base={"name": "irm", "anneal": 3}, **noise)
    epsilon = [spent_on(r, 20, 10, 200)["epsilon"] for r in (plain, half, few, known)]
    assert epsilon[0] == epsilon[1]
    assert epsilon[2] == epsilon[3] > epsilon[0]


def test_other_wrappers_keep_the_packing_of_their_base() -> None:
    few = {"name": "compressed", "share": 0.1}
    for wrapper in ("fedreptile", "irm", "feddisco"):
        assert find(wrapper).recipe(base=few).packs == TopK(0.1), wrapper


def test_a_packing_of_ones_own_is_a_field_of_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_packs.py").write_text(
        """
from dataclasses import dataclass
from fedskew import Packing, Recipe
from fedskew.parts.packing import OfChanges


@dataclass(frozen=True)
class Doubled(OfChanges):
    def squeeze(self, change):
        return {name: 2 * t for name, t in change.items()}

    def unfold(self, name, came, like):
        return came / 2


def doubled():
    return Recipe(packs=Doubled())


def wrong():
    return Recipe(packs=2)
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ours = run(method_holdings("own_packs:doubled"))
    assert_close(ours.shared, run(method_holdings("fedavg")).shared, 1e-6)
    with pytest.raises(ConfigError, match="packs of its recipe must be of a class based on Pack"):
        find("own_packs:wrong").recipe()
