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
from quick_digits import EPOCHS, SETTINGS, Array, Stored
from torch.nn import functional as F

import fedskew
from fedskew.api import run
from fedskew.deploy.adapt import NEWCOMER
from fedskew.deploy.model import open_model
from fedskew.errors import ConfigError, DataError, FedskewError, RunError
from fedskew.federate.adapting import shots
from fedskew.federate.predictions import load_predictions
from fedskew.runs.experiment import Run, make_federation
from fedskew.runs.identity import hash_of


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
    """The few samples are scaled by the figures of the digits clients trained on, not their own."""
    made = fedskew.adapt(finished, *few)
    clients = make_federation(finished.config).clients
    every = stored[0][np.concatenate([c.train for c in clients])].astype(np.float64)
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
    assert files == {
        "model.safetensors", "about.json", "preparation.json", "profile.json", "answers.json",
    }  # fmt: skip
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
