"""Clipping and noise on updates small enough to check by hand, and on whole runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_close, assert_same_bits, method_holdings, run, toy_federation
from hypothesis import given
from hypothesis import strategies as st

from fedskew.api import run as run_experiment
from fedskew.cli import main
from fedskew.data.federation import Client
from fedskew.engine.optim import Optimiser
from fedskew.errors import ConfigError
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.parts.accounting import Noising, epsilon
from fedskew.parts.aggregate import BySize, Mean, ServerState, Uniform, Update
from fedskew.parts.private import Private
from fedskew.parts.step import LearningRate, stepped
from fedskew.views.terminal import run_summary

PLAIN = Mean(Uniform())
ONLY_CLIPPED: dict[str, Any] = {"clip": 1e30, "noise": 0.0}


def two(ann: list[float], bob: list[float]) -> list[Update]:
    """Clients of very different sizes, which must not show."""
    values = (("ann", ann, 1), ("bob", bob, 1000))
    return [Update(n, {"w": torch.tensor(v)}, size, size) for n, v, size in values]


def state(**tensors: torch.Tensor) -> ServerState:
    return ServerState(tensors, rng=np.random.default_rng(5))


def test_long_changes_are_shortened_and_short_ones_left_alone() -> None:
    """From (1, 1) Ann goes (3, 4), of length 5, and Bob (0.3, 0.4): with clip = 1 the changes are
    (0.6, 0.8) and (0.3, 0.4), and their mean (0.45, 0.6)."""
    start = state(w=torch.ones(2))
    after = Private(PLAIN, clip=1.0, noise=0.0).aggregate(start, two([4.0, 5.0], [1.3, 1.4]), 2)
    assert after.shared["w"].tolist() == pytest.approx([1.45, 1.6])
    assert after.measured["ann"] == pytest.approx({"update_norm": 5.0, "clipped": 1.0})
    assert after.measured["bob"] == pytest.approx({"update_norm": 0.5, "clipped": 0.0})
    assert start.shared["w"].tolist() == [1.0, 1.0]


def test_the_length_is_that_of_all_entries_together_with_statistics() -> None:
    """Changes of 2, 3 and 6 in three entries have length 7; clip = 3.5 halves each."""
    start = ServerState(
        {"w": torch.zeros(1), "b": torch.zeros(1), "mean": torch.zeros(1)},
        buffers=frozenset({"mean"}),
    )
    sent = {"w": torch.tensor([2.0]), "b": torch.tensor([-3.0]), "mean": torch.tensor([6.0])}
    after = Private(PLAIN, 3.5, 0.0).aggregate(start, [Update("ann", sent, 1, 1)], 1)
    assert {n: t.item() for n, t in after.shared.items()} == {"w": 1.0, "b": -1.5, "mean": 3.0}


def test_every_client_counts_the_same_whatever_the_inner_mean_weighs_by() -> None:
    after = Private(Mean(BySize()), 10.0, 0.0).aggregate(
        state(w=torch.zeros(1)), two([1.0], [3.0]), 2
    )
    assert after.shared["w"].tolist() == [2.0]


def test_noise_enters_the_sum_once_and_the_mean_is_of_all() -> None:
    """Four clients change nothing: the mean is noise of deviation noise·clip/4."""
    start = state(w=torch.full((40_000,), 3.0))
    updates = [Update(f"c{k}", dict(start.shared), 1, 1) for k in range(4)]
    moved = Private(PLAIN, clip=2.0, noise=1.5).aggregate(start, updates, 4).shared["w"] - 3.0
    assert float(moved.std()) == pytest.approx(1.5 * 2.0 / 4, rel=0.02)
    assert abs(float(moved.mean())) < 4 * 0.75 / 200


def test_a_step_of_the_server_shrinks_noise_and_changes_alike() -> None:
    """Half of the way: (0.6, 0.8)/2 from Ann alone, and half of the stream's own numbers."""
    draws = np.random.default_rng(5).normal(0.0, 1.0 * 0.5, 2)
    update = Update("ann", {"w": torch.tensor([3.0, 4.0])}, 1, 1)
    before = state(w=torch.zeros(2))
    target = Private(PLAIN, clip=1.0, noise=0.5).aggregate(before, [update], 1)
    after = stepped(LearningRate(0.5), before, target)
    expected = [(0.6 + draws[0]) / 2, (0.8 + draws[1]) / 2]
    assert after.shared["w"].tolist() == pytest.approx(expected, rel=1e-6)


def test_noise_belongs_to_an_entry_whatever_order_the_entries_come_in() -> None:
    a, b = torch.zeros(3), torch.zeros(2)
    found = [
        Private(PLAIN, 1.0, 1.0)
        .aggregate(state(**shared), [Update("ann", {"a": a, "b": b}, 1, 1)], 1)
        .shared
        for shared in ({"a": a, "b": b}, {"b": b, "a": a})
    ]
    assert_same_bits(found[0], found[1])


def with_batch_norm() -> tuple[ServerState, list[Update]]:
    tensors = {
        "w": torch.zeros(1), "n.running_var": torch.full((50,), 0.1), "n.count": torch.tensor(3)
    }  # fmt: skip
    buffers = frozenset({"n.running_var", "n.count"})
    start = ServerState(tensors, buffers=buffers, rng=np.random.default_rng(5))
    sent = {**tensors, "n.count": torch.tensor(9)}
    return start, [Update("ann", sent, 1, 1)]


def test_counters_of_steps_are_not_sent_and_variances_stay_above_zero() -> None:
    start, updates = with_batch_norm()
    after = Private(PLAIN, 1.0, 1.0).aggregate(start, updates, 1)
    assert int(after.shared["n.count"]) == 3
    variances = after.shared["n.running_var"]
    assert float(variances.min()) == 0.0
    assert 10 < int((variances > 0).sum()) < 40


def test_without_noise_counters_are_those_of_the_inner_mean() -> None:
    start, updates = with_batch_norm()
    after = Private(PLAIN, 1.0, 0.0).aggregate(start, updates, 1)
    assert int(after.shared["n.count"]) == 9


def test_noise_without_a_stream_is_refused() -> None:
    start = ServerState({"w": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="needs an rng"):
        Private(PLAIN, 1.0, 1.0).aggregate(start, two([1.0], [1.0]), 2)


vectors = st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3)


@given(st.lists(vectors, min_size=1, max_size=5), vectors, vectors, st.floats(0.01, 100.0))
def test_one_client_in_anothers_place_moves_the_sum_by_at_most_twice_the_clip(
    others: list[list[float]], ann: list[float], bob: list[float], clip: float
) -> None:
    start = state(w=torch.tensor([1.0, -2.0, 0.5]))

    def summed(one: list[float]) -> torch.Tensor:
        updates = [
            Update(f"c{k}", {"w": torch.tensor(v)}, 1, 1) for k, v in enumerate([one, *others])
        ]
        mean = Private(PLAIN, clip, 0.0).aggregate(start, updates, 9).shared["w"]
        return (mean - start.shared["w"]).double() * len(updates)

    assert float((summed(ann) - summed(bob)).norm()) <= 2 * clip * (1 + 1e-5) + 1e-5


@pytest.mark.parametrize("kind", ["mlp", "batch-norm"])
def test_a_clip_nobody_reaches_and_no_noise_leave_the_very_bits_of_the_uniform_mean(
    kind: str,
) -> None:
    ours = run(method_holdings("private", kind, ONLY_CLIPPED))
    theirs = run(method_holdings("fedavg", kind, {"weights": "uniform"}))
    assert_same_bits(ours.shared, theirs.shared)


@pytest.mark.parametrize("base", ["fedprox", "fedbn", "fedper", "ditto", "fedreptile", "vae"])
def test_it_makes_other_methods_private(base: str) -> None:
    ours = run(method_holdings("private", "batch-norm", {"base": base, **ONLY_CLIPPED}), 2)
    theirs = run(method_holdings(base, "batch-norm", {"weights": "uniform"}), 2)
    assert_close(ours.everything(), theirs.everything(), 1e-6)
    noisy = run(method_holdings("private", "batch-norm", {"base": base}), 2)
    assert noisy.shared.keys() == theirs.shared.keys()
    name = next(n for n in sorted(noisy.shared) if n.endswith("weight"))
    assert (noisy.shared[name] - theirs.shared[name]).abs().max() > 1e-2


def test_identical_clients_without_noise_end_where_one_of_them_would_alone() -> None:
    one = toy_federation((16,))
    rows = one.clients[0].train
    many = one.with_data(clients=tuple(Client(f"twin{i}", rows) for i in range(3)))
    settings = Settings(Optimiser("sgd", 0.1), epochs=2, batch_size=48)
    knobs = {"clip": 0.05, "noise": 0.0}
    together = run(method_holdings("private", knobs=knobs, federation=many, settings=settings))
    alone = run(method_holdings("private", knobs=knobs, federation=one, settings=settings))
    assert_close(together.shared, alone.shared, 1e-5)
    assert together.progress.state.measured["twin0"]["clipped"] == 1.0


def test_no_client_moves_the_model_by_more_than_the_clip_in_a_round() -> None:
    holdings = method_holdings("private", knobs={"clip": 0.01, "noise": 0.0})
    result = run(holdings, 3)
    before = holdings.plan.initial
    for progress in result.journal.states:
        after = progress.state.shared
        moved = torch.cat([(after[n] - before[n]).flatten() for n in sorted(after)])
        assert float(moved.norm()) <= 0.01 * (1 + 1e-4)
        assert all(found["clipped"] == 1.0 for found in progress.state.measured.values())
        before = after


def test_a_run_records_norms_and_what_it_spent(tmp_path: Path) -> None:
    settings = {
        "model": "logistic",
        "train": {"rounds": 2, "clients_per_round": 4},
        "method": {"name": "private", "noise": 4.0},
    }
    done = run_experiment(settings, out=tmp_path, draw=False)
    norms = [r.value for r in done.rows() if r.metric == "update_norm" and r.round == 2]
    assert len(norms) == 4
    assert min(norms) > 0
    assert done.result["privacy"] == {
        "epsilon": epsilon(4.0, 2, 4, 10, 1e-5), "delta": 1e-5, "clip": 1.0, "noise": 4.0,
    }  # fmt: skip
    shown = f"privacy   epsilon {done.result['privacy']['epsilon']:.3g} at delta 1e-05"
    assert shown in run_summary(done)


def test_a_reptile_step_towards_the_private_mean_is_a_part_of_the_way() -> None:
    """Two rounds at clip = 0.01: nobody can move the model by more than η·clip in either."""
    knobs = {"base": {"name": "fedreptile-civae", "eta": 0.35}, "clip": 0.01, "noise": 0.0}
    holdings = method_holdings("private", knobs=knobs)
    result = run(holdings, 2)
    before = holdings.plan.initial
    for progress in result.journal.states:
        after = progress.state.shared
        moved = torch.cat([(after[n] - before[n]).flatten() for n in sorted(after)])
        assert 0.001 < float(moved.norm()) <= 0.35 * 0.01 * (1 + 1e-3)
        before = after


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("method.clip=0", "clip of method 'private' must be a number above 0, not 0."),
        ("method.clip=inf", "clip of method 'private' must be a number above 0, not inf."),
        ("method.noise=-1", "noise of method 'private' must be a number of at least 0, not -1."),
        ("method.noise=nan", "noise of method 'private' must be a number of at least 0, not nan."),
        (
            "method.delta=0",
            "delta of method 'private' must be a number above 0 and below 1, not 0.",
        ),
        (
            "method.delta=1",
            "delta of method 'private' must be a number above 0 and below 1, not 1.",
        ),
        ("method.base=central", "base = 'central' cannot be made private: it pools raw data"),
        ("method.base=local", "its server takes no plain mean of the clients' models"),
        ("method.base=fed-civae", "its server takes no plain mean of the clients' models"),
        ("method.base=scaffold", "its server takes no plain mean of the clients' models"),
        ("method.base=feddisco", "its clients send more than their models"),
        ("method.base=latent-weights", "an earlier stage of it would not be private"),
        ("method.base=distilled-vae", "an earlier stage of it would not be private"),
        ("method.base={name = 'vae', sync = false}", "do not begin with what the server sent"),
        (
            "method.base=3",
            "base of method 'private' must be a name or a table like {name = …}, not 3.",
        ),
    ],
)
def test_bad_settings_get_one_sentence(
    setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "digits", "--set", "method=private", "--set", setting]
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_without_the_library_a_noisy_run_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"fedskew\[privacy\]"):
        find("private").recipe()
    assert find("private").recipe(noise=0.0).aggregates.noising == Noising(1.0, 0.0, 1e-5)
