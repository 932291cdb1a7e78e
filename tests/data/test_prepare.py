"""Samples as wanted: images of another size or other channels, and values in -1..1."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from toy_data import held_by_one

from fedskew.config import make_config
from fedskew.data.datasets import load
from fedskew.data.own import load_own
from fedskew.errors import ConfigError, DataError
from fedskew.runs.experiment import make_federation

Array = NDArray[Any]


def write(path: Path, x: Array, **more: Any) -> Path:
    np.savez(path, x=x, y=np.arange(len(x)) % 2, **more)
    return path


def noise(*shape: int) -> Array:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def doubled(images: Array) -> Array:
    """Twice as large along the last axis: new pixels lie a quarter from an old one's centre."""
    before = np.concatenate([images[..., :1], images[..., :-1]], axis=-1)
    after = np.concatenate([images[..., 1:], images[..., -1:]], axis=-1)
    pairs = np.stack([0.75 * images + 0.25 * before, 0.75 * images + 0.25 * after], axis=-1)
    return pairs.reshape(*images.shape[:-1], -1)


def test_an_image_twice_as_large_is_interpolated_between_pixel_centres(tmp_path: Path) -> None:
    x = noise(6, 5, 5)
    found = load_own(write(tmp_path / "a.npz", x), normalise="unit", image={"side": 10})
    expected = np.swapaxes(doubled(np.swapaxes(doubled(x / 255), 1, 2)), 1, 2)
    np.testing.assert_allclose(found.x[:, 0].numpy(), expected, atol=1e-6)


def test_an_image_a_third_as_large_is_smoothed_and_not_only_sampled(tmp_path: Path) -> None:
    line = np.zeros((2, 9, 9), np.uint8)
    line[:, :, 3] = 255  # between the pixels a plain bilinear third would read: 1, 4 and 7
    found = load_own(write(tmp_path / "a.npz", line), normalise="unit", image={"side": 3})
    # A triangle of half-width 3 around the centres 1, 4 and 7, cut at the border.
    triangle = np.maximum(0, 1 - np.abs(np.arange(9) - np.array([[1], [4], [7]])) / 3)
    expected = (triangle / triangle.sum(axis=1, keepdims=True))[:, 3]
    assert found.x[0, 0, 1].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert expected[0] > 0.1


def test_oblong_images_become_square(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", noise(4, 6, 9, 3))
    assert tuple(load_own(path, image={"side": 6}).x.shape) == (4, 3, 6, 6)
    assert tuple(load_own(path, image={"channels": 1}).x.shape) == (4, 1, 6, 9)


def test_grey_is_copied_to_three_channels(tmp_path: Path) -> None:
    x = noise(4, 6, 6)
    found = load_own(write(tmp_path / "a.npz", x), normalise="unit", image={"channels": 3})
    expected = np.repeat(x[:, None] / np.float32(255), 3, axis=1)
    assert np.array_equal(found.x.numpy(), expected)


def test_colour_becomes_grey_as_pillow_makes_it(tmp_path: Path) -> None:
    x = noise(4, 6, 6, 3)
    found = load_own(write(tmp_path / "a.npz", x), normalise="unit", image={"channels": 1})
    pillow = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in x])
    assert np.abs(found.x[:, 0].numpy() * 255 - pillow).max() <= 0.51, "Pillow rounds to bytes"


@pytest.mark.parametrize("side", [3, 7, 11, 32])
@pytest.mark.parametrize(("stored", "channels"), [(1, 1), (1, 3), (3, 1), (3, 3)])
def test_a_constant_image_stays_exactly_what_it_was(
    tmp_path: Path, side: int, stored: int, channels: int
) -> None:
    x = np.full((3, 8, 8, stored), 255, np.uint8)
    x[1] = 77
    path = write(tmp_path / "a.npz", x)
    found = load_own(path, normalise="unit", image={"side": side, "channels": channels})
    assert tuple(found.x.shape) == (3, channels, side, side)
    assert bool((found.x[[0, 2]] == 1).all()), "rounding must not carry a value beyond 1"
    assert bool((found.x[1] == float(np.float32(77 / 255))).all())


def test_an_image_that_fits_already_keeps_its_bits(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", noise(4, 6, 6, 3))
    wanted = load_own(path, image={"side": 6, "channels": 3})
    assert torch.equal(wanted.x, load_own(path).x)


def test_converting_in_parts_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.npz", noise(11, 6, 6, 3))
    at_once = load_own(path, image={"side": 8})
    monkeypatch.setattr("fedskew.data.prepare._VALUES_AT_ONCE", 3 * 8 * 8 * 2)
    assert torch.equal(load_own(path, image={"side": 8}).x, at_once.x)


@pytest.mark.parametrize("image", [None, {"side": 9}, {"channels": 3}])
def test_signed_is_twice_the_unit_image_less_one(
    tmp_path: Path, image: dict[str, int] | None
) -> None:
    path = write(tmp_path / "a.npz", noise(40, 6, 6))
    unit = load_own(path, normalise="unit", image=image)
    signed = load_own(path, normalise="signed", image=image)
    np.testing.assert_allclose(signed.x.numpy(), 2 * unit.x.numpy() - 1, atol=1e-6)
    assert float(signed.x.min()) >= -1
    assert float(signed.x.max()) <= 1


def test_signed_black_and_white_are_exactly_minus_one_and_one() -> None:
    digits = load("digits", normalise="signed")
    assert [float(v) for v in digits.x.aminmax()] == [-1.0, 1.0]


def test_standard_takes_its_statistics_from_resized_training_rows(tmp_path: Path) -> None:
    x = noise(30, 6, 6, 3)
    path = write(tmp_path / "a.npz", x, split=[0] * 20 + [1] * 10)
    unit = load_own(path, normalise="unit", image={"side": 4}).x.double().numpy()
    mean = unit[:20].mean(axis=(0, 2, 3), keepdims=True)
    deviation = unit[:20].std(axis=(0, 2, 3), keepdims=True)
    found = held_by_one(load_own(path, image={"side": 4}))
    np.testing.assert_allclose(found.x.numpy(), (unit - mean) / deviation, atol=1e-5)


def test_features_have_no_image_and_no_sign(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", np.eye(6, dtype=np.float32))
    with pytest.raises(DataError, match=r"image needs images, but .*a\.npz is 6 features: leave"):
        load_own(path, image={"side": 4})
    with pytest.raises(DataError, match=r"normalise='signed' needs images.* is 6 features: choose"):
        load_own(path, normalise="signed")


def test_signed_refuses_images_whose_white_it_cannot_know(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", np.linspace(-1, 3, 32, dtype=np.float32).reshape(2, 4, 4))
    with pytest.raises(DataError, match=r"bytes or in 0\.\.1, but .*a\.npz holds -1 to 3: choose"):
        load_own(path, normalise="signed")


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        ({"side": 0}, "side of image must be a whole number from 1 on, not 0"),
        ({"side": -3}, "side of image must be a whole number from 1 on, not -3"),
        ({"side": 2.5}, "side of image must be a whole number from 1 on, not 2.5"),
        ({"side": True}, "side of image must be a whole number from 1 on, not True"),
        ({"channels": 2}, r"channels of image must be 1 \(grey\) or 3 \(colour\), not 2"),
        ({"channels": "rgb"}, r"channels of image must be 1 \(grey\) or 3 \(colour\), not 'rgb'"),
        ({"sides": 4}, "unknown setting of image 'sides': did you mean 'side'"),
        ({}, r"image must be settings like \{side = 32, channels = 3\} or one of them, not \{\}"),
        (32, r"image must be settings like \{side = 32, channels = 3\} or one of them, not 32"),
    ],
)
def test_images_nobody_could_make_are_refused_before_a_file_is_read(
    tmp_path: Path, image: Any, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        load_own(tmp_path / "absent.npz", image=image)
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        load("mnist", tmp_path, image=image)


def test_a_config_makes_the_federation_it_describes(tmp_path: Path) -> None:
    wanted = {"classes": [1], "image": {"side": 3, "channels": 3}, "normalise": "signed"}
    path = write(tmp_path / "a.npz", noise(40, 6, 6), class_names=["ann", "bob"])
    for dataset, name in ((str(path), "bob"), ("digits", "1")):
        settings = {"dataset": dataset, "partition": "iid", "clients": 2, **wanted}
        made = make_federation(make_config({"federation": settings}))
        assert (made.class_names, made.sample_shape) == ((name,), (3, 3, 3))
        assert float(made.x.min()) < -0.1


def test_an_option_your_own_data_do_not_have_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", noise(40, 6, 6))
    settings = {"dataset": str(path), "options": {"lable": "kind"}}
    with pytest.raises(
        ConfigError, match=r"unknown knob 'lable' of your own data: did you mean 'label'\?"
    ):
        make_federation(make_config({"federation": settings}))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"image": {"side": "4"}}, r"federation\.image\.side: input should be a valid integer"),
        ({"image": {"sidee": 4}}, "unknown setting of image 'sidee': did you mean 'side'"),
        ({"classes": [1, "2"]}, r"federation\.classes\.1: input should be a valid integer"),
        ({"classes": 2}, r"federation\.classes: input should be a valid list"),
        ({"classes": []}, "classes must name at least one class: leave it out to keep all"),
        ({"normalise": "sign"}, r"federation\.normalise: input should be 'standard', 'unit', "),
        (
            {"options": {"classes": [1]}},
            r"classes is not a knob.*: set federation\.classes instead",
        ),
        (
            {"dataset": "some:function", "image": {"side": 4}},
            r"federation\.image cannot change what 'some:function' returns: let the function do it",
        ),
    ],
)
def test_a_config_that_asks_for_nonsense_is_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        make_federation(make_config({"federation": settings}))


def mnist_image(data_dir: Path, row: int) -> torch.Tensor:
    """One training image in 0..1, straight from the file's bytes."""
    stored = gzip.decompress((data_dir / "MNIST/raw/train-images-idx3-ubyte.gz").read_bytes())
    pixels = np.frombuffer(stored, np.uint8, 784, 16 + 784 * row).reshape(1, 1, 28, 28)
    return torch.from_numpy(pixels / np.float32(255))


@pytest.mark.real_data
@pytest.mark.parametrize("side", [28, 32, 14])
def test_real_mnist_is_resized_as_torch_does_it_and_then_normalised(
    data_dir: Path, side: int
) -> None:
    image = {"side": side, "channels": 3}
    standard = held_by_one(load("mnist", data_dir, classes=[5, 0], image=image))
    resized = torch.nn.functional.interpolate(
        mnist_image(data_dir, 1), (side, side), mode="bilinear", antialias=True
    )
    assert standard.class_names == ("5", "0")
    assert int(standard.y[1]) == 1
    if side == 28:
        expected = (resized - 0.1307) / 0.3081
    else:
        unit = load("mnist", data_dir, normalise="unit", classes=[5, 0], image={"side": side})
        assert float((unit.x[1] - resized).abs().max()) <= 1e-5
        train = unit.x[torch.from_numpy(unit.train_rows)].double()
        expected = (resized - train.mean()) / train.std(correction=0)
    assert float((standard.x[1] - expected[0]).abs().max()) <= 1e-5


@pytest.mark.real_data
def test_real_fashion_without_t_shirts_is_nine_clients_of_one_garment(data_dir: Path) -> None:
    settings = {
        "dataset": "fashion-mnist",
        "classes": list(range(1, 10)),
        "image": {"side": 32, "channels": 3},
        "normalise": "signed",
        "partition": "one-class",
        "clients": "all",
    }
    made = make_federation(make_config({"federation": settings}), data_dir)
    assert made.class_names[0] == "trouser"
    assert (made.classes, made.sample_shape, len(made.y)) == (9, (3, 32, 32), 63_000)
    assert [float(v) for v in made.x.aminmax()] == [-1.0, 1.0]
    assert torch.equal(made.x[::500, 0], made.x[::500, 2])
    for label, client in enumerate(made.clients):
        assert set(made.y[client.train].tolist()) == {label}
        assert made.y[client.test].tolist() == [label] * 1000
        assert (len(client.train), len(client.validation)) == (5400, 600)


@pytest.mark.real_data
def test_real_signs_in_another_order_are_tested_by_the_client_of_their_class(
    data_dir: Path,
) -> None:
    stored = load("gtsrb", data_dir, normalise="unit")
    order = [9, *range(9)]
    settings = {
        "dataset": "gtsrb",
        "classes": order,
        "image": {"side": 32},
        "normalise": "signed",
        "partition": "one-class",
        "clients": "all",
    }
    made = make_federation(make_config({"federation": settings}), data_dir)
    assert made.class_names == tuple(stored.class_names[i] for i in order)
    assert torch.equal(made.x, 2 * stored.x - 1)
    sizes = torch.bincount(stored.y[torch.from_numpy(stored.official_test)])
    for old, client in zip(order, made.clients, strict=True):
        assert set(stored.y[client.test].tolist()) == {old}
        assert len(client.test) == int(sizes[old])
