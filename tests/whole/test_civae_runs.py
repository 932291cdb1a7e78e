"""Whole runs with shots, newcomers and class-informed VAEs: their rows and their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import every_method, toy_federation
from sklearn.metrics import accuracy_score, f1_score

from fedskew import run
from fedskew.config import make_config
from fedskew.data.federation import Federation
from fedskew.data.raw import RawSamples
from fedskew.data.sources import inverted
from fedskew.errors import ConfigError, RunError
from fedskew.federate.metrics import Row
from fedskew.federate.predictions import load_predictions
from fedskew.methods import find
from fedskew.runs.experiment import Run

FEDERATION = toy_federation()
SEEN, UNSEEN = [f"c{k}" for k in range(4)], ["c4"]
MODELS: dict[str, dict[str, Any]] = {
    "head": {"name": "mlp", "hidden": [5]},
    "decoder": {"name": "beta-vae", "hidden": [5]},
    "output": {"name": "gaussian-made", "hidden": [5]},
    "classifier": {"name": "dense-civae", "hidden": [5], "decoder_hidden": [5], "latent": 2},
}


def settings(method: str | dict[str, Any], **evaluate: Any) -> dict[str, Any]:
    """One round of a method on the toy federation, with a model that has the parts it needs."""
    knobs = dict(method) if isinstance(method, dict) else {"name": method}
    needs = find(knobs.pop("name")).recipe(**knobs).objective.needs
    return {
        "method": method,
        "model": MODELS[needs[-1]],
        "train": {"rounds": 1, "batch_size": 8},
        "evaluate": evaluate,
    }


def go(
    out: Path,
    method: str | dict[str, Any],
    federation: Federation = FEDERATION,
    train: dict[str, Any] | None = None,
    **evaluate: Any,
) -> Run:
    given = settings(method, **evaluate)
    given["train"] |= train or {}
    return run(given, out=out, federation=federation, draw=False)


def main_rows(done: Run) -> list[Row]:
    """What the run's main model got on clients in its last round."""
    last, model = done.result["rounds"], done.result["primary_model"]
    return [
        row
        for row in done.rows()
        if (row.stage, row.round, row.model) == ("main", last, model)
        and row.on in ("seen", "unseen")
        and row.split in ("validation", "test")
    ]


def adapted_in(rows: Sequence[Row]) -> set[str]:
    return {row.adapted for row in rows}


def agrees_with_rows(done: Run) -> None:
    """Every accuracy and macro F1 of a row is what its predictions say, and none is missing.

    But for validation data of unseen clients, which choose rounds and nothing else.
    """
    said = load_predictions(done.path)
    found = {}
    for row in main_rows(done):
        if (row.on, row.split) == ("unseen", "validation"):
            continue
        found[row.on, row.client, row.split, row.adapted, row.metric] = row.value
    keys = set(zip(*(said[name] for name in ("on", "client", "split", "adapted")), strict=True))
    assert keys == {key[:-1] for key in found}
    for on, client, split, adapted in keys:
        here = said["client"] == client
        here &= (said["split"] == split) & (said["adapted"] == adapted)
        label, predicted = said["label"][here], said["predicted"][here]
        place = (on, client, split, adapted)
        assert found[*place, "accuracy"] == pytest.approx(accuracy_score(label, predicted))
        assert found[*place, "macro_f1"] == pytest.approx(
            f1_score(label, predicted, average="macro", zero_division=0.0)
        )
        assert said["correct"][here].tolist() == (label == predicted).tolist()
        rows = next(c for c in (*FEDERATION.clients, *FEDERATION.unseen) if c.name == client)
        assert label.tolist() == FEDERATION.y[rows.split(str(split))].tolist()


@every_method
def test_every_method_is_scored_as_it_is_and_after_one_and_two_shots(
    name: str, tmp_path: Path
) -> None:
    done = go(tmp_path, name, shots=[0, 1, 2], fine_tune_epochs=1)
    rows = main_rows(done)
    metric = done.result["primary_metric"]
    labels = sorted(adapted_in(rows))
    assert [label.split()[0] for label in labels] == ["1-shot", "2-shot", "none"]
    tested = [(r.client, r.on, r.adapted) for r in rows if (r.split, r.metric) == ("test", metric)]
    everybody = [*((c, "seen") for c in SEEN), *((c, "unseen") for c in UNSEEN)]
    assert sorted(tested) == sorted((c, on, how) for c, on in everybody for how in labels)
    for label in labels[:2]:
        changed = {r.client: r.value for r in rows if (r.adapted, r.split, r.metric) == (
            label, "test", "loss")}  # fmt: skip
        before = {r.client: r.value for r in rows if (r.adapted, r.split, r.metric) == (
            "none", "test", "loss")}  # fmt: skip
        assert all(changed[client] != before[client] for client in before)
    assert {(s["on"], s["adapted"]) for s in done.result["scores"]} >= {
        (on, how) for on in ("seen", "unseen") for how in labels
    }
    assert done.result["notes"] == []
    if metric == "accuracy":
        agrees_with_rows(done)
    else:
        with pytest.raises(RunError, match="holds no predictions: it is unfinished, or its model"):
            load_predictions(done.path)


def test_methods_made_to_be_adapted_say_for_how_long(tmp_path: Path) -> None:
    """Unless told otherwise they adapt to all data; shots need no further setting."""
    assert adapted_in(main_rows(go(tmp_path, "fed-civae"))) == {"none", "fine-tuned 20"}
    few = go(tmp_path, "fed-classifier", shots=2)
    assert adapted_in(main_rows(few)) == {"none", "2-shot 20"}
    assert adapted_in(main_rows(go(tmp_path, "fed-civae", shots=[0]))) == {"none"}
    assert adapted_in(main_rows(go(tmp_path, "fedavg"))) == {"none"}


def test_a_number_of_shots_alone_is_a_list_of_one() -> None:
    def shots(value: Any) -> list[Any]:
        return list(make_config({"evaluate": {"shots": value}}).evaluate.shots)

    assert shots(2) == [2]
    assert shots("all") == shots(None) == ["all"]
    assert shots([0, 1, "all"]) == [0, 1, "all"]


@pytest.mark.parametrize(
    ("method", "evaluate", "says"),
    [
        (
            "fedavg",
            {"shots": [0, 2]},
            "evaluate.shots asks for adaptation, but method 'fedavg' says nothing about it: set "
            "evaluate.fine_tune_epochs.",
        ),
        (
            "vae",
            {"shots": 1},
            "evaluate.shots asks for adaptation, but method 'vae' says nothing about it: set "
            "evaluate.fine_tune_epochs.",
        ),
        (
            "fed-civae",
            {"shots": [1, 32, "all"]},
            "evaluate.shots asks for 32 samples per class, but no client has more than 31 of any.",
        ),
        (
            "fed-civae",
            {"fine_tune_part": ["encoder", "head"]},
            "the model has no part 'head'; it has encoder, decoder, classifier.",
        ),
        ("fed-civae", {"shots": []}, "evaluate.shots: list should have at least 1 item"),
        ("fed-civae", {"shots": [-1]}, "evaluate.shots"),
        ("fed-civae", {"shots": [True]}, "evaluate.shots"),
        ("fed-civae", {"shots": ["some"]}, "evaluate.shots"),
        ("fed-civae", {"fine_tune_patience": 0}, "evaluate.fine_tune_patience"),
        ("fed-civae", {"fine_tune_at": "first"}, "evaluate.fine_tune_at"),
        ("fed-civae", {"fine_tune_lr": 0.0}, "evaluate.fine_tune_lr"),
    ],
)
def test_adaptations_that_cannot_be_are_refused_before_anything_is_trained(
    tmp_path: Path, method: str, evaluate: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        go(tmp_path, method, **evaluate)
    assert says in str(raised.value)
    assert str(raised.value).count("\n") == 0
    assert str(raised.value).endswith(".")
    assert not list(tmp_path.glob("*/metrics.jsonl"))


def test_as_many_shots_as_the_richest_client_has_are_taken(tmp_path: Path) -> None:
    """The client c3 has 31 of one class."""
    done = go(tmp_path, "fed-classifier", shots=31, fine_tune_epochs=1)
    assert adapted_in(main_rows(done)) == {"none", "31-shot 1"}


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (
            {"name": "fedreptile", "eta": 0.0},
            "eta of method 'fedreptile' must be a number above 0, not 0.0.",
        ),
        (
            {"name": "fedreptile", "first": -1.0},
            "first of method 'fedreptile' must be a number above 0 or none, not -1.0.",
        ),
        (
            {"name": "fedreptile-civae", "decay": float("inf")},
            "decay of method 'fedreptile-civae' must be a number above 0, not inf.",
        ),
        ({"name": "fedreptile", "base": "local"}, "base = 'local' shares nothing, so there is"),
        (
            {"name": "fedreptile", "base": "fedshibu"},
            "base = 'fedshibu' makes several models, so there is no single target",
        ),
        (
            {"name": "fedreptile", "weights": "x"},
            "weights of method 'fedreptile' must be 'size' or 'uniform', not 'x'.",
        ),
        (
            {"name": "fed-civae", "encoder": "all"},
            "encoder of method 'fed-civae' must be 'mean', 'volunteer' or 'none', not 'all'.",
        ),
        (
            {"name": "fed-civae", "decoder": True},
            "decoder of method 'fed-civae' must be 'mean', 'volunteer' or 'none', not True.",
        ),
        (
            {"name": "civae", "adapt_alpha": -1.0},
            "adapt_alpha of method 'civae' must be a number of at least 0, not -1.0.",
        ),
        (
            {"name": "civae", "alpha": -1.0},
            "alpha of method 'civae' must be a number of at least 0, not -1.0.",
        ),
        ({"name": "civae", "base": "fedrep"}, "base = 'fedrep' is made for classifiers"),
        (
            {"name": "civae", "classifies": "x"},
            "classifies of method 'civae' must be 'sample' or 'mean', not 'x'.",
        ),
    ],
)
def test_settings_of_these_methods_that_cannot_work(method: dict[str, Any], says: str) -> None:
    name, *_ = knobs = dict(method)
    with pytest.raises(ConfigError) as raised:
        find(method["name"]).recipe(**{k: v for k, v in method.items() if k != name})
    assert len(knobs) == 2
    assert says in str(raised.value)


def test_a_civae_is_told_which_models_have_a_classifier_of_codes(tmp_path: Path) -> None:
    config = {**settings("civae"), "model": MODELS["decoder"]}
    with pytest.raises(ConfigError) as raised:
        run(config, out=tmp_path, federation=FEDERATION, draw=False)
    assert str(raised.value) == (
        "method 'civae' needs a model with an encoder and a decoder and a classifier, which "
        "'beta-vae' is not: choose from conv-civae, dense-civae."
    )


@pytest.mark.parametrize(("at", "rounds"), [("both", {1, 3}), ("last", {3}), ("selected", {1})])
def test_models_of_the_rounds_asked_for_are_adapted(
    tmp_path: Path, at: str, rounds: set[int]
) -> None:
    """A rate that ruins the model in later rounds, so that the first stays the selected one."""
    train = {"rounds": 3, "lr": 0.3, "lr_decay": 1e3, "lr_steps": [1]}
    done = go(
        tmp_path, "fedavg", train=train, shots=[1], fine_tune_epochs=1, fine_tune_lr=0.5,
        fine_tune_at=at,
    )  # fmt: skip
    assert (done.result["selected_round"], done.result["rounds"]) == (1, 3)
    assert {row.round for row in done.rows() if row.adapted == "1-shot 1"} == rounds
    said = set(load_predictions(done.path)["adapted"])
    assert said == ({"none", "1-shot 1"} if 1 in rounds else {"none"})


def test_predictions_are_those_of_the_selected_round(tmp_path: Path) -> None:
    """A rate that ruins the model in later rounds; its predictions are the first round's."""
    train = {"rounds": 3, "lr": 0.3, "lr_decay": 1e6, "lr_steps": [1]}
    done = go(tmp_path, "fedavg", train=train)
    assert done.result["selected_round"] < done.result["rounds"] == 3
    said = load_predictions(done.path)
    models = {at: done.model(round=at) for at in ("selected", "last")}
    answers = {}
    for at, model in models.items():
        with torch.no_grad():
            rows = np.concatenate([c.test for c in FEDERATION.clients])
            answers[at] = model(FEDERATION.x[rows]).softmax(1).max(1).values.numpy()
    here = (said["split"] == "test") & (said["on"] == "seen")
    np.testing.assert_allclose(said["confidence"][here], answers["selected"], atol=1e-6)
    assert not np.allclose(answers["last"], answers["selected"], atol=1e-3)


def test_predictions_have_the_fields_and_kinds_that_others_read(tmp_path: Path) -> None:
    """Five samples a split; of newcomers the test samples alone; personal models for their own."""
    done = go(tmp_path, "fed-civae", shots=[1, "all"], fine_tune_epochs=2)
    said = load_predictions(done.path)
    kinds = {name: values.dtype.kind for name, values in said.items()}
    assert kinds == {
        "confidence": "f", "correct": "b", "label": "i", "predicted": "i", "client": "U",
        "on": "U", "split": "U", "adapted": "U", "log_probability": "f",
    }  # fmt: skip
    assert [str(said[name].dtype) for name in ("confidence", "label", "predicted")] == [
        "float32", "int64", "int64",
    ]  # fmt: skip
    assert {len(values) for values in said.values()} == {3 * (4 * 2 * 5 + 5)}
    assert set(said["adapted"]) == {"none", "1-shot 2", "fine-tuned 2"}
    assert set(zip(said["on"], said["split"], strict=True)) == {
        ("seen", "validation"), ("seen", "test"), ("unseen", "test"),
    }  # fmt: skip
    assert (said["confidence"] >= 1 / 3).all()
    assert (said["confidence"] <= 1).all()
    for client in FEDERATION.clients:
        with torch.no_grad():
            chances = done.model(client.name)(FEDERATION.x[client.test]).softmax(1)
        here = (said["client"] == client.name) & (said["split"] == "test")
        here &= said["adapted"] == "none"
        np.testing.assert_allclose(said["confidence"][here], chances.max(1).values, atol=1e-6)
        assert said["predicted"][here].tolist() == chances.argmax(1).tolist()


def test_clients_that_are_odd_have_scores_of_their_own(tmp_path: Path) -> None:
    odd = FEDERATION.with_data(odd=("c1", "c3"))
    done = go(tmp_path, "fed-classifier", odd, shots=[2], fine_tune_epochs=1)
    for adapted in ("none", "2-shot 1"):
        values = [
            row.value
            for row in main_rows(done)
            if row.client in ("c1", "c3")
            and (row.adapted, row.split, row.metric) == (adapted, "test", "macro_f1")
        ]
        (score,) = (
            s
            for s in done.result["scores"]
            if (s["at"], s["on"], s["adapted"]) == ("last", "odd", adapted)
            and (s["split"], s["metric"]) == ("test", "macro_f1")
        )
        assert len(values) == 2
        assert score["mean"] == pytest.approx(float(np.mean(values)))


def test_a_plain_vae_may_be_trained_in_a_model_with_a_classifier_it_does_not_touch(
    tmp_path: Path,
) -> None:
    config = {**settings("vae"), "model": MODELS["classifier"]}
    done = run(config, out=tmp_path, federation=FEDERATION, draw=False)
    assert {r.metric for r in main_rows(done)} == {"loss", "reconstruction", "kl", "legacy"}
    assert not done.model().get_parameter("classifier.bias").any()


@pytest.mark.parametrize(("white", "kind"), [(255, np.uint8), (1, np.float32)])
def test_light_and_dark_are_exchanged(white: int, kind: Any) -> None:
    x = np.array([[[0, white]], [[white, 0]]], dtype=kind)
    raw = RawSamples(Path("here"), x, np.array([0, 1]), ("a", "b"))
    assert inverted(raw).x.tolist() == [[[white, 0]], [[0, white]]]
    assert inverted(raw).x.dtype == kind


def test_without_validation_data_the_last_round_is_the_selected_one(tmp_path: Path) -> None:
    clients = tuple(replace(c, validation=c.validation[:0]) for c in FEDERATION.clients)
    config = {**settings("fedavg"), "train": {"rounds": 3}}
    federation = FEDERATION.with_data(clients=clients)
    done = run(config, out=tmp_path, federation=federation, draw=False)
    assert done.result["selected_round"] == 3


def test_a_number_of_shots_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="names a number twice"):
        make_config({"evaluate": {"shots": [1, 2, 1], "fine_tune_epochs": 1}})


@pytest.mark.parametrize(
    ("base", "why"),
    [
        ("feddisco", "weights of its own, which weights would"),
        ({"name": "fedavg", "server_lr": 0.5}, "server step of its own, which eta would"),
        ("fedreptile", "server step of its own, which eta would"),
    ],
)
def test_reptile_refuses_a_base_with_weights_or_a_step_of_its_own(base: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=f"has a? ?{why} replace"):
        find("fedreptile").recipe(base=base)
