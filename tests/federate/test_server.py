"""The round loop: who takes part, what goes wrong, when it stops, and what is written down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    ListJournal,
    OpenBackend,
    Run,
    Tensors,
    assert_close,
    assert_same_bits,
    copied,
    make_holdings,
    method_holdings,
    run,
    standard_run,
    toy_federation,
    toy_model,
)
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.data.federation import Client, Federation
from fedskew.engine.batches import schedule
from fedskew.errors import RunError, RunStopped, StoppedAtOnce, clients_may_fail
from fedskew.federate.accepting import accept, nobody_left, update_norms
from fedskew.federate.adapting import shots
from fedskew.federate.asking import participants
from fedskew.federate.client import describe_clients
from fedskew.federate.holdings import Holdings
from fedskew.federate.progress import Handed, Progress
from fedskew.federate.recipe import Adapt, Phase, Recipe
from fedskew.federate.rounds import Rounds
from fedskew.federate.scoring import score_samples, scored
from fedskew.federate.server import federate, hand_over
from fedskew.federate.tasks import Answer, Ask, DescribeTask, ScoreTask
from fedskew.methods import find
from fedskew.models.registry import Classifier
from fedskew.parts.aggregate import Mean, ServerState, Uniform, Update
from fedskew.parts.begin import Own
from fedskew.parts.objective import Batch, Bound, Context, Erm
from fedskew.parts.report import Finished, Report, Reported
from fedskew.parts.select import EVERYTHING, only
from fedskew.types import Groups


@dataclass(frozen=True)
class Poisoned(Erm):
    """Cross-entropy that is not a number on samples of one class, while lr is above ``until``
    or, with ``until`` negative, below its absolute value."""

    label: int = 2
    until: float = 0.0
    reads = ("lr",)

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        each = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        over = client["lr"] > self.until if self.until >= 0 else client["lr"] < -self.until
        bad = (batch.y == self.label) & (batch.mask > 0) & over
        return batch.mean(each * torch.where(bad, torch.nan, 1.0))


def one_poisoned(sizes: Sequence[int] = (9, 12, 15)) -> Federation:
    """Classes 0 and 1 everywhere, and class 2 at the client c1 alone."""
    federation = toy_federation(sizes)
    y = torch.arange(len(federation.y)) % 2
    y[torch.from_numpy(federation.clients[1].train)] = 2
    return federation.with_data(y=y)


def poisoned_holdings(name: str, kind: str = "mlp", until: float = 0.0, **changes: Any) -> Holdings:
    recipe = replace(find(name).recipe(), objective=Poisoned(until=until))
    return make_holdings(recipe, one_poisoned(), toy_model(kind), **changes)


def without(federation: Federation, *names: str) -> Federation:
    return federation.with_data(clients=tuple(c for c in federation.clients if c.name not in names))


def test_all_clients_take_part_unless_a_number_is_given() -> None:
    holdings = method_holdings("fedavg")
    assert participants(["a", "b"], None, holdings.plan, 1) == ["a", "b"]
    assert participants(["a", "b"], 5, holdings.plan, 1) == ["a", "b"]


def test_participants_are_a_seeded_sample_without_replacement() -> None:
    holdings, other = method_holdings("fedavg"), method_holdings("fedavg", seed=1)
    names = [f"c{i}" for i in range(10)]
    drawn = [participants(names, 3, holdings.plan, t) for t in range(1, 41)]
    assert drawn == [participants(names, 3, holdings.plan, t) for t in range(1, 41)]
    assert drawn != [participants(names, 3, other.plan, t) for t in range(1, 41)]
    assert all(len(set(chosen)) == 3 for chosen in drawn)
    assert {name for chosen in drawn for name in chosen} == set(names)


def test_only_participants_are_trained_and_averaged() -> None:
    holdings = method_holdings("fedavg")
    partial = run(holdings, Rounds(1, clients_per_round=2))
    chosen = participants(["c0", "c1", "c2", "c3"], 2, holdings.plan, 1)
    only_they = holdings.federation.with_data(
        clients=tuple(c for c in holdings.federation.clients if c.name in chosen)
    )
    assert_same_bits(partial.shared, run(method_holdings("fedavg", federation=only_they), 1).shared)
    assert partial.journal.records[0].participants == 2


def test_scaffold_counts_absent_clients_when_it_moves_the_variate() -> None:
    """c is the mean over all four clients, of which two have never trained and hold zeros."""
    partial = run(method_holdings("scaffold"), Rounds(1, clients_per_round=2))
    held = [partial.backend.private_of(f"c{k}").get("own_control", {}) for k in range(4)]
    assert sum(1 for control in held if control) == 2
    control = partial.progress.state.memory["control"]
    summed = {n: torch.stack([c[n] for c in held if c]).sum(dim=0) / 4 for n in control}
    assert_close(control, summed, 1e-6)


def test_the_learning_rate_falls_after_its_steps() -> None:
    rounds = Rounds(5, lr_decay=0.5, lr_steps=(2, 4))
    assert [rounds.lr_factor(t) for t in range(1, 6)] == [1.0, 1.0, 0.5, 0.5, 0.25]
    frozen = run(method_holdings("fedavg"), Rounds(3, lr_decay=0.0, lr_steps=(1,)))
    assert_close(frozen.shared, run(method_holdings("fedavg"), 1).shared, 1e-6)


def test_a_client_that_fails_is_recorded_and_the_others_go_on() -> None:
    result = run(poisoned_holdings("fedavg"), 2)
    for record in result.journal.records:
        assert record.participants == 2
        assert record.failures.keys() == {"c1"}
        assert "not finite" in record.failures["c1"]
        assert math.isfinite(record.train_loss)
    healthy = make_holdings(result.holdings.plan.recipe, without(one_poisoned(), "c1"))
    assert_close(result.shared, run(healthy, 2).shared, 1e-6)


@pytest.mark.parametrize("name", ["local", "scaffold", "fednova", "ditto", "fedbn"])
def test_a_client_that_failed_once_comes_back_unharmed(name: str) -> None:
    """Only in the first round is the learning rate high enough to poison."""
    holdings = poisoned_holdings(name, "batch-norm", until=0.06)
    result = run(holdings, Rounds(3, lr_decay=0.5, lr_steps=(1,)))
    assert [sorted(record.failures) for record in result.journal.records] == [["c1"], [], []]
    assert all(bool(torch.isfinite(t).all()) for t in result.everything().values())


def test_too_few_updates_leave_the_model_as_it_was() -> None:
    result = run(poisoned_holdings("fedavg"), Rounds(2, min_clients=3))
    assert_same_bits(result.shared, copied(toy_model().state_dict()))
    assert [record.notes for record in result.journal.records] == [
        ("only 2 usable updates: the model stays as it was",)
    ] * 2


def test_enough_updates_are_enough() -> None:
    result = run(poisoned_holdings("fedavg"), Rounds(1, min_clients=2))
    assert result.journal.records[0].notes == ()
    assert not torch.equal(result.shared["head.bias"], toy_model().head.bias)  # type: ignore[arg-type]


def all_poisoned(until: float = 0.0) -> Holdings:
    federation = toy_federation((9, 12))
    federation = federation.with_data(y=torch.full_like(federation.y, 2))
    return make_holdings(Recipe(objective=Poisoned(until=until)), federation)


def test_a_first_round_in_which_everybody_fails_is_an_error_with_a_reason() -> None:
    with pytest.raises(RunError, match=r"every client failed in the first round; 'c0': .*finite"):
        run(all_poisoned(), 3)


def test_a_later_round_in_which_everybody_fails_stops_the_run_with_a_reason() -> None:
    sentence = r"every client failed in round 2 of stage 'main' \('c0': .*finite.*repeating"
    with pytest.raises(RunStopped, match=sentence):
        run(all_poisoned(until=-0.06), Rounds(3, lr_decay=0.5, lr_steps=(1,)))


def answered(tensors: dict[str, Tensor] | None, error: str | None = None) -> Answer:
    update = None if tensors is None else Update("c0", tensors, 7, 1)
    return Answer("c0", update=update, error=error)


def test_answers_that_cannot_be_used_are_refused_with_the_reason() -> None:
    holdings = method_holdings("fedavg")
    whole = copied(holdings.plan.initial)
    state = ServerState(whole)
    lacking = {n: t for n, t in whole.items() if n != "head.bias"}
    bent = {**whole, "head.bias": torch.zeros(4)}
    update = Update("c0", whole, 7, 1)
    fine = Answer("c0", update=update)
    cases = {
        "no answer": answered(None),
        "out of memory": answered(None, "out of memory"),
        "the update has other entries than the shared model": answered(lacking),
        "head.bias has shape (4,)": answered(bent),
        "head.bias is of type float64": answered({**whole, "head.bias": torch.zeros(3).double()}),
        "head.bias is not finite": answered({**whole, "head.bias": torch.tensor([0, math.nan, 1])}),
        "v is not finite": replace(
            fine, update=replace(update, reports={"r": {"v": torch.tensor(math.inf)}})
        ),
        "it answers for 'c1'": replace(fine, update=replace(update, client="c1")),
        "it claims -1 samples and 1 steps": replace(fine, update=replace(update, size=-1)),
    }
    for reason, outcome in cases.items():
        assert accept([outcome], holdings.plan, state) == ([], {"c0": reason})
    invented = answered({**whole, "more": torch.zeros(1)})
    assert accept([invented], holdings.plan, state)[1] == {"c0": list(cases)[2]}
    updates, failures = accept([answered(whole)], holdings.plan, state)
    assert (len(updates), failures) == (1, {})


@dataclass
class Meddler(OpenBackend):
    """The first client sends a tensor of its own making."""

    holdings: Holdings
    bias: Tensor

    def __post_init__(self) -> None:
        super().__init__(self.holdings)

    def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
        first, *rest = super().exchange(asks)
        if first.update is None:
            return [first, *rest]
        broken = {**first.update.tensors, "head.bias": self.bias}
        return [replace(first, update=replace(first.update, tensors=broken)), *rest]


class Largest(Mean):
    """A rule that a NaN passes by: of several numbers the largest that is one."""

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        made = {n: torch.stack([u.tensors[n] for u in updates]) for n in state.shared}
        shared = {n: t.nan_to_num(nan=-math.inf).amax(dim=0) for n, t in made.items()}
        return replace(state, shared=shared)


def test_what_is_not_finite_never_meets_a_rule_even_one_that_it_would_pass_by() -> None:
    holdings = make_holdings(Recipe(aggregates=Largest()), toy_federation())
    result = run(holdings, 1, Meddler(holdings, torch.tensor([math.nan, 9.0, 0.0])))
    assert result.journal.records[0].failures == {"c0": "head.bias is not finite"}
    assert float(result.shared["head.bias"][1]) < 9.0


def test_norms_say_how_far_parameters_went_from_what_was_sent() -> None:
    """3-4-12 from the shared model, 0 from a personal one; counters and statistics do not count."""
    still = {"count": torch.tensor(7), "mean": torch.zeros(2)}
    shared = {"w": torch.tensor([1.0, 1.0]), "b": torch.tensor([2.0]), **still}
    mine = {"w": torch.tensor([4.0, 5.0]), "b": torch.tensor([14.0]), **still}
    moved = {**mine, "count": torch.tensor(99), "mean": torch.full((2,), 99.0)}
    state = ServerState(shared, personal={"bob": mine}, buffers=frozenset(still))
    updates = [Update(name, moved, 5, 1) for name in ("ann", "bob")]
    assert update_norms(updates, state) == {"ann": 13.0, "bob": 0.0}


def test_the_norm_of_every_used_update_is_recorded_however_long() -> None:
    holdings = method_holdings("fedavg")
    result = run(holdings, 1, Meddler(holdings, torch.full((3,), 1e30)))
    norms = result.journal.records[0].update_norms
    assert list(norms) == ["c0", "c1", "c2", "c3"]
    assert norms["c0"] == pytest.approx(math.sqrt(3) * 1e30, rel=1e-6)
    sent = toy_model().state_dict()
    alone = method_holdings("fedavg", federation=without(holdings.federation, "c0", "c2", "c3"))
    went = run(alone, 1).shared
    by_hand = math.sqrt(sum(float(((went[n] - sent[n]) ** 2).sum()) for n in went))
    assert norms["c1"] == pytest.approx(by_hand, rel=1e-5)


def test_a_run_that_one_client_destroyed_names_it_when_it_stops() -> None:
    plan = method_holdings("fedavg").plan
    failures = {"ann": "its parameters are not finite after training"}
    sent = {"ann": 0.5, "bob": 1e30, "eve": 0.25}
    sentence = str(nobody_left(plan, 7, failures, sent))
    assert "in round 6 'bob' sent an update 1e+30 long, the median being 0.5;" in sentence
    assert "sent an update" not in str(nobody_left(plan, 7, failures, {**sent, "bob": 50.0}))
    assert type(nobody_left(plan, 1, failures, {})) is StoppedAtOnce


def test_a_backend_that_sends_an_infinity_loses_only_that_client() -> None:
    holdings = method_holdings("fedavg")
    result = run(holdings, 1, Meddler(holdings, torch.full((3,), math.inf)))
    assert result.journal.records[0].failures == {"c0": "head.bias is not finite"}
    others = method_holdings("fedavg", federation=without(holdings.federation, "c0"))
    assert_close(result.shared, run(others, 1).shared, 1e-6)


def test_patience_ends_a_run_that_no_longer_improves() -> None:
    """After its first round the model climbs the loss: 1 + 2 rounds of patience."""
    ruined = Rounds(10, patience=2, lr_decay=-3.0, lr_steps=(1,))
    result = run(method_holdings("fedavg"), ruined)
    assert result.progress.round == 3
    assert result.progress.finished
    assert (result.progress.selected.round, result.progress.selected.waited) == (1, 2)


def test_the_selected_round_has_the_best_mean_validation_score_of_the_clients() -> None:
    result = standard_run("fedavg")
    means = {}
    for t in (1, 2, 3):
        for metric in ("accuracy", "loss"):
            values = [
                value
                for key, value in result.scores.items()
                if key[0] == t and key[2] == "seen" and key[5:] == ("validation", metric)
            ]
            assert len(values) == 4
            means[t, metric] = float(np.mean(values))
    best = max((1, 2, 3), key=lambda t: (means[t, "accuracy"], -means[t, "loss"]))
    assert result.progress.selected.round == best
    assert result.progress.selected.value == pytest.approx(means[best, "accuracy"])


def test_rounds_are_scored_as_often_as_asked_and_at_the_end() -> None:
    result = run(method_holdings("fedavg"), Rounds(5, score_every=2))
    assert sorted({row.round for row in result.journal.rows}) == [2, 4, 5]
    assert [record.round for record in result.journal.records] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("name", "models"),
    [("fedavg", {"global"}), ("local", {"personal"}), ("ditto", {"global", "personal"})],
)
def test_every_model_is_scored_on_everyone_it_concerns(name: str, models: set[str]) -> None:
    rows = [row for row in standard_run(name).journal.rows if row.round == 3]
    where = {(r.model, r.on, r.client, r.split, r.n) for r in rows if r.metric == "accuracy"}
    expected: set[tuple[str, str, str, str, int]] = set()
    for model in models:
        whom = [("seen", f"c{k}") for k in range(4)] + [("unseen", "c4")]
        expected |= {(model, *who, split, 5) for who in whom for split in ("validation", "test")}
    if "global" in models:
        expected.add(("global", "central", "", "test", 25))
    assert where == expected
    assert {row.metric for row in rows} == {"accuracy", "loss", "macro_f1"}


LOGISTIC = 4 * (6 * 3 + 3)
"""Bytes of the weights and biases of six features and three classes, in float32."""


@pytest.mark.parametrize(
    ("name", "down", "up"),
    [
        ("fedavg", LOGISTIC, LOGISTIC),
        ("ditto", LOGISTIC, LOGISTIC),
        ("scaffold", 2 * LOGISTIC, 2 * LOGISTIC),
        ("fednova", LOGISTIC, LOGISTIC + 8),
        ("local", 0, 0),
        ("central", 0, 0),
    ],
)
def test_bytes_are_counted_by_hand(name: str, down: int, up: int) -> None:
    model = Classifier(nn.Identity(), nn.Linear(6, 3))
    result = run(make_holdings(find(name).recipe(), module=model), Rounds(2, clients_per_round=3))
    assert [(r.bytes_down, r.bytes_up) for r in result.journal.records] == [(3 * down, 3 * up)] * 2


def test_fedbn_saves_the_bytes_of_batch_norm() -> None:
    """Five features: scale, shift, mean and variance in float32 and a counter of eight bytes."""
    saved = 4 * 5 * 4 + 8
    averaged, private = standard_run("fedavg", "batch-norm"), standard_run("fedbn", "batch-norm")
    difference = averaged.journal.records[0].bytes_up - private.journal.records[0].bytes_up
    assert difference == 4 * saved


def test_the_recorded_loss_is_the_mean_over_participants() -> None:
    class Listening(OpenBackend):
        losses: tuple[float, ...] = ()

        def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
            answers = super().exchange(asks)
            self.losses += tuple(answer.loss for answer in answers if answer.update)
            return answers

    holdings = method_holdings("fedavg")
    backend = Listening(holdings)
    result = run(holdings, 1, backend)
    assert result.journal.records[0].train_loss == pytest.approx(sum(backend.losses) / 4)


def test_a_finished_stage_is_not_run_again() -> None:
    class Finished_(ListJournal):
        def resume(self, stage: str) -> Progress | None:
            return standard_run("fedavg").progress

    holdings = method_holdings("fedavg")
    journal = Finished_()
    assert federate(holdings.plan, OpenBackend(holdings), Rounds(3), journal).round == 3
    assert journal.records == []


def test_what_a_stage_was_handed_is_remembered_and_costs_something_once() -> None:
    holdings = method_holdings("fedavg")
    plain = run(holdings, 3).journal.records
    handed = Handed({"told": {"c0/d": torch.tensor(0.5)}}, bytes_up=100, bytes_down=1000)
    journal = ListJournal()
    progress = federate(holdings.plan, OpenBackend(holdings), Rounds(3), journal, handed)
    assert progress.state.memory["told"]["c0/d"] == 0.5
    more_down = [r.bytes_down - p.bytes_down for r, p in zip(journal.records, plain, strict=True)]
    more_up = [r.bytes_up - p.bytes_up for r, p in zip(journal.records, plain, strict=True)]
    assert (more_down, more_up) == ([1000, 0, 0], [100, 0, 0])

    class Resuming(ListJournal):
        def resume(self, stage: str) -> Progress | None:
            return journal.states[0]

    again = Resuming()
    federate(holdings.plan, OpenBackend(holdings), Rounds(3), again, handed)
    assert again.records == journal.records[1:]


@dataclass(frozen=True)
class Wanting(Uniform):
    """Weighs all the same, but asks only some of them."""

    names: tuple[str, ...] = ()

    def wanted(self, clients: Sequence[str], state: ServerState) -> Sequence[str]:
        return [client for client in clients if client in self.names]


def test_only_clients_the_weighting_wants_are_asked() -> None:
    holdings = make_holdings(Recipe(aggregates=Mean(Wanting(("c1", "c3")))))
    result = run(holdings, 2)
    two = holdings.federation.with_data(
        clients=(holdings.federation.clients[1], holdings.federation.clients[3])
    )
    others = run(make_holdings(Recipe(aggregates=Mean(Uniform())), two), 2)
    assert_same_bits(result.shared, others.shared)
    assert [(r.participants, r.bytes_down) for r in result.journal.records] == [
        (2, r.bytes_down) for r in others.journal.records
    ]


def test_a_sample_of_clients_is_drawn_among_those_that_are_wanted() -> None:
    class Listening(OpenBackend):
        asked: tuple[str, ...] = ()

        def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
            self.asked += tuple(ask.client for ask in asks if ask.train)
            return super().exchange(asks)

    holdings = make_holdings(Recipe(aggregates=Mean(Wanting(("c1", "c3")))))
    backend = Listening(holdings)
    run(holdings, Rounds(12, clients_per_round=1), backend)
    assert len(backend.asked) == 12
    assert set(backend.asked) == {"c1", "c3"}


def test_a_client_that_starts_apart_draws_a_model_of_its_own_once() -> None:
    apart = Recipe(begins=Own(EVERYTHING, apart=True))
    holdings, initial = make_holdings(apart), make_holdings(apart).plan.initial

    def begun(client: str, private: Groups) -> Tensors:
        return holdings.begins_with(client, initial, private, {}, trains=True).model

    ann, again, bob = (begun(client, {}) for client in ("c0", "c0", "c1"))
    assert_same_bits(ann, again)
    assert all(not torch.equal(ann[name], bob[name]) for name in ann)
    assert all(not torch.equal(ann[name], initial[name]) for name in ann)
    seeded = make_holdings(apart, seed=1).begins_with("c0", {}, {}, {}, trains=True).model
    assert not torch.equal(seeded["head.weight"], ann["head.weight"])
    kept = run(holdings, 1).backend.private_of("c0")
    assert_same_bits(begun("c0", kept), kept["model"])


def test_a_newcomer_is_scored_with_the_servers_model_where_clients_go_on_apart() -> None:
    holdings = make_holdings(Recipe(begins=Own(EVERYTHING, apart=True)))
    sent = {name: t + 1 for name, t in holdings.plan.initial.items()}
    assert_same_bits(holdings.begins_with("c4", sent, {}, {}).model, sent)


@dataclass(frozen=True)
class Size(Report):
    """Sends the number of samples and keeps its half; fails for one client."""

    fails_at: str = ""

    def report(self, finished: Finished) -> Reported:
        if finished.client.name == self.fails_at:
            raise ValueError("not me")
        size = torch.tensor(float(len(finished.client.train)))
        return Reported(sends={"size": {"n": size}}, keeps={"half": {"n": size / 2}})


def handing(fails_at: str = "") -> Run:
    """One finished round of a stage that ends with a report of sizes."""
    holdings = method_holdings("fedavg")
    plan = replace(holdings.plan, stage="before", hands_over=(Size(fails_at),))
    return run(replace(holdings, plan=plan), 1)


def test_a_finished_stage_hands_over_what_clients_say_and_keep() -> None:
    """Each is sent the model once more and answers with four bytes."""
    result = handing()
    handed = hand_over(result.holdings.plan, result.backend, result.progress)
    sizes = {c.name: float(len(c.train)) for c in result.holdings.federation.clients}
    assert {n: float(v) for n, v in handed.memory["size"].items()} == {
        f"{client}/n": size for client, size in sizes.items()
    }
    assert handed.kept == dict.fromkeys(sizes, "before-handed")
    halves = {client: float(result.backend.private_of(client)["half"]["n"]) for client in sizes}
    assert halves == {client: size / 2 for client, size in sizes.items()}
    assert handed.bytes_up == 4 * 4
    assert handed.bytes_down == result.journal.records[0].bytes_down


def test_a_client_that_cannot_hand_over_ends_the_run_with_its_name() -> None:
    result = handing(fails_at="c2")
    why = r"stage 'before', client 'c2': ValueError: not me \(report Size\)\."
    with clients_may_fail(), pytest.raises(RunError, match=why):
        hand_over(result.holdings.plan, result.backend, result.progress)


@dataclass(frozen=True)
class Logits(Report):
    """Sends what the client's model says about its samples."""

    def report(self, finished: Finished) -> Reported:
        with torch.no_grad():
            return Reported(sends={"logits": {"z": finished.model()(finished.samples()[0])}})


def describing(holdings: Holdings, report: Report) -> Holdings:
    return replace(holdings, plan=replace(holdings.plan, hands_over=(report,)))


def test_descriptions_see_the_model_in_evaluation_mode_and_each_client_its_own() -> None:
    """Twenty clients on several threads, each sent another model."""
    federation = toy_federation([8] * 20)
    holdings = describing(make_holdings(Recipe(), federation, toy_model("batch-norm")), Logits())
    sent = [
        {n: t + 0.1 * k for n, t in holdings.plan.initial.items() if t.is_floating_point()}
        for k in range(20)
    ]
    tasks = [
        DescribeTask(client.name, 1, model)
        for client, model in zip(federation.clients, sent, strict=True)
    ]
    private: dict[str, Groups] = {client.name: {} for client in federation.clients}
    outcomes = describe_clients(holdings, tasks, private)
    for client, model, outcome in zip(federation.clients, sent, outcomes, strict=True):
        assert outcome.update is not None, outcome.error
        plain = toy_model("batch-norm").eval()
        plain.load_state_dict({**holdings.plan.initial, **model})
        torch.testing.assert_close(
            outcome.update.reports["logits"]["z"], plain(federation.x[client.train])
        )


def test_a_description_that_raises_is_one_lost_answer() -> None:
    @dataclass(frozen=True)
    class Picky(Report):
        def report(self, finished: Finished) -> Reported:
            if finished.client.name == "c1":
                raise ValueError("not me")
            return Reported()

    holdings = describing(method_holdings("fedavg"), Picky())
    tasks = [DescribeTask(f"c{k}", 1, holdings.plan.initial) for k in range(4)]
    with clients_may_fail():
        outcomes = describe_clients(holdings, tasks, {task.client: {} for task in tasks})
    why = "ValueError: not me (report Picky)"
    assert [outcome.error for outcome in outcomes] == [None, why, None, None]


def test_an_adapted_model_is_fine_tuned_plainly_on_the_clients_data() -> None:
    """Two epochs of the head alone, from the model that was sent, which stays as it is."""
    holdings = method_holdings("fedavg")
    adapt = Adapt((Phase(trains=only("head"), epochs=2, lr=0.2),))
    holdings = replace(holdings, plan=replace(holdings.plan, adapts=(adapt,)))
    sent = copied(holdings.plan.initial)
    clients = [*holdings.federation.clients, *holdings.federation.unseen]
    tasks = [ScoreTask(c.name, 5, sent, "global", ("test",), 0) for c in clients]
    for client, looked in zip(clients, score_samples(holdings, tasks, {}), strict=True):
        model = toy_model()
        optimiser = torch.optim.SGD(model.head.parameters(), lr=0.2)
        plan = schedule(client.train, (0, "main", "adapt", 0, client.name, 5), 8, 2, True)
        for positions, mask in zip(plan.positions, plan.mask, strict=True):
            rows = torch.from_numpy(client.train[positions[mask > 0]])
            optimiser.zero_grad()
            loss = F.cross_entropy(model(holdings.federation.x[rows]), holdings.federation.y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        assert_close(looked.model, copied(model.state_dict()), 1e-5)
        logits = model(holdings.federation.x[client.test])
        right = (logits.argmax(dim=1) == holdings.federation.y[client.test]).float().mean()
        found = scored(holdings, looked).scores
        assert found["test"]["accuracy"] == pytest.approx(float(right), abs=1e-6)
    assert_same_bits(sent, holdings.plan.initial)


def test_shots_are_a_seeded_few_of_every_class() -> None:
    y = torch.tensor([0] * 10 + [1] * 10 + [2])
    rows = np.arange(21)
    chosen = shots(rows, y, 3, 0, "ann")
    assert np.bincount(y.numpy()[chosen]).tolist() == [3, 3, 1]
    assert chosen.tolist() == shots(rows, y, 3, 0, "ann").tolist()
    assert chosen.tolist() != shots(rows, y, 3, 0, "bob").tolist()


@pytest.mark.parametrize("count", [40, 257])
def test_an_unseen_client_of_fedbn_takes_its_statistics_from_its_own_inputs(count: int) -> None:
    """Mean and variance of the first layer's outputs on its own training rows."""
    federation = toy_federation((16, 16))
    rng = np.random.default_rng(5)
    extra = torch.from_numpy(rng.normal(3.0, 2.0, (count, 6))).to(torch.float32)
    start = len(federation.y)
    rows = np.arange(start, start + count)
    federation = federation.with_data(
        x=torch.cat([federation.x, extra]),
        y=torch.cat([federation.y, torch.zeros(count, dtype=torch.int64)]),
        unseen=(Client("eve", rows, test=rows[:10]),),
        environment=None,
    )
    result = run(method_holdings("fedbn", "batch-norm", federation=federation), 1)
    task = ScoreTask("eve", 1, result.shared, "personal", ("test",))
    (looked,) = score_samples(result.holdings, [task], {})
    outputs = extra @ result.shared["body.0.weight"].T
    mean, variance = looked.model["body.1.running_mean"], looked.model["body.1.running_var"]
    torch.testing.assert_close(mean, outputs.mean(dim=0), rtol=0.02, atol=0.02)
    torch.testing.assert_close(variance, outputs.var(dim=0), rtol=0.02, atol=0.02)
