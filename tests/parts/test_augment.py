"""Changes of images: each against numpy, image by image, and by how often each occurs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedskew.config import Named
from fedskew.errors import ConfigError
from fedskew.parts.augment import (
    Augmentation,
    Crop,
    Flip,
    Jitter,
    augmentations,
    check_augmentations,
)
from fedskew.rng import stream
from fedskew.trust.consent import typed

RNG = np.random.default_rng(0)
PARTS = (Crop(2), Flip(0.5), Jitter(0.3))


def images(count: int = 20, side: tuple[int, int] = (5, 7)) -> Tensor:
    return torch.from_numpy(RNG.normal(size=(count, 3, *side)).astype(np.float32))


def drawn(part: Augmentation, count: int) -> Tensor:
    return torch.from_numpy(stream(0, "test").random((count, part.draws), dtype=np.float32))


def cropped(x: np.ndarray, u: np.ndarray, pad: int) -> np.ndarray:
    """The window of an image whose edges numpy has repeated."""
    top, left = (int(value * (2 * pad + 1)) for value in u)
    wide = np.pad(x, ((0, 0), (pad, pad), (pad, pad)), mode="edge")
    return wide[:, top : top + x.shape[1], left : left + x.shape[2]]


def mirrored(x: np.ndarray, u: np.ndarray, p: float) -> np.ndarray:
    return x[:, :, ::-1] if u[0] < p else x


def lit(x: np.ndarray, u: np.ndarray, strength: float) -> np.ndarray:
    low, high = x.min(), x.max()
    a, c = ((2 * value - 1) * strength for value in u)
    x = x + a * ((high - x) if a > 0 else (x - low))
    return np.clip(x + c * (x - (low + high) / 2), low, high)


BY_HAND: dict[Augmentation, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    Crop(2): lambda x, u: cropped(x, u, 2),
    Flip(0.5): lambda x, u: mirrored(x, u, 0.5),
    Jitter(0.3): lambda x, u: lit(x, u, 0.3),
}


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_every_image_is_changed_as_by_hand(part: Augmentation) -> None:
    x = images()
    u = drawn(part, len(x))
    found = part.change(x, u)
    for image, numbers, changed in zip(x.numpy(), u.numpy(), found.numpy(), strict=True):
        expected = BY_HAND[part](image.astype(np.float64), numbers.astype(np.float64))
        assert np.abs(changed - expected).max() < 1e-5


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_an_image_is_changed_the_same_in_whatever_batch(part: Augmentation) -> None:
    """To the bit, alone, in a stack, and whatever stands beside it."""
    x = images()
    u = drawn(part, len(x))
    together = part.change(x, u)
    apart = torch.cat([part.change(x[i : i + 1], u[i : i + 1]) for i in range(len(x))])
    assert torch.equal(together, apart)
    assert torch.equal(part.change(x.flip(0), u.flip(0)).flip(0), together)
    assert not torch.equal(together, x)


@pytest.mark.parametrize("part", [Crop(0), Flip(0.0), Jitter(0.0)], ids=repr)
def test_a_neutral_knob_changes_no_bit(part: Augmentation) -> None:
    x = images()
    assert torch.equal(part.change(x, drawn(part, len(x))), x)


def test_mirrored_twice_is_the_image() -> None:
    x = images()
    u = drawn(Flip(1.0), len(x))
    assert torch.equal(Flip(1.0).change(Flip(1.0).change(x, u), u), x)


def test_a_share_p_is_mirrored() -> None:
    """Within five deviations for 4,000 images."""
    x = images(4000, (1, 2))
    for p in (0.2, 0.5):
        changed = (Flip(p).change(x, drawn(Flip(p), len(x))) != x).any(dim=(1, 2, 3))
        assert abs(float(changed.float().mean()) - p) < 5 * (p * (1 - p) / 4000) ** 0.5


def test_every_shift_is_as_likely_as_any_other() -> None:
    """The middle pixel of a picture of places tells where the window was; chi-squared, 1 in 1,000.

    Even the largest number that can be drawn stays inside."""
    places = torch.arange(81.0).reshape(1, 1, 9, 9).expand(4000, 1, 9, 9)
    seen = Crop(2).change(places, drawn(Crop(2), 4000))[:, 0, 4, 4].long()
    down, right = seen // 9 - 4, seen % 9 - 4
    table = torch.zeros(5, 5).index_put((down + 2, right + 2), torch.ones(4000), accumulate=True)
    assert stats.chisquare(table.numpy().reshape(-1)).pvalue > 0.001
    largest = torch.full((1, 2), float(np.nextafter(np.float32(1), np.float32(0))))
    assert Crop(2).change(places[:1], largest)[0, 0, 4, 4] == 6 * 9 + 6


def test_light_changes_both_ways_and_never_leaves_the_image_s_range() -> None:
    x = images(2000)
    changed = Jitter(0.4).change(x, drawn(Jitter(0.4), len(x)))
    low, high = x.amin(dim=(1, 2, 3), keepdim=True), x.amax(dim=(1, 2, 3), keepdim=True)
    assert bool(((changed >= low) & (changed <= high)).all())
    brighter = (changed.mean(dim=(1, 2, 3)) > x.mean(dim=(1, 2, 3))).float().mean()
    flatter = (changed.std(dim=(1, 2, 3)) < x.std(dim=(1, 2, 3))).float().mean()
    assert abs(float(brighter) - 0.5) < 0.06
    assert 0.5 < float(flatter) < 1.0, "light from one side flattens what is there, too"


def test_parts_come_with_their_knobs_and_fit_images_only() -> None:
    chosen = [Named(name="crop", pad=1), Named(name="flip"), Named(name="jitter", strength=0.1)]
    assert augmentations(chosen) == (Crop(1), Flip(0.5), Jitter(0.1))
    with pytest.raises(ConfigError, match=r"augmentation 'flp': did you mean 'flip'"):
        augmentations([Named(name="flp")])
    with pytest.raises(ConfigError, match="strength of augmentation 'jitter' must be a number"):
        augmentations([Named(name="jitter", strength=2)])
    check_augmentations([], "a table", (9,))
    check_augmentations(chosen, "pictures", (3, 4, 4))
    for shape in ((9,), (6, 128)):
        with pytest.raises(ConfigError, match=r"train\.augment changes images, but a sample of x"):
            check_augmentations(chosen, "x", shape)
    with pytest.raises(ConfigError, match="pad of augmentation 'crop' is 4, but the images have"):
        check_augmentations([Named(name="crop", pad=4)], "x", (1, 4, 8))


def nothing() -> int:
    """A user's function that makes no part."""
    return 3


def test_what_a_user_s_function_returns_must_be_one() -> None:
    name = f"{nothing.__module__}:nothing"
    typed([name])
    with pytest.raises(ConfigError, match="must return a fedskew Augmentation, not int"):
        augmentations([Named(name=name)])
