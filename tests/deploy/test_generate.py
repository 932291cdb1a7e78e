"""Synthetic samples: which codes are kept, what is written, and what real data say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedskew
from fedskew.api import run
from fedskew.deploy.generate import draw
from fedskew.errors import ConfigError, FedskewError, RunError
from fedskew.federate.predictions import load_predictions
from fedskew.models.civae import Civae
from fedskew.rng import stream
from fedskew.runs.experiment import Run, make_federation

CLIENTS = {"clients": 3, "samples": 300, "partition": "iid", "normalise": "unit"}


def toy(classes: int = 3, latent: int = 2, sharpness: float = 4.0) -> Civae:
    """A model whose classes are sectors of the plane of codes."""
    decoder = nn.Sequential(nn.Linear(latent, 5), nn.Sigmoid())
    model = Civae(nn.Linear(5, 2 * latent), decoder, latent, classes)
    angles = torch.arange(classes) * 2 * torch.pi / classes
    model.classifier.weight.data = sharpness * torch.stack([angles.cos(), angles.sin()], dim=1)
    model.classifier.bias.data.zero_()
    return model.eval()


def by_hand(
    model: Civae, count: int, threshold: float, wanted: list[int], seed: int
) -> tuple[list[np.ndarray[Any, Any]], list[int], int]:
    """One code after the other, kept while its class has room; sorted by class at the end."""
    rng = np.random.default_rng(seed)
    kept: list[tuple[int, np.ndarray[Any, Any]]] = []
    tries = 0
    while len(kept) < count:
        code = rng.standard_normal(model.latent, dtype=np.float32)
        tries += 1
        probabilities = model.classifier(torch.from_numpy(code)).softmax(dim=0)
        label = int(probabilities.argmax())
        if float(probabilities[label]) >= threshold and wanted[label] > 0:
            wanted[label] -= 1
            kept.append((label, code))
    kept.sort(key=lambda pair: pair[0])
    return [code for _, code in kept], [label for label, _ in kept], tries


@pytest.mark.parametrize("balanced", [True, False])
def test_codes_are_kept_in_the_order_they_are_drawn_while_their_class_has_room(
    balanced: bool,
) -> None:
    model, count = toy(), 20
    wanted = [7, 7, 6] if balanced else [count] * 3
    with torch.no_grad():
        codes, labels, tries = by_hand(model, count, 0.9, wanted, seed=3)
    found = draw(model, count, 3, 0.9, balanced, 1.0, np.random.default_rng(3))
    np.testing.assert_array_equal(found.codes.numpy(), np.stack(codes))
    assert found.y is not None
    assert found.probability is not None
    assert found.y.tolist() == labels
    assert found.tries == tries
    assert found.probability.min() >= 0.9
    assert sum(found.missing) == 0


def test_a_class_that_cannot_be_had_is_missing_and_drawing_ends() -> None:
    model = toy()
    model.classifier.bias.data = torch.tensor([0.0, 0.0, -1e3])
    found = draw(model, 9, 3, 0.6, True, 1.0, np.random.default_rng(0))
    assert found.y is not None
    assert np.bincount(found.y, minlength=3).tolist() == [3, 3, 0]
    assert found.missing == [0, 0, 3]
    assert 100_000 <= found.tries < 200_000


def test_where_nothing_is_sure_enough_the_error_says_what_to_change() -> None:
    with pytest.raises(RunError, match="lower the threshold or raise the spread"):
        draw(toy(sharpness=0.0), 5, 3, 0.9, True, 1.0, np.random.default_rng(0))


def test_without_a_threshold_samples_are_as_sure_as_of_half_of_the_validation_samples(
    finished: Run,
) -> None:
    """A young model is sure of nothing; the shipped example's is sure of .45 at its middle."""
    scored = load_predictions(finished.path)
    kept = (scored["split"] == "validation") & (scored["adapted"] == "none")
    usual = float(np.median(scored["confidence"][kept]))
    assert usual < 0.9
    made = fedskew.generate(finished, 20, balanced=False, check=False)
    assert len(made.x) == 20
    assert made.probability is not None
    assert float(made.probability.min()) >= usual
    assert any(f"probability {usual:.2f} or more" in note for note in made.notes)


def test_a_larger_spread_reaches_codes_further_out() -> None:
    near, far = (
        draw(toy(), 300, 3, 0.5, True, spread, np.random.default_rng(0)).codes.std()
        for spread in (1.0, 3.0)
    )
    assert float(far) > 2 * float(near)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """CI-VAEs whose encoders and decoders stay with their clients; some newcomer gets the mean."""
    settings = {
        "model": "dense-civae",
        "method": {"name": "fed-civae", "encoder": "mean", "decoder": "volunteer"},
        "federation": CLIENTS,
        "train": {"rounds": 2, "epochs": 4, "optimiser": "adam", "lr": 0.005, "batch_size": 16},
    }
    return run(settings, out=tmp_path_factory.mktemp("runs"), draw=False)


def test_samples_are_decoded_codes_and_labels_what_the_classifier_reads(finished: Run) -> None:
    made = fedskew.generate(finished, 40, threshold=0.2, balanced=False, check=False, seed=7)
    model = finished.model()
    rng = stream(7, "generate", "")
    found = draw(model, 40, 10, 0.2, False, 1.0, rng)
    with torch.no_grad():
        expected = model.get_submodule("decoder")(found.codes)
        logits = model.get_submodule("classifier")(found.codes)
    torch.testing.assert_close(made.x, expected)
    assert made.y is not None
    assert made.y.tolist() == logits.argmax(dim=1).tolist()
    assert made.probability is not None
    np.testing.assert_allclose(made.probability, logits.softmax(dim=1).amax(dim=1), rtol=1e-6)


def test_a_client_draws_with_its_own_decoder(finished: Run) -> None:
    name = make_federation(finished.config).clients[0].name
    settings: dict[str, Any] = {"threshold": 0.2, "balanced": False, "check": False}
    ours, theirs = (fedskew.generate(finished, 10, client=c, **settings) for c in (None, name))
    assert name in theirs.source
    assert not torch.allclose(ours.x.mean(dim=0), theirs.x.mean(dim=0))
    with pytest.raises(ConfigError, match="unknown client"):
        fedskew.generate(finished, 10, client="zoe", **settings)


def test_what_is_written_can_be_read_again(finished: Run, tmp_path: Path) -> None:
    made = fedskew.generate(finished, 30, threshold=0.2, balanced=False, out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "samples.npz", "samples.png", "report.json",
    }  # fmt: skip
    with np.load(tmp_path / "samples.npz") as arrays:
        np.testing.assert_array_equal(arrays["x"], made.x.numpy())
        np.testing.assert_array_equal(arrays["y"], made.y)
        np.testing.assert_array_equal(arrays["probability"], made.probability)
        assert arrays["class_names"].tolist() == list("0123456789")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["classes"] == made.counts
    assert sum(report["classes"].values()) == 30
    assert "0..1" in report["scale"]
    assert len(report["realism"]["copying"]) == 3
    assert report["realism"]["reading"].endswith(".")
    assert 0 <= report["realism"]["useful"]["cas"] <= 1


def test_a_decoder_alone_gives_samples_without_labels(tmp_path: Path) -> None:
    settings = {
        "model": "beta-vae",
        "method": "vae",
        "federation": CLIENTS,
        "train": {"rounds": 1, "lr": 0.001},
    }
    done = run(settings, out=tmp_path / "runs", draw=False)
    made = fedskew.generate(done, 12, out=tmp_path / "made")
    assert made.y is None
    assert "the samples have no labels" in str(made)
    assert made.realism is not None
    assert made.realism.useful is None
    assert len(made.realism.copying) == 3
    with np.load(tmp_path / "made" / "samples.npz") as arrays:
        assert arrays.files == ["x"]
    assert (tmp_path / "made" / "samples.png").is_file()


def test_features_have_no_picture_and_that_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=rng.random((90, 4), dtype=np.float32), y=np.arange(90) % 3)
    settings = {
        "model": "dense-civae",
        "method": "civae",
        "federation": {**CLIENTS, "dataset": str(tmp_path / "own.npz"), "samples": 60},
        "train": {"rounds": 1, "lr": 0.001},
    }
    done = run(settings, out=tmp_path / "runs", draw=False)
    made = fedskew.generate(done, 9, threshold=0.01, out=tmp_path / "made")
    assert made.x.shape[1:] == (4,)
    assert not (tmp_path / "made" / "samples.png").exists()
    assert "no images, so there is no picture" in str(made)
    (tmp_path / "own.npz").unlink()
    again = fedskew.generate(done, 9, threshold=0.01)
    assert again.realism is None
    assert "not checked against real data" in str(again)
    assert torch.equal(again.x, made.x)


def test_a_run_without_a_decoder_cannot_generate(tmp_path: Path) -> None:
    settings = {"model": "logistic", "federation": CLIENTS, "train": {"rounds": 1}}
    done = run(settings, out=tmp_path, draw=False)
    with pytest.raises(RunError, match="has no decoder to generate samples with: its model 'logis"):
        fedskew.generate(done, 5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"count": 0}, "count must be at least 1"),
        ({"threshold": 1.0}, "threshold must lie between 0 and 1"),
        ({"threshold": 0.0}, "threshold must lie between 0 and 1"),
        ({"spread": 0.0}, "spread must be above 0"),
    ],
)
def test_settings_that_cannot_work(finished: Run, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(FedskewError, match=says):
        fedskew.generate(finished, **{"count": 5, **settings})
