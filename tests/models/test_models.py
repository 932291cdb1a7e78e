"""Sizes against the papers' own counts, the split into parts, and what bad settings are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedskew.errors import ConfigError
from fedskew.models import Classifier, Vae, build, redrawn, seeded
from fedskew.models.civae import CIVAE, Civae
from fedskew.models.made import Made, MaskedLinear
from fedskew.models.registry import CLASSIFIER, MADE, MODELS

GREY = (1, 28, 28)
COLOUR = (3, 32, 32)

SMALL: dict[str, dict[str, Any]] = {
    "resnet18": {"width": 4},
    "femnist-cnn": {"k": 4},
    "beta-vae": {"hidden": [8, 7]},
    "conv-vae": {"latent": 3},
}
OF_NUMBERS = sorted(name for name, entry in MODELS.items() if not entry.kinds)
"""Those that take images; of models of sequences, see test_sequences.py."""
CLASSIFIERS = [name for name in OF_NUMBERS if MODELS[name].parts == CLASSIFIER]
VAES = sorted(name for name, entry in MODELS.items() if entry.parts == ("encoder", "decoder"))
CIVAES = sorted(name for name, entry in MODELS.items() if entry.parts == CIVAE)
MADES = sorted(name for name, entry in MODELS.items() if entry.parts == MADE)
RUNNING_STATISTICS = {"cnn-bn", "resnet18"}
STACKABLE = [
    (name, knobs)
    for name, knobs in [
        *((name, SMALL.get(name, {})) for name in OF_NUMBERS),
        ("cnn-groupnorm", {"deep": True}),
    ]
    if name not in RUNNING_STATISTICS
]


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "knobs", "expected"),
    [
        ("logistic", GREY, 10, {}, 784 * 10 + 10),
        ("mlp", GREY, 10, {}, 785 * 200 + 201 * 200 + 201 * 10),
        ("mlp", GREY, 10, {"hidden": []}, 7_850),
        ("har-mlp", (144,), 6, {}, 27_206),
        ("cnn", GREY, 10, {}, 582_026),
        ("cnn", COLOUR, 10, {}, 2_432 + 51_264 + 1_601 * 512 + 5_130),
        ("femnist-cnn", GREY, 10, {"k": 16}, 86_166),
        ("femnist-cnn", GREY, 10, {}, 180_438),
        ("cnn-babu", COLOUR, 10, {}, 28 * 64 + 3 * 577 * 64 + 4 * 128 + 257 * 10),
        ("cnn-babu", GREY, 10, {}, 10 * 64 + 3 * 577 * 64 + 4 * 128 + 65 * 10),
        ("cnn-bn", GREY, 10, {}, 11_114),
        ("cnn-bn", GREY, 62, {"channels": 128}, 446_894),
        ("cnn-bn", (1, 32, 32), 2, {"channels": 32}, 39_314),
        ("cnn-bn", GREY, 10, {"affine": True}, 11_114 + 2 * 2 * 16),
        ("cnn-groupnorm", (3, 28, 28), 10, {}, 77_322 - 128),
        (
            "cnn-groupnorm",
            (3, 28, 28),
            10,
            {"deep": True},
            28 * 64 + 577 * 128 + 2 * 1_153 * 128 + 2 * (64 + 3 * 128) + 129 * 10,
        ),
        ("resnet18", COLOUR, 10, {}, 11_173_962),
        ("beta-vae", GREY, 10, {}, 1_068_820),
        ("beta-vae", (6,), 3, {"latent": 3, "hidden": [5]}, 7 * 5 + 6 * 6 + 4 * 5 + 6 * 6),
        ("conv-vae", COLOUR, 10, {}, 227_423),
        ("conv-vae", COLOUR, 10, {"latent": 10}, 227_423 - 118 * (2 * 577 + 576)),
    ],
)
def test_sizes_are_those_of_the_papers(
    name: str, shape: tuple[int, ...], classes: int, knobs: dict[str, Any], expected: int
) -> None:
    assert size(build(name, shape, classes, **knobs)) == expected


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("shape", [GREY, COLOUR, (1, 16, 20)])
def test_logits_are_the_head_of_the_body(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 7, **SMALL.get(name, {})).eval()
    x = torch.randn(3, *shape)

    assert isinstance(model, Classifier)
    assert model.body(x).ndim == 2
    assert model(x).shape == (3, 7)
    torch.testing.assert_close(model(x), model.head(model.body(x)))


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_every_parameter_is_in_one_of_the_parts_the_model_is_registered_with(name: str) -> None:
    model = build(name, GREY, 10)
    parts = [child for child, _ in model.named_children()]

    assert parts == list(MODELS[name].parts)
    assert {parameter.split(".")[0] for parameter, _ in model.named_parameters()} <= set(parts)
    assert name in CLASSIFIERS + VAES + CIVAES + MADES


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_all_a_classifier_holds_outside_its_body_is_one_linear_layer(name: str) -> None:
    names = {parameter for parameter, _ in build(name, GREY, 10).named_parameters()}

    assert {n for n in names if not n.startswith("body.")} == {"head.weight", "head.bias"}
    assert any(n.startswith("body.") for n in names) == (name != "logistic")


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_nothing_works_in_place_and_only_batchnorm_has_buffers_that_travel(name: str) -> None:
    model = build(name, GREY, 10, **SMALL.get(name, {}))
    modules = list(model.modules())

    assert not any(getattr(module, "inplace", False) for module in modules)
    with_buffers = {type(m) for m in modules if list(m.buffers(recurse=False))}
    masks = {MaskedLinear} if name in MADES else set()
    assert with_buffers == ({nn.BatchNorm2d} if name in RUNNING_STATISTICS else masks)
    assert not any(entry.endswith("mask") for entry in model.state_dict())


def published_cnn(x: Tensor, w: list[Tensor]) -> Tensor:
    x = F.max_pool2d(F.relu(F.conv2d(x, w[0], w[1])), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, w[2], w[3])), 2)
    return F.linear(F.relu(F.linear(x.flatten(1), w[4], w[5])), w[6], w[7])


def published_babu(x: Tensor, w: list[Tensor]) -> Tensor:
    for i in range(0, 16, 4):
        x = F.conv2d(x, w[i], w[i + 1], padding=1)
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), False, keepdim=True)
        x = (x - mean) / (variance + 1e-5).sqrt()
        x = F.max_pool2d(F.relu(x * w[i + 2][:, None, None] + w[i + 3][:, None, None]), 2)
    return F.linear(x.flatten(1), w[16], w[17])


def published_bn(x: Tensor, w: list[Tensor]) -> Tensor:
    for i in (0, 2):
        x = F.max_pool2d(F.relu(F.conv2d(x, w[i], w[i + 1])), 2)
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), False, keepdim=True)
        x = (x - mean) / (variance + 1e-5).sqrt()
    return F.linear(F.relu(F.linear(x.flatten(1), w[4], w[5])), w[6], w[7])


def published_groupnorm(x: Tensor, w: list[Tensor]) -> Tensor:
    x = F.relu(F.conv2d(x, w[0], w[1], padding=1))
    x = F.relu(F.conv2d(x, w[2], w[3], padding=1))
    return F.linear(F.group_norm(x, 8, w[4], w[5]).mean((2, 3)), w[6], w[7])


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("cnn", published_cnn),
        ("femnist-cnn", published_cnn),
        ("cnn-babu", published_babu),
        ("cnn-bn", published_bn),
        ("cnn-groupnorm", published_groupnorm),
    ],
)
def test_networks_compute_what_the_papers_wrote_with_relu_before_pooling(
    name: str, published: Callable[[Tensor, list[Tensor]], Tensor]
) -> None:
    model = seeded(name, GREY, 10, seed=2)
    x = torch.randn(5, *GREY, generator=torch.Generator().manual_seed(3))

    torch.testing.assert_close(
        model(x), published(x, list(model.parameters())), rtol=1e-4, atol=1e-5
    )


def test_fedbabus_batchnorm_predicts_with_the_statistics_of_the_test_batch() -> None:
    model = seeded("cnn-babu", GREY, 10, seed=0).eval()
    x = torch.randn(6, *GREY)

    assert not torch.allclose(model(x)[:3], model(x[:3]), atol=1e-3)


class Loss(nn.Module):
    """A model with a loss that reaches all its parameters, those of log-variances too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.model, Made):
            return -self.model.log_conditionals(self.model(x), x).sum(dim=1).mean()
        if not isinstance(self.model, Vae):
            return F.cross_entropy(self.model(x), y)
        mean, log_variance = self.model.encoder(x).chunk(2, dim=1)
        codes = mean + 0.3 * (0.5 * log_variance).exp()
        loss = F.mse_loss(self.model.decoder(codes), x) + F.softplus(log_variance).mean()
        if isinstance(self.model, Civae):
            loss = loss + F.cross_entropy(self.model.classifier(codes), y)
        return loss


def stacked(
    name: str, knobs: dict[str, Any]
) -> tuple[Callable[..., dict[str, Tensor]], list[Loss], tuple[Any, Tensor, Tensor]]:
    """The gradient of one client, three clients' losses, and their stacked parameters and data."""
    losses = [Loss(seeded(name, GREY, 10, seed=client, **knobs)) for client in range(3)]

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = functional_call(losses[0], parameters, (x, y))
        return found

    named = [dict(loss.named_parameters()) for loss in losses]
    parameters = {key: torch.stack([n[key].detach() for n in named]) for key in named[0]}
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 4, *GREY, generator=generator)
    y = torch.randint(0, 10, (3, 4), generator=generator)
    return grad(loss), losses, (parameters, x, y)


@pytest.mark.parametrize(("name", "knobs"), STACKABLE)
def test_gradients_of_a_stack_of_clients_are_those_of_each_client(
    name: str, knobs: dict[str, Any]
) -> None:
    gradient, losses, (parameters, x, y) = stacked(name, knobs)
    together = vmap(gradient)(parameters, x, y)

    for client, loss in enumerate(losses):
        alone = torch.autograd.grad(loss(x[client], y[client]), list(loss.parameters()))
        for (key, _), expected in zip(loss.named_parameters(), alone, strict=True):
            torch.testing.assert_close(
                together[key][client], expected, rtol=1e-3, atol=1e-5, msg=key
            )


@pytest.mark.parametrize(("name", "knobs"), STACKABLE)
def test_traced_gradients_of_a_stack_hold_for_other_data(name: str, knobs: dict[str, Any]) -> None:
    gradient, _, (parameters, x, y) = stacked(name, knobs)
    traced = make_fx(vmap(gradient))(parameters, x, y)
    other = x.flip(0) * 2

    torch.testing.assert_close(
        traced(parameters, other, y), vmap(gradient)(parameters, other, y), rtol=1e-3, atol=1e-5
    )


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    first, again, other = (seeded("cnn", GREY, 10, seed=seed) for seed in (3, 3, 4))

    pairs = zip(first.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    pairs = zip(first.parameters(), other.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs)


def test_seeded_is_build_after_seeding_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = build("mlp", GREY, 10)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    model = seeded("mlp", GREY, 10, seed=5)

    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_a_model_drawn_again_is_another_draw_of_the_same_layers() -> None:
    model = seeded("beta-vae", GREY, 10, seed=3, hidden=[8])
    before = {name: t.clone() for name, t in model.state_dict().items()}
    generator = torch.get_rng_state()
    again = redrawn(model, seed=4)

    assert torch.equal(torch.get_rng_state(), generator)
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    other = seeded("beta-vae", GREY, 10, seed=4, hidden=[8]).state_dict()
    torch.testing.assert_close(again, dict(other), rtol=0, atol=0)
    assert not any(torch.equal(again[name], before[name]) for name in before)


def test_a_model_drawn_again_forgets_its_running_statistics() -> None:
    model = seeded("cnn-bn", GREY, 10, seed=3)
    model(torch.randn(4, *GREY))
    again = redrawn(model, seed=3)

    assert int(model.state_dict()["body.3.num_batches_tracked"]) == 1
    assert int(again["body.3.num_batches_tracked"]) == 0
    assert not again["body.3.running_mean"].any()


def test_a_layer_that_cannot_be_drawn_again_is_named_with_a_way_out() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(4))

    with pytest.raises(ConfigError) as raised:
        redrawn(Classifier(nn.Sequential(Shift()), nn.Linear(4, 2)), seed=0)
    assert str(raised.value) == (
        "layer 'body.0' (Shift) has no reset_parameters, so no further initial model "
        "can be drawn: give it one, or choose knobs with which all clients start from the same "
        "model (shared_start = true)."
    )


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", [n for n, entry in MODELS.items() if entry.min_side is not None])
def test_the_stated_smallest_image_is_exact(name: str) -> None:
    side = MODELS[name].min_side
    assert side is not None
    model = build(name, (1, side, side), 10, **SMALL.get(name, {})).eval()

    given = (1, side, side) if name in VAES else (10,)
    assert model(torch.randn(2, 1, side, side)).shape == (2, *given)
    with pytest.raises(ConfigError, match=f"at least {side}x{side} pixels"):
        build(name, (1, side, side - 1), 10)
    if side > 1:
        # Its pooling would take 3x3 pixels, but then its decoder could not draw them.
        refusal = ConfigError if name == "conv-civae" else RuntimeError
        with pytest.raises(refusal):
            MODELS[name].make((1, side - 1, side - 1), 10)(torch.randn(2, 1, side - 1, side - 1))


def test_images_too_small_for_a_network_are_told_which_models_take_them() -> None:
    with pytest.raises(ConfigError) as raised:
        build("cnn", (1, 8, 8), 10)

    assert str(raised.value) == (
        "model 'cnn' needs images of at least 16x16 pixels, but these are 8x8: "
        "choose from cnn-groupnorm, har-mlp, logistic, mlp, resnet18."
    )


def test_features_are_refused_by_networks_for_images() -> None:
    with pytest.raises(ConfigError, match=r"shape \(144,\): choose from har-mlp, logistic, mlp\.$"):
        build("femnist-cnn", (144,), 6)


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("resnet81", {}, "unknown model 'resnet81': did you mean 'resnet18'?"),
        ("mlp", {"hiden": [3]}, "unknown knob 'hiden' of model 'mlp': did you mean 'hidden'?"),
        ("cnn", {"k": 3}, "unknown knob 'k' of model 'cnn', which has none: remove it."),
        (
            "femnist-cnn",
            {"k": 0},
            "k of model 'femnist-cnn' must be a whole number of at least 1, not 0.",
        ),
        (
            "femnist-cnn",
            {"k": True},
            "k of model 'femnist-cnn' must be a whole number of at least 1, not True.",
        ),
        (
            "mlp",
            {"hidden": 200},
            "hidden of model 'mlp' must be a list of whole numbers of at least 1, not 200.",
        ),
        (
            "mlp",
            {"hidden": [8, -1]},
            "hidden of model 'mlp' must be a list of whole numbers of at least 1, not [8, -1].",
        ),
        (
            "cnn-groupnorm",
            {"deep": 1},
            "deep of model 'cnn-groupnorm' must be true or false, not 1.",
        ),
        ("beta-vea", {}, "unknown model 'beta-vea': did you mean 'beta-vae'?"),
        (
            "conv-vae",
            {"latent": 0},
            "latent of model 'conv-vae' must be a whole number of at least 1, not 0.",
        ),
    ],
)
def test_unknown_names_and_impossible_settings_are_named(
    name: str, knobs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        build(name, GREY, 10, **knobs)

    assert message in str(raised.value)


def test_every_model_is_registered_with_its_defaults() -> None:
    cards = dict(MODELS)

    assert sorted(cards) == [
        *("beta-vae", "cnn", "cnn-babu", "cnn-bn", "cnn-groupnorm", "conv-civae", "conv-vae"),
        *("conv1d", "dense-civae", "embedding", "femnist-cnn", "gaussian-made", "gru", "har-mlp"),
        *("logistic", "lstm", "made", "mlp", "resnet18", "transformer"),
    ]
    assert cards["beta-vae"].defaults == {"latent": 2, "hidden": (512, 256)}
    assert cards["conv-vae"].defaults == {"latent": 128}
    assert cards["conv-civae"].defaults == {"latent": 7}
    assert cards["dense-civae"].defaults == {
        "latent": 3, "hidden": (64, 32), "decoder_hidden": (16, 32, 64),
    }  # fmt: skip
    assert cards["mlp"].defaults == {"hidden": (200, 200)}
    assert cards["cnn-bn"].defaults == {"channels": 16, "affine": False}
    assert cards["logistic"].defaults == {}
    assert all(card.summary.endswith(".") for card in cards.values())
