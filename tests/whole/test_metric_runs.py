"""Whole runs judged by a metric the user chose: selection, patience, tables, and what is kept."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from fedskew.api import compare, run
from fedskew.config import make_config
from fedskew.data.federation import Client, Federation
from fedskew.errors import ConfigError
from fedskew.federate.predictions import PREDICTIONS, load_answers, probabilities
from fedskew.problem import Problem
from fedskew.runs.experiment import Run, make_federation
from fedskew.runs.identity import resolve
from fedskew.views.terminal import run_summary

QUICK: dict[str, Any] = {
    "federation": {"samples": 400, "clients": 4, "unseen": 1},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"rounds": 4, "batch_size": 16},
}


def judged_by(metric: str | None, **sections: Any) -> dict[str, Any]:
    return {**QUICK, "evaluate": {} if metric is None else {"metric": metric}, **sections}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Run]:
    out = tmp_path_factory.mktemp("judged")
    names = (None, "auroc", "brier", "loss", "macro_f1")
    return {name: run(judged_by(name), out=out, draw=False) for name in names}


def lines(done: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (done.path / "metrics.jsonl").read_text().splitlines()]


def numbers(found: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {tuple(sorted(line.items())) for line in found}


def as_trained(done: Run) -> list[dict[str, Any]]:
    return [line for line in lines(done) if line["adapted"] == "none"]


def test_a_metric_that_is_not_asked_for_is_no_part_of_a_runs_name() -> None:
    assert "metric" not in resolve(make_config(QUICK)).resolved()["evaluate"]
    asked = resolve(make_config(judged_by("auroc"))).resolved()
    assert asked["evaluate"]["metric"] == "auroc"


@pytest.mark.parametrize("name", ["auroc", "brier"])
def test_the_metric_comes_beside_the_usual_scores_which_stay_as_they_are(
    runs: dict[str | None, Run], name: str
) -> None:
    plain, asked = as_trained(runs[None]), as_trained(runs[name])
    assert {line["metric"] for line in asked} == {"loss", "accuracy", "macro_f1", name}
    assert numbers(plain) == numbers([line for line in asked if line["metric"] != name])


@pytest.mark.parametrize(("name", "best"), [("auroc", max), ("brier", min), ("loss", min)])
def test_rounds_are_selected_by_it_in_its_own_direction(
    runs: dict[str | None, Run], name: str, best: Any
) -> None:
    done = runs[name]
    found = done.results.as_trained.where(on="seen", split="validation", metric=name).curve()
    assert len(found) == 4
    assert done.result["selected_round"] == best(found, key=lambda number: found[number])
    assert done.result["higher_is_better"] == (best is max)


def test_the_worst_client_is_the_one_with_the_largest_loss(runs: dict[str | None, Run]) -> None:
    done = runs["brier"]
    (score,) = [
        s for s in done.result["scores"]
        if (s["at"], s["on"], s["split"], s["metric"]) == ("last", "seen", "test", "brier")
    ]  # fmt: skip
    rows = done.results.as_trained.where(on="seen", split="test", metric="brier", round=4)
    assert score["worst"] == max(rows.value)
    assert score["bottom_decile"] == pytest.approx(np.percentile(rows.value, 90))


def test_patience_counts_rounds_without_a_better_value_of_it(tmp_path: Path) -> None:
    """The rate is so high that the best Brier score comes early and never again."""
    train = {"rounds": 12, "batch_size": 16, "lr": 2.0, "patience": 2}
    done = run(judged_by("brier", train=train), out=tmp_path, draw=False)
    found = done.results.as_trained.where(on="seen", split="validation", metric="brier").curve()
    last = done.result["rounds"]
    assert last < 12
    assert done.result["selected_round"] == min(found, key=lambda number: found[number]) == last - 2


def test_what_a_run_keeps_gives_every_metric_of_its_test_samples(
    runs: dict[str | None, Run],
) -> None:
    """By scikit-learn, from the probabilities on disk."""
    done = runs["auroc"]
    found, said = load_answers(done.path), probabilities(load_answers(done.path))
    assert said is not None
    rows = (found["on"] == "seen") & (found["split"] == "test") & (found["adapted"] == "none")
    told = {e["metric"]: e for e in done.result["metrics"] if e["on"] == "seen"}
    assert next(iter(told)) == "auroc"

    def of_clients(score: Any) -> list[float]:
        names = dict.fromkeys(found["client"][rows])
        return [
            score(
                found["label"][rows & (found["client"] == name)],
                said[rows & (found["client"] == name)],
            )
            for name in names
        ]

    def area(label: Any, output: Any) -> float:
        areas = [sk.roc_auc_score(label == c, output[:, c]) for c in np.unique(label)]
        return float(np.mean(areas))

    for name, score in {
        "auroc": area,
        "accuracy": lambda y, p: sk.accuracy_score(y, p.argmax(1)),
        "balanced_accuracy": lambda y, p: sk.recall_score(
            y, p.argmax(1), labels=np.unique(y), average="macro"
        ),
        "log_loss": lambda y, p: sk.log_loss(y, p / p.sum(1, keepdims=True), labels=range(10)),
    }.items():
        values = of_clients(score)
        assert told[name]["mean"] == pytest.approx(np.mean(values), abs=1e-3), name
        assert told[name]["pooled"] == pytest.approx(
            score(found["label"][rows], said[rows]), abs=1e-3
        )
    at_selected = done.results.as_trained.where(
        on="seen", split="test", metric="auroc", round=done.result["selected_round"]
    )
    assert told["auroc"]["mean"] == pytest.approx(np.mean(at_selected.value), abs=1e-9)


def test_unseen_clients_have_their_own_column(runs: dict[str | None, Run]) -> None:
    shown = run_summary(runs["brier"])
    (header,) = re.findall(r"^test .*", shown, re.M)
    assert header.split() == ["test", "mean", "worst", "client", "pooled", "unseen"]
    after = shown.split(header)[1].splitlines()[1]
    assert after.startswith("brier")


def test_a_comparison_ranks_by_it_and_lower_is_better(tmp_path: Path) -> None:
    table = compare(["fedavg"], judged_by("brier"), out=tmp_path, seeds=2)
    assert (table.metric, table.higher_is_better) == ("brier", False)
    means = [standing.score.mean for standing in table.leaderboard]
    assert means == sorted(means)
    local = next(s for s in table.leaderboard if s.method == "local")
    for standing in table.leaderboard:
        if standing.gain is not None:
            assert standing.gain.mean == pytest.approx(local.score.mean - standing.score.mean)
        assert standing.worst.mean >= standing.score.mean
    assert "Test brier per client (lower is better) at the round with the best" in table.caption
    header = (tmp_path / "figures" / "learning.csv").read_text().splitlines()[0]
    assert header.startswith("method,round,mean")


TWO = Problem("binary", positive="ill")


def wards(
    labels: dict[str, tuple[str, str, str]], problem: Problem = TWO, unseen: tuple[str, ...] = ()
) -> Federation:
    """Clients with these labels ("i" ill, "h" healthy) to train, validate and test on."""
    text = [letter for parts in labels.values() for part in parts for letter in part]
    y = torch.tensor(["hi".index(letter) for letter in text])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(y), 3, generator=generator) + y[:, None] * 0.8
    rows = np.arange(len(y))
    clients, start = [], 0
    for name, parts in labels.items():
        ends = np.cumsum([0, *map(len, parts)]) + start
        clients.append(Client(name, *(rows[a:b] for a, b in pairwise(ends))))
        start = int(ends[-1])
    seen = tuple(client for client in clients if client.name not in unseen)
    return Federation(
        "wards", x, y, ("healthy", "ill"), seen,
        tuple(client for client in clients if client.name in unseen), problem=problem,
    )  # fmt: skip


WARDS = {
    "ann": ("hihihihi", "hihi", "hihihi"),
    "bob": ("hihihhhi", "hhii", "hhhhhh"),
    "cas": ("hihiiiih", "hhhh", "iihhih"),
    "dot": ("hihihihi", "hihi", ""),
}
SMALL = {"model": {"name": "mlp", "hidden": [4]}, "train": {"rounds": 2, "batch_size": 4}}


@pytest.fixture(scope="module")
def warded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {**SMALL, "evaluate": {"metric": "auroc"}}
    return run(settings, out=tmp_path_factory.mktemp("w"), federation=wards(WARDS), draw=False)


def test_a_client_of_one_class_is_left_out_of_the_mean_and_named(warded: Run) -> None:
    rows = warded.results.as_trained.where(on="seen", split="test", metric="auroc", round=2)
    assert rows.texts("client") == ["ann", "cas"]
    assert warded.result["unscored"] == [
        "1 of 4 clients has no test samples (dot): test scores leave out who has none.",
        "auroc is not defined on the test samples of 1 of 3 seen clients (bob): it takes samples "
        "of more than one kind; its mean leaves them out.",
        "auroc is not defined on the validation samples of 1 of 4 seen clients (cas): it takes "
        "samples of more than one kind; its mean leaves them out.",
    ]
    shown = run_summary(warded)
    assert all(f"note: {sentence}" in shown for sentence in warded.result["unscored"])
    assert re.search(r"^auroc \(2 of 3\) ", shown, re.M)


def test_the_area_is_that_of_the_positive_class(warded: Run) -> None:
    found = load_answers(warded.path)
    said = probabilities(found)
    assert said is not None
    rows = (found["client"] == "cas") & (found["split"] == "test")
    wanted = sk.roc_auc_score(found["label"][rows] == 1, said[rows, 1])
    told = warded.results.as_trained.where(
        client="cas", split="test", metric="auroc", round=warded.result["selected_round"]
    )
    assert told.value.tolist() == pytest.approx([wanted])


def test_where_no_round_can_be_scored_by_it_the_last_one_counts(tmp_path: Path) -> None:
    labels = {name: (train, "hhh", test) for name, (train, _, test) in WARDS.items()}
    settings = {**SMALL, "evaluate": {"metric": "auroc"}}
    done = run(settings, out=tmp_path, federation=wards(labels), draw=False)
    assert done.result["selected_round"] == done.result["rounds"] == 2
    assert done.result["unscored"][-1].endswith("so the last one counts.")


def test_a_comparison_names_who_has_no_test_samples_once(tmp_path: Path) -> None:
    """A ward with two patients keeps both to train on."""
    rng = np.random.default_rng(0)
    rows = [f"{ward},{label},{rng.normal() + label}" for ward, size in (("big", 40), ("small", 2))
            for label in (0, 1) for _ in range(size // 2)]  # fmt: skip
    table = tmp_path / "wards.csv"
    table.write_text("\n".join(["client,label,pulse", *rows]) + "\n")
    federation = {"dataset": str(table), "columns": {"client": "client"}}
    federation |= {"partition": "owner", "clients": "all"}
    config = {**SMALL, "federation": federation, "evaluate": {"metric": "brier"}}
    lacking = [c.name for c in make_federation(make_config(config)).clients if not len(c.test)]
    assert lacking == ["small"]
    found = compare(["fedavg"], config, out=tmp_path / "out", seeds=2)
    said = [remark for remark in found.remarks if "no test samples" in remark]
    assert said == [
        "1 of 2 clients has no test samples (small): test scores leave out who has none."
    ]
    assert found.to_markdown().count(said[0]) == 1


def test_several_labels_and_numbers_are_judged_by_their_own_metrics(tmp_path: Path) -> None:
    several = wards(WARDS)
    labels = torch.stack([several.y, 1 - several.y], dim=1).to(torch.float32)
    several = replace(several, y=labels, problem=Problem("multi-label"))
    done = run(
        {**SMALL, "evaluate": {"metric": "hamming"}}, out=tmp_path, federation=several, draw=False
    )
    found = load_answers(done.path)
    said = probabilities(found)
    assert said is not None
    rows = (found["split"] == "test") & (found["client"] == "ann")
    wanted = sk.hamming_loss(found["label"][rows], said[rows] > 0.5)
    told = done.results.as_trained.where(
        client="ann", split="test", metric="hamming", round=done.result["selected_round"]
    )
    assert told.value.tolist() == pytest.approx([wanted])
    number = replace(
        several, y=several.x.sum(dim=1), class_names=(),
        problem=Problem("regression", units=(100.0, 20.0)),
    )  # fmt: skip
    done = run(
        {**SMALL, "evaluate": {"metric": "pinball@0.9"}},
        out=tmp_path, federation=number, draw=False,
    )  # fmt: skip
    found = load_answers(done.path)
    rows = found["split"] == "test"
    wanted = sk.mean_pinball_loss(found["label"][rows], found["predicted"][rows], alpha=0.9)
    told_all = {e["metric"]: e for e in done.result["metrics"]}
    assert next(iter(told_all)) == "pinball@0.9"
    assert told_all["pinball@0.9"]["pooled"] == pytest.approx(wanted)
    # Targets stand in the file as they were given: centre 100, deviation 20.
    ann = number.y[number.clients[0].test].numpy()
    assert found["label"][rows & (found["client"] == "ann")] == pytest.approx(100.0 + 20.0 * ann)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"evaluate": {"metric": "auc"}}, r"unknown evaluate.metric 'auc': did you mean 'auroc'\?"),
        ({"evaluate": {"metric": "rmse"}}, "'rmse' does not fit classification: choose from acc"),
        ({"evaluate": {"metric": "f1"}}, "'f1' does not fit classification"),
        (
            {
                "method": "vae", "model": {"name": "beta-vae", "latent": 2},
                "evaluate": {"metric": "auroc"},
            },
            "method 'vae' gives none: its rounds are judged by 'loss'",
        ),
    ],
)  # fmt: skip
def test_a_metric_that_does_not_go_is_refused_before_anything_is_trained(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        run({**QUICK, **settings}, out=tmp_path, draw=False)
    assert not any(tmp_path.glob("*/metrics.jsonl"))


def test_a_method_with_stages_judges_the_last_by_it_only(tmp_path: Path) -> None:
    settings = judged_by("auroc", method={"name": "feddisk", "density_rounds": 2})
    settings["federation"] = {**QUICK["federation"], "normalise": "unit"}
    done = run(settings, out=tmp_path, draw=False)
    by_stage: dict[str, set[str]] = {}
    for line in lines(done):
        by_stage.setdefault(line["stage"], set()).add(line["metric"])
    assert [stage for stage, found in by_stage.items() if "auroc" in found] == ["main"]


def test_probabilities_take_two_bytes_each_at_most(runs: dict[str | None, Run]) -> None:
    path = runs["auroc"].path / PREDICTIONS
    with np.load(path) as stored:
        n, classes = stored["log_probability"].shape
        assert stored["log_probability"].dtype == np.float16
    # A row has 10 classes, confidence, label, and the places of a client, a split and so on.
    assert path.stat().st_size < n * classes * 2 + n * 8 + 3000
