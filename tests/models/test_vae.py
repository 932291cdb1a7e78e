"""What VAEs compute, against the papers, and the shapes they take and give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.errors import ConfigError
from fedskew.models import Vae, build, seeded
from fedskew.models.registry import MODELS

GREY = (1, 28, 28)
COLOUR = (3, 32, 32)

SMALL: dict[str, dict[str, Any]] = {"beta-vae": {"hidden": [8, 7]}, "conv-vae": {"latent": 3}}
VAES = sorted(name for name, entry in MODELS.items() if entry.parts == ("encoder", "decoder"))


@pytest.mark.parametrize("name", VAES)
def test_a_vae_gives_means_and_log_variances_and_decodes_the_means(name: str) -> None:
    model = build(name, COLOUR, 10, latent=5)
    x = torch.randn(3, *COLOUR)

    assert isinstance(model, Vae)
    assert model.latent == 5
    codes = model.encoder(x)
    assert codes.shape == (3, 10)
    assert all(bool(parameter.any()) for parameter in model.decoder.parameters())
    torch.testing.assert_close(model(x), model.decoder(codes[:, :5]))
    low, high = (0.0, 1.0) if name == "beta-vae" else (-1.0, 1.0)
    far = model.decoder(1e4 * torch.randn(50, 5)).detach()
    assert (float(far.min()), float(far.max())) == pytest.approx((low, high), abs=1e-3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", VAES)
def test_a_vae_draws_in_the_shape_it_was_shown(name: str, channels: int) -> None:
    """Strides leave over a row or a column or neither, at each layer: 25 sides, mixed."""
    for side in range(12, 37):
        shape = (channels, side, 48 - side)
        model = build(name, shape, 10, **SMALL[name])
        assert model(torch.randn(2, *shape)).shape == (2, *shape)


def test_a_fully_connected_vae_takes_samples_that_are_no_images() -> None:
    assert build("beta-vae", (6,), 3)(torch.randn(4, 6)).shape == (4, 6)


def published_beta_vae(x: Tensor, w: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The second half of the last layer are log standard deviations."""
    x = F.relu(F.linear(x.flatten(1), w[0], w[1]))
    codes = F.linear(F.relu(F.linear(x, w[2], w[3])), w[4], w[5])
    x = F.relu(F.linear(F.relu(F.linear(codes[:, :2], w[6], w[7])), w[8], w[9]))
    drawn = F.linear(x, w[10], w[11]).sigmoid().reshape(-1, *GREY)
    return codes[:, :2], codes[:, 2:].exp().square(), drawn


def published_conv_vae(x: Tensor, w: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The second half of the last layer are log variances; of 28 rows 13 and 5 are left."""
    x = F.relu(F.conv2d(F.relu(F.conv2d(x, w[0], w[1], stride=2)), w[2], w[3], stride=2))
    codes = F.linear(x.flatten(1), w[4], w[5])
    x = F.linear(codes[:, :128], w[6], w[7]).reshape(-1, 16, 5, 5)
    x = F.relu(F.conv_transpose2d(x, w[8], w[9], stride=2))
    drawn = F.conv_transpose2d(x, w[10], w[11], stride=2).tanh()
    return codes[:, :128], codes[:, 128:].exp(), drawn


@pytest.mark.parametrize(
    ("name", "published"), [("beta-vae", published_beta_vae), ("conv-vae", published_conv_vae)]
)
def test_vaes_compute_what_the_papers_wrote(
    name: str, published: Callable[[Tensor, list[Tensor]], tuple[Tensor, ...]]
) -> None:
    model = seeded(name, GREY, 10, seed=2)
    x = torch.randn(5, *GREY, generator=torch.Generator().manual_seed(3))
    mean, log_variance = model.get_submodule("encoder")(x).chunk(2, dim=1)

    ours = (mean, log_variance.exp(), model(x))
    torch.testing.assert_close(ours, published(x, list(model.parameters())), rtol=1e-4, atol=1e-5)


def test_images_too_small_for_a_vae_are_told_which_vaes_take_them() -> None:
    with pytest.raises(ConfigError) as raised:
        build("conv-vae", (1, 30, 11), 10)

    assert str(raised.value) == (
        "model 'conv-vae' needs images of at least 12x12 pixels, but these are 30x11: "
        "choose from beta-vae."
    )
