"""Class-informed VAEs: their sizes, their parts, what each part computes, and who is refused."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.errors import ConfigError
from fedskew.models import build, seeded
from fedskew.models.civae import CIVAE, Civae
from fedskew.models.registry import MODELS
from fedskew.parts.civae import CivaeLoss
from fedskew.parts.objective import Batch, Bound

GREY = (1, 28, 28)
SENSORS = (144,)
CONV = {"encoder": 416 + 4640 + 1569 * 32, "decoder": 101 * 1568 + 9248 + 4624 + 17}
"""Parameters of the convolutional parts without the layers that touch the codes."""
KINDS = pytest.mark.parametrize(
    ("name", "shape", "classes"), [("conv-civae", GREY, 10), ("dense-civae", SENSORS, 6)]
)


def made(name: str, shape: tuple[int, ...], classes: int, latent: int = 3) -> Civae:
    model = seeded(name, shape, classes, seed=2, latent=latent)
    assert isinstance(model, Civae)
    return model


def samples(shape: tuple[int, ...], count: int = 5) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(3))


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("latent", "total"), [(3, 228_159), (7, 228_863)])
def test_the_convolutional_one_has_the_thesis_number_of_parameters(latent: int, total: int) -> None:
    model = made("conv-civae", GREY, 10, latent)

    assert size(model) == total
    assert size(model.encoder) == CONV["encoder"] + 33 * 2 * latent
    assert size(model.decoder) == CONV["decoder"] + (latent + 1) * 100
    assert size(model.classifier) == (latent + 1) * 10


def test_the_dense_one_has_the_thesis_number_of_parameters() -> None:
    model = made("dense-civae", SENSORS, 6)

    assert size(model) == 23_662
    assert size(model.encoder) == 145 * 64 + 65 * 32 + 33 * 6
    assert size(model.decoder) == 4 * 16 + 17 * 32 + 33 * 64 + 65 * 144
    assert size(model.classifier) == 4 * 6


@pytest.mark.parametrize(("name", "latent"), [("conv-civae", 7), ("dense-civae", 3)])
def test_a_code_has_as_many_numbers_as_the_thesis_unless_asked_otherwise(
    name: str, latent: int
) -> None:
    assert build(name, GREY, 10).latent == latent
    assert build(name, GREY, 10, latent=5).latent == 5


@KINDS
def test_parts_take_and_give_the_shapes_they_say(
    name: str, shape: tuple[int, ...], classes: int
) -> None:
    model, x = made(name, shape, classes), samples(shape)

    assert [part for part, _ in model.named_children()] == list(MODELS[name].parts) == list(CIVAE)
    assert model.encoder(x).shape == (5, 6)
    assert model.decoder(torch.randn(5, 3)).shape == (5, *shape)
    assert model.classifier(torch.randn(5, 3)).shape == (5, classes)
    assert isinstance(model.classifier, nn.Linear)


@KINDS
def test_the_whole_gives_the_logits_of_the_mean_codes(
    name: str, shape: tuple[int, ...], classes: int
) -> None:
    model, x = made(name, shape, classes), samples(shape)
    before = model(x)
    with torch.no_grad():
        # The log-variances are the second half of the last layer: they must not matter.
        list(model.encoder.parameters())[-1][3:] += 5.0

    assert before.shape == (5, classes)
    torch.testing.assert_close(before, model(x), rtol=0, atol=0)
    torch.testing.assert_close(before, model.classifier(model.encoder(x)[:, :3]))


@KINDS
def test_what_is_drawn_lies_between_nought_and_one_and_reaches_both(
    name: str, shape: tuple[int, ...], classes: int
) -> None:
    drawn = made(name, shape, classes).decoder(1e4 * torch.randn(50, 3)).detach()

    assert (float(drawn.min()), float(drawn.max())) == pytest.approx((0.0, 1.0), abs=1e-3)


def published_conv(x: Tensor, w: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, logits and drawing of the means, 28 to 14 to 7 pixels and back."""
    x = F.max_pool2d(F.conv2d(x, w[0], w[1], padding=2).relu(), 2)
    x = F.max_pool2d(F.conv2d(x, w[2], w[3], padding=1).relu(), 2)
    codes = F.linear(F.linear(x.flatten(1), w[4], w[5]).relu(), w[6], w[7])
    x = F.linear(F.linear(codes[:, :3], w[8], w[9]).relu(), w[10], w[11]).relu()
    x = x.reshape(-1, 32, 7, 7)
    for i in (12, 14):
        x = F.conv_transpose2d(x, w[i], w[i + 1], stride=2, padding=1, output_padding=1).relu()
    drawn = F.conv_transpose2d(x, w[16], w[17]).sigmoid()
    return codes, F.linear(codes[:, :3], w[18], w[19]), drawn


def published_dense(x: Tensor, w: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    x = F.linear(F.linear(x, w[0], w[1]).relu(), w[2], w[3]).relu()
    codes = F.linear(x, w[4], w[5])
    x = codes[:, :3]
    for i in (6, 8, 10):
        x = F.linear(x, w[i], w[i + 1]).relu()
    return codes, F.linear(codes[:, :3], w[14], w[15]), F.linear(x, w[12], w[13]).sigmoid()


@KINDS
def test_they_compute_what_the_thesis_wrote(
    name: str, shape: tuple[int, ...], classes: int
) -> None:
    model, x = made(name, shape, classes), samples(shape)
    published = published_conv if name == "conv-civae" else published_dense
    codes = model.encoder(x)

    ours = (codes, model(x), model.decoder(codes[:, :3]))
    torch.testing.assert_close(ours, published(x, list(model.parameters())), rtol=1e-4, atol=1e-5)


@KINDS
def test_weights_begin_as_glorot_draws_them_and_biases_at_nought(
    name: str, shape: tuple[int, ...], classes: int
) -> None:
    """Uniform within ±√(6/(in + out)), with the window's size as a factor on both."""
    for parameter in made(name, shape, classes).state_dict().values():
        if parameter.ndim == 1:
            assert not parameter.any()
            continue
        window = math.prod(parameter.shape[2:])
        bound = math.sqrt(6 / (window * (parameter.shape[0] + parameter.shape[1])))
        assert float(parameter.abs().max()) <= bound
        if parameter.numel() >= 100:
            assert float(parameter.abs().max()) > 0.95 * bound
            assert float(parameter.std()) == pytest.approx(bound / math.sqrt(3), rel=0.15)


def test_layers_of_the_dense_one_are_as_wide_as_asked() -> None:
    model = build("dense-civae", (2, 3), 4, latent=2, hidden=[5], decoder_hidden=[7, 8])

    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim == 2]
    assert shapes == [(5, 6), (4, 5), (7, 2), (8, 7), (6, 8), (4, 2)]
    assert model.get_submodule("decoder")(torch.randn(3, 2)).shape == (3, 2, 3)


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 20, 12), (1, 32, 28)])
def test_the_convolutional_one_draws_all_images_whose_sides_are_multiples_of_four(
    shape: tuple[int, int, int],
) -> None:
    model = made("conv-civae", shape, 10)

    assert model.decoder(model.encoder(samples(shape))[:, :3]).shape == (5, *shape)


@pytest.mark.parametrize("shape", [(1, 30, 28), (1, 28, 27), (3, 6, 6)])
def test_other_sides_are_refused_with_a_way_out(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError) as raised:
        build("conv-civae", shape, 10)

    assert str(raised.value) == (
        "model 'conv-civae' needs images whose sides are multiples of 4, not "
        f"{shape[1]}x{shape[2]}: set federation.image, e.g. {{side = 28}}."
    )


def test_samples_that_are_no_images_are_told_which_model_takes_them() -> None:
    with pytest.raises(ConfigError, match=r"shape \(144,\): choose from dense-civae\.$"):
        build("conv-civae", SENSORS, 6)


class OwnCivae(nn.Module):
    """A user's model that inherits nothing of ours."""

    def __init__(self, *, stray: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 4)
        self.decoder = nn.Linear(2, 6)
        self.classifier = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3))
        self.latent = 2
        if stray:
            self.extra = nn.Linear(2, 2)


@pytest.fixture
def their_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("their_civaes")
    vars(module).update(
        good=lambda shape, classes: OwnCivae(),
        stray=lambda shape, classes: OwnCivae(stray=True),
    )
    monkeypatch.setitem(sys.modules, "their_civaes", module)
    return "their_civaes"


def test_a_users_own_one_needs_no_class_of_ours_and_can_be_trained(their_module: str) -> None:
    model = build(f"{their_module}:good", (6,), 3)
    ones = torch.ones(4)
    batch = Batch(torch.randn(4, 6), torch.tensor([0, 1, 2, 0]), ones, ones,
                  {"codes": torch.randn(4, 2)})  # fmt: skip
    tensors = {name: t.detach() for name, t in model.state_dict().items()}
    gradients, _, _ = CivaeLoss().gradient(model, tensors, {}, batch, {})

    assert isinstance(model, OwnCivae)
    assert gradients.keys() == tensors.keys()
    assert all(bool(gradient.any()) for gradient in gradients.values())
    answers = CivaeLoss().scores(Bound(model, tensors), batch)
    assert answers["output"].shape == (4, 3)


def test_a_users_own_one_holds_parameters_in_its_three_parts_alone(their_module: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(f"{their_module}:stray", (6,), 3)

    assert str(raised.value).startswith(
        "model 'their_civaes:stray' has the parameter 'extra.weight' outside 'encoder' and "
        "'decoder' and 'classifier': move it into one of them."
    )
