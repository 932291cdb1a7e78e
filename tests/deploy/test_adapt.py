"""A new client's model: samples prepared as the run's, adaptation as the run would have it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from PIL import Image
from torch.nn import functional as F

import fedskew
from fedskew.data.datasets import load
from fedskew.deploy.adapt import NEWCOMER
from fedskew.deploy.model import open_model
from fedskew.deploy.preparation import described, load_preparation, preparation_of
from fedskew.deploy.samples import prepared, read_samples
from fedskew.errors import ConfigError, DataError, FedskewError, RunError
from fedskew.federate.adapting import shots
from fedskew.federate.predictions import load_predictions
from fedskew.runs.experiment import Run, make_federation, run
from fedskew.runs.identity import hash_of

Array = np.ndarray[Any, Any]
Stored = tuple[Array, Array]
EPOCHS = 12
SETTINGS: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [12]},
    "method": "fedavg",
    "federation": {"clients": 4, "unseen": 1, "samples": 600, "partition": "iid"},
    "train": {"rounds": 3, "lr": 0.2},
    "evaluate": {"fine_tune_epochs": EPOCHS, "fine_tune_batch": "all", "shots": [2, "all"]},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Quick, and adapting in one batch: the order of samples then means nothing."""
    return run(SETTINGS, out=tmp_path_factory.mktemp("runs"), draw=False)


@pytest.fixture(scope="module")
def stored() -> Stored:
    """The digits as stored; a run's rows are theirs."""
    digits = load("digits", normalise="unit")
    return digits.x.numpy(), digits.y.numpy()


@pytest.fixture(scope="module")
def few(stored: Stored) -> Stored:
    """Five samples of every class."""
    x, y = stored
    rows = np.concatenate([np.flatnonzero(y == label)[:5] for label in range(10)])
    return x[rows], y[rows]


def plainly_adapted(
    start: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, lr: float, epochs: int
) -> dict[str, torch.Tensor]:
    """Full-batch gradient descent, written down once more."""
    optimiser = torch.optim.SGD(start.parameters(), lr=lr)
    for _ in range(epochs):
        optimiser.zero_grad()
        F.cross_entropy(start(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return dict(start.state_dict())


def test_adapting_is_plain_gradient_descent_from_the_runs_model(
    finished: Run, stored: Stored, few: Stored
) -> None:
    """The few samples are scaled by the figures of all digits, not by their own."""
    made = fedskew.adapt(finished, *few)
    every = stored[0].astype(np.float64)
    x = torch.from_numpy((few[0] - every.mean()) / every.std()).float()
    expected = plainly_adapted(finished.model(), x, torch.from_numpy(few[1]), 0.2, EPOCHS)
    for name, tensor in made.module.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)
    start = finished.model().state_dict()
    assert not torch.allclose(made.module.state_dict()["head.weight"], start["head.weight"])


def test_an_unseen_clients_model_answers_as_the_run_says_it_would(
    finished: Run, stored: Stored
) -> None:
    """The run adapted its unseen client itself: the same samples, by hand, give the same."""
    (client,) = make_federation(finished.config).unseen
    x, y = stored
    made = fedskew.adapt(finished, x[client.train], y[client.train])
    found = fedskew.predict(made, x[client.test], y[client.test], threshold=0.5)
    scored = load_predictions(finished.path)
    mine = (scored["client"] == client.name) & (scored["adapted"] == f"fine-tuned {EPOCHS}")
    assert mine.sum() == len(client.test)
    np.testing.assert_array_equal(found.label, scored["predicted"][mine])
    np.testing.assert_allclose(found.probability, scored["confidence"][mine], rtol=1e-4)


def test_a_two_shot_model_never_sees_a_third_sample(finished: Run, few: Stored) -> None:
    x, y = few
    drawn = shots(np.arange(len(y)), torch.from_numpy(y), 2, 0, NEWCOMER)
    assert np.bincount(y[drawn]).tolist() == [2] * 10
    others = np.setdiff1d(np.arange(len(y)), drawn)
    garbled = x.copy()
    garbled[others] = np.random.default_rng(0).random(garbled[others].shape, dtype=np.float32)
    one = fedskew.adapt(finished, x, y, shots=2)
    other = fedskew.adapt(finished, garbled, y, shots=2)
    assert_same_bits(one.module.state_dict(), other.module.state_dict())
    alone = fedskew.adapt(finished, x[drawn], y[drawn])
    for name, tensor in alone.module.state_dict().items():
        torch.testing.assert_close(tensor, one.module.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_frozen_parts_keep_their_bytes(finished: Run, few: Stored) -> None:
    made = fedskew.adapt(finished, *few, part="head").module.state_dict()
    start = finished.model().state_dict()
    changed = {name for name in start if not torch.equal(made[name], start[name])}
    assert changed == {"head.weight", "head.bias"}


def test_every_adaptation_begins_with_the_runs_own_model(
    finished: Run, few: Stored, tmp_path: Path
) -> None:
    first = fedskew.adapt(finished, *few, out=tmp_path / "mine")
    again = fedskew.adapt(finished, *few, out=tmp_path / "mine")
    assert_same_bits(first.module.state_dict(), again.module.state_dict())
    with pytest.raises(RunError, match="not a run folder"):
        fedskew.adapt(tmp_path / "mine", *few)


def test_the_callers_samples_are_left_as_they_are(finished: Run, few: Stored) -> None:
    x = few[0].copy()
    fedskew.adapt(finished, x, few[1])
    np.testing.assert_array_equal(x, few[0])


def test_the_folder_is_enough_to_predict(
    finished: Run, few: Stored, stored: Stored, tmp_path: Path
) -> None:
    made = fedskew.adapt(finished, *few, shots=2, out=tmp_path / "mine")
    files = {path.name for path in (tmp_path / "mine").iterdir()}
    assert files == {"model.safetensors", "about.json", "preparation.json"}
    loaded = open_model(tmp_path / "mine")
    assert_same_bits(loaded.module.state_dict(), made.module.state_dict())
    assert loaded.preparation == made.preparation
    one, other = (fedskew.predict(m, stored[0][:60]) for m in (made, tmp_path / "mine"))
    np.testing.assert_array_equal(one.probability, other.probability)
    assert one.threshold == other.threshold
    about = json.loads((tmp_path / "mine" / "about.json").read_text())
    recorded = json.loads((finished.path / "config.json").read_text())
    assert about["config"] == hash_of(recorded["config"])[:12]
    assert about["data"] == recorded["data"]
    assert about["round"] == finished.result["selected_round"]
    told = about["adapted"]
    assert (told["shots"], told["epochs"], told["parts"]) == (2, EPOCHS, ["body", "head"])
    assert about["threshold"]["adapted"] == f"2-shot {EPOCHS}"


def test_the_threshold_is_that_of_models_that_adapted_alike(finished: Run, few: Stored) -> None:
    """Other epochs than the run scored leave no other choice than its models as they are."""
    alike, otherwise = (fedskew.adapt(finished, *few, epochs=n) for n in (None, EPOCHS + 1))
    assert alike.threshold is not None
    assert otherwise.threshold is not None
    assert alike.threshold.adapted == f"fine-tuned {EPOCHS}"
    assert alike.about["notes"] == []
    assert otherwise.threshold.adapted == "none"
    assert "of the run's models as they are" in otherwise.about["notes"][0]


def test_a_client_that_lacks_classes_is_told_which(finished: Run, few: Stored) -> None:
    x, y = few
    made = fedskew.adapt(finished, x[y < 7], y[y < 7], shots=3)
    assert made.about["adapted"]["lacks"] == ["7", "8", "9"]
    assert "no samples of 7, 8, 9" in str(made)


def test_more_shots_than_a_class_has_names_the_class_and_its_count(
    finished: Run, few: Stored
) -> None:
    x, y = few
    kept = np.arange(len(y)) != np.flatnonzero(y == 4)[0]
    with pytest.raises(ConfigError, match="5 samples of every class, but there are 4 of class '4'"):
        fedskew.adapt(finished, x[kept], y[kept], shots=5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, y: (x[:, :, :7], y), r"shape \[1, 7, 8\], but the run takes \[1, 8, 8\]"),
        (lambda x, y: (x[:0], y[:0]), "no samples"),
        (lambda x, y: (x, y + 1), "label 10 of sample 45 is none of the run's classes"),
        (lambda x, y: (x, y[:-1]), "50 samples but 49 labels"),
        (lambda x, y: (x, None), "there are no labels"),
        (lambda x, y: (x * 16, y), "pixels span 0 to 16, but those of the run 0 to 1"),
        (lambda x, y: (np.where(x > 0.9, np.nan, x), y), "sample 0 holds a NaN"),
        (lambda x, y: (x, y.astype(float)), "whole numbers or names"),
    ],
)
def test_samples_that_do_not_fit_get_one_clear_sentence(
    finished: Run, few: Stored, change: Callable[[Array, Array], tuple[Array, Array]], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        fedskew.adapt(finished, *change(*few))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"shots": 0}, "shots must be at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"accuracy": 1.0}, "accuracy must lie between 0 and 1"),
        ({"part": "neck"}, "no part 'neck'; it has body, head"),
        ({"client": "zoe"}, "has a global model only"),
    ],
)
def test_settings_that_cannot_work(
    finished: Run, few: Stored, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(FedskewError, match=says):
        fedskew.adapt(finished, *few, **settings)


def test_a_run_on_the_way_is_refused(finished: Run, few: Stored, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((finished.path / "config.json").read_bytes())
    with pytest.raises(RunError, match="is not finished: repeat the command"):
        fedskew.adapt(tmp_path, *few)


def test_a_run_folder_is_never_written_over(finished: Run, few: Stored) -> None:
    with pytest.raises(RunError, match="is the folder of a run"):
        fedskew.adapt(finished, *few, out=finished.path)


def test_other_data_than_the_runs_are_noticed(tmp_path: Path) -> None:
    """A run on a user's own file, which then changes: its figures would be wrong."""
    path, rng = tmp_path / "own.npz", np.random.default_rng(0)
    x, y = rng.random((60, 4), dtype=np.float32), np.arange(60) % 3
    np.savez(path, x=x, y=y)
    federation = {"dataset": str(path), "clients": 3, "partition": "iid"}
    settings = {"model": "logistic", "federation": federation, "train": {"rounds": 1}}
    done = run(settings, out=tmp_path / "runs", draw=False)
    np.savez(path, x=x + 1, y=y)
    with pytest.raises(RunError, match="made with other data than are here now"):
        fedskew.adapt(done, x, y)
    np.savez(path, x=x, y=y)
    fedskew.adapt(done, x, y)
    path.unlink()
    # Once found, the figures stand in the run's folder.
    assert fedskew.adapt(done, x, y).about["adapted"]["samples"] == 60


@pytest.mark.parametrize(
    "federation",
    [
        {},
        {"normalise": "unit"},
        {"normalise": "signed", "classes": [8, 3]},
        {"image": {"side": 12, "channels": 3}},
        {"classes": [5, 2, 7], "image": {"side": 4}},
    ],
)
def test_samples_as_stored_become_the_very_samples_of_the_federation(
    federation: dict[str, Any], stored: Stored
) -> None:
    config = fedskew.make_config({"federation": {"clients": 3, **federation}})
    made = make_federation(config)
    preparation = described(config, made)
    x, y = stored
    kept = np.isin(y, federation.get("classes", np.arange(10)))
    assert torch.equal(preparation.samples(x[kept]), made.x)
    np.testing.assert_array_equal(preparation.labels(y[kept]), made.y.numpy())
    named = preparation.labels([str(label) for label in y[kept]])
    np.testing.assert_array_equal(named, made.y.numpy())


def test_grey_samples_of_a_coloured_run_are_grey_in_three_channels(stored: Stored) -> None:
    skewed = {"clients": 3, "normalise": "unit", "skew": ["colour"]}
    config = fedskew.make_config({"federation": skewed})
    preparation = described(config, make_federation(config))
    made = preparation.samples(stored[0][:4])
    assert torch.equal(made, torch.from_numpy(stored[0][:4]).expand(-1, 3, -1, -1))
    coloured = np.random.default_rng(0).random((4, 3, 8, 8), dtype=np.float32)
    assert torch.equal(preparation.samples(coloured), torch.from_numpy(coloured))


@pytest.fixture(scope="module")
def flat_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on a table of features whose classes have names."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    lines = [f"{a:.6f},{b:.6f},{'cold' if a > b else 'warm'}" for a, b in rng.random((90, 2))]
    (folder / "all.csv").write_text("\n".join(["f,g,label", *lines]))
    federation = {"dataset": str(folder / "all.csv"), "clients": 3, "partition": "iid"}
    settings = {"model": "logistic", "federation": federation, "train": {"rounds": 1}}
    return run(settings, out=folder / "runs", draw=False)


def test_tables_images_and_arrays_hold_the_same_samples(flat_run: Run, tmp_path: Path) -> None:
    preparation = preparation_of(flat_run)
    (tmp_path / "new.csv").write_text("f,g,kind\n0.5,0.25,cold\n0.125,1,warm\n")
    np.savez(tmp_path / "named.npz", x=np.array([[0.5, 0.25], [0.125, 1]]), y=np.array([0, 1]),
             class_names=np.array(["cold", "warm"]))  # fmt: skip
    found = [
        prepared(read_samples(tmp_path / name, None, preparation, "kind"), preparation)
        for name in ("new.csv", "named.npz")
    ]
    assert preparation.class_names == ("cold", "warm")
    for samples in found:
        assert torch.equal(samples.x, found[0].x)
        assert samples.labels().tolist() == [0, 1]
    (tmp_path / "bare.csv").write_text("f,g\n0.5,0.25\n0.125,1\n")
    bare = prepared(read_samples(tmp_path / "bare.csv", None, preparation), preparation)
    assert torch.equal(bare.x, found[0].x)
    assert bare.y is None


def test_parquet_files_are_read_too(flat_run: Run, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"f": [0.5, 0.125], "g": [0.25, 1.0], "label": ["warm", "warm"]})
    parquet.write_table(table, tmp_path / "new.parquet")
    preparation = preparation_of(flat_run)
    stored = read_samples(tmp_path / "new.parquet", None, preparation)
    samples = prepared(stored, preparation)
    assert samples.labels().tolist() == [1, 1]
    assert torch.equal(samples.x, preparation.samples(np.array([[0.5, 0.25], [0.125, 1.0]])))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("f,g,label\n1,2,hot\n", "label 'hot' of sample 0 is none of the run's classes"),
        ("f,label\n1,warm\n", r"shape \[1\], but the run takes \[2\]"),
        ("f,g\n1,x\n", "something else than numbers"),
        ("f,g,label\n", "no rows"),
    ],
)
def test_tables_that_do_not_fit(flat_run: Run, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        fedskew.predict(flat_run, tmp_path / "new.csv", threshold=0.5)


def test_folders_of_images_are_read_by_class_or_without(
    finished: Run, few: Stored, tmp_path: Path
) -> None:
    x, y = few
    for row, (image, label) in enumerate(zip(x, y, strict=True)):
        for place in (tmp_path / "labelled" / str(label), tmp_path / "bare"):
            place.mkdir(parents=True, exist_ok=True)
            pixels = np.round(image[0] * 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{row:02d}.png")
    preparation = preparation_of(finished)
    labelled = prepared(read_samples(tmp_path / "labelled", None, preparation), preparation)
    expected = preparation.samples(np.round(x[:, 0] * 255).astype(np.uint8))
    assert torch.equal(labelled.x, expected)
    assert labelled.labels().tolist() == y.tolist()
    bare = prepared(read_samples(tmp_path / "bare", None, preparation), preparation)
    assert torch.equal(bare.x, expected)
    assert bare.y is None


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without a global model: every client keeps its head."""
    settings = {**SETTINGS, "method": "fedper", "train": {"rounds": 2}}
    return run(settings, out=tmp_path_factory.mktemp("headless"), draw=False)


def test_a_clients_own_model_is_where_its_adaptation_begins(headless: Run, few: Stored) -> None:
    one, other = (client.name for client in make_federation(headless.config).clients[:2])
    made = fedskew.adapt(headless, *few, client=one, part="body").module.state_dict()
    own, theirs = (headless.model(name).state_dict()["head.weight"] for name in (one, other))
    assert torch.equal(made["head.weight"], own)
    assert not torch.equal(made["head.weight"], theirs)


def test_without_a_global_model_one_begins_where_the_run_let_newcomers_begin(
    headless: Run, stored: Stored, few: Stored
) -> None:
    """With the shared body and an untrained head, whatever the seed of the shots."""
    (client,) = make_federation(headless.config).unseen
    x, y = stored
    made = fedskew.adapt(headless, x[client.train], y[client.train], seed=5)
    found = fedskew.predict(made, x[client.test], threshold=0.5)
    scored = load_predictions(headless.path)
    mine = (scored["client"] == client.name) & (scored["adapted"] == f"fine-tuned {EPOCHS}")
    np.testing.assert_allclose(found.probability, scored["confidence"][mine], rtol=1e-4)
    with pytest.raises(RunError, match="has no global model, only its clients'"):
        fedskew.predict(headless, x[:3], threshold=0.5)


@pytest.mark.real_data
@pytest.mark.parametrize("scale", ["client", "feature"])
def test_features_are_chosen_and_scaled_as_the_runs(data_dir: Path, scale: str) -> None:
    """Rows of a client come out bit for bit; a newcomer's range is that of its samples."""
    federation = {
        "dataset": "har", "partition": "owner", "clients": "all", "unseen": 9,
        "features": {"top": 144, "scale": scale},
    }  # fmt: skip
    config = fedskew.make_config({"federation": federation})
    made = make_federation(config, data_dir)
    preparation = described(config, made, data_dir)
    raw = load("har", data_dir, normalise="unit")
    assert raw.owner is not None
    client = made.clients[2]
    rows = np.flatnonzero(raw.owner == raw.owner_names.index(client.name))
    mine = preparation.of_client(client.name).samples(raw.x[rows].numpy())
    theirs = made.x[np.concatenate([client.train, client.validation, client.test])]
    assert set(map(bytes, mine.numpy())) == set(map(bytes, theirs.numpy()))
    new = preparation.of_new(raw.x[rows[:40]].numpy()).samples(raw.x[rows[:40]].numpy())
    low, high = new.aminmax(dim=0) if scale == "feature" else new.aminmax()
    assert torch.allclose(low, torch.zeros_like(low), atol=1e-6)
    assert torch.allclose(high, torch.ones_like(high), atol=1e-6)


def test_a_preparation_is_read_back_as_it_was_written(finished: Run, tmp_path: Path) -> None:
    preparation = preparation_of(finished)
    preparation.save(tmp_path)
    assert load_preparation(tmp_path) == preparation
