"""Figures of autoencoders: their numbers are the run's and its models'."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import toy_federation
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor, nn

from fedskew.api import run
from fedskew.models.vae import Vae
from fedskew.parts import generative
from fedskew.rng import stream
from fedskew.runs.experiment import Run, make_federation
from fedskew.views.figures import draw_run, is_drawn
from fedskew.views.generative import GLOBAL, find_vaes, prior_samples
from fedskew.views.images import (
    display_range,
    examples,
    picture_grid,
    sample_table,
    sampled_images,
)
from fedskew.views.latent import latent_figure

TRAIN = {"rounds": 2, "optimiser": "adam", "lr": 1e-3}
SKEWED = {"clients": 10, "partition": {"name": "dirichlet", "alpha": 0.5}}
WEIGHED: dict[str, Any] = {
    "model": {"name": "beta-vae", "latent": 6, "hidden": [16]},
    "method": {"name": "latent-weights", "beta": 0.1},
    "federation": SKEWED,
    "train": TRAIN,
}
ALONE: dict[str, Any] = {
    "model": {"name": "beta-vae", "latent": 2, "hidden": [16]},
    "method": {"name": "vae", "base": "local", "beta": 0.1},
    "federation": {"clients": 3},
    "train": TRAIN,
}
OF_CODES = ("encodings", "latent", "latent-space")
OF_IMAGES = ("reconstructions", "samples")


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(WEIGHED, out=tmp_path_factory.mktemp("weighed"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(ALONE, out=tmp_path_factory.mktemp("alone"))


def table(done: Run, name: str) -> list[dict[str, str]]:
    with open(done.path / "figures" / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def drawn(done: Run) -> set[str]:
    return {path.stem for path in (done.path / "figures").glob("*.png")}


def part(model: nn.Module, name: str, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.get_submodule(name)(inputs)
    return found


def codes_of(done: Run, client: str, seed: int = 0) -> NDArray[np.float64]:
    """One draw a training sample, by the definition."""
    federation = make_federation(done.config)
    x = federation.x[federation.by_name[client].train]
    mean, log_variance = part(done.model(), "encoder", x).double().chunk(2, dim=1)
    noise = stream(seed, "codes", client).standard_normal(mean.shape)
    codes: NDArray[np.float64] = mean.numpy() + np.exp(log_variance.numpy() / 2) * noise
    return codes


def w1(values: NDArray[np.float64]) -> float:
    """The area between the quantiles of the values and of N(0, 1), on a fine grid."""
    levels = (np.arange(200_000) + 0.5) / 200_000
    own = np.sort(values)[(levels * len(values)).astype(int)]
    return float(np.abs(own - norm.ppf(levels)).mean())


def test_a_run_that_weighs_clients_draws_their_weights(weighed: Run) -> None:
    shown = {
        (line["stage"], int(line["round"]), line["client"], metric): float(line[metric])
        for line in table(weighed, "weights")
        for metric in ("weight", "discrepancy")
    }
    assert len(shown) == 2 * 2 * 10
    assert shown == {
        (row.stage, row.round, row.client, row.metric): row.value
        for row in weighed.rows()
        if row.split == "server" and row.metric in ("weight", "discrepancy")
    }
    of_a_round = [v for k, v in shown.items() if k[1] == 2 and k[3] == "weight"]
    assert sum(of_a_round) == pytest.approx(1.0)


def test_encodings_show_the_four_least_and_most_discrepant_clients(weighed: Run) -> None:
    found = {line["client"]: float(line["discrepancy"]) for line in table(weighed, "encodings")}
    names = [client.name for client in make_federation(weighed.config).clients]
    expected = {n: float(np.mean([w1(c) for c in codes_of(weighed, n).T])) for n in names}
    ordered = sorted(names, key=lambda name: expected[name])
    assert list(found) == ordered[:4] + ordered[-4:]
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-4)


def test_histograms_are_densities_of_the_codes_in_the_four_dimensions_that_vary_most(
    weighed: Run,
) -> None:
    lines = table(weighed, "encodings")
    federation = make_federation(weighed.config)
    shown = list(dict.fromkeys(line["client"] for line in lines))
    rows = np.concatenate([federation.by_name[name].train for name in shown])
    variance = part(weighed.model(), "encoder", federation.x[rows])[:, :6].var(dim=0)
    dimensions = sorted(variance.argsort()[-4:].tolist())
    name = shown[-1]
    own = [line for line in lines if line["client"] == name]
    assert sorted({int(line["dimension"]) for line in own}) == [d + 1 for d in dimensions]
    assert {line["recorded"] for line in own} == {
        str(row.value)
        for row in weighed.rows()
        if row.client == name and row.metric == "discrepancy" and row.stage == "main"
    }
    for dimension in dimensions:
        bins = [line for line in own if line["dimension"] == str(dimension + 1)]
        values = codes_of(weighed, name)[:, dimension]
        edges = [float(line["from"]) for line in bins] + [float(bins[-1]["to"])]
        assert [float(line["density"]) for line in bins] == pytest.approx(
            np.histogram(values.clip(edges[0], edges[-1]), edges, density=True)[0].tolist()
        )
        assert float(bins[0]["w1"]) == pytest.approx(w1(values), abs=1e-4)


def test_latent_shows_the_mean_codes_of_test_samples_by_class(weighed: Run) -> None:
    federation = make_federation(weighed.config)
    lines = table(weighed, "latent")
    samples = [int(line["sample"]) for line in lines]
    assert samples == sorted(federation.central_test.tolist())
    means = part(weighed.model(), "encoder", federation.x[samples])[:, :6]
    first, second = sorted(means.var(dim=0).argsort()[-2:].tolist())
    for dimension in (first, second):
        column = [float(line[f"z{dimension + 1}"]) for line in lines]
        assert column == pytest.approx(means[:, dimension].tolist(), abs=1e-6)
    assert [int(line["class"]) for line in lines] == federation.y[samples].tolist()


def test_without_a_global_model_every_client_encodes_its_own_test_samples(alone: Run) -> None:
    federation = make_federation(alone.config)
    lines = table(alone, "latent")
    for client in federation.clients:
        own = [line for line in lines if line["coder"] == client.name]
        assert [int(line["sample"]) for line in own] == client.test.tolist()
        means = part(alone.model(client.name), "encoder", federation.x[client.test])[:, :2]
        found = [[float(line["z1"]), float(line["z2"])] for line in own]
        np.testing.assert_allclose(found, means.numpy(), atol=1e-6)


def test_reconstructions_are_of_the_first_test_image_of_every_class(weighed: Run) -> None:
    federation = make_federation(weighed.config)
    lines = table(weighed, "reconstructions")
    labels = federation.y[federation.central_test].tolist()
    firsts = [int(federation.central_test[labels.index(c)]) for c in range(10)]
    assert [int(line["sample"]) for line in lines] == firsts
    x = federation.x[firsts]
    with torch.no_grad():
        errors = (weighed.model()(x) - x).square().sum(dim=(1, 2, 3))
    assert [float(line["squared_error"]) for line in lines] == pytest.approx(errors.tolist())


def test_clients_with_models_of_their_own_show_their_own_test_images(alone: Run) -> None:
    federation = make_federation(alone.config)
    lines = table(alone, "reconstructions")
    assert list(dict.fromkeys(line["model"] for line in lines)) == [
        client.name for client in federation.clients
    ]
    for client in federation.clients:
        own = [line for line in lines if line["model"] == client.name]
        chosen = [int(line["sample"]) for line in own]
        assert len(chosen) == 10
        assert set(chosen) <= set(client.test.tolist())
        x = federation.x[chosen]
        with torch.no_grad():
            errors = (alone.model(client.name)(x) - x).square().sum(dim=(1, 2, 3))
        assert [float(line["squared_error"]) for line in own] == pytest.approx(errors.tolist())


def test_examples_are_a_classs_first_ones_and_of_many_classes_evenly_chosen() -> None:
    assert examples(np.array([1, 1, 1, 0]), 10).tolist() == [3, 0, 1, 2]
    assert examples(np.array([1, 1, 1, 0]), 3).tolist() == [3, 0, 1]
    assert examples(np.arange(62).repeat(2), 3).tolist() == [0, 2 * 30, 2 * 61]
    assert examples(np.empty(0, np.int64), 3).tolist() == []


def test_the_global_model_draws_a_square_of_samples_from_the_prior(weighed: Run) -> None:
    lines = table(weighed, "samples")
    codes = torch.tensor([[float(line[f"z{d}"]) for d in range(1, 7)] for line in lines])
    assert codes.shape == (64, 6)
    assert abs(float(codes.mean())) < 4 / np.sqrt(codes.numel())
    assert float(codes.var()) == pytest.approx(1.0, abs=0.25)
    vaes = find_vaes(weighed, make_federation(weighed.config))
    assert vaes is not None
    (panel,) = sampled_images(sample_table(vaes, make_federation(weighed.config), 0), vaes, (0, 1))
    tenth = part(weighed.model(), "decoder", codes[9:10])[0, 0]
    np.testing.assert_allclose(panel.grid[10:18, 10:18], tenth.numpy(), atol=1e-6)
    torch.testing.assert_close(
        prior_samples(weighed.model(), 64, seed=0)[9:10],
        part(weighed.model(), "decoder", codes[9:10]),
    )


def test_clients_draw_a_row_each_from_the_same_codes_and_are_named_by_their_class(
    alone: Run,
) -> None:
    lines = table(alone, "samples")
    federation = make_federation(alone.config)
    counts = federation.class_counts()
    names = [client.name for client in federation.clients]
    for name, count in zip(names, counts, strict=True):
        own = [line for line in lines if line["model"] == name]
        assert len(own) == 8
        assert {line["majority"] for line in own} == {str(count.argmax())}
        assert [(o["z1"], o["z2"]) for o in own] == [(o["z1"], o["z2"]) for o in lines[:8]]
    vaes = find_vaes(alone, federation)
    assert vaes is not None
    (panel,) = sampled_images(sample_table(vaes, federation, 0), vaes, (0, 1))
    code = torch.tensor([[float(lines[1]["z1"]), float(lines[1]["z2"])]])
    second = part(alone.model(names[2]), "decoder", code)[0, 0]
    np.testing.assert_allclose(panel.grid[19:27, 10:18], second.numpy(), atol=1e-6)


@pytest.mark.parametrize("which", ["weighed", "alone"])
def test_the_same_run_draws_the_same_bytes(which: str, request: pytest.FixtureRequest) -> None:
    done: Run = request.getfixturevalue(which)
    figures = done.path / "figures"
    before = {path.name: path.read_bytes() for path in figures.iterdir()}
    assert {*OF_CODES, *OF_IMAGES} <= drawn(done)
    for path in figures.iterdir():
        path.unlink()
    draw_run(done, lambda: make_federation(done.config))
    assert {path.name: path.read_bytes() for path in figures.iterdir()} == before


def test_a_run_killed_between_its_pictures_is_not_drawn_and_draws_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedskew.views.images.image_figure", killed)
        with pytest.raises(KeyboardInterrupt):
            run(ALONE, out=tmp_path)
    (path,) = tmp_path.iterdir()
    assert drawn(Run(path)) == {"learning", "clients", *OF_CODES}
    assert not is_drawn(path)
    done = run(ALONE, out=tmp_path)
    assert drawn(done) == {"learning", "clients", "partition", *OF_CODES, *OF_IMAGES}


def test_codes_of_features_are_drawn_but_no_images(tmp_path: Path) -> None:
    settings = {
        "model": {"name": "beta-vae", "hidden": [8]},
        "method": {"name": "vae"},
        "train": TRAIN,
    }
    federation = toy_federation()
    done = run(settings, out=tmp_path, federation=federation)
    assert drawn(done) == {"learning", "clients", "partition", *OF_CODES}
    sizes = {line["client"]: int(line["samples"]) for line in table(done, "encodings")}
    assert sizes == {client.name: len(client.train) for client in federation.clients}


def test_a_classifier_that_weighs_by_size_draws_neither_codes_nor_weights(tmp_path: Path) -> None:
    settings = {"model": "logistic", "train": {"rounds": 1}}
    done = run(settings, out=tmp_path, federation=toy_federation())
    assert drawn(done) == {"learning", "clients", "partition", "coverage"}


def test_codes_of_one_number_are_drawn_against_their_classes_in_the_classes_order() -> None:
    lines = [
        {"coder": "c", "sample": i, "label": i, "class": str(i), "z1": i / 10} for i in range(62)
    ]
    (axes,) = latent_figure(lines, "toy").axes
    places = [np.asarray(points.get_offsets()).tolist()[0] for points in axes.collections]
    assert places == [[i / 10, float(i)] for i in range(62)]


def test_prior_samples_are_seeded_and_independent_of_chunks_and_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout())
    model = Vae(nn.Linear(5, 6), decoder, latent=3).train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    drawn_once = prior_samples(model, 7, seed=4)
    assert drawn_once.shape == (7, 5)
    assert model.training
    assert not drawn_once.requires_grad
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    monkeypatch.setattr(generative, "in_parts", partial(generative.in_parts, size=2))
    torch.testing.assert_close(prior_samples(model, 7, seed=4), drawn_once)
    torch.testing.assert_close(prior_samples(model, 3, seed=4), drawn_once[:3])
    assert not torch.allclose(prior_samples(model, 7, seed=5), drawn_once)


def test_a_grid_keeps_colours_and_shades_from_black_to_white() -> None:
    images = torch.zeros(3, 3, 2, 4)
    images[1, 0], images[2] = 5.0, -1.0
    grid = picture_grid(images, columns=2, shade=(-1.0, 1.0))
    assert grid.shape == (7, 11, 3)
    assert grid[1:3, 1:5].tolist() == np.full((2, 4, 3), 0.5).tolist()
    assert grid[1, 6].tolist() == [1.0, 0.5, 0.5]
    assert grid[4, 1].tolist() == [0.0, 0.0, 0.0]
    assert grid[4, 6].tolist() == [1.0, 1.0, 1.0]
    assert display_range(torch.ones(4)) == (1.0, 2.0)


def test_the_global_model_has_a_name_of_its_own_in_tables(weighed: Run, alone: Run) -> None:
    for name in OF_IMAGES:
        assert {line["model"] for line in table(weighed, name)} == {GLOBAL}
        assert GLOBAL not in {line["model"] for line in table(alone, name)}
