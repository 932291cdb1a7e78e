"""The VAE's loss against torch.distributions, and what clients say of their codes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import copied, just_trained, opening, toy_federation, toy_vae, unknown_tensors
from scipy.stats import norm, wasserstein_distance
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from fedskew.data.federation import Client
from fedskew.errors import ConfigError
from fedskew.models import Vae
from fedskew.parts.aggregate import ServerState, Update, normalised
from fedskew.parts.discrepancy import ByDiscrepancy
from fedskew.parts.generative import (
    ByLoss,
    LatentDiscrepancy,
    LocalLoss,
    RememberingMean,
    VaeLoss,
    active_dimensions,
    decode,
    describe_codes,
    from_prior,
    w1_to_normal,
)
from fedskew.parts.objective import Batch, Bound
from fedskew.parts.report import Finished

FEDERATION = toy_federation()
X = FEDERATION.x[:9]
NOISE = torch.randn(9, 2, generator=torch.Generator().manual_seed(4))
reductions = pytest.mark.parametrize("kl", ["sum", "mean"])
both_reductions = pytest.mark.parametrize("reconstruction", ["sum", "mean"])


def batch(mask: Tensor | None = None, weight: Tensor | None = None, x: Tensor = X) -> Batch:
    mask = torch.ones(len(x)) if mask is None else mask
    labels = torch.zeros(len(x), dtype=torch.int64)
    return Batch(x, labels, mask, mask if weight is None else weight, {"codes": NOISE[: len(x)]})


def by_torch(module: Vae, beta: float, objective: VaeLoss, noise: Tensor | None = NOISE) -> Tensor:
    """A value a sample, from torch's own distributions; without noise the code is the mean."""
    mean, log_variance = module.encoder(X).chunk(2, dim=1)
    codes = Normal(mean, log_variance.exp().sqrt())
    divergence = kl_divergence(codes, Normal(0.0, 1.0))
    drawn = mean if noise is None else codes.loc + codes.scale * noise
    error = (module.decoder(drawn) - X) ** 2
    total: Tensor = getattr(error, objective.reconstruction)(dim=1)
    return total.add(getattr(divergence, objective.kl)(dim=1), alpha=beta)


@reductions
@both_reductions
@pytest.mark.parametrize("beta", [0.0, 0.7, 10.0])
def test_the_loss_and_its_gradient_are_those_of_torchs_distributions(
    reconstruction: Any, kl: Any, beta: float
) -> None:
    module = toy_vae()
    objective = VaeLoss(beta, 99.0, reconstruction, kl)
    expected = by_torch(module, beta, objective).mean()
    gradients = torch.autograd.grad(expected, list(module.parameters()))
    ours, loss, _ = objective.gradient(module, copied(module.state_dict()), {}, batch(), {})
    torch.testing.assert_close(loss, expected)
    for (name, _), gradient in zip(module.named_parameters(), gradients, strict=True):
        assert gradient.any()
        torch.testing.assert_close(ours[name], gradient, msg=name)


def test_without_beta_the_divergence_pulls_at_nothing() -> None:
    """A decoder that ignores codes leaves only the divergence: no β, no gradient."""
    module = toy_vae()
    with torch.no_grad():
        module.get_parameter("decoder.0.weight").zero_()
    still, _, _ = VaeLoss(0.0).gradient(module, copied(module.state_dict()), {}, batch(), {})
    pulled, _, _ = VaeLoss(1.0).gradient(module, copied(module.state_dict()), {}, batch(), {})
    assert not any(still[name].any() for name in still if name.startswith("encoder."))
    assert all(pulled[name].any() for name in pulled if name.startswith("encoder."))


@reductions
@both_reductions
def test_scores_weigh_the_divergence_with_their_own_beta(reconstruction: Any, kl: Any) -> None:
    module = toy_vae()
    objective = VaeLoss(99.0, 0.25, reconstruction, kl)
    scores = objective.scores(Bound(module, copied(module.state_dict())), batch())
    torch.testing.assert_close(scores["loss"], by_torch(module, 0.25, objective).detach())
    torch.testing.assert_close(scores["reconstruction"], by_torch(module, 0.0, objective).detach())
    torch.testing.assert_close(
        scores["loss"], scores["reconstruction"] + 0.25 * scores["kl"], rtol=0, atol=0
    )


def test_a_mean_code_is_scored_without_any_draw_and_training_still_draws() -> None:
    module = toy_vae()
    objective = VaeLoss(1.0, 1.0, sampled=False)
    bound = Bound(module, copied(module.state_dict()))
    scores = objective.scores(bound, batch())
    expected = by_torch(module, 1.0, objective, noise=None).detach()
    torch.testing.assert_close(scores["loss"], expected)
    torch.testing.assert_close(
        scores["reconstruction"], (module(X) - X).square().sum(dim=1).detach()
    )
    trained = by_torch(module, 1.0, objective).mean().detach()
    torch.testing.assert_close(objective.loss(bound, batch(), {}), trained)
    assert abs(float(trained - expected.mean())) > 1e-3


def test_padding_counts_for_nothing_and_weights_scale_a_samples_loss() -> None:
    module, objective = toy_vae(), VaeLoss(2.0)
    bound = Bound(module, copied(module.state_dict()))
    each = by_torch(module, 2.0, objective).detach()
    mask = torch.tensor([1.0] * 6 + [0.0] * 3)
    torch.testing.assert_close(objective.loss(bound, batch(mask), {}), each[:6].mean())
    weight = torch.linspace(0.0, 2.0, 9) * mask
    torch.testing.assert_close(
        objective.loss(bound, batch(mask, weight), {}), (each * weight).sum() / 6
    )
    padded, _, _ = objective.gradient(module, copied(module.state_dict()), {}, batch(mask), {})
    short, _, _ = objective.gradient(module, copied(module.state_dict()), {}, batch(x=X[:6]), {})
    torch.testing.assert_close(padded, short)


@pytest.mark.parametrize("n", [1, 60, 128, 200, 690])
def test_legacy_is_a_loop_over_batches_of_128_divided_by_the_number_of_samples(n: int) -> None:
    loss = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) * 50
    total, start = 0.0, 0
    while start < n:
        members = loss[start : start + 128].tolist()
        total += sum(members) / len(members)
        start += 128
    found = VaeLoss().summed({"loss": loss, "kl": torch.ones(n), "reconstruction": loss - 1})
    assert found["legacy"] == pytest.approx(total / n, rel=1e-12)
    assert found["loss"] == pytest.approx(float(loss.mean()))
    assert found["reconstruction"] == pytest.approx(float(loss.mean()) - 1)
    assert found["kl"] == 1.0


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"beta": -1.0}, "beta must be a number of at least 0, not -1.0."),
        ({"eval_beta": math.nan}, "eval_beta must be a number of at least 0, not nan."),
        ({"reconstruction": "max"}, "reconstruction must be 'sum' or 'mean', not 'max'."),
        ({"kl": "none"}, "kl must be 'sum' or 'mean', not 'none'."),
    ],
)
def test_impossible_losses_get_one_sentence(knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        VaeLoss(**knobs)
    assert str(raised.value) == says


def finished(module: nn.Module, **changes: Any) -> Finished:
    """The model it trained must not be looked at."""
    given = {"client": FEDERATION.clients[3], "trained": unknown_tensors(module), **changes}
    return just_trained(module, FEDERATION, **given)


def sent(given: Finished, report: LatentDiscrepancy | None = None) -> dict[str, float]:
    reported = (report or LatentDiscrepancy()).report(given)
    assert reported.keeps == {}
    return {name: float(value) for name, value in reported.sends["discrepancy"].items()}


def grid_distance(codes: Tensor) -> float:
    grid = norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    return float(np.mean([wasserstein_distance(column, grid) for column in codes.T.numpy()]))


def test_codes_of_the_received_model_are_drawn_or_taken_by_their_means() -> None:
    """Of the trained model nothing is used: here it is all NaN."""
    module = toy_vae()
    own = FEDERATION.x[torch.from_numpy(FEDERATION.clients[3].train)]
    with torch.no_grad():
        mean, log_variance = module.encoder(own).chunk(2, dim=1)
    draws = np.random.default_rng(0).standard_normal((41, 2), dtype=np.float32)
    sampled = mean + log_variance.exp().sqrt() * torch.from_numpy(draws)
    drawn, meant = sent(finished(module)), sent(finished(module), LatentDiscrepancy("mean"))
    assert drawn["d"] == pytest.approx(grid_distance(sampled), abs=1e-4)
    assert meant["d"] == pytest.approx(grid_distance(mean), abs=1e-4)
    assert meant["d"] > drawn["d"] + 0.1
    assert drawn["n"] == meant["n"] == 41.0
    assert drawn["active"] == float((mean.numpy().var(axis=0) > 0.01).sum())


def test_a_report_follows_its_generator_alone() -> None:
    module = toy_vae()
    first, again = sent(finished(module)), sent(finished(module))
    other = sent(finished(module, rng=np.random.default_rng(9)))
    assert first == again
    assert 0 <= first["lot"] < 1
    assert first["d"] != other["d"]
    assert first["lot"] != other["lot"]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("encoded", ["sample", "mean"])
def test_a_broken_encoder_sends_a_number_that_says_so(encoded: Any, broken: float) -> None:
    module = toy_vae()
    with torch.no_grad():
        module.get_parameter("encoder.2.bias").fill_(broken)
    assert sent(finished(module), LatentDiscrepancy(encoded))["d"] == -1.0


@pytest.mark.parametrize("encoded", ["sample", "mean"])
@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_samples_are_enough(encoded: Any, count: int) -> None:
    few = Client("few", np.arange(count))
    found = sent(finished(toy_vae(), client=few), LatentDiscrepancy(encoded))
    assert 0 < found["d"] < 10
    assert found["n"] == count


def test_images_that_are_all_the_same_have_no_active_dimension() -> None:
    module = toy_vae()
    same = FEDERATION.x[:1].expand(len(FEDERATION.x), -1)
    with torch.no_grad():
        code = module.encoder(same[:1])[0, :2]
    found = sent(finished(module, x=same), LatentDiscrepancy("mean"))
    expected = float(w1_to_normal(code[None]).mean())
    assert found["d"] == pytest.approx(expected, abs=1e-6)
    assert found["active"] == 0.0


def test_a_collapsed_dimension_is_not_counted() -> None:
    module = toy_vae(latent=3)
    with torch.no_grad():
        module.get_parameter("encoder.2.weight")[:3] *= 5.0
        module.get_parameter("encoder.2.weight")[1] = 0.0
    assert sent(finished(module))["active"] == 2.0
    spread = torch.tensor([[0.1, 0.0995, 5.0], [-0.1, -0.0995, 5.0]], dtype=torch.float64)
    assert active_dimensions(spread * 1.001) == 1


@pytest.mark.parametrize("rounds", range(9))
def test_with_every_only_each_so_many_rounds_are_measured(rounds: int) -> None:
    clock = {"clock": {"rounds": torch.tensor(rounds)}}
    reported = LatentDiscrepancy(every=3).report(finished(toy_vae(), broadcast=clock))
    assert bool(reported.sends) == (rounds in (3, 6))


def test_impossible_measurements_get_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^encoded must be 'sample' or 'mean', not 'both'\.$"):
        LatentDiscrepancy("both")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"^every must be a whole number of at least 1 or none, not 0\.$"
    ):
        LatentDiscrepancy(every=0)


def test_codes_and_drawings_are_made_in_portions_as_if_at_once() -> None:
    module = toy_vae()
    bound = Bound(module, copied(module.state_dict()))
    x = torch.randn(2_100, 6, generator=torch.Generator().manual_seed(2))
    mean, deviation = describe_codes(bound, x)
    with torch.no_grad():
        expected_mean, log_variance = module.encoder(x).chunk(2, dim=1)
        torch.testing.assert_close(mean, expected_mean)
        torch.testing.assert_close(deviation.square(), log_variance.exp())
        torch.testing.assert_close(decode(bound, mean), module(x))
        codes = torch.from_numpy(np.random.default_rng(5).standard_normal((7, 2), np.float32))
        drawn = from_prior(bound, 7, np.random.default_rng(5))
        torch.testing.assert_close(drawn, module.decoder(codes))


def test_the_loss_a_client_sends_is_that_of_its_trained_model() -> None:
    module, objective = toy_vae(), VaeLoss(99.0, eval_beta=0.5)
    trained = {name: t * 1.5 for name, t in module.state_dict().items()}
    given = finished(
        module, trained=trained, received={name: t * math.nan for name, t in trained.items()}
    )
    reported = LocalLoss(objective).report(given)
    moved = toy_vae()
    moved.load_state_dict(trained)
    own = FEDERATION.x[torch.from_numpy(FEDERATION.clients[3].train)]
    draws = torch.from_numpy(np.random.default_rng(0).standard_normal((41, 2), dtype=np.float32))
    with torch.no_grad():
        mean, log_variance = moved.encoder(own).chunk(2, dim=1)
        codes = Normal(mean, (log_variance / 2).exp())
        error = (moved.decoder(codes.loc + codes.scale * draws) - own).square().sum(dim=1)
        divergence = kl_divergence(codes, Normal(0.0, 1.0)).sum(dim=1)
    expected = float((error + 0.5 * divergence).mean())
    assert float(reported.sends["loss"]["mean"]) == pytest.approx(expected, rel=1e-5)


def test_weights_by_loss_are_in_proportion_to_its_inverse() -> None:
    """1/2, 1/4 and 1/8 in all 7/8: 4/7, 2/7 and 1/7; sizes do not matter."""
    updates = [
        Update(c, {}, size, 1, {"loss": {"mean": torch.tensor(loss, dtype=torch.float64)}})
        for c, size, loss in (("a", 1, 2.0), ("b", 50, 4.0), ("c", 7, 8.0))
    ]
    state = ServerState({})
    found, notes = normalised(ByLoss(), updates, state)
    assert found == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert notes == ()
    measured = ByLoss().measured(updates, found, state)
    assert measured == {u.client: {"weight": w} for u, w in zip(updates, found, strict=True)}


def test_a_loss_that_is_no_number_falls_back_to_sizes() -> None:
    updates = [
        Update(c, {}, size, 1, {"loss": {"mean": torch.tensor(loss, dtype=torch.float64)}})
        for c, size, loss in (("a", 1, math.nan), ("b", 3, 4.0))
    ]
    found, notes = normalised(ByLoss(), updates, ServerState({}))
    assert found == [0.25, 0.75]
    assert notes == ("no usable aggregation weight: fell back to weights by size",)


def moved_to(client: str, value: float, size: int, d: float | None) -> Update:
    numbers = {} if d is None else {"d": torch.tensor(d, dtype=torch.float64)}
    reports = {"discrepancy": numbers} if numbers else {}
    return Update(client, {"w": torch.tensor([value])}, size, 1, reports)


def test_a_server_remembers_discrepancies_and_counts_its_rounds() -> None:
    """Sizes 1 and 3 until somebody is measured; then α = 1: 1/4 - 0.2 and 3/4 - 0.35, so 1/9 and
    8/9; in the last round ann is measured anew and bob's 0.35 is remembered: 1/4 and 2/5."""
    server = RememberingMean(ByDiscrepancy(1.0, 0.0, False))
    assert server.broadcasts == ("clock",)
    first = ServerState({"w": torch.zeros(1)}, memory=server.start(opening({}, "ann", "bob")))
    seen = []
    state = first
    for d_ann, d_bob in ((None, None), (0.2, 0.35), (None, None), (0.0, None)):
        updates = [moved_to("ann", 0.0, 1, d_ann), moved_to("bob", 1.0, 3, d_bob)]
        state = server.aggregate(state, updates, 2)
        seen.append((int(state.memory["clock"]["rounds"]), float(state.shared["w"])))
    assert [count for count, _ in seen] == [1, 2, 3, 4]
    assert [w for _, w in seen] == pytest.approx([3 / 4, 8 / 9, 8 / 9, 0.4 / 0.65])
    assert {n: float(v) for n, v in state.memory["discrepancy"].items()} == pytest.approx(
        {"ann/d": 0.0, "bob/d": 0.35}
    )
    assert int(first.memory["clock"]["rounds"]) == 0
    assert "discrepancy" not in first.memory
