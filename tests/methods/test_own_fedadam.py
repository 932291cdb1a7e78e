"""FedAdam as a stranger writes it, in one file outside the package (tests/own_methods)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Run, assert_close, make_holdings, run, spent_on, toy_federation, toy_model
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fedskew.api import run as run_experiment
from fedskew.engine.optim import Optimiser
from fedskew.errors import ConfigError
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.parts.accounting import epsilon

OWN = Path(__file__).parents[1] / "own_methods"
NAME = "fedadam:fedadam"
KNOBS = {"lr": 0.05, "beta1": 0.8, "beta2": 0.9, "tau": 0.01}
LR, EPOCHS, ROUNDS = 0.1, 2, 2
FEDERATION = toy_federation((24, 40))
Weights = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(OWN))


def ours(name: str, rounds: int = ROUNDS, kind: str = "mlp", **knobs: Any) -> Run:
    # A batch holds all a client has: no order of samples to agree on.
    settings = Settings(Optimiser("sgd", LR), epochs=EPOCHS, batch_size=64)
    recipe = find(name).recipe(**knobs)
    return run(make_holdings(recipe, FEDERATION, toy_model(kind), settings), rounds)


def logits(weights: Mapping[str, Tensor], rows: np.ndarray[Any, Any]) -> Tensor:
    found: Tensor = functional_call(toy_model(), dict(weights), (FEDERATION.x[rows],))
    return found


def trained(start: Weights, rows: np.ndarray[Any, Any]) -> Weights:
    """Plain gradient descent on all of a client's data."""
    weights = {n: t.detach().clone().requires_grad_() for n, t in start.items()}
    for _ in range(EPOCHS):
        loss = F.cross_entropy(logits(weights, rows), FEDERATION.y[rows])
        slopes = torch.autograd.grad(loss, list(weights.values()))
        weights = {
            n: (w - LR * g).detach().requires_grad_()
            for (n, w), g in zip(weights.items(), slopes, strict=True)
        }
    return {n: t.detach() for n, t in weights.items()}


def plain_fedadam(
    lr: float, beta1: float, beta2: float, tau: float, shares: tuple[float, float] = (0.375, 0.625)
) -> Weights:
    """Algorithm 2 of the paper, the mean weighted by size: 24 and 40 samples."""
    x = {n: t.detach().clone() for n, t in toy_model().state_dict().items()}
    m = {n: torch.zeros_like(t) for n, t in x.items()}
    v = {n: torch.full_like(t, tau**2) for n, t in x.items()}
    for _ in range(ROUNDS):
        ends = [trained(x, client.train) for client in FEDERATION.clients]
        for n in x:
            change = shares[0] * (ends[0][n] - x[n]) + shares[1] * (ends[1][n] - x[n])
            m[n] = beta1 * m[n] + (1 - beta1) * change
            v[n] = beta2 * v[n] + (1 - beta2) * change**2
            x[n] = x[n] + lr * m[n] / (v[n] ** 0.5 + tau)
    return x


def test_it_is_the_papers_loop() -> None:
    result = ours(NAME, **KNOBS)
    assert_close(result.shared, plain_fedadam(**KNOBS), 1e-5)
    plain = ours("fedavg").shared
    assert max(float((t - plain[n]).abs().max()) for n, t in result.shared.items()) > 1e-2


def test_the_stepped_model_is_what_seen_unseen_and_central_scores_are_of() -> None:
    result, weights = ours(NAME, **KNOBS), plain_fedadam(**KNOBS)
    places = {("seen", c.name): c.test for c in FEDERATION.clients}
    places |= {("unseen", c.name): c.test for c in FEDERATION.unseen}
    places["central", ""] = FEDERATION.central_test
    found = {
        (row.on, row.client): row.value
        for row in result.journal.rows
        if row.round == ROUNDS and row.split == "test" and row.metric == "loss"
    }
    assert found.keys() == places.keys()
    for place, rows in places.items():
        expected = float(F.cross_entropy(logits(weights, rows), FEDERATION.y[rows]))
        assert found[place] == pytest.approx(expected, rel=1e-4)


def test_statistics_of_batch_norm_are_the_mean_and_have_no_moments() -> None:
    adam, mean = ours(NAME, 1, "batch-norm"), ours("fedavg", 1, "batch-norm")
    statistics = [n for n in mean.shared if "running" in n or "tracked" in n]
    assert len(statistics) == 3
    for name in statistics:
        assert torch.equal(adam.shared[name], mean.shared[name])
    assert adam.progress.state.memory["step m"].keys() == mean.shared.keys() - set(statistics)


def test_it_goes_with_other_methods_targets() -> None:
    """With β₁ = β₂ = 0 and a huge τ the step is lr·Δ/τ: the method's own with that server_lr."""
    knobs = {"lr": 0.5e6, "beta1": 0.0, "beta2": 0.0, "tau": 1e6}
    for base in ("scaffold", "fednova"):
        stepped = ours(NAME, base=base, **knobs)
        half = ours(base, server_lr=0.5)
        assert_close(stepped.shared, half.shared, 1e-5)


def settings(method: Any) -> dict[str, Any]:
    return {
        "model": "logistic",
        "method": method,
        "federation": {"unseen": 2},
        "train": {"rounds": 3},
    }


def final(path: Path) -> dict[str, bytes]:
    folder = path / "models" / "last"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.safetensors")}


def test_a_run_that_was_stopped_goes_on_with_its_moments(tmp_path: Path) -> None:
    whole = run_experiment(settings(NAME), out=tmp_path / "whole", draw=False)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(settings(NAME), out=tmp_path / "parts", draw=False, watch=stop)
    again = run_experiment(settings(NAME), out=tmp_path / "parts", draw=False)
    assert final(again.path) == final(whole.path)
    assert again.rows() == whole.rows()
    assert {row.on for row in whole.rows()} >= {"seen", "unseen", "central"}


def test_it_can_be_made_private_because_the_step_comes_after_the_noise() -> None:
    """Without a clip anybody reaches it is FedAdam of the uniform mean; with one, the moments are
    of what was clipped."""
    base = {"name": NAME, **KNOBS}
    free = ours("private", base=base, clip=1e30, noise=0.0)
    assert_close(free.shared, plain_fedadam(**KNOBS, shares=(0.5, 0.5)), 1e-5)
    clipped = ours("private", 1, base=base, clip=1e-3, noise=0.0)
    moments = clipped.progress.state.memory["step m"]
    length = sum(float(t.square().sum()) for t in moments.values()) ** 0.5
    assert 0 < length <= (1 - KNOBS["beta1"]) * 1e-3 * (1 + 1e-4)
    noisy = ours("private", base=base, clip=1.0, noise=1.0)
    assert spent_on(noisy.holdings.plan.recipe, 2, 2, 2)["epsilon"] == epsilon(1.0, 2, 2, 2, 1e-5)
    assert noisy.holdings.plan.recipe.steps == find(NAME).recipe(**KNOBS).steps


def test_reptile_refuses_it_because_it_would_replace_its_step() -> None:
    with pytest.raises(ConfigError) as raised:
        find("fedreptile").recipe(base=NAME)
    says = "base = 'fedadam:fedadam' has a server step of its own, which eta would replace."
    assert str(raised.value) == says


def test_an_objective_and_another_weighting_leave_its_step_alone() -> None:
    step = find(NAME).recipe().steps
    for wrapper in ("irm", "feddisco", "vae", "civae", "feddisk"):
        assert find(wrapper).recipe(base=NAME).steps == step


def test_a_model_for_each_client_has_no_target_for_it() -> None:
    with pytest.raises(ConfigError, match="a server step needs one target for all clients"):
        find(NAME).recipe(base="fedshibu")


def test_the_file_is_short() -> None:
    assert len((OWN / "fedadam.py").read_text().splitlines()) < 70
