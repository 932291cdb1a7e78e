"""IFCA as a stranger writes it, in one file outside the package (tests/own_methods)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    Run,
    assert_close,
    assert_same_bits,
    make_holdings,
    over_the_wire,
    run,
    toy_federation,
    toy_model,
)
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import fedskew
from fedskew.api import run as run_experiment
from fedskew.data.federation import Client, Federation
from fedskew.deploy.model import run_model
from fedskew.engine.optim import Optimiser
from fedskew.errors import ConfigError
from fedskew.federate.holdings import Holdings
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.models import redrawn
from fedskew.parts.begin import Opening
from fedskew.rng import torch_seed
from fedskew.runs.folder import RunFolder

OWN = Path(__file__).parents[1] / "own_methods"
NAME = "ifca:ifca"
LR, EPOCHS = 0.3, 2
SIZES = (24, 40, 30, 32, 36, 28)
Rows = np.ndarray[Any, Any]
Weights = dict[str, Tensor]


def two_minds() -> Federation:
    """Clients of like inputs: for those of odd number every class has the name of the next one.

    The last two of them are unseen, one of each mind; the central test set is of the even ones.
    """
    plain = toy_federation(SIZES, classes=3)
    y = plain.y.clone()
    everyone = plain.clients
    for client in everyone[1::2]:
        rows = np.concatenate([client.train, client.validation, client.test])
        y[rows] = (y[rows] + 1) % 3
    central = np.concatenate([client.test for client in everyone[::2]])
    return replace(plain, y=y, clients=everyone[:4], unseen=everyone[4:], central_test=central)


FEDERATION = two_minds()


@pytest.fixture(autouse=True)
def _own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(OWN))


def holdings_of(name: str, federation: Federation = FEDERATION, **knobs: Any) -> Holdings:
    # A batch holds all a client has: no order of samples to agree on.
    settings = Settings(Optimiser("sgd", LR), epochs=EPOCHS, batch_size=64)
    return make_holdings(find(name).recipe(**knobs), federation, toy_model(), settings)


def ours(name: str = NAME, rounds: int = 2, **knobs: Any) -> Run:
    return run(holdings_of(name, **knobs), rounds)


def loss_of(weights: Mapping[str, Tensor], rows: Rows) -> Tensor:
    logits = functional_call(toy_model(), dict(weights), (FEDERATION.x[rows],))
    return F.cross_entropy(logits, FEDERATION.y[rows])


def trained(start: Weights, rows: Rows) -> Weights:
    """Plain gradient descent on all of a client's data."""
    weights = {n: t.detach().clone().requires_grad_() for n, t in start.items()}
    for _ in range(EPOCHS):
        slopes = torch.autograd.grad(loss_of(weights, rows), list(weights.values()))
        weights = {
            n: (w - LR * g).detach().requires_grad_()
            for (n, w), g in zip(weights.items(), slopes, strict=True)
        }
    return {n: t.detach() for n, t in weights.items()}


def best(models: list[Weights], client: Client) -> int:
    return int(np.argmin([float(loss_of(model, client.train)) for model in models]))


def plain_ifca(rounds: int) -> tuple[list[Weights], dict[str, int]]:
    """Algorithm 1 of the paper, option II: the models, and who began the last round with which."""
    first = {n: t.detach().clone() for n, t in toy_model().state_dict().items()}
    models = [first, redrawn(toy_model(), torch_seed(torch_seed(0, "main", "opening"), 1))]
    for _ in range(rounds):
        chosen = {client.name: best(models, client) for client in FEDERATION.clients}
        ends = {c.name: trained(models[chosen[c.name]], c.train) for c in FEDERATION.clients}
        for k in range(2):
            inside = [c for c in FEDERATION.clients if chosen[c.name] == k]
            total = sum(len(c.train) for c in inside)
            if inside:
                models[k] = {
                    n: sum(len(c.train) / total * ends[c.name][n] for c in inside) for n in first
                }
    return models, chosen


def clusters(result: Run) -> list[Weights]:
    stacked = result.progress.state.memory["clusters"]
    return [{n: t[k] for n, t in stacked.items()} for k in range(2)]


def scores(result: Run, metric: str) -> dict[tuple[str, str, str], float]:
    last = result.progress.round
    return {
        (row.model, row.on, row.client): row.value
        for row in result.journal.rows
        if row.round == last and row.split == "test" and row.metric == metric
    }


@pytest.mark.parametrize("rounds", [1, 3])
def test_it_is_the_papers_loop(rounds: int) -> None:
    result = ours(rounds=rounds)
    models, chosen = plain_ifca(rounds)
    for found, expected in zip(clusters(result), models, strict=True):
        assert_close(found, expected, 1e-5)
    told = {n: int(m["cluster"]) for n, m in result.progress.state.measured.items()}
    assert told == chosen


def test_the_first_models_differ_and_the_seed_draws_all_but_one() -> None:
    def first(seed: int) -> Weights:
        module = toy_model()
        opening = Opening(module, module.state_dict(), seed=seed)
        return find(NAME).recipe(clusters=3).aggregates.start(opening)["clusters"]

    ann, again, other = first(0), first(0), first(1)
    for name, given in toy_model().state_dict().items():
        assert ann[name].shape == (3, *given.shape)
        assert torch.equal(ann[name][0], given)
        assert not torch.equal(ann[name][1], ann[name][2])
        assert torch.equal(ann[name], again[name])
        assert not torch.equal(ann[name][1:], other[name][1:])


def test_scores_are_of_the_best_model_also_of_unseen_clients_and_central_ones_of_the_largest() -> (
    None
):
    result = ours(rounds=3)
    models, chosen = plain_ifca(3)
    found = scores(result, "loss")
    for on, clients in (("seen", FEDERATION.clients), ("unseen", FEDERATION.unseen)):
        for client in clients:
            model = models[best(models, client)]
            expected = pytest.approx(float(loss_of(model, client.test)), rel=1e-4)
            assert found["personal", on, client.name] == expected
    sizes = [sum(len(c.train) for c in FEDERATION.clients if chosen[c.name] == k) for k in (0, 1)]
    largest = models[int(np.argmax(sizes))]
    expected = pytest.approx(float(loss_of(largest, FEDERATION.central_test)), rel=1e-4)
    assert found["global", "central", ""] == expected
    assert_close(result.shared, largest, 1e-5)


def test_each_mind_finds_its_cluster_unseen_clients_too_and_scores_far_above_fedavg() -> None:
    result, mean = ours(rounds=40), ours("fedavg", rounds=40)
    told = {n: int(m["cluster"]) for n, m in result.progress.state.measured.items()}
    assert told["c0"] == told["c2"] != told["c1"] == told["c3"]
    models = clusters(result)
    assert [best(models, client) for client in FEDERATION.unseen] == [told["c0"], told["c1"]]
    right, theirs = scores(result, "accuracy"), scores(mean, "accuracy")
    for on in ("seen", "unseen"):
        personal = fmean(v for (m, o, _), v in right.items() if (m, o) == ("personal", on))
        averaged = fmean(v for (m, o, _), v in theirs.items() if (m, o) == ("global", on))
        assert personal > averaged + 0.3, (on, personal, averaged)


def test_a_client_without_data_gets_the_largest_clusters_model() -> None:
    nobody = Client("nobody", np.array([], dtype=np.int64), test=FEDERATION.unseen[0].test)
    federation = replace(FEDERATION, unseen=(nobody,))
    result = run(holdings_of(NAME, federation), 2)
    found = scores(result, "loss")
    expected = pytest.approx(float(loss_of(result.shared, nobody.test)), rel=1e-5)
    assert found["personal", "unseen", "nobody"] == expected
    assert found["global", "unseen", "nobody"] == expected


def test_bytes_between_server_and_clients_change_nothing() -> None:
    carried, here = over_the_wire(holdings_of(NAME)), run(holdings_of(NAME))
    assert_same_bits(carried.everything(), here.everything())
    assert carried.journal.rows == here.journal.rows
    assert carried.journal.records == here.journal.records


def settings() -> dict[str, Any]:
    return {
        "model": "logistic",
        "method": {"name": NAME, "clusters": 3},
        "federation": {"unseen": 2},
        "train": {"rounds": 3},
    }


def final(path: Path) -> dict[str, bytes]:
    folder = path / "models" / "last"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.safetensors")}


def test_a_run_that_was_stopped_goes_on_with_its_clusters(tmp_path: Path) -> None:
    whole = run_experiment(settings(), out=tmp_path / "whole", draw=False)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(settings(), out=tmp_path / "parts", draw=False, watch=stop)
    again = run_experiment(settings(), out=tmp_path / "parts", draw=False)
    assert final(again.path) == final(whole.path)
    assert again.rows() == whole.rows()
    assert {row.on for row in whole.rows()} >= {"seen", "unseen", "central"}


def test_who_adapts_a_finished_run_begins_with_its_best_model(tmp_path: Path) -> None:
    """The newcomer's labels are shifted: no cluster fits, but one of them fits it best."""
    done = run_experiment(settings(), out=tmp_path, draw=False)
    images, labels = load_digits(return_X_y=True)
    x, y = images[:40].reshape(-1, 1, 8, 8) / 16.0, (labels[:40] + 1) % 10
    made = fedskew.adapt(done, x, [str(label) for label in y], epochs=1)
    state = RunFolder(done.path).selected("main").state
    samples = torch.from_numpy(x).to(torch.float32)

    def told(k: int) -> tuple[float, int]:
        model = run_model(done)
        model.load_state_dict({n: t[k] for n, t in state.memory["clusters"].items()})
        logits = model(samples).detach()
        right = int((logits.argmax(dim=1) == torch.from_numpy(y)).sum())
        return float(F.cross_entropy(logits, torch.from_numpy(y))), right

    assert made.about["adapted"]["right_before"] == min(map(told, range(3)))[1]


@pytest.mark.parametrize(
    ("wrapper", "why"),
    [
        (
            "private",
            "cannot be made private: its server takes no plain mean of the clients' models",
        ),
        ("fedreptile", "makes several models, so there is no single target to step towards"),
    ],
)
def test_what_needs_one_mean_or_one_target_refuses_it_and_says_why(wrapper: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find(wrapper).recipe(base=NAME)
    assert str(raised.value) == f"base = 'ifca:ifca' {why}."


def test_the_file_is_short() -> None:
    assert len((OWN / "ifca.py").read_text().splitlines()) < 70
