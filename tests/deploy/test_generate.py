"""Synthetic samples: which codes are kept, what is written, and what real data say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial.distance import cdist
from torch import nn

import fedskew
from fedskew.data.federation import Client, Federation
from fedskew.deploy.generate import draw
from fedskew.deploy.realism import Copying, Realism, copies, nearest, realism, usefulness
from fedskew.engine.streams import stream
from fedskew.errors import ConfigError, FedskewError, RunError
from fedskew.models.civae import Civae
from fedskew.runs.experiment import Run, make_federation, run

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


def test_the_picture_has_a_row_a_class_and_is_white_where_one_is_missing(tmp_path: Path) -> None:
    from fedskew.deploy.generate import Generated
    from fedskew.deploy.picture import draw_samples

    x = torch.zeros(6, 1, 4, 4)
    made = Generated(
        x, np.array([0, 0, 0, 2, 2, 2]), np.ones(6, np.float32), ("a", "b", "c"),
        "unit", "", "a toy", 6, {},
    )  # fmt: skip
    draw_samples(tmp_path / "toy.png", made)
    pixels = np.asarray(Image.open(tmp_path / "toy.png").convert("L"))
    dark = (pixels < 40).sum(axis=1) > 150
    starts = np.flatnonzero(np.diff(dark.astype(int)) == 1)
    assert len(starts) == 2
    (gap,) = np.diff(starts)
    height = int(dark[starts[0] + 1 :].argmin())
    assert gap > 1.8 * height


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


def cloud(rows: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, 1, 4, 4))).float()


@pytest.fixture
def real() -> Federation:
    """Two clients with noise of two classes, told apart by its first pixel."""
    x = cloud(400, 0)
    y = (x[:, 0, 0, 0] > 0).long()
    rows = np.arange(400)
    clients = (
        Client("ann", rows[:120], test=rows[120:200]),
        Client("bob", rows[200:350], test=rows[350:]),
    )
    return Federation("noise", x, y, ("low", "high"), clients, central_test=rows[120:200])


def test_nearest_distances_are_those_of_a_full_table(monkeypatch: pytest.MonkeyPatch) -> None:
    points, samples = cloud(37, 1).flatten(1), cloud(23, 2).flatten(1)
    expected = np.sort(cdist(points.numpy(), samples.numpy()), axis=1)
    for at_once in (2**24, 50):
        monkeypatch.setattr("fedskew.deploy.realism.AT_ONCE", at_once)
        found = nearest(points, samples)
        np.testing.assert_allclose(found.first, expected[:, 0], rtol=1e-6)
        np.testing.assert_allclose(found.second, expected[:, 1], rtol=1e-6)
    np.testing.assert_allclose(nearest(samples, samples).first, 0, atol=1e-6)


def test_distances_to_a_client_are_what_scipy_finds(real: Federation) -> None:
    made, ann = 0.5 * cloud(60, 5), real.clients[0]
    found = copies(made, real, ann)
    flat = real.x.flatten(1).numpy()
    own, held = (
        np.sort(cdist(points, flat[ann.train]), axis=1)
        for points in (made.flatten(1).numpy(), flat[ann.test])
    )
    assert found.synthetic == pytest.approx(np.sort(own[:, 0])[29])
    assert found.held_out == pytest.approx(np.sort(held[:, 0])[39])
    assert found.ratio == pytest.approx(found.synthetic / found.held_out)
    near = (own[:, 0] < np.quantile(held[:, 0], 0.01)).mean()
    assert 0 < near < 1
    assert found.near == pytest.approx(near)
    contrast, usual = own[:, 0] / own[:, 1], held[:, 0] / held[:, 1]
    assert found.alone == pytest.approx((contrast < np.quantile(usual, 0.01)).mean())
    assert found.tested == 80


def test_fresh_samples_are_no_copies_and_copies_are_found(real: Federation) -> None:
    fresh = realism(cloud(200, 9), None, real, seed=0)
    assert "no sign of copies" in fresh.reading
    assert [found.client for found in fresh.copying] == ["ann", "bob"]
    assert [found.ratio for found in fresh.copying] == pytest.approx([1, 1], abs=0.15)
    # One in five is a training sample of bob's, hardly changed.
    copied = cloud(100, 3)
    copied[:20] = real.x[real.clients[1].train[:20]] + 0.05 * copied[:20]
    found = realism(copied, None, real, seed=0)
    ann, bob = found.copying
    assert 0.2 <= bob.near <= 0.3
    assert 0.2 <= bob.alone <= 0.3
    assert not ann.suspicious
    assert f"some may be copies: {bob.near:.1%} are nearer to bob's" in found.reading


def test_samples_near_to_everything_are_not_taken_for_copies(real: Federation) -> None:
    """What a smooth decoder draws, the mean, is near to many samples at once."""
    found = realism(0.1 * cloud(100, 4), None, real, seed=0)
    assert max(copying.near for copying in found.copying) > 0.5
    assert "no sign of copies" in found.reading
    assert "but not to one alone" in found.reading


@pytest.mark.parametrize(("tested", "limit"), [(5, 0.749), (50, 0.129), (1000, 0.05)])
def test_few_test_samples_need_more_copies_to_be_sure(tested: int, limit: float) -> None:
    """By hand: a share s lies below the least of n with probability (1 - s)^n, 0.001 here."""
    for near, alone in ((1.01, 1.01), (1.01, 0.99), (0.99, 1.01)):
        found = Copying("ann", 1.0, 1.0, 1.0, near * limit, alone * limit, tested)
        assert found.suspicious == (min(near, alone) > 1)


def test_test_samples_that_are_copies_leave_no_ratio() -> None:
    x = torch.cat([cloud(10, 0), cloud(10, 0)])
    client = Client("ann", np.arange(10), test=np.arange(10, 20))
    federation = Federation("twins", x, torch.zeros(20, dtype=torch.int64), ("only",), (client,))
    found = copies(cloud(5, 1), federation, client)
    assert found.held_out == pytest.approx(0, abs=1e-6)
    assert found.near == 0.0
    text = json.dumps(Realism(None, (found,)).as_dict())
    assert "Infinity" not in text


def test_who_learns_from_real_samples_is_as_good_and_from_wrong_ones_is_not(
    real: Federation,
) -> None:
    rows = real.pooled().train
    copied = usefulness(real.x[rows], real.y.numpy()[rows], real, seed=0)
    assert copied.cas == copied.real > 0.85
    assert copied.samples == 80
    wrong = usefulness(real.x[rows], 1 - real.y.numpy()[rows], real, seed=0)
    assert wrong.cas < 0.15
    assert wrong.real == copied.real


def test_a_clients_samples_are_tried_on_that_clients_test_samples(real: Federation) -> None:
    rows = real.clients[1].train
    found = usefulness(real.x[rows], real.y.numpy()[rows], real, seed=0, client="bob")
    assert found.cas == found.real
    assert found.tested_on == "50 test samples of bob"


def test_a_client_without_test_samples_is_left_out(real: Federation) -> None:
    bare = real.with_data(clients=(Client("ann", real.clients[0].train),))
    found = realism(cloud(20, 1), None, bare, seed=0)
    assert found.copying == ()
    assert "nobody has test samples" in found.reading
