"""The picture of a shared latent space: whose codes it shows, where, and how well they separate."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import toy_federation, toy_vae
from numpy.typing import NDArray
from torch import nn

from fedskew.api import run
from fedskew.runs.experiment import Run, make_federation
from fedskew.views.generative import GLOBAL, Vaes
from fedskew.views.latent import arranged, silhouette, space_figure, space_table

Array = NDArray[np.float64]

TRAIN = {"rounds": 2, "optimiser": "adam", "lr": 1e-3}
APART: dict[str, Any] = {
    "model": {"name": "dense-civae", "latent": 5, "hidden": [16], "decoder_hidden": [16]},
    "method": "fed-civae",
    "federation": {"clients": 4, "partition": "iid", "normalise": "unit"},
    "train": TRAIN,
}
TOGETHER: dict[str, Any] = {
    "model": {"name": "beta-vae", "latent": 2, "hidden": [16]},
    "method": {"name": "vae", "beta": 0.1},
    "federation": {"clients": 3, "partition": "iid", "normalise": "unit"},
    "train": TRAIN,
}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(APART, out=tmp_path_factory.mktemp("apart"))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(TOGETHER, out=tmp_path_factory.mktemp("together"))


def table(done: Run) -> list[dict[str, str]]:
    with open(done.path / "figures" / "latent-space.csv", newline="") as file:
        return list(csv.DictReader(file))


def columns(lines: list[dict[str, Any]], *names: str) -> Array:
    return np.array([[float(line[name]) for name in names] for line in lines])


def means(model: nn.Module, x: torch.Tensor, latent: int) -> Array:
    with torch.no_grad():
        found: Array = model.get_submodule("encoder")(x)[:, :latent].double().numpy()
    return found


def silhouette_by_hand(codes: Array, groups: list[str]) -> float:
    """(b - a) / max(a, b): a to the own group's other codes, b to the nearest other group's."""
    names, found = np.array(groups), []
    for i, code in enumerate(codes):
        distance = np.sqrt(((codes - code) ** 2).sum(axis=1))
        own = (names == names[i]) & (np.arange(len(codes)) != i)
        a = distance[own].mean()
        b = min(distance[names == name].mean() for name in set(groups) - {groups[i]})
        found.append((b - a) / max(a, b))
    return float(np.mean(found))


class Stub(Vaes):
    """One autoencoder of three latent numbers that nobody had to train."""

    def model(self, name: str) -> nn.Module:
        assert name == GLOBAL
        return toy_vae(latent=3)


class Doubt(nn.Module):
    """Makes nothing sensible of one sample."""

    def __init__(self, sample: torch.Tensor) -> None:
        super().__init__()
        self.sample = sample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where((x == self.sample).all(dim=1, keepdim=True), torch.nan, x)


class Doubtful(Stub):
    """The same, but of the toy federation's first test sample it makes nothing."""

    def model(self, name: str) -> nn.Module:
        federation = toy_federation()
        made = toy_vae(latent=3)
        doubt = Doubt(federation.x[federation.clients[0].test[0]])
        made.encoder = nn.Sequential(doubt, made.encoder)
        return made


STUB = Stub(Path("nowhere"), has_global=True, owners=())


def test_every_client_with_an_encoder_of_its_own_shows_its_own_codes(apart: Run) -> None:
    federation, lines = make_federation(apart.config), table(apart)
    codes = []
    for client in federation.clients:
        own = [line for line in lines if line["client"] == client.name]
        assert {line["coder"] for line in own} == {client.name}
        assert [int(line["sample"]) for line in own] == client.test.tolist()
        assert [int(line["label"]) for line in own] == federation.y[client.test].tolist()
        codes.append(means(apart.model(client.name), federation.x[client.test], 5))
    centred = np.concatenate(codes) - np.concatenate(codes).mean(axis=0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    shown, expected = columns(lines, "PCA 1", "PCA 2"), centred @ directions.T
    for axis in (0, 1):
        sign = np.sign(shown[:, axis] @ expected[:, axis])
        np.testing.assert_allclose(shown[:, axis], sign * expected[:, axis], atol=1e-5)


def test_the_separation_told_is_that_of_the_codes_not_of_their_map(apart: Run) -> None:
    federation, lines = make_federation(apart.config), table(apart)
    codes = np.concatenate(
        [means(apart.model(c.name), federation.x[c.test], 5) for c in federation.clients]
    )
    for kind in ("class", "client"):
        expected = silhouette_by_hand(codes, [line[kind] for line in lines])
        assert {line[f"{kind}_silhouette"] for line in lines} == {lines[0][f"{kind}_silhouette"]}
        assert float(lines[0][f"{kind}_silhouette"]) == pytest.approx(expected, abs=1e-6)


def test_codes_of_two_numbers_are_shown_as_they_are_and_by_the_global_encoder(
    together: Run,
) -> None:
    federation, lines = make_federation(together.config), table(together)
    assert {line["coder"] for line in lines} == {GLOBAL}
    assert not [name for name in lines[0] if "SNE" in name or "PCA" in name]
    rows = [int(line["sample"]) for line in lines]
    expected = means(together.model(), federation.x[rows], 2)
    np.testing.assert_allclose(columns(lines, "z1", "z2"), expected, atol=1e-5)
    owners = {row: client.name for client in federation.clients for row in client.test.tolist()}
    assert [line["client"] for line in lines] == [owners[row] for row in rows]


def test_neighbours_stay_neighbours_in_the_arranged_codes_the_same_every_time() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 30)
    codes = rng.normal(size=(90, 6)) + 12 * np.eye(6)[labels]
    places = arranged(codes, seed=1)
    distance = np.linalg.norm(places[:, None] - places[None], axis=2) + 1e9 * np.eye(90)
    assert (labels[distance.argmin(axis=1)] == labels).all()
    np.testing.assert_array_equal(arranged(codes, seed=1), places)


def test_of_many_clients_ten_have_a_colour_the_odd_ones_first_and_thirty_stay_grey() -> None:
    federation = toy_federation(sizes=[3] * 60)
    federation = replace(federation, odd=("c17", "c42"))
    lines = space_table(STUB, federation, seed=0)
    coloured = {line["client"] for line in lines if line["coloured"]}
    grey = {line["client"] for line in lines if not line["coloured"]}
    assert {"c17", "c42", "c0", "c59"} <= coloured
    assert (len(coloured), len(grey)) == (10, 30)
    assert not coloured & grey
    counted = [line for line in lines if line["coloured"]]
    codes = means(STUB.model(GLOBAL), federation.x[[line["sample"] for line in counted]], 3)
    expected = silhouette_by_hand(codes, [line["client"] for line in counted])
    assert lines[0]["client_silhouette"] == pytest.approx(expected, abs=1e-6)


def test_clients_give_equally_many_samples_and_together_no_more_than_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedskew.views.latent.SPACE_SAMPLES", 9)
    lines = space_table(STUB, toy_federation(sizes=(20, 8, 8)), seed=0)
    names = [line["client"] for line in lines]
    assert {name: names.count(name) for name in names} == {"c0": 3, "c1": 3, "c2": 3}
    again = space_table(STUB, toy_federation(sizes=(20, 8, 8)), seed=0)
    assert again == lines


def test_codes_that_are_not_numbers_are_left_out_and_equal_codes_make_no_picture() -> None:
    federation = toy_federation()
    lines = space_table(Doubtful(Path("nowhere"), has_global=True, owners=()), federation, seed=0)
    missing = {int(row) for c in federation.clients for row in c.test} - {
        line["sample"] for line in lines
    }
    assert missing == {int(federation.clients[0].test[0])}
    constant = federation.with_data(x=torch.ones_like(federation.x))
    assert space_table(STUB, constant, seed=0) == []


def test_groups_that_cannot_separate_have_no_number() -> None:
    codes = np.arange(6.0).reshape(3, 2)
    assert silhouette(codes, ["a", "a", "a"]) is None
    assert silhouette(codes, ["a", "b", "c"]) is None
    # Alone: 0. In the middle: as near to its own as to the other. At the end: half as far.
    assert silhouette(codes, ["a", "b", "b"]) == pytest.approx((0 + 0 + 0.5) / 3)


def lines_of(latent: int, others: int) -> list[dict[str, Any]]:
    names = ("z1", "z2")[:latent] or ("t-SNE 1", "t-SNE 2", "PCA 1", "PCA 2")
    return [
        {
            "client": f"c{k}",
            "coloured": k < 2,
            "label": i,
            "class": "ab"[i],
            **{name: 10.0 * k + i + n / 10 for n, name in enumerate(names)},
            "class_silhouette": 0.25,
            "client_silhouette": None,
        }
        for k in range(2 + others)
        for i in range(2)
    ]


def test_a_panel_shows_classes_and_another_clients_with_the_others_in_grey() -> None:
    figure = space_figure(lines_of(2, others=3), "toy")
    by_class, by_client = figure.axes
    places = [np.asarray(dots.get_offsets()).tolist() for dots in by_class.collections]
    assert places == [[[10.0 * k + i, 10.0 * k + i + 0.1] for k in range(5)] for i in range(2)]
    legend = by_client.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["3 others", "c0", "c1"]
    assert [len(np.asarray(dots.get_offsets())) for dots in by_client.collections] == [6, 2, 2]
    title = figure.get_suptitle()
    assert "10 test samples" in title
    assert "classes 0.25" in title
    assert "clients" not in title


def test_longer_codes_have_a_row_of_panels_for_each_map() -> None:
    figure = space_figure(lines_of(0, others=0), "toy")
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    assert labels == [("t-SNE 1", "t-SNE 2")] * 2 + [("PCA 1", "PCA 2")] * 2


def test_codes_of_one_number_stand_beside_their_classes() -> None:
    by_class, _ = space_figure(lines_of(1, others=0), "toy").axes
    heights = [np.asarray(dots.get_offsets())[:, 1].tolist() for dots in by_class.collections]
    assert heights == [[0.0, 0.0], [1.0, 1.0]]
    assert by_class.get_ylabel() == "class"
