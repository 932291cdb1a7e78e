"""Whole runs of objectives over environments: every pair, the fallbacks, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedskew.api import compare, run
from fedskew.cli import main
from fedskew.comparisons.crossing import known_aggregators, known_objectives, pairs
from fedskew.config import make_config
from fedskew.data.federation import Federation
from fedskew.errors import ConfigError
from fedskew.parts.invariance import Irm, Vrex
from fedskew.runs.experiment import Run, make_federation
from fedskew.views.terminal import run_summary

OBJECTIVES = ("erm", "irm", "vrex", "mldg", "ib-erm", "ib-irm", "mmd", "coral", "groupdro",
              "and-mask", "sand-mask")  # fmt: skip
COLOURED: dict[str, Any] = {
    "federation": {
        "dataset": "fe-cmnist",
        "options": {"base": "digits", "mode": "class", "test": "permuted"},
        "partition": "iid",
        "clients": 3,
    },
    "model": {"name": "mlp", "hidden": [6]},
    "train": {"rounds": 1, "batch_size": 16, "lr": 0.01},
}


def with_(settings: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """The settings with keys of some sections replaced."""
    changed = dict(settings)
    for name, values in sections.items():
        below = changed.get(name)
        joins = isinstance(below, dict) and isinstance(values, dict) and "name" not in values
        changed[name] = {**below, **values} if joins and isinstance(below, dict) else values
    return changed


@pytest.fixture(scope="module")
def coloured() -> Federation:
    return make_federation(make_config(COLOURED))


def test_the_matrix_knows_all_objectives_and_aggregators() -> None:
    assert set(known_objectives()) == set(OBJECTIVES)
    assert len(pairs("all", "all")) == 55
    assert set(known_aggregators()) == {"fedavg", "fedprox", "scaffold", "fednova", "fedgma"}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_runs_with_every_aggregator(
    coloured: Federation, objective: str, tmp_path: Path
) -> None:
    models = []
    for aggregator in known_aggregators():
        method = {"name": objective, "base": aggregator}
        config = make_config(with_(COLOURED, method=method))
        done = run(config, out=tmp_path, federation=coloured, draw=False)
        assert done.result["failures"] == 0
        assert done.result["warnings"] == []
        weights = torch.cat([p.flatten() for p in done.model(round="last").parameters()])
        assert torch.isfinite(weights).all()
        models.append(weights)
    # In the first round SCAFFOLD's variates are nought and equal clients make equal steps.
    fedavg, fedprox, scaffold, fednova, fedgma = models
    torch.testing.assert_close(fedavg, scaffold, rtol=0.02, atol=0.02)
    torch.testing.assert_close(fedavg, fednova, rtol=0.02, atol=0.02)
    assert not torch.equal(fedavg, fedprox)
    assert not torch.equal(fedavg, fedgma)


def done_with(method: Any, tmp_path: Path, **sections: Any) -> Run:
    settings = with_(COLOURED, method=method, **sections)
    return run(make_config(settings), out=tmp_path, draw=False)


def test_a_run_says_that_its_clients_are_one_environment_each(tmp_path: Path) -> None:
    done = done_with("vrex", tmp_path, federation={"environments": "none"})
    (warning,) = done.result["warnings"]
    assert warning == "3 of 3 clients have one environment only: for them vrex is empirical risk."
    assert f"warning: {warning}" in run_summary(done)


def test_a_run_says_that_its_environments_are_random(tmp_path: Path) -> None:
    federation = {"dataset": "digits", "options": {}}
    done = done_with("irm", tmp_path, federation=federation)
    (warning,) = done.result["warnings"]
    assert warning.startswith("environments are random shares of a client's samples")


def test_a_client_too_small_for_random_environments_is_one(tmp_path: Path) -> None:
    """Some clients hold fewer than two batches; batches are those of FedAvg then."""
    federation = {
        "dataset": "digits", "options": {}, "samples": 160,
        "partition": {"name": "quantity", "alpha": 0.8},
    }  # fmt: skip
    config = make_config(with_(COLOURED, federation=federation))
    sizes = [len(client.train) for client in make_federation(config).clients]
    small = sum(math.floor(size / 2) < 16 for size in sizes)
    assert 0 < small < 3
    done = done_with("vrex", tmp_path, federation=federation)
    told = f"{small} of 3 clients have one environment only"
    assert done.result["warnings"][0].startswith(told)
    table = compare(
        config=config, objectives=["vrex"], out=tmp_path / "comparison", references=False
    )
    assert table.matrix is not None
    assert told in str(table.matrix)


def test_vrex_of_clients_with_one_environment_is_fedavg(tmp_path: Path) -> None:
    alone = {"environments": "none"}
    ours, plain = (done_with(m, tmp_path, federation=alone) for m in ("vrex", "fedavg"))
    for mine, theirs in zip(ours.model().parameters(), plain.model().parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"method": "vrex", "train": {"batch_size": 400}},
            "environment 0 of client 'client-000' has ",
        ),
        ({"method": "irm", "train": {"batch_size": 15}}, "train.batch_size must be even, not 15"),
        (
            {"method": {"name": "sand-mask", "tau": 1.0}},
            "tau of method 'sand-mask' must be a number of at least 0 and below 1, not 1.0.",
        ),
        ({"method": {"name": "irm", "base": "vae"}}, "base = 'vae' has an objective of its own"),
        ({"method": {"name": "irm", "base": "central"}}, "base = 'central' pools everybody's data"),
        ({"method": {"name": "irm", "base": "fedagv"}}, "did you mean 'fedavg'"),
        ({"method": {"name": "irm", "base": "vrex"}}, "base = 'vrex' has an objective of its own"),
        (
            {"method": {"name": "irm", "lam": -1.0}},
            "lam of method 'irm' must be a number of at least 0, not -1.0.",
        ),
        (
            {"method": {"name": "vrex", "anneal": -1}},
            "anneal of method 'vrex' must be a whole number of at least 0, not -1.",
        ),
        (
            {"method": {"name": "irm", "base": "scaffold"}, "train": {"optimiser": "adam"}},
            "needs train.optimiser = 'sgd'",
        ),
        (
            {"method": "mldg", "model": {"name": "cnn-bn"}, "federation": {"image": {"side": 16}}},
            "this method passes each environment through the model separately",
        ),
        (
            {"method": "irm", "federation": {"environments": "writer"}},
            "unknown environments 'writer'",
        ),
        (
            {"method": "irm", "federation": {"environments": "owner"}},
            "environments 'owner' need samples with owners",
        ),
    ],
)
def test_what_cannot_work_is_told_in_one_sentence_before_anything_runs(
    sections: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="") as raised:
        run(make_config(with_(COLOURED, **sections)), out=tmp_path, draw=False)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_says_why_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "coloured-clients", "--out", str(tmp_path), "--set", "train.batch_size=500"]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: environment ")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_multiplier_that_stays_the_same_counts_no_steps() -> None:
    from fedskew.methods import find

    same, changing = find("irm").recipe(before=2.0, lam=2.0), find("irm").recipe()
    assert isinstance(same.objective, Irm)
    assert not same.objective.counts_steps
    assert changing.objective.counts_steps
    assert isinstance(find("vrex").recipe().objective, Vrex)


def test_an_adapting_client_minimises_plain_cross_entropy(tmp_path: Path) -> None:
    """Few shots have no batch of each environment, so adaptation does not ask for one."""
    done = done_with("groupdro", tmp_path, evaluate={"fine_tune_epochs": 1, "shots": [2]})
    adapted = [s for s in done.result["scores"] if s["adapted"] == "2-shot 1"]
    assert adapted
    assert done.result["notes"] == []


def test_a_base_with_stages_is_refused() -> None:
    from fedskew.methods import find

    with pytest.raises(ConfigError, match="base = 'feddisk'"):
        find("irm").recipe(base="feddisk")
