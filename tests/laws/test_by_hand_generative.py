"""Law 6 for autoencoders: two clients, one step, worked out with pencil and paper.

One feature, one latent dimension, no biases: the codes of x have the mean a·x and the log-variance
s·x, and d·z is drawn from a code z. From a = 1, s = 0, d = 1, with β = 1/2 and every noise e = 1,

    Ann, x = 1:  z = 1 + 1, error r = 2 - 1 = 1, divergence 1/2, loss 1 + 1/4 = 5/4
    Bob, x = 2:  z = 2 + 1, error r = 3 - 2 = 1, divergence 4/2, loss 1 + 1 = 2

    by a: 2·r·d·x + β·a·x²                    Ann 2 + 1/2 = 5/2      Bob 4 + 2 = 6
    by s: 2·r·d·(e·x/2) + β·(σ² - 1)·x/2      Ann 1                  Bob 2
    by d: 2·r·z                               Ann 4                  Bob 6

and a step of 1/8 takes Ann to a = 11/16, s = -1/8, d = 1/2 and Bob to a = 1/4, s = -1/4, d = 1/4.
Ann holds two such samples and Bob four.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from by_hand import is_, noise_of_one, two_clients
from helpers import Run, make_holdings, run
from torch import Tensor, nn

from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.models.vae import Vae
from fedskew.parts.distil import components_of
from fedskew.parts.generative import VaeLoss
from fedskew.parts.objective import Batch, Bound

__all__ = ["noise_of_one"]

ANN, BOB = [11 / 16, -1 / 8, 1 / 2], [1 / 4, -1 / 4, 1 / 4]


def line() -> Vae:
    """The autoencoder of the page above."""
    model = Vae(nn.Linear(1, 2, bias=False), nn.Linear(1, 1, bias=False), 1)
    model.load_state_dict(
        {"encoder.weight": torch.tensor([[1.0], [0.0]]), "decoder.weight": torch.tensor([[1.0]])}
    )
    return model


def worked(name: str = "vae", rounds: int = 1, lr: float = 1 / 8, **knobs: Any) -> Run:
    recipe = find(name).recipe(beta=0.5, **knobs)
    settings = Settings(Optimiser("sgd", lr), epochs=1, batch_size=4)
    federation = two_clients([1.0, 1.0, 2.0, 2.0, 2.0, 2.0], [0] * 6, ann=2)
    return run(make_holdings(recipe, federation, line(), settings), rounds)


def numbers(tensors: dict[str, Tensor]) -> list[float]:
    """a, s and d."""
    return [*tensors["encoder.weight"].flatten().tolist(), float(tensors["decoder.weight"])]


def between(ann: float) -> list[float]:
    """The mean of both with this share for Ann."""
    return [ann * one + (1 - ann) * other for one, other in zip(ANN, BOB, strict=True)]


def test_loss_and_gradient_of_a_batch_by_hand() -> None:
    """Of one sample each; the third is padding and would change everything if it counted."""
    x, mask = torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([1.0, 1.0, 0.0])
    batch = Batch(x, torch.zeros(3), mask, mask, {"codes": torch.ones(3, 1)})
    start = {name: t.detach() for name, t in line().state_dict().items()}
    gradients, loss, _ = VaeLoss(beta=0.5).gradient(line(), start, {}, batch, {})
    assert float(loss) == is_((5 / 4 + 2) / 2)
    assert numbers(gradients) == is_([(5 / 2 + 6) / 2, (1 + 2) / 2, (4 + 6) / 2])


def test_clients_end_where_a_step_takes_them() -> None:
    result = worked(base="local")
    assert numbers(result.model_of("ann")) == is_(ANN)
    assert numbers(result.model_of("bob")) == is_(BOB)
    assert result.journal.records[0].train_loss == is_((5 / 4 + 2) / 2)


def test_means_by_hand() -> None:
    """By samples 2 : 4; both have one batch, so by batches they count the same."""
    assert numbers(worked().shared) == is_([19 / 48, -5 / 24, 1 / 3])
    assert numbers(worked(weights="samples").shared) == is_([19 / 48, -5 / 24, 1 / 3])
    for even in ("uniform", "batches"):
        assert numbers(worked(weights=even).shared) == is_([15 / 32, -3 / 16, 3 / 8])


def test_weights_by_loss_by_hand() -> None:
    """Without the divergence and a drawn code, after the step: Ann draws 11/16·1/2 for 1, an
    error of 21/32, and Bob 1/2·1/4 for 2, an error of 15/8 = 60/32. Shares are 60² : 21²."""
    result = worked(weights="loss", eval_beta=0.0, sampled=False)
    assert numbers(result.shared) == is_(between(3600 / 4041))
    assert result.progress.state.measured["bob"]["weight"] == is_(441 / 4041)


def test_half_a_server_step_by_hand() -> None:
    half = [(1 + 19 / 48) / 2, -5 / 48, (1 + 1 / 3) / 2]
    assert numbers(worked(server_lr=0.5).shared) == is_(half)


def test_clients_that_do_not_sync_go_on_from_their_own() -> None:
    """Ann's second step, from a = 11/16, s = -1/8, d = 1/2: σ = exp(-1/16), z = 11/16 + σ."""
    result = worked(rounds=2, sync=False)
    a, s, d = ANN
    sigma = math.exp(s / 2)
    z = a + sigma
    r = d * z - 1
    expected = [
        a - (2 * r * d + a / 2) / 8,
        s - (r * d * sigma + (sigma**2 - 1) / 4) / 8,
        d - 2 * r * z / 8,
    ]
    assert numbers(result.model_of("ann")) == is_(expected)


def test_sums_and_means_over_pixels_and_latent_dimensions() -> None:
    """Means 1 and 2, log-variances 0 and ln 4: divergences 1/2 and (4 + 4 - 1 - ln 4)/2. The
    drawn pixels miss by 1 and 3."""
    model = Vae(nn.Linear(2, 4), nn.Linear(2, 2), 2)
    for layer in (model.encoder, model.decoder):
        nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
    model.encoder.bias.data = torch.tensor([1.0, 2.0, 0.0, math.log(4.0)])
    model.decoder.bias.data = torch.tensor([1.0, 3.0])
    one = torch.ones(1)
    batch = Batch(torch.zeros(1, 2), one, one, one)
    bound = Bound(model, dict(model.state_dict()))
    total = 4 - math.log(2)
    for kind, parts in (("sum", 1), ("mean", 2)):
        objective = VaeLoss(eval_beta=3.0, reconstruction=kind, kl=kind, sampled=False)  # type: ignore[arg-type]
        found = {name: float(v) for name, v in objective.scores(bound, batch).items()}
        assert found["reconstruction"] == is_(10 / parts)
        assert found["kl"] == is_(total / parts)
        assert found["loss"] == is_((10 + 3 * total) / parts)


def test_the_legacy_number_adds_means_of_batches_of_128() -> None:
    """128 losses of 1 are a mean of 1, the one left over is a mean of 3: (1 + 3)/129."""
    losses = torch.cat([torch.ones(128), torch.tensor([3.0])])
    assert VaeLoss().summed({"loss": losses})["legacy"] == is_(4 / 129)


def test_weights_from_codes_by_hand() -> None:
    """Nothing moves, so Ann's codes are all at 1 and Bob's all at 2. From a point m the distance
    to N(0, 1) is E|N - m| = 2φ(m) + m·(2Φ(m) - 1): 1.166631 and 2.016981. With α = 1/10 that
    leaves 1/3 - 0.116663 = 0.216670 and 2/3 - 0.201698 = 0.464969."""
    result = worked("latent-weights-online", 2, 0.0, alpha=0.1, every=1, encoded="mean")
    measured = result.progress.state.measured
    assert measured["ann"]["discrepancy"] == is_(1.166631)
    assert measured["bob"]["discrepancy"] == is_(2.016981)
    assert measured["ann"]["weight"] == is_(0.216670 / 0.681639)
    assert measured["bob"]["weight"] == is_(0.464969 / 0.681639)


def test_one_component_has_the_mean_and_the_spread_of_all_codes() -> None:
    """Means 0 and 2, deviations 1 and 2: around 1 with a variance of 1 + (1 + 4)/2, and a
    millionth so that no cloud is a point."""
    found = components_of(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [2.0]]), 1, seed=0)
    assert float(found["centre"]) == is_(1.0)
    assert float(found["variance"]) == pytest.approx(3.500001, abs=2e-7)
    assert found["share"].tolist() == [1.0]
