"""MADEs are densities: no output sees what it describes, all adds up to one, and samples agree."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import integrate, stats
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from fedskew.errors import ConfigError
from fedskew.models import build, seeded
from fedskew.models.made import LEAST_LOG_SCALE, MOST_LOG_ODDS, Made, MaskedLinear

both_kinds = pytest.mark.parametrize("name", ["made", "gaussian-made"])
both_orders = pytest.mark.parametrize("shuffled", [False, True])
Grid = NDArray[np.float64]


def drawn(name: str, inputs: int, seed: int = 1, scale: float = 4.0, **knobs: Any) -> Made:
    """A model whose inputs depend on each other: weights so many times what layers begin with."""
    model = seeded(name, (inputs,), 3, seed=seed, **knobs)
    assert isinstance(model, Made)
    for parameter in model.parameters():
        parameter.requires_grad_(False).mul_(scale)
    return model


def log_density(model: Made, x: Tensor) -> Tensor:
    return model.log_conditionals(model(x), x).double().sum(dim=1)


def patterns(inputs: int) -> Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=inputs)))


@both_kinds
@both_orders
@pytest.mark.parametrize("hidden", [[40], [40, 40, 40]])
def test_an_output_depends_on_earlier_inputs_and_on_no_other(
    name: str, shuffled: bool, hidden: list[int]
) -> None:
    model = drawn(name, 7, hidden=hidden, shuffled=shuffled)
    assert sorted(model.order) == list(range(7))
    assert (model.order == list(range(7))) is not shuffled
    x = torch.randn(30, 7, generator=torch.Generator().manual_seed(2))
    depends = torch.zeros(7, 7, dtype=torch.bool)
    for sample in x:
        depends |= (jacrev(lambda s: model(s[None])[0])(sample) != 0).any(dim=0)
    for place, described in enumerate(model.order):
        assert not depends[described, model.order[place:]].any()
        assert depends[described, model.order[:place]].any() or place == 0


@both_orders
@pytest.mark.parametrize("binarise", [False, True])
@pytest.mark.parametrize(("inputs", "hidden"), [(1, [3]), (2, [5]), (6, [9, 7]), (10, [30])])
def test_probabilities_of_all_binary_samples_add_up_to_one(
    inputs: int, hidden: list[int], shuffled: bool, binarise: bool
) -> None:
    model = drawn("made", inputs, hidden=hidden, shuffled=shuffled, binarise=binarise)
    chances = log_density(model, patterns(inputs)).exp()
    assert float(chances.sum()) == pytest.approx(1.0, abs=1e-6)
    assert inputs == 1 or float(chances.std()) > 0.1 / len(chances)


def test_binarised_samples_count_as_what_they_are_rounded_to() -> None:
    model = drawn("made", 4, binarise=True)
    grey = torch.tensor([[0.3, 0.7, 0.5, 0.51]])
    torch.testing.assert_close(
        log_density(model, grey), log_density(model, torch.tensor([[0.0, 1.0, 0.0, 1.0]]))
    )


def plane(model: Made, reach: float = 25.0, steps: int = 1001) -> tuple[Grid, Grid]:
    """A line of values, and the density of a model of two inputs at all pairs.

    Deviations must be neither below a step nor near the reach: mind the scale of the weights.
    """
    line = np.linspace(-reach, reach, steps)
    pairs = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    density = log_density(model, torch.from_numpy(pairs).float()).exp()
    return line, density.numpy().reshape(steps, steps)


def over_plane(line: Grid, values: Grid) -> float:
    return float(integrate.simpson(integrate.simpson(values, x=line, axis=1), x=line))


def test_a_density_of_one_real_input_integrates_to_one() -> None:
    model = drawn("gaussian-made", 1)

    def density(x: float) -> float:
        return float(log_density(model, torch.tensor([[x]])).exp())

    total, _ = integrate.quad(density, -60.0, 60.0, limit=200, points=[0.0])
    assert total == pytest.approx(1.0, abs=1e-5)


@both_orders
@pytest.mark.parametrize("hidden", [[8], [8, 8]])
def test_a_density_of_two_real_inputs_integrates_to_one(shuffled: bool, hidden: list[int]) -> None:
    model = drawn("gaussian-made", 2, scale=1.5, hidden=hidden, shuffled=shuffled, components=2)
    line, density = plane(model)
    assert over_plane(line, density) == pytest.approx(1.0, abs=1e-4)


@both_orders
def test_binary_samples_are_as_frequent_as_the_model_says(shuffled: bool) -> None:
    model = drawn("made", 6, hidden=[20, 20], shuffled=shuffled)
    count = 50_000
    found = model.sample(count, np.random.default_rng(4))
    code = (found @ (2.0 ** torch.arange(5, -1, -1))).long()
    expected = count * log_density(model, patterns(6)).exp().numpy()
    observed = torch.bincount(code, minlength=64).numpy()
    often = expected > 5
    test = stats.chisquare(
        [*observed[often], observed[~often].sum() + 1e-9],
        [*expected[often], count - expected[often].sum() + 1e-9],
    )
    assert often.sum() > 20
    assert test.pvalue > 1e-3


@both_orders
def test_real_samples_have_the_moments_of_the_density(shuffled: bool) -> None:
    model = drawn("gaussian-made", 2, scale=1.5, hidden=[8], shuffled=shuffled, components=2)
    line, density = plane(model)
    first, second = np.meshgrid(line, line, indexing="ij")
    found = model.sample(100_000, np.random.default_rng(5)).double().numpy()
    for values, of_samples in (
        (first, found[:, 0]), (second, found[:, 1]), (first * second, found.prod(axis=1)),
        (first**2, found[:, 0] ** 2), (second**2, found[:, 1] ** 2),
    ):  # fmt: skip
        error = of_samples.std() / math.sqrt(len(found))
        expected = over_plane(line, density * values)
        assert of_samples.mean() == pytest.approx(expected, abs=4.5 * error + 1e-3)


def test_samples_have_the_shape_of_what_the_model_was_shown() -> None:
    model = build("made", (2, 3, 4), 10)
    assert isinstance(model, Made)
    found = model.sample(5, np.random.default_rng(0))
    assert found.shape == (5, 2, 3, 4)
    assert set(found.flatten().tolist()) <= {0.0, 1.0}


@both_kinds
def test_means_are_those_of_samples_given_the_same_earlier_inputs(name: str) -> None:
    """The first input has no earlier ones: its mean is that of all samples."""
    model = drawn(name, 3, hidden=[16])
    found = model.sample(50_000, np.random.default_rng(6))[:, 0].double()
    mean = float(model.means(model(torch.zeros(1, 3)))[0, 0])
    assert float(found.mean()) == pytest.approx(mean, abs=4.5 * float(found.std()) / 223.6)


def masks(model: torch.nn.Module) -> list[Tensor]:
    return [layer.mask for layer in model.modules() if isinstance(layer, MaskedLinear)]


@both_kinds
@both_orders
def test_everybody_has_the_same_masks_whatever_the_seed_of_the_weights(
    name: str, shuffled: bool
) -> None:
    one, other = (drawn(name, 9, seed, hidden=[12, 11], shuffled=shuffled) for seed in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(masks(one), masks(other), strict=True))
    assert one.order == other.order
    assert not torch.equal(one.output.weight, other.output.weight)
    assert not any("mask" in entry for entry in one.state_dict())
    third = drawn(name, 9, hidden=[12, 11], shuffled=shuffled, mask_seed=2)
    assert not all(torch.equal(a, b) for a, b in zip(masks(one), masks(third), strict=True))


@pytest.mark.parametrize(
    ("shape", "hidden", "weights", "biases"),
    [((1, 28, 28), 30, 47_040, 814), ((1024,), 50, 102_400, 1_074)],
)
def test_mades_have_the_published_sizes(
    shape: tuple[int, ...], hidden: int, weights: int, biases: int
) -> None:
    """784 or 1024 inputs, so many hidden units, as many outputs as inputs."""
    parameters = dict(build("made", shape, 10, hidden=[hidden]).named_parameters())
    assert sum(p.numel() for n, p in parameters.items() if n.endswith("weight")) == weights
    assert sum(p.numel() for n, p in parameters.items() if n.endswith("bias")) == biases


def test_the_default_is_the_one_hidden_layer_of_the_paper() -> None:
    assert sum(p.numel() for p in build("made", (784,), 10).parameters()) == 47_040 + 814


def test_a_single_bit_is_its_bias_whatever_is_asked() -> None:
    model = drawn("made", 1)
    asked = model(torch.tensor([[0.0], [1.0], [0.4]]))
    assert torch.equal(asked, model.output.bias.expand(3, 1, 1))
    chance = 1 / (1 + math.exp(-float(model.output.bias)))
    assert float(log_density(model, torch.ones(1, 1)).exp()) == pytest.approx(chance, rel=1e-5)


def test_grey_inputs_cost_their_binary_cross_entropy() -> None:
    model = drawn("made", 12, shuffled=True)
    x = torch.rand(8, 12, generator=torch.Generator().manual_seed(7))
    chances = model(x)[:, 0].sigmoid()
    expected = F.binary_cross_entropy(chances, x, reduction="none").sum(dim=1)
    torch.testing.assert_close(-log_density(model, x).float(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.means(model(x)), chances)


def test_a_pixel_that_was_always_black_has_a_least_chance_of_being_white() -> None:
    model = drawn("made", 5)
    model.output.bias[2] = -1e6
    each = model.log_conditionals(model(torch.ones(1, 5)), torch.ones(1, 5))
    assert float(each[0, 2]) == pytest.approx(-MOST_LOG_ODDS, abs=1e-5)
    assert torch.isfinite(each).all()
    assert model.sample(100, np.random.default_rng(0))[:, 2].sum() == 0


def test_a_feature_that_never_varies_has_a_largest_density() -> None:
    model = drawn("gaussian-made", 3, components=1)
    model.output.weight.zero_()
    # The biases are the log share, the mean and the log deviation of each of three features.
    model.output.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 7.0, 0.0, 0.0, -1e6, 0.0, 0.0]))
    x = torch.tensor([[7.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    each = model.log_conditionals(model(x), x)[:, 0]
    most = -LEAST_LOG_SCALE - 0.5 * math.log(2 * math.pi)
    assert each.tolist() == pytest.approx([most, most - 0.5 * 200.0**2], rel=1e-5)


@both_kinds
def test_a_stack_of_models_computes_what_each_does_alone(name: str) -> None:
    models = [drawn(name, 6, seed, hidden=[9, 8], shuffled=True) for seed in range(3)]
    x = torch.rand(3, 5, 6, generator=torch.Generator().manual_seed(8))
    states = [dict(model.named_parameters()) for model in models]
    stacked = {n: torch.stack([state[n] for state in states]) for n in states[0]}
    module = models[0]

    def density(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return module.log_conditionals(functional_call(module, tensors, (x,)), x)

    alone = torch.stack([m.log_conditionals(m(x[i]), x[i]) for i, m in enumerate(models)])
    torch.testing.assert_close(vmap(density)(stacked, x), alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "knobs", "says"),
    [
        ("made", {"hidden": []}, "a MADE needs at least one hidden layer, like hidden = [30]."),
        (
            "made",
            {"hidden": [30, 0]},
            "hidden of model 'made' must be a list of whole numbers of at least 1, not [30, 0].",
        ),
        (
            "made",
            {"mask_seed": 0},
            "mask_seed of model 'made' must be a whole number of at least 1, not 0.",
        ),
        ("made", {"shuffled": 1}, "shuffled of model 'made' must be true or false, not 1."),
        ("made", {"binarise": "yes"}, "binarise of model 'made' must be true or false, not 'yes'."),
        ("made", {"components": 2}, "components"),
        (
            "gaussian-made",
            {"components": 0},
            "components of model 'gaussian-made' must be a whole number of at least 1, not 0.",
        ),
        ("gaussian-made", {"binarise": True}, "binarise"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(
    name: str, knobs: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        build(name, (6,), 2, **knobs)
    assert says in str(raised.value)
    assert str(raised.value).endswith(".")
