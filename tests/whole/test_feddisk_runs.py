"""Whole runs with sample weights: every base, what travels, interruptions, and what is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same_bits

from fedskew import run
from fedskew.config import make_config
from fedskew.data.federation import Client, Federation
from fedskew.errors import ConfigError, RunError
from fedskew.methods import METHODS, find
from fedskew.parts.sample_weights import ALL_EQUAL, FINE, TOO_FEW
from fedskew.runs.experiment import Run, make_federation
from fedskew.runs.identity import resolve
from fedskew.store import load_groups, load_tensors

MODELS: dict[str, dict[str, Any]] = {
    "head": {"name": "mlp", "hidden": [5]},
    "decoder": {"name": "beta-vae", "hidden": [5]},
    "classifier": {"name": "dense-civae", "hidden": [5], "decoder_hidden": [5], "latent": 2},
    "output": {"name": "made", "hidden": [5]},
}
BITS: dict[str, Any] = {
    "dataset": "bernoulli-clients", "options": {"owners": 3, "dimensions": 6, "size": 40},
    "normalise": "unit", "partition": "owner", "clients": "all",
}  # fmt: skip
NUMBERS = 6 * 8 + 8 + 8 * 6 + 6
"""Parameters of a MADE of six bits with eight hidden units."""


def feddisk(**knobs: Any) -> dict[str, Any]:
    density = {"name": "made", "hidden": [8]}
    short = {"density": density, "density_rounds": 3, "local_epochs": 2, "density_patience": 3}
    return {"name": "feddisk", **short, **knobs}


def accepts(base: str) -> bool:
    try:
        find("feddisk").recipe(base=base)
    except ConfigError:
        return False
    return True


BASES = [name for name in sorted(METHODS) if accepts(name)]
every_base = pytest.mark.parametrize("base", BASES)


@cache
def bits() -> Federation:
    return make_federation(resolve(make_config({"federation": BITS})))


def go(
    out: Path,
    method: str | dict[str, Any],
    data: Federation | None = None,
    watch: Any = None,
    **sections: Any,
) -> Run:
    """Two rounds of a method with a model that has the parts it needs."""
    knobs = dict(method) if isinstance(method, dict) else {"name": method}
    needs = find(knobs.pop("name")).recipe(**knobs).objective.needs
    config = {
        "method": method, "model": MODELS[needs[-1]], "federation": BITS,
        "train": {"rounds": 2, "batch_size": 8}, **sections,
    }  # fmt: skip
    return run(config, out=out, federation=data or bits(), watch=watch, draw=False)


def saved(done: Run) -> dict[str, torch.Tensor]:
    """All tensors of all saved models, by file."""
    folder = done.path / "models"
    return {
        f"{path.relative_to(folder)}/{name}": tensor
        for path in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_tensors(path).items()
    }


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for runs of all bases, so that they share their densities."""
    return tmp_path_factory.mktemp("together")


def test_nearly_every_method_takes_weights() -> None:
    assert set(METHODS) - set(BASES) == {"central", "distilled-vae", "feddisk", "latent-weights"}


@every_base
def test_weights_of_1_leave_a_base_as_it_is_to_the_bit_and_others_do_not(
    base: str, together: Path
) -> None:
    plain = go(together, base)
    equal = go(together, feddisk(base=base, estimator="equal"))
    truth = go(together, feddisk(base=base, estimator="oracle"))
    assert saved(plain)
    assert_same_bits(saved(equal), saved(plain))
    assert {w["trouble"] for w in equal.result["sample_weights"].values()} == {ALL_EQUAL}
    assert "sample_weights" not in plain.result
    weighed, unweighed = saved(truth), saved(plain)
    assert weighed.keys() == unweighed.keys()
    # Every saved model was trained with weights, whoever it belongs to.
    for file in {name.rsplit("/", 1)[0] for name in unweighed}:
        names = [name for name in unweighed if name.startswith(f"{file}/")]
        assert not all(torch.equal(weighed[name], unweighed[name]) for name in names), file


def test_weights_of_1_leave_batch_norm_as_it_is(tmp_path: Path) -> None:
    """FedBN keeps it at the client, so it is what all clients differ in."""
    image = {"side": 16, "channels": 1}
    federation = {
        "dataset": "digits", "normalise": "unit", "samples": 200, "clients": 3, "image": image,
    }  # fmt: skip
    data = make_federation(resolve(make_config({"federation": federation})))
    sections = {"federation": federation, "model": {"name": "cnn-bn", "channels": 4}}
    plain = go(tmp_path, "fedbn", data, **sections)
    equal = go(tmp_path, feddisk(base="fedbn", estimator="equal"), data, **sections)
    assert_same_bits(saved(equal), saved(plain))
    weighed = go(tmp_path, feddisk(base="fedbn", estimator="literal"), data, **sections)
    weights = weighed.result["sample_weights"]
    assert FINE in {entry["trouble"] for entry in weights.values()}
    assert any(not torch.equal(saved(weighed)[n], t) for n, t in saved(plain).items())


def test_a_result_tells_of_stages_and_of_weights(together: Path) -> None:
    """Three clients; a number has four bytes. What begins the second stage is sent down once."""
    done = go(together, feddisk())
    size = 4 * 3 * NUMBERS
    classifier = 6 * 5 + 5 + 5 * 2 + 2
    assert done.result["stages"] == [
        {"name": "density", "rounds": 3, "selected_round": 3, "parameters": NUMBERS,
         "bytes_up": 3 * size, "bytes_down": 3 * size},
        {"name": "local-density", "rounds": 2, "selected_round": 2, "parameters": 0,
         "bytes_up": 0, "bytes_down": size},
        {"name": "main", "rounds": 2, "selected_round": done.result["selected_round"],
         "parameters": classifier, "bytes_up": 2 * 12 * classifier,
         "bytes_down": 2 * 12 * classifier},
    ]  # fmt: skip
    assert done.result["bytes"]["up"] == 3 * size + 24 * classifier
    weights = done.result["sample_weights"]
    assert sorted(weights) == ["owner-00", "owner-01", "owner-02"]
    for client in bits().clients:
        told = weights[client.name]
        assert told["n"] == len(client.train)
        assert 1 < told["effective"] <= told["n"]
        assert 0 < told["least"] <= 1 <= told["most"]
        assert told["entropy"] > 0
        assert told["truth"].keys() == {"pearson", "spearman", "slope", "effective"}


def test_nothing_about_single_clients_reaches_the_server(together: Path) -> None:
    done = go(together, feddisk())
    for stage in ("density", "local-density", "main"):
        files = sorted((done.path / "checkpoint").glob(f"server-{stage}-*"))
        assert files
        for file in files:
            assert set(load_groups(file)) <= {"shared"}


def test_clients_forget_their_densities_before_the_last_stage(together: Path) -> None:
    done = go(together, feddisk())
    (kept,) = (done.path / "checkpoint").glob("private-local-density-handed*")
    assert not list((done.path / "checkpoint").glob("private-main-*"))
    assert {name.split("/")[1] for name in load_groups(kept)} == {"sample_weight", "weighing"}


def test_true_weights_agree_with_the_truth(together: Path) -> None:
    done = go(together, feddisk(estimator="oracle", clip=1e9))
    for told in done.result["sample_weights"].values():
        assert told["truth"]["pearson"] == pytest.approx(1.0)
        assert told["truth"]["slope"] == pytest.approx(1.0)
        assert told["effective"] == pytest.approx(told["truth"]["effective"], rel=1e-5)


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    hashes = {name: sha for name, sha in result["hashes"].items() if name != "timing.jsonl"}
    return {**result, "seconds": 0.0, "hashes": hashes}


def stop_at(stage: str, number: int) -> Any:
    def stop(progress: Any, record: object, rows: object) -> None:
        if (progress.stage, progress.round) == (stage, number):
            raise RunError("stopped")

    return stop


@pytest.mark.parametrize(
    "at", [("density", 1), ("density", 3), ("local-density", 1), ("local-density", 2), ("main", 1)]
)
@pytest.mark.parametrize("method", [feddisk(base="scaffold"), feddisk(estimator="literal")])
def test_a_run_stopped_in_or_between_stages_goes_on_to_the_same_bits(
    tmp_path: Path, together: Path, method: dict[str, Any], at: tuple[str, int]
) -> None:
    with pytest.raises(RunError, match="stopped"):
        go(tmp_path, method, watch=stop_at(*at))
    resumed, whole = go(tmp_path, method), go(together, method)
    assert_same_bits(saved(resumed), saved(whole))
    for name in ("metrics.jsonl", "rounds.jsonl", "result.json", "sample_weights.npz"):
        if name == "result.json":
            ours, theirs = (without_time(done.result) for done in (resumed, whole))
            assert ours == theirs
        else:
            assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


def seconds(done: Run) -> dict[str, float]:
    lines = [json.loads(line) for line in (done.path / "timing.jsonl").read_text().splitlines()]
    return {
        stage: sum(line["seconds"] for line in lines if line["stage"] == stage)
        for stage in ("density", "local-density", "main")
    }


def test_runs_that_differ_in_estimator_clip_or_base_share_their_densities(tmp_path: Path) -> None:
    first = go(tmp_path, feddisk())
    assert min(seconds(first).values()) > 0
    for knobs in ({"estimator": "literal"}, {"base": "fedprox"}, {"clip": 2.0}):
        other = go(tmp_path, feddisk(**knobs))
        assert other.path != first.path
        spent = seconds(other)
        assert (spent["density"], spent["local-density"]) == (0.0, 0.0)
        assert spent["main"] > 0


@pytest.mark.parametrize(
    ("knobs", "shared"),
    [({"warm": False}, True), ({"local_epochs": 3}, True), ({"density_rounds": 2}, False),
     ({"density": {"name": "made", "hidden": [7]}}, False)],
)  # fmt: skip
def test_runs_with_other_densities_share_only_what_is_the_same(
    together: Path, knobs: dict[str, Any], shared: bool
) -> None:
    go(together, feddisk())
    spent = seconds(go(together, feddisk(**knobs)))
    assert (spent["density"] == 0) is shared
    assert spent["local-density"] > 0


def with_tiny_client(validation: int) -> Federation:
    """The clients, and one who holds two of the first one's samples."""
    first, *others = bits().clients
    rows = first.train
    tiny = Client("tiny", rows[:2], rows[2 : 2 + validation], first.test)
    rest = Client(first.name, rows[4:], first.validation)
    return bits().with_data(clients=(rest, *others, tiny))


@pytest.mark.parametrize(("estimator", "validation"), [("likelihood", 0), ("cross-fitted", 2)])
def test_a_client_with_two_samples_goes_without_weights_and_is_told_of(
    tmp_path: Path, estimator: str, validation: int
) -> None:
    done = go(tmp_path, feddisk(estimator=estimator), with_tiny_client(validation))
    weights = done.result["sample_weights"]
    assert (weights["tiny"]["n"], weights["tiny"]["trouble"]) == (2, TOO_FEW)
    assert (weights["tiny"]["least"], weights["tiny"]["most"]) == (1.0, 1.0)
    assert {weights[c.name]["trouble"] for c in bits().clients[1:]} == {FINE}
    assert done.result["failures"] == 0


@pytest.mark.parametrize("estimator", ["likelihood", "sampled", "cross-fitted", "literal"])
def test_grey_pictures_are_weighed_by_every_estimator(tmp_path: Path, estimator: str) -> None:
    federation = {"dataset": "digits", "normalise": "unit", "samples": 150, "clients": 2}
    data = make_federation(resolve(make_config({"federation": federation})))
    knobs = {"estimator": estimator, "density_train": {"epochs": 1}}
    done = go(tmp_path, feddisk(**knobs), data, federation=federation)
    for client, told in done.result["sample_weights"].items():
        assert told["n"] == len(data.by_name[client].train)
        assert 0 < told["least"] <= 1 <= told["most"] < np.inf
        assert "truth" not in told


def test_real_values_have_no_entropy(tmp_path: Path) -> None:
    options = {"owners": 2, "dimensions": 2, "size": 60}
    federation = {**BITS, "dataset": "gaussian-clients", "options": options}
    data = make_federation(resolve(make_config({"federation": federation})))
    density = {"name": "gaussian-made", "hidden": [8]}
    done = go(tmp_path, feddisk(density=density), data, federation=federation)
    for told in done.result["sample_weights"].values():
        assert told["entropy"] is None
        assert told["leak"] is None


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        (
            {"base": "central"},
            "base = 'central' pools everybody's data, so its clients cannot be given weights.",
        ),
        (
            {"base": "latent-weights"},
            "base = 'latent-weights' has stages of its own, so its "
            "clients cannot be given weights.",
        ),
        ({"base": "feddisk"}, "base = 'feddisk' has stages of its own"),
        ({"base": "fedvag"}, "unknown method 'fedvag': did you mean 'fedavg'?"),
        ({"base": 3}, "base of method 'feddisk' must be a name or a table like {name = …}, not 3."),
        (
            {"estimator": "exact"},
            "estimator of method 'feddisk' must be 'likelihood', 'sampled', "
            "'cross-fitted', 'literal', 'oracle' or 'equal', not 'exact'.",
        ),
        ({"clip": 1.0}, "clip of method 'feddisk' must be a number above 1, not 1.0."),
        ({"clip": 0.5}, "clip of method 'feddisk' must be a number above 1, not 0.5."),
        ({"clip": "19"}, "clip of method 'feddisk' must be a number above 1, not '19'."),
        (
            {"density_rounds": 0},
            "density_rounds of method 'feddisk' must be a whole number of at least 1, not 0.",
        ),
        (
            {"density_patience": 0},
            "density_patience of method 'feddisk' must be a whole number of at least 1, not 0.",
        ),
        (
            {"local_epochs": 0},
            "local_epochs of method 'feddisk' must be a whole number of at least 1, not 0.",
        ),
        ({"density_train": {"lrr": 1.0}}, "unknown setting 'train.lrr': did you mean 'train.lr'?"),
        ({"density_train": {"lr": -1.0}}, "train.lr: input should be greater than 0"),
        (
            {"density_train": {"rounds": 7}},
            "density_train must not set rounds: density_rounds and local_epochs do that.",
        ),
        (
            {"density_train": "adam"},
            "density_train of method 'feddisk' must be a table like {name = …} or "
            "none, not 'adam'.",
        ),
        ({"density": "mlp"}, "which 'mlp' is not: choose from gaussian-made, made."),
        ({"density": "mdae"}, "unknown model 'mdae': did you mean 'made'?"),
        (
            {"density": 3},
            "density of method 'feddisk' must be a name or a table like {name = …}, not 3.",
        ),
        (
            {"density": {"hidden": [3]}},
            "density must name a model, like 'made', not {'hidden': [3]}.",
        ),
        (
            {"density": {"name": "made", "hiden": [3]}},
            "unknown knob 'hiden' of model 'made': did you mean 'hidden'?",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_trained(
    tmp_path: Path, knobs: dict[str, Any], says: str
) -> None:
    config = {
        "method": feddisk(**knobs), "model": MODELS["head"], "federation": BITS,
        "train": {"rounds": 2},
    }  # fmt: skip
    with pytest.raises(ConfigError) as raised:
        run(config, out=tmp_path, federation=bits(), draw=False)
    assert says in str(raised.value)
    assert str(raised.value).count("\n") == 0
    assert str(raised.value)[-1] in ".?"
    assert not list(tmp_path.glob("*/metrics.jsonl"))


@pytest.mark.parametrize(
    ("knobs", "federation", "says"),
    [
        (
            {"estimator": "oracle"},
            {"dataset": "digits", "normalise": "unit", "samples": 100, "clients": 2},
            "estimator 'oracle' needs data whose law is known, which digits is not.",
        ),
        (
            {"estimator": "oracle"},
            {**BITS, "partition": "iid", "clients": 2},
            "estimator 'oracle' needs data whose law is known, which bernoulli-clients is not.",
        ),
        (
            {},
            {"dataset": "digits", "samples": 100, "clients": 2},
            "model 'made' needs values in [0, 1], but these span",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused(
    tmp_path: Path, knobs: dict[str, Any], federation: dict[str, Any], says: str
) -> None:
    config = {"method": feddisk(**knobs), "model": MODELS["head"], "federation": federation}
    with pytest.raises(ConfigError) as raised:
        run(config, out=tmp_path, draw=False)
    assert str(raised.value).startswith(says)
