"""Adapting a model to a client: which samples it sees, what stays frozen, and when it stops."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Tensors, assert_close, assert_same_bits, copied, every_method, method_holdings
from hypothesis import given
from hypothesis import strategies as st

from fedskew.config import make_config
from fedskew.data.federation import Federation
from fedskew.engine import cohort
from fedskew.engine import evaluate as engine_evaluate
from fedskew.engine.batches import schedule
from fedskew.engine.evaluate import Question
from fedskew.engine.graph import Graphs
from fedskew.engine.training import Work
from fedskew.federate import adapting
from fedskew.federate.adapting import Adaptation, adapted, held_out, shots
from fedskew.federate.holdings import Holdings
from fedskew.federate.planning import adaptations
from fedskew.federate.recipe import Adapt
from fedskew.parts.civae import CivaeLoss
from fedskew.parts.objective import Batch, Bound, Objective
from fedskew.rng import stream
from fedskew.types import Indices

LADDER = (0, 1, 2, 4, 8, 10)
CIVAES = ["civae", "fed-civae", "fedreptile-civae"]


_graphs: dict[tuple[Any, ...], dict[Hashable, Graphs]] = {}


@cache
def holdings_of(name: str) -> Holdings:
    """One holdings a method; methods of one model share their traced steps with each other."""
    holdings = method_holdings(name)
    kind = (holdings.plan.recipe.objective.needs, holdings.plan.recipe.extends)
    return replace(holdings, graphs=_graphs.setdefault(kind, {}), _trainings={})


def how(name: str, **evaluate: Any) -> Adapt:
    """The one adaptation a user asks for with these settings of [evaluate]."""
    settings = {"fine_tune_epochs": 3, **evaluate}
    config = make_config({"method": name, "evaluate": settings})
    (found,) = adaptations(config, holdings_of(name).plan)
    return found


def results(holdings: Holdings, adapt: Adapt, *clients: str) -> list[Tensors]:
    found = []
    for result in adapted(holdings, [Adaptation(c, holdings.plan.initial, adapt) for c in clients]):
        assert not isinstance(result, Exception), result
        found.append(result)
    return found


def with_data(holdings: Holdings, federation: Federation) -> Holdings:
    return replace(holdings, federation=federation, _trainings={})


def shots_of(holdings: Holdings, client: str, count: int) -> Indices:
    return shots(
        holdings.clients[client].train, holdings.federation.y, count, holdings.plan.seed, client
    )


def all_but(holdings: Holdings, clients: Sequence[str], count: int) -> Federation:
    """Other labels and absurd pixels in every row of the federation but the clients' shots.

    A label decides whether a sample is a shot at all, so the others must not look like better
    ones: there is a class that was full before the first of them, and all become that.
    """
    federation = holdings.federation
    x = torch.full_like(federation.x, 1e6)
    y = (federation.y + 1) % 3
    for client in clients:
        kept, rows = shots_of(holdings, client, count), holdings.clients[client].train
        x[kept] = federation.x[kept]
        for label in range(3):
            y[rows] = label
            y[kept] = federation.y[kept]
            if shots(rows, y, count, holdings.plan.seed, client).tolist() == kept.tolist():
                break
        else:
            pytest.fail("no class was full before the first sample that is no shot")
    return federation.with_data(x=x, y=y)


@every_method
@pytest.mark.parametrize("patience", [None, 2])
def test_nobody_sees_a_label_or_a_pixel_beyond_the_shots(name: str, patience: int | None) -> None:
    holdings, clients = holdings_of(name), ("c1", "c4")
    two = how(name, shots=2, fine_tune_patience=patience)
    changed = with_data(holdings, all_but(holdings, clients, 2))
    before, after = results(holdings, two, *clients), results(changed, two, *clients)
    for one, other in zip(before, after, strict=True):
        assert_same_bits(one, other)
    if patience is None:
        trained = holdings.training(two.phases[-1]).trained
        assert all(
            not torch.equal(one[n], holdings.plan.initial[n]) for one in before for n in trained
        )


@pytest.mark.parametrize("name", ["civae", "fed-classifier"])
def test_the_labels_of_the_shots_are_seen(name: str) -> None:
    """Without which the test above would be about nothing."""
    holdings, two = holdings_of(name), how(name, shots=2)
    y = holdings.federation.y.clone()
    few = shots_of(holdings, "c1", 2)
    y[few] = (y[few] + 1) % 3
    swapped = holdings.federation.with_data(y=y)
    two = replace(two, shots=None)
    (one,), (other,) = (
        results(holdings, two, "c1"),
        results(with_data(holdings, swapped), two, "c1"),
    )
    assert any(not torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize(("name", "lr"), [("civae", 0.01), ("fedavg", 0.1)])
def test_the_search_trains_on_some_shots_and_looks_at_the_others(
    name: str, lr: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[set[int]] = []
    looked: list[set[int]] = []

    def spied_train(works: Sequence[Work], training: Any) -> Any:
        trained.extend(set(work.rows.tolist()) for work in works)
        return cohort.train(works, training)

    def spied_evaluate(questions: Sequence[Question], scoring: Any) -> Any:
        looked.extend(set(question.rows.tolist()) for question in questions)
        return engine_evaluate.evaluate(questions, scoring)

    monkeypatch.setattr(adapting, "train", spied_train)
    monkeypatch.setattr(adapting, "evaluate", spied_evaluate)
    holdings = holdings_of(name)
    results(holdings, how(name, shots=4, fine_tune_patience=9, fine_tune_lr=lr), "c4")
    few = set(shots_of(holdings, "c4", 4).tolist())
    of_a_class = holdings.federation.y[sorted(few)].bincount()
    *search, final = trained
    assert final == few
    assert len(search) == 3  # for 1, 2 and 3 epochs
    assert len(looked) == 4  # and for none
    assert all(rows == search[0] for rows in search)
    assert all(rows == looked[0] for rows in looked)
    assert search[0] | looked[0] == few
    assert not search[0] & looked[0]
    assert len(looked[0]) == int((of_a_class > 1).sum()) > 1  # one of each class


labels = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@given(labels, st.integers(1, 6))
def test_shots_are_at_most_so_many_of_every_class_there_is(found: list[int], count: int) -> None:
    rows, y = np.arange(100, 100 + len(found)), torch.tensor([9] * 100 + found)
    chosen = shots(rows, y, count, 3, "ann")
    have = np.bincount(found, minlength=5)
    assert np.bincount(y.numpy()[chosen], minlength=5).tolist() == have.clip(max=count).tolist()
    assert set(chosen) <= set(rows)
    assert chosen.tolist() == sorted(set(chosen))
    more = shots(rows, y, count + 1, 3, "ann")
    assert set(chosen) <= set(more)


@given(labels)
def test_a_quarter_of_every_class_is_held_out_and_never_its_only_sample(found: list[int]) -> None:
    rows, y = np.arange(50, 50 + len(found)), torch.tensor([9] * 50 + found)
    kept, away = held_out(rows, y, 3, "ann")
    assert sorted([*kept, *away]) == rows.tolist()
    have, gone = (np.bincount(y.numpy()[r], minlength=5) for r in (rows, away))
    for n, out in zip(have, gone, strict=True):
        assert out == (0 if n < 2 else max(1, round(n / 4)))
        assert n == 0 or out < n


def test_shots_are_drawn_at_random_for_every_client_and_seed() -> None:
    rows, y = np.arange(60), torch.arange(60) % 3
    drawn = [shots(rows, y, 5, seed, who).tolist() for seed in range(3) for who in ("ann", "bob")]
    assert len({tuple(chosen) for chosen in drawn}) == 6
    often = np.bincount(np.concatenate([shots(rows, y, 5, seed, "ann") for seed in range(200)]))
    assert often.min() > 25  # fifty of two hundred on average
    assert often.max() < 80


def test_more_shots_than_a_client_has_are_all_of_its_samples() -> None:
    """The clients c0, c2 and c3 have fewer than 50 of any class, and c2 and c3 lack a class."""
    holdings = holdings_of("civae")
    counts = holdings.federation.class_counts()
    assert counts[2:, 0].tolist() == [0, 0]
    many = replace(how("civae", shots=1), shots=50)
    everybody = ("c0", "c2", "c3")
    whole = results(holdings, how("civae", shots="all"), *everybody)
    for one, other in zip(results(holdings, many, *everybody), whole, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("patience", [None, 1])
@pytest.mark.parametrize("name", ["civae", "fed-classifier"])
def test_a_client_that_lacks_a_class_adapts_to_those_it_has(
    name: str, patience: int | None
) -> None:
    holdings = holdings_of(name)
    few = shots_of(holdings, "c3", 2)
    assert holdings.federation.y[few].bincount(minlength=3).tolist() == [0, 2, 2]
    (found,) = results(holdings, how(name, shots=2, fine_tune_patience=patience), "c3")
    assert all(bool(t.isfinite().all()) for t in found.values())


def moved_parts(holdings: Holdings, adapt: Adapt) -> set[str]:
    """Parts of which anything changed, bit by bit; parts that moved, moved as a whole."""
    (found,) = results(holdings, adapt, "c1")
    moved = {n for n, t in found.items() if not torch.equal(t, holdings.plan.initial[n])}
    parts = {n.split(".")[0] for n in moved}
    assert moved == {n for n in found if n.split(".")[0] in parts}
    still = {n: t for n, t in found.items() if n not in moved}
    assert all(
        t.numpy().tobytes() == holdings.plan.initial[n].numpy().tobytes() for n, t in still.items()
    )
    return parts


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        *((name, {"encoder", "decoder"}) for name in CIVAES),
        ("fed-classifier", {"head"}),
        ("local-classifier", {"body", "head"}),
        ("fedavg", {"body", "head"}),
        ("vae", {"encoder", "decoder"}),
    ],
)
def test_methods_freeze_what_they_say(name: str, parts: set[str]) -> None:
    assert moved_parts(holdings_of(name), how(name, shots=2)) == parts


@pytest.mark.parametrize(
    ("name", "wanted", "parts"),
    [
        ("civae", ["encoder"], {"encoder"}),
        ("civae", ["classifier", "decoder"], {"classifier", "decoder"}),
        ("civae", "all", {"encoder", "decoder", "classifier"}),
        ("fed-classifier", "body", {"body"}),
        ("fedavg", ["head"], {"head"}),
    ],
)
def test_users_may_say_which_parts_adapt(name: str, wanted: Any, parts: set[str]) -> None:
    adapt = how(name, shots=2, fine_tune_part=wanted)
    assert moved_parts(holdings_of(name), adapt) == parts


def plainly(
    holdings: Holdings, objective: Objective, moving: frozenset[str], client: str, rows: Indices,
    epochs: int, lr: float,
) -> Tensors:  # fmt: skip
    """A textbook loop over whole, unpadded batches."""
    w = {n: t.clone().requires_grad_(n in moving) for n, t in copied(holdings.plan.initial).items()}
    optimiser = torch.optim.SGD([t for t in w.values() if t.requires_grad], lr)
    key = (holdings.plan.seed, holdings.plan.stage, "adapt", 0, client, 0)
    plan = schedule(rows, key, 8, epochs, True)
    shapes = objective.noise(holdings.plan.module, 8)
    noise = {
        kind: stream(0, "noise", kind, *key).standard_normal((plan.steps, *s), dtype=np.float32)
        for kind, s in shapes.items()
    }
    for step, (positions, mask) in enumerate(zip(plan.positions, plan.mask, strict=True)):
        real = mask > 0
        here = torch.from_numpy(rows[positions[real]])
        drawn = {kind: torch.from_numpy(values[step][real]) for kind, values in noise.items()}
        ones = torch.ones(len(here))
        batch = Batch(holdings.x[here], holdings.y[here], ones, ones, drawn)
        optimiser.zero_grad()
        loss = objective.loss(Bound(holdings.plan.module, w), batch, {})
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {n: t.detach() for n, t in w.items()}


def looked_at(holdings: Holdings, objective: Objective, w: Tensors, rows: Indices) -> float:
    ones = torch.ones(len(rows))
    here, shapes = torch.from_numpy(rows), objective.noise(holdings.plan.module, len(rows))
    noise = {kind: torch.full(shape, torch.nan) for kind, shape in shapes.items()}
    batch = Batch(holdings.x[here], holdings.y[here], ones, ones, noise)
    with torch.no_grad():
        return float(objective.scores(Bound(holdings.plan.module, w), batch)["loss"].mean())


def chosen_by_hand(losses: Sequence[float], patience: int) -> int:
    """The epochs of the smallest loss before so many looks in a row brought no smaller one."""
    best, waited = 0, 0
    for look in range(1, len(losses)):
        if losses[look] < losses[best]:
            best, waited = look, 0
        else:
            waited += 1
            if waited == patience:
                break
    return LADDER[best]


@pytest.mark.parametrize("patience", [1, 9])
@pytest.mark.parametrize(("name", "lr"), [("fedavg", 0.4), ("civae", 0.05)])
def test_the_number_of_epochs_is_that_of_a_search_by_brute_force(
    name: str, lr: float, patience: int
) -> None:
    """All lengths are tried by a plain loop, which then trains on all shots for the best."""
    holdings, clients = holdings_of(name), [f"c{k}" for k in range(5)]
    adapt = how(name, shots=5, fine_tune_epochs=10, fine_tune_patience=patience, fine_tune_lr=lr)
    (phase,) = adapt.phases
    objective = phase.objective or holdings.plan.recipe.objective
    moving = holdings.training(phase).trained
    lengths = []
    for client, found in zip(clients, results(holdings, adapt, *clients), strict=True):
        few = shots_of(holdings, client, 5)
        kept, away = held_out(few, holdings.federation.y, holdings.plan.seed, client)
        tried = [plainly(holdings, objective, moving, client, kept, n, lr) for n in LADDER]
        losses = [looked_at(holdings, objective, w, away) for w in tried]
        lengths.append(chosen_by_hand(losses, patience))
        again = plainly(holdings, objective, moving, client, few, lengths[-1], lr)
        assert_close(found, again, 1e-4)
    assert len(set(lengths)) > 1
    assert set(lengths) & {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("losses", "patience", "epochs"),
    [
        ([5.0, 4.0, 4.5, 3.0, 3.0, 1.0], 1, 1),
        ([5.0, 4.0, 4.5, 3.0, 3.0, 1.0], 2, 10),
        ([5.0, 4.0, 4.5, 4.2, 3.0, 3.0], 2, 1),
        ([5.0, 4.0, 4.5, 4.2, 3.0, 3.0], 3, 8),
        ([5.0, 5.0, 4.0, 4.0, 4.0, 4.0], 1, 0),
        ([5.0, 6.0, 6.0, 6.0, 6.0, 4.9], 4, 0),
    ],
)
def test_so_many_looks_without_a_smaller_loss_end_the_search(
    losses: list[float], patience: int, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at 0, 1, 2, 4, 8 and 10 epochs; an equal loss is no smaller one."""
    script = iter(losses)

    def scripted(holdings: Holdings, looks: Sequence[Any], models: Sequence[Any]) -> list[float]:
        return [next(script) for _ in looks]

    monkeypatch.setattr(adapting, "_losses", scripted)
    holdings = holdings_of("fedavg")
    adapt = how("fedavg", shots=4, fine_tune_epochs=10, fine_tune_patience=patience)
    (found,) = results(holdings, adapt, "c1")
    expected = holdings.plan.initial
    if epochs:
        (expected,) = results(holdings, how("fedavg", shots=4, fine_tune_epochs=epochs), "c1")
    assert_same_bits(found, expected)


@pytest.mark.parametrize("longest", [1, 2, 3, 10, 16, 51, 1001])
def test_the_lengths_tried_double_up_to_the_longest(longest: int) -> None:
    expected, step = [0], 1
    while step < longest:
        expected.append(step)
        step *= 2
    assert adapting._ladder(longest) == [*expected, longest]


@pytest.mark.parametrize("name", ["civae", "fedavg"])
def test_with_one_shot_nothing_can_be_held_out_and_all_epochs_are_made(name: str) -> None:
    holdings, clients = holdings_of(name), ("c0", "c1", "c3")
    patient = results(holdings, how(name, shots=1, fine_tune_patience=1), *clients)
    for one, other in zip(patient, results(holdings, how(name, shots=1), *clients), strict=True):
        assert_same_bits(one, other)


def test_a_search_that_makes_everything_worse_leaves_the_model_as_it_is() -> None:
    holdings = holdings_of("fedavg")
    wild = how("fedavg", shots=4, fine_tune_lr=1e4, fine_tune_patience=2)
    (found,) = results(holdings, wild, "c1")
    assert_same_bits(found, holdings.plan.initial)


def test_an_adaptation_that_diverges_is_one_error_and_the_others_stand() -> None:
    holdings = holdings_of("fedavg")
    tame, wild = how("fedavg", shots=2), how("fedavg", shots=2, fine_tune_lr=1e300)
    plans = [("c0", tame), ("c1", wild), ("c4", tame)]
    found = adapted(holdings, [Adaptation(c, holdings.plan.initial, adapt) for c, adapt in plans])
    assert str(found[1]) == "its parameters are not finite after adapting"
    for place in (0, 2):
        (alone,) = results(holdings, tame, plans[place][0])
        result = found[place]
        assert not isinstance(result, Exception)
        assert_close(result, alone, 1e-6)


@pytest.mark.parametrize("batch", [None, "all", 3])
@pytest.mark.parametrize("name", ["civae", "fedavg"])
def test_a_client_adapts_the_same_whoever_adapts_beside_it(name: str, batch: Any) -> None:
    holdings, adapt = holdings_of(name), how(name, shots=3, fine_tune_batch=batch)
    together = results(holdings, adapt, "c0", "c1", "c2", "c3")
    for client, found in zip(("c0", "c2"), together[::2], strict=True):
        (alone,) = results(holdings, adapt, client)
        assert_close(found, alone, 1e-5)


def test_one_batch_of_everything_is_one_step_an_epoch() -> None:
    """Three epochs of seven shots in batches of seven, by a plain loop."""
    holdings = holdings_of("fedavg")
    rows = shots_of(holdings, "c0", 3)
    w = {n: t.clone().requires_grad_() for n, t in copied(holdings.plan.initial).items()}
    optimiser = torch.optim.SGD(list(w.values()), 0.1)
    for _ in range(3):
        optimiser.zero_grad()
        logits = torch.func.functional_call(holdings.plan.module, w, (holdings.x[rows],))
        torch.nn.functional.cross_entropy(logits, holdings.y[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    (found,) = results(holdings, how("fedavg", shots=3, fine_tune_batch="all"), "c0")
    assert_close(found, {n: t.detach() for n, t in w.items()}, 1e-5)


def test_labels_say_how_many_shots_and_epochs() -> None:
    assert how("fedavg", shots=2).label == "2-shot 3"
    assert how("fedavg").label == "fine-tuned 3"
    assert how("civae", shots=10, fine_tune_epochs=0).label == "10-shot 20"


def test_the_search_looks_at_every_client_by_its_own_objective() -> None:
    holdings = holdings_of("civae")
    mild = how("civae", shots=4, fine_tune_patience=9, fine_tune_lr=0.01)
    *before, last = mild.phases
    assert isinstance(last.objective, CivaeLoss)
    own = replace(last, objective=replace(last.objective, alpha=200.0))
    strict = replace(mild, phases=(*before, own))
    models = [
        Adaptation(c, copied(holdings.plan.initial), h) for c, h in (("c0", mild), ("c3", strict))
    ]
    together, alone = adapted(holdings, models)[1], adapted(holdings, models[1:])[0]
    assert not isinstance(together, Exception)
    assert not isinstance(alone, Exception)
    assert_close(together, alone, 1e-5)
