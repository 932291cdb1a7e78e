"""Whole runs of generative methods: shared stages, resuming, traffic, odd clients, last numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from torch import Tensor

from fedskew import run
from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation
from fedskew.federate.metrics import Row
from fedskew.federate.progress import Progress
from fedskew.parts.aggregate import ServerState
from fedskew.parts.discrepancy import FixedWeights
from fedskew.parts.distil import FromDecoders
from fedskew.runs.experiment import Run, make_federation
from fedskew.views.terminal import run_summary

ENCODER = (64 * 16 + 16) + (16 * 4 + 4)
DECODER = (2 * 16 + 16) + (16 * 64 + 64)
MODEL = 4 * (ENCODER + DECODER)
"""Bytes of the model of these runs: 64 pixels, 16 hidden units, two latent dimensions."""
NAMES = [f"client-{k:03d}" for k in range(4)]


def settings(method: str | dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Three quick rounds of four clients; ``changes`` replace entries of sections."""
    given: dict[str, Any] = {
        "method": method,
        "model": {"name": "beta-vae", "hidden": [16]},
        "federation": {"clients": 4, "normalise": "unit", "samples": 300},
        "train": {"rounds": 3, "optimiser": "adam", "lr": 0.003},
    }
    for name, value in changes.items():
        merges = isinstance(value, dict) and name in given
        given[name] = {**given[name], **value} if merges else value
    return given


def latent(**knobs: Any) -> dict[str, Any]:
    return {"name": "latent-weights", **knobs}


class Watched:
    """Remembers which rounds were really run, and may end the process after one of them."""

    def __init__(self, stop_after: tuple[str, int] | None = None) -> None:
        self.rounds: list[tuple[str, int]] = []
        self._stop_after = stop_after

    def __call__(self, progress: Progress, record: object, rows: Sequence[Row]) -> None:
        self.rounds.append((progress.stage, progress.round))
        if self.rounds[-1] == self._stop_after:
            raise Stopped


class Stopped(Exception):
    """The process ends here."""


def go(config: dict[str, Any], out: Path, watch: Watched | None = None, **given: Any) -> Run:
    return run(config, out=out, watch=watch, draw=False, **given)


def final(done: Run, client: str | None = None) -> dict[str, Tensor]:
    return dict(done.model(client, round="last").state_dict())


def assert_same_model(ours: Run, theirs: Run) -> None:
    one, other = final(ours), final(theirs)
    assert [name for name in other if not torch.equal(one[name], other[name])] == []


def lines(done: Run, name: str, stage: str | None = None) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (done.path / name).read_text().splitlines()]
    return [line for line in found if stage in (None, line["stage"])]


def told(done: Run, metric: str, round_number: int = 1) -> dict[str, float]:
    """What the server wrote down about each client in a round of the main stage."""
    return {
        row.client: row.value
        for row in done.rows()
        if (row.stage, row.split, row.metric, row.round) == ("main", "server", metric, round_number)
    }


def central(done: Run, model: str, client: str = "") -> dict[str, float]:
    """Numbers of the last round on the central test set."""
    last = done.result["rounds"]
    return {
        row.metric: row.value
        for row in done.rows()
        if (row.stage, row.round, row.on) == ("main", last, "central")
        and (row.model, row.client) == (model, client)
    }


def all_finite(done: Run) -> bool:
    tensors = list(final(done).values())
    values = [row.value for row in done.rows()]
    return all(map(math.isfinite, values)) and all(bool(t.isfinite().all()) for t in tensors)


def test_runs_that_differ_in_alpha_share_the_first_stage(tmp_path: Path) -> None:
    first, second = Watched(), Watched()
    one = go(settings(latent(alpha=0.1)), tmp_path, first)
    other = go(settings(latent(alpha=0.5)), tmp_path, second)
    assert first.rounds == [(stage, t) for stage in ("baseline", "main") for t in (1, 2, 3)]
    assert second.rounds == [("main", t) for t in (1, 2, 3)]
    for name in ("metrics.jsonl", "rounds.jsonl"):
        assert lines(one, name, "baseline") == lines(other, name, "baseline") != []
    assert [line["seconds"] for line in lines(other, "timing.jsonl", "baseline")] == [0.0] * 3
    assert told(one, "discrepancy") == told(other, "discrepancy")
    assert told(one, "weight") != told(other, "weight")
    third = Watched()
    means = go(settings(latent(encoded="mean")), tmp_path, third)
    assert third.rounds == second.rounds
    assert told(means, "discrepancy") != told(one, "discrepancy")


def test_a_run_that_took_over_a_stage_is_the_one_that_did_not(tmp_path: Path) -> None:
    go(settings(latent(alpha=0.1)), tmp_path / "shared")
    took = go(settings(latent(alpha=0.5)), tmp_path / "shared")
    alone = go(settings(latent(alpha=0.5)), tmp_path / "alone")
    assert_same_model(took, alone)
    for name in ("metrics.jsonl", "rounds.jsonl"):
        assert (took.path / name).read_bytes() == (alone.path / name).read_bytes()
    assert took.result["bytes"] == alone.result["bytes"]


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"train": {"lr": 0.004}},
        {"train": {"rounds": 2}},
        {"federation": {"samples": 299}},
        {"model": {"hidden": [15]}},
        {"method": latent(beta=9.0)},
        {"evaluate": {"every": 2}},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_stage_made_otherwise_is_not_taken_over(tmp_path: Path, changes: dict[str, Any]) -> None:
    go(settings(latent()), tmp_path)
    watch = Watched()
    done = go(settings(**{"method": latent(), **changes}), tmp_path, watch)
    rounds = done.config.train.rounds
    assert [at for at in watch.rounds if at[0] == "baseline"] == [
        ("baseline", t) for t in range(1, rounds + 1)
    ]


def test_an_unfinished_stage_is_not_taken_over(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        go(settings(latent(alpha=0.1)), tmp_path, Watched(("baseline", 2)))
    watch = Watched()
    go(settings(latent(alpha=0.5)), tmp_path, watch)
    assert len(watch.rounds) == 6


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """All data a server makes up, one tensor each time it does."""
    made: list[Tensor] = []
    draw = FromDecoders.samples

    def listening(*given: Any) -> Tensor:
        made.append(draw(*given))
        return made[-1]

    monkeypatch.setattr(FromDecoders, "samples", listening)
    return made


@pytest.mark.parametrize("round_number", [2, 3])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("name", ["latent-weights", "distilled-vae"])
def test_a_run_stopped_in_either_stage_ends_in_the_same_bits(
    tmp_path: Path, invented: list[Tensor], name: str, early: bool, round_number: int
) -> None:
    config = settings(name, train={"rounds": 4})
    stage = {"latent-weights": "baseline", "distilled-vae": "apart"}[name] if early else "main"
    with pytest.raises(Stopped):
        go(config, tmp_path / "parts", Watched((stage, round_number + early)))
    parts, whole = go(config, tmp_path / "parts"), go(config, tmp_path / "whole")
    assert_same_model(parts, whole)
    for file in ("metrics.jsonl", "rounds.jsonl"):
        assert (parts.path / file).read_bytes() == (whole.path / file).read_bytes()
    assert len(invented) == (0 if name == "latent-weights" else 2 if early else 3)
    assert all(torch.equal(x, invented[0]) for x in invented)


def traffic(done: Run, stage: str) -> list[tuple[int, int]]:
    return [(line["bytes_down"], line["bytes_up"]) for line in lines(done, "rounds.jsonl", stage)]


@pytest.mark.parametrize(("control", "count"), [("none", 4), ("labels", 5)])
def test_the_hand_over_of_latent_weights_is_counted_once(
    control: str, count: int, tmp_path: Path
) -> None:
    """Everybody is sent the finished model and answers with a few numbers of eight bytes.

    Nobody is asked about its labels unless that is the control.
    """
    done = go(settings(latent(alpha=0.01, control=control)), tmp_path)
    plain = (4 * MODEL, 4 * MODEL)
    assert traffic(done, "baseline") == [plain] * 3
    assert traffic(done, "main") == [(8 * MODEL, 4 * MODEL + 4 * count * 8), plain, plain]


@pytest.mark.parametrize("components", [0, 3])
def test_decoders_are_sent_once_and_nothing_after_them(tmp_path: Path, components: int) -> None:
    """With a share, two centres and two variances a component, the share in eight bytes."""
    done = go(settings({"name": "distilled-vae", "components": components}), tmp_path)
    each = 4 * DECODER + 8 + components * (8 + 4 * 4)
    assert traffic(done, "apart") == [(0, 0)] * 3
    assert traffic(done, "main") == [(0, 4 * each), (0, 0), (0, 0)]
    assert done.result["bytes"] == {"down": 0, "up": 4 * each}


def alpha_without_one(done: Run) -> tuple[float, str]:
    """An α that leaves exactly one client without weight, and which: where n_k/d_k is least."""
    sizes = {c.name: len(c.train) for c in make_federation(done.config).clients}
    found = told(done, "discrepancy")
    limits = {c: sizes[c] / sum(sizes.values()) / found[c] for c in NAMES}
    (out, least), (_, second) = sorted(limits.items(), key=lambda item: item[1])[:2]
    return (least + second) / 2, out


def test_a_client_without_weight_is_sent_nothing(tmp_path: Path) -> None:
    alpha, out = alpha_without_one(go(settings(latent(alpha=0.0)), tmp_path))
    done = go(settings(latent(alpha=alpha)), tmp_path)
    assert [c for c, weight in told(done, "weight").items() if weight == 0.0] == [out]
    assert sum(told(done, "weight").values()) == pytest.approx(1.0)
    assert traffic(done, "main")[1:] == [(3 * MODEL, 3 * MODEL)] * 2
    assert [line["participants"] for line in lines(done, "rounds.jsonl", "main")] == [3] * 3
    best = go(settings(latent(control="best")), tmp_path)
    assert sorted(told(best, "weight").values()) == [0.0, 0.0, 0.0, 1.0]
    assert traffic(best, "main")[1:] == [(MODEL, MODEL)] * 2


def test_leaving_out_a_client_without_weight_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client a thread: in a stack, who else is in it decides how numbers are rounded."""
    given: dict[str, Any] = {"executor": "threads"}
    alpha, _ = alpha_without_one(go(settings(latent(alpha=0.0), **given), tmp_path))
    skipped = go(settings(latent(alpha=alpha), **given), tmp_path / "skipped")

    def everybody(self: FixedWeights, clients: Sequence[str], state: ServerState) -> Sequence[str]:
        return clients

    monkeypatch.setattr(FixedWeights, "wanted", everybody)
    trained = go(settings(latent(alpha=alpha), **given), tmp_path / "trained")
    assert [line["participants"] for line in lines(trained, "rounds.jsonl", "main")] == [4] * 3
    assert_same_model(skipped, trained)


@pytest.mark.real_data
def test_the_client_with_all_classes_gets_the_most_weight(tmp_path: Path, data_dir: Path) -> None:
    """MNIST, five clients of two digits and the first with all ten."""
    config = settings(
        latent(alpha=0.4, beta=2.0),
        seed=2,
        model={"hidden": [64], "latent": 8},
        federation={
            "dataset": "mnist", "partition": "biased", "clients": 6, "samples": 1200,
            "test_samples": 200, "normalise": "standard", "validation": 0,
        },
        train={"rounds": 12, "epochs": 4},
        evaluate={"every": 12},
    )  # fmt: skip
    done = go(config, tmp_path, data_dir=data_dir)
    distance, weight = told(done, "discrepancy", 12), told(done, "weight", 12)
    first, *others = sorted(weight)
    assert all(distance[first] < distance[other] for other in others)
    assert all(weight[first] > weight[other] for other in others)
    assert weight[first] > 1.2 / 6


def test_without_alpha_the_second_stage_is_a_plain_vae(tmp_path: Path) -> None:
    staged, plain = go(settings(latent(alpha=0.0)), tmp_path), go(settings("vae"), tmp_path)
    assert_same_model(staged, plain)
    scores = [row for row in staged.rows() if row.stage == "main" and row.split != "server"]
    assert scores == plain.rows()
    assert list(told(plain, "weight")) == []


def test_where_nobody_has_weight_sizes_decide_and_notes_say_so(tmp_path: Path) -> None:
    done, plain = go(settings(latent(alpha=1e6)), tmp_path), go(settings("vae"), tmp_path)
    notes = [line["notes"] for line in lines(done, "rounds.jsonl", "main")]
    assert notes == [["no usable aggregation weight: fell back to weights by size"]] * 3
    assert_same_model(done, plain)
    assert all_finite(done)


def test_where_nobody_has_weight_the_best_alone_may_decide(tmp_path: Path) -> None:
    done = go(settings(latent(alpha=1e6, all_zero="best")), tmp_path)
    found = told(done, "discrepancy")
    best = min(found, key=lambda client: found[client])
    assert told(done, "weight") == {client: float(client == best) for client in NAMES}
    assert [line["notes"] for line in lines(done, "rounds.jsonl", "main")] == [[]] * 3
    assert all_finite(done)


def odd_federation() -> Federation:
    """Two ordinary clients, one that holds one image forty times, and one with two samples."""
    data = load("digits", normalise="unit")
    x, y = data.x[:300].clone(), data.y[:300].clone()
    x[120:160] = 0.25
    rows = np.arange(300)
    clients = (
        Client("ann", rows[:60]), Client("bob", rows[60:120]),
        Client("constant", rows[120:160]), Client("two", rows[160:162]),
    )  # fmt: skip
    return Federation("odd", x, y, data.class_names, clients, central_test=rows[200:])


@pytest.mark.parametrize("collapse", [False, True])
def test_odd_clients_and_dead_dimensions_are_survived_and_counted(
    tmp_path: Path, collapse: bool
) -> None:
    """A huge β presses all eight dimensions flat; one image cannot use any of them."""
    config = settings(
        latent(alpha=0.1, beta=1e4 if collapse else 0.01),
        model={"latent": 8},
        train={"rounds": 6, "lr": 0.01},
    )
    done = go(config, tmp_path, federation=odd_federation())
    active = told(done, "active_dimensions", 6)
    assert active["constant"] == 0.0
    assert (active["ann"] == 0.0) if collapse else (active["ann"] > 0.0)
    assert told(done, "discrepancy", 6).keys() == {"ann", "bob", "constant", "two"}
    assert done.result["failures"] == 0
    assert all_finite(done)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "distilled-vae"},
        {"name": "latent-weights-online", "every": 1},
        {"name": "vae", "weights": "loss", "divergence": True},
        {"name": "vae", "sync": False, "shared_start": False},
    ],
    ids=lambda method: str(method["name"]),
)
def test_odd_clients_are_survived_by_the_other_methods(
    tmp_path: Path, method: dict[str, Any]
) -> None:
    done = go(settings(method, model={"latent": 8}), tmp_path, federation=odd_federation())
    assert done.result["failures"] == 0
    assert all_finite(done)


def test_generated_samples_are_judged_the_same_for_the_same_seed(tmp_path: Path) -> None:
    config = settings({"name": "vae", "sync": False}, evaluate={"generated": 200})
    one, again = (go(config, tmp_path / out) for out in ("one", "again"))
    kinds = {"cas", "frechet", "precision", "recall"}
    for model in ("global", "personal"):
        found = {m: v for m, v in central(one, model).items() if m in kinds}
        assert found.keys() == kinds
        assert found["frechet"] > 0
        assert all(0 <= found[m] <= 1 for m in kinds - {"frechet"})
        assert central(one, model) == central(again, model)
    assert central(one, "global")["frechet"] != central(one, "personal")["frechet"]
    other = go({**config, "seed": 1}, tmp_path / "one")
    assert central(other, "global")["frechet"] != central(one, "global")["frechet"]
    said = run_summary(one)
    for model in ("global", "personal"):
        value = central(one, model)["frechet"]
        assert f"samples drawn, {model}, round 3: CAS " in said
        assert f"Fréchet {value:.3f}, precision " in said


def test_nothing_is_generated_unless_asked(tmp_path: Path) -> None:
    assert central(go(settings("vae"), tmp_path), "global").keys() == {
        "loss", "reconstruction", "kl", "legacy",
    }  # fmt: skip


def test_an_ensemble_explains_every_sample_by_its_best_client(tmp_path: Path) -> None:
    """Mean codes and no divergence: a loss is the squared error of the plain forward pass."""
    method = {"name": "vae", "base": "local", "sampled": False, "eval_beta": 0.0}
    done = go(settings(method), tmp_path)
    federation = make_federation(done.config)
    x = federation.x[torch.from_numpy(federation.central_test)]
    with torch.no_grad():
        drawn = [done.model(name, round="last")(x) for name in NAMES]
    each = torch.stack([(d - x).square().flatten(1).sum(1).double() for d in drawn])
    for name, losses in zip(NAMES, each, strict=True):
        found = central(done, "personal", name)["loss"]
        assert found == pytest.approx(float(losses.mean()), rel=1e-5)
        assert central(done, "personal")["ensemble_loss"] <= found
    expected = float(each.min(dim=0).values.mean())
    assert central(done, "personal")["ensemble_loss"] == pytest.approx(expected, rel=1e-5)
    assert central(done, "global") == {}


def test_without_syncing_the_global_model_is_the_mean_of_the_saved_ones(tmp_path: Path) -> None:
    done = go(settings({"name": "vae", "sync": False, "shared_start": False}), tmp_path)
    sizes = [len(c.train) for c in make_federation(done.config).clients]
    own = [final(done, name) for name in NAMES]
    for entry, mean in final(done).items():
        expected = sum(n * w[entry] for n, w in zip(sizes, own, strict=True)) / sum(sizes)
        torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-6)
    rows = [row for row in done.rows() if (row.round, row.metric, row.on) == (3, "loss", "seen")]
    scores = {(row.model, row.client, row.split): row.value for row in rows}
    for name in NAMES:
        assert abs(scores["personal", name, "test"] - scores["global", name, "test"]) > 0.01
    assert done.result["primary_model"] == "personal"


@pytest.mark.parametrize("shared", [True, False])
def test_clients_begin_together_or_each_with_a_draw_of_its_own(
    tmp_path: Path, shared: bool
) -> None:
    """Two clients hold the same data, and steps are so short that models stay where they began."""
    data = odd_federation()
    rows = data.clients[0].train
    twins = data.with_data(clients=(Client("ann", rows), Client("bob", rows)))
    method = {"name": "vae", "sync": False, "shared_start": shared}
    config = settings(method, train={"rounds": 1, "lr": 1e-9})
    done = go(config, tmp_path, federation=twins)
    ann, bob = final(done, "ann"), final(done, "bob")
    apart = [float((ann[n] - bob[n]).abs().max()) for n in ann]
    assert (max(apart) < 1e-6) if shared else (min(apart) > 0.01)


def test_feddisco_weighs_vaes_by_their_labels(tmp_path: Path) -> None:
    """max(0, n_k - d_k/2 + 0.1), d_k the relative entropy to even labels over its sum."""
    done = go(settings({"name": "feddisco", "base": {"name": "vae", "beta": 2.0}}), tmp_path)
    counts = make_federation(done.config).class_counts()
    sizes = counts.sum(axis=1) / counts.sum()
    found = np.array([entropy(row / row.sum(), np.full(10, 0.1)) for row in counts])
    raw = np.maximum(0.0, sizes - 0.5 * found / found.sum() + 0.1)
    assert list(told(done, "weight").values()) == pytest.approx(list(raw / raw.sum()), rel=1e-6)
    assert done.result["primary_metric"] == "loss"
    assert not done.result["higher_is_better"]
    plain = go(settings({"name": "vae", "beta": 2.0}), tmp_path)
    one, other = final(done), final(plain)
    assert any(not torch.equal(one[n], other[n]) for n in other)
