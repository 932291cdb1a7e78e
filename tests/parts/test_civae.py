"""The CI-VAE's loss against numpy and finite differences, and the steps of its servers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Tensors, assert_same_bits, copied, toy_civae, toy_federation
from numpy.typing import NDArray
from scipy.special import log_softmax

from fedskew.errors import ConfigError
from fedskew.models.civae import Civae
from fedskew.parts.aggregate import (
    BySize,
    Mean,
    MeanAndVolunteer,
    ServerState,
    Uniform,
    Update,
)
from fedskew.parts.civae import CivaeLoss
from fedskew.parts.generative import VaeLoss
from fedskew.parts.objective import Batch, Bound, ranked_by
from fedskew.parts.scores import ANSWERS
from fedskew.parts.step import LearningRate, Reptile, stepped
from fedskew.problem import CLASSIFICATION

Array = NDArray[np.float64]
FEDERATION = toy_federation()
X, Y = FEDERATION.x[:9], FEDERATION.y[:9]
NOISE = torch.randn(9, 2, generator=torch.Generator().manual_seed(4))


def crooked() -> Civae:
    """The toy model with biases that are not nought: who counts them is found out."""
    module = toy_civae()
    with torch.no_grad():
        for k, parameter in enumerate(module.parameters()):
            if parameter.ndim == 1:
                parameter.copy_(torch.linspace(-0.4, 0.5, len(parameter)) + 0.01 * k)
    return module


def batch(mask: Any = None, weight: Any = None, noise: Any = NOISE, count: int = 9) -> Batch:
    mask = torch.ones(count) if mask is None else torch.tensor(mask)
    weight = mask if weight is None else torch.tensor(weight)
    return Batch(X[:count], Y[:count], mask, weight, {"codes": noise[:count]})


def as_arrays(module: Civae) -> dict[str, Array]:
    return {name: t.double().numpy().copy() for name, t in module.state_dict().items()}


def by_numpy(w: dict[str, Array], objective: CivaeLoss, drawn: bool = True) -> dict[str, Array]:
    """Every sample's terms, written down from their definitions in float64."""

    def layer(part: str, x: Array) -> Array:
        return x @ w[f"{part}.weight"].T + w[f"{part}.bias"]

    x, rows = X.double().numpy(), np.arange(9)
    found = layer("encoder.2", np.tanh(layer("encoder.0", x)))
    mean, variance = found[:, :2], np.exp(found[:, 2:])
    codes = mean + objective.scale * np.sqrt(variance) * NOISE.double().numpy() if drawn else mean
    read = mean if drawn and objective.classifies == "mean" else codes
    logs = log_softmax(layer("classifier", read), axis=1)
    errors = (layer("decoder.2", np.tanh(layer("decoder.0", codes))) - x) ** 2
    divergences = (mean**2 + variance - 1 - np.log(variance)) / 2
    shrunk = {"sum": lambda values: values.sum(1), "mean": lambda values: values.mean(1)}
    return {
        "reconstruction": shrunk[objective.reconstruction](errors),
        "kl": shrunk[objective.kl](divergences),
        "wrong": -logs[rows, Y.numpy()],
        "confidence": np.exp(logs.max(1)),
        "predicted": logs.argmax(1).astype(np.float64),
    }


def total(terms: dict[str, Array], objective: CivaeLoss) -> Array:
    weighed = objective.beta * terms["kl"] + objective.alpha * terms["wrong"]
    return terms["reconstruction"] + weighed


def length(w: dict[str, Array], reduction: str) -> float:
    weights = np.concatenate([np.abs(t).ravel() for n, t in w.items() if n.endswith("weight")])
    return float(weights.sum() if reduction == "sum" else weights.mean())


def plain_loss(w: dict[str, Array], objective: CivaeLoss) -> float:
    data = float(total(by_numpy(w, objective), objective).mean())
    return data + objective.l1 * length(w, objective.l1_reduction)


def by_differences(module: Civae, objective: CivaeLoss) -> dict[str, Array]:
    """The gradient of the plain loss, number by number."""
    w, step = as_arrays(module), 1e-6
    gradients = {name: np.zeros_like(t) for name, t in w.items()}
    for name, tensor in w.items():
        for place in np.ndindex(tensor.shape):
            here = tensor[place]
            tensor[place] = here + step
            above = plain_loss(w, objective)
            tensor[place] = here - step
            gradients[name][place] = (above - plain_loss(w, objective)) / (2 * step)
            tensor[place] = here
    return gradients


def gradient(module: Civae, objective: CivaeLoss, **given: Any) -> tuple[Tensors, float]:
    found, loss, _ = objective.gradient(module, copied(module.state_dict()), {}, batch(**given), {})
    return found, float(loss)


def scores(module: Civae, objective: CivaeLoss) -> Tensors:
    return objective.scores(Bound(module, copied(module.state_dict())), batch())


@pytest.mark.parametrize("classifies", ["sample", "mean"])
@pytest.mark.parametrize("kl", ["sum", "mean"])
@pytest.mark.parametrize("reconstruction", ["sum", "mean"])
@pytest.mark.parametrize(
    "others",
    [
        {},
        {"beta": 0.4, "alpha": 0.7, "scale": 1.0},
        {"scale": 0.0, "l1": 0.1},
        {"alpha": 0.0, "l1": 0.3, "l1_reduction": "mean"},
    ],
    ids=["thesis", "weighed", "l1", "mean-l1"],
)
def test_the_loss_and_its_gradient_are_those_of_a_plain_computation(
    others: dict[str, Any], reconstruction: Any, kl: Any, classifies: Any
) -> None:
    objective = CivaeLoss(reconstruction=reconstruction, kl=kl, classifies=classifies, **others)
    module = crooked()
    found, loss = gradient(module, objective)
    assert loss == pytest.approx(plain_loss(as_arrays(module), objective), rel=1e-5)
    for name, expected in by_differences(module, objective).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-3, atol=2e-5, err_msg=name)


def test_the_defaults_are_the_thesis_code() -> None:
    """Summed squares + KL averaged over the codes' dimensions + 3·CE, deviations halved."""
    objective = CivaeLoss()
    assert (objective.beta, objective.alpha, objective.l1, objective.scale) == (1.0, 3.0, 0.0, 0.5)
    assert (objective.reconstruction, objective.kl, objective.classifies) == (
        "sum", "mean", "sample",
    )  # fmt: skip
    assert ranked_by(objective, CLASSIFICATION) == ("accuracy", True)
    assert objective.noise(toy_civae(latent=5), 4) == {"codes": (4, 5)}


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("kl", ["sum", "mean"])
@pytest.mark.parametrize("reconstruction", ["sum", "mean"])
def test_scores_are_those_of_the_mean_code_or_of_a_drawn_one(
    reconstruction: Any, kl: Any, sampled: bool
) -> None:
    """Lengths of weights are no score, and a drawn code is drawn for both its readers."""
    objective = CivaeLoss(
        0.4, 0.7, 5.0, reconstruction=reconstruction, kl=kl, classifies="mean", sampled=sampled
    )
    module = crooked()
    found = scores(module, objective)
    drawn_for_all = CivaeLoss(0.4, 0.7, 5.0, reconstruction=reconstruction, kl=kl)
    terms = by_numpy(as_arrays(module), drawn_for_all, drawn=sampled)
    expected = {
        "loss": total(terms, objective),
        "accuracy": terms["predicted"] == Y.numpy(),
        "label": Y.numpy(),
        **{name: terms[name] for name in ("reconstruction", "kl", "confidence", "predicted")},
    }
    answers = found.pop("output").max(dim=1)
    found |= {"confidence": answers.values, "predicted": answers.indices}
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


def test_drawn_scores_differ_from_those_of_means_and_a_scale_of_nought_draws_none() -> None:
    module = crooked()
    mean, drawn = scores(module, CivaeLoss()), scores(module, CivaeLoss(sampled=True))
    still = scores(module, CivaeLoss(sampled=True, scale=0.0))
    assert float((mean["output"] - drawn["output"]).abs().max()) > 1e-3
    assert_same_bits(mean, still)


def test_a_clients_scores_are_means_and_a_macro_f1() -> None:
    values = {n: v.to(torch.float64) for n, v in scores(crooked(), CivaeLoss()).items()}
    found = CivaeLoss().summed(values)
    assert found.keys() == {"loss", "accuracy", "reconstruction", "kl", "macro_f1"}
    assert not set(ANSWERS) & found.keys()
    assert found["kl"] == pytest.approx(float(values["kl"].mean()))


def test_a_classifier_of_mean_codes_feels_no_noise_and_the_decoder_does() -> None:
    one, _ = gradient(crooked(), CivaeLoss(classifies="mean"))
    other, _ = gradient(crooked(), CivaeLoss(classifies="mean"), noise=-NOISE)
    assert torch.equal(one["classifier.weight"], other["classifier.weight"])
    assert not torch.allclose(one["decoder.0.weight"], other["decoder.0.weight"], atol=1e-3)
    drawn, _ = gradient(crooked(), CivaeLoss(), noise=-NOISE)
    assert not torch.allclose(one["classifier.weight"], drawn["classifier.weight"], atol=1e-3)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_lengths_pull_every_weight_to_nought_and_no_bias(reduction: Any) -> None:
    """λ·sign(w), over the number of weights for their mean: 30 + 20 + 10 + 30 + 6."""
    module = crooked()
    without, _ = gradient(module, CivaeLoss())
    pulled, _ = gradient(module, CivaeLoss(l1=0.2, l1_reduction=reduction))
    each = 0.2 if reduction == "sum" else 0.2 / 96
    for name, tensor in module.state_dict().items():
        expected = each * tensor.sign() if name.endswith("weight") else torch.zeros_like(tensor)
        torch.testing.assert_close(
            pulled[name] - without[name], expected, rtol=1e-3, atol=3e-6, msg=name
        )


@pytest.mark.parametrize("l1", [0.0, 0.2])
def test_parts_that_are_frozen_get_no_gradient_and_change_nobody_elses(l1: float) -> None:
    module, objective = crooked(), CivaeLoss(l1=l1)
    whole, loss = gradient(module, objective)
    tensors = copied(module.state_dict())
    frozen = {n: t for n, t in tensors.items() if n.startswith("classifier.")}
    moving = {n: t for n, t in tensors.items() if n not in frozen}
    found, same, _ = objective.gradient(module, moving, frozen, batch(), {})
    assert float(same) == pytest.approx(loss)
    assert found.keys() == moving.keys()
    torch.testing.assert_close(found, {n: whole[n] for n in moving})


def test_without_alpha_and_with_whole_deviations_it_is_a_plain_vae() -> None:
    module = crooked()
    found, loss = gradient(module, CivaeLoss(beta=0.7, alpha=0.0, scale=1.0, kl="sum"))
    plain, value, _ = VaeLoss(beta=0.7).gradient(
        module, copied(module.state_dict()), {}, batch(), {}
    )
    assert loss == pytest.approx(float(value))
    assert not found["classifier.weight"].any()
    assert not found["classifier.bias"].any()
    torch.testing.assert_close(found, plain)


def test_padding_counts_for_nothing_and_weights_scale_a_samples_loss() -> None:
    module, objective = crooked(), CivaeLoss(l1=0.1)
    each = total(by_numpy(as_arrays(module), objective), objective)
    pull = 0.1 * length(as_arrays(module), "sum")
    mask = [1.0] * 6 + [0.0] * 3
    weight = [0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 0.0, 0.0, 0.0]
    padded, loss = gradient(module, objective, mask=mask)
    assert loss == pytest.approx(each[:6].mean() + pull, rel=1e-5)
    _, weighed = gradient(module, objective, mask=mask, weight=weight)
    assert weighed == pytest.approx((each * weight).sum() / 6 + pull, rel=1e-5)
    torch.testing.assert_close(padded, gradient(module, objective, count=6)[0])


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"beta": -1.0}, "beta must be a number of at least 0, not -1.0."),
        ({"alpha": math.nan}, "alpha must be a number of at least 0, not nan."),
        ({"l1": -0.1}, "l1 must be a number of at least 0, not -0.1."),
        ({"scale": math.inf}, "scale must be a number of at least 0, not inf."),
        ({"reconstruction": "max"}, "reconstruction must be 'sum' or 'mean', not 'max'."),
        ({"kl": None}, "kl must be 'sum' or 'mean', not None."),
        ({"l1_reduction": "l2"}, "l1_reduction must be 'sum' or 'mean', not 'l2'."),
        ({"classifies": "both"}, "classifies must be 'sample' or 'mean', not 'both'."),
    ],
)
def test_impossible_losses_get_one_sentence(knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        CivaeLoss(**knobs)
    assert str(raised.value) == says


def updates(*names: str) -> list[Update]:
    """Models of two parts and a statistic, of clients with 1, 2, 3, ... samples."""
    generator = torch.Generator().manual_seed(0)
    return [
        Update(
            name,
            {n: torch.randn(2, 3, generator=generator)
             for n in ("encoder.w", "encoders.w", "decoder.w", "classifier.w", "statistic")},
            size=k + 1,
            steps=1,
        )
        for k, name in enumerate(names)
    ]  # fmt: skip


def state(round_number: int = 1) -> ServerState:
    shared = {n: torch.full((2, 3), 0.5) for n in updates("ann")[0].tensors}
    return ServerState(shared, buffers=frozenset({"statistic"}), round=round_number)


@pytest.mark.parametrize("weighting", [Uniform(), BySize()])
def test_a_reptile_server_goes_a_part_of_the_way_and_takes_statistics_as_they_are(
    weighting: Any,
) -> None:
    sent, before = updates("ann", "bob", "cat"), state(3)
    shares = [1 / 3] * 3 if isinstance(weighting, Uniform) else [1 / 6, 2 / 6, 3 / 6]
    target = Mean(weighting).aggregate(before, sent, 3)
    found = stepped(Reptile(0.35, decay=0.9), before, target).shared
    for name, tensor in found.items():
        mean = sum(p * u.tensors[name].double() for p, u in zip(shares, sent, strict=True))
        step = 1.0 if name == "statistic" else 0.35 * 0.9**2
        np.testing.assert_allclose(tensor, 0.5 + step * (np.asarray(mean) - 0.5), rtol=1e-5)


def test_a_volunteer_shows_its_own_part_whatever_order_updates_come_in() -> None:
    """The first by name, here the second to answer; nothing else of it is taken as it is."""
    sent = updates("bob", "ann", "cat")
    found = MeanAndVolunteer(volunteers=("encoder",)).aggregate(state(), sent, 3).shared
    mean = Mean().aggregate(state(), sent, 3).shared
    assert torch.equal(found["encoder.w"], sent[1].tensors["encoder.w"])
    assert_same_bits({**found, "encoder.w": mean["encoder.w"]}, mean)
    nobody = MeanAndVolunteer().aggregate(state(), sent, 3).shared
    assert_same_bits(nobody, mean)


def test_a_server_that_goes_half_of_the_way_shows_the_volunteers_part_whole() -> None:
    sent, before = updates("bob", "ann", "cat"), state()
    target = MeanAndVolunteer(volunteers=("encoder",)).aggregate(before, sent, 3)
    found = stepped(LearningRate(0.5), before, target)
    assert torch.equal(found.shared["encoder.w"], sent[1].tensors["encoder.w"])
    mean = Mean().aggregate(before, sent, 3).shared["decoder.w"]
    np.testing.assert_allclose(found.shared["decoder.w"], 0.25 + mean / 2, rtol=1e-6)
    assert found.unstepped == frozenset()
