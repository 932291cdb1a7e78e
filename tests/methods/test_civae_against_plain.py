"""Federated CI-VAEs and Reptile against plain loops, on digits of real FEMNIST writers.

The loops share with the package the first model, the order of the batches, the drawn noise and
which samples are shots; networks, losses, optimiser and servers are written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plain_loops as classifiers
import pytest
import torch
from helpers import assert_close, assert_same_bits
from plain_loops import Weights, combination
from plain_vaes import BATCH, CLOSE, EPOCHS, LR, SEED, affine, final
from torch import Tensor
from torch.nn import functional as F

from fedskew import run
from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation
from fedskew.engine.batches import schedule
from fedskew.federate.adapting import shots
from fedskew.federate.predictions import load_predictions
from fedskew.models import seeded
from fedskew.rng import stream, torch_seed
from fedskew.runs.experiment import Run
from fedskew.types import Indices

pytestmark = pytest.mark.real_data

SIZES = (40, 33, 40)
SHARES = [size / sum(SIZES) for size in SIZES]
PARTS = ("encoder", "decoder", "classifier")
REPTILE = {"name": "fedreptile-civae", "eta": 0.35, "first": 1.0, "decay": 0.9}
STEPS = (1.0, 0.35, 0.315)


@pytest.fixture(scope="module")
def writers(data_dir: Path) -> Federation:
    """Three writers and a newcomer, with ink that is 1 on paper that is 0."""
    data = load("femnist", data_dir, normalise="unit", digits_only=True, ink_on_black=True)
    assert data.owner is not None
    clients = []
    for k, size in enumerate((*SIZES, 36)):
        rows = np.flatnonzero(data.owner == k)
        clients.append(Client(f"writer-{k}", rows[:size], test=rows[size : size + 25]))
    used = np.sort(np.concatenate([[*c.train, *c.test] for c in clients]))
    placed = [
        Client(c.name, np.searchsorted(used, c.train), test=np.searchsorted(used, c.test))
        for c in clients
    ]
    return Federation(
        "femnist", data.x[used].clone(), data.y[used].clone(), data.class_names,
        tuple(placed[:3]), tuple(placed[3:]),
    )  # fmt: skip


@dataclass(frozen=True)
class Dense:
    """784-16-3 and 3-12-784."""

    settings: dict[str, Any] = field(
        default_factory=lambda: {
            "name": "dense-civae", "latent": 3, "hidden": [16], "decoder_hidden": [12],
        }
    )  # fmt: skip
    optimiser: str = "adam"

    def codes(self, w: Weights, x: Tensor) -> Tensor:
        return affine(w, "encoder.3", affine(w, "encoder.1", x.flatten(1)).relu())

    def drawn(self, w: Weights, z: Tensor) -> Tensor:
        return affine(w, "decoder.2", affine(w, "decoder.0", z).relu()).sigmoid()


@dataclass(frozen=True)
class Conv(Dense):
    """The thesis' network for handwriting; rectified before it is pooled.

    At the edge of the paper its first gradients are so small that Adam would show how a
    convolution is rounded; plain steps do not.
    """

    settings: dict[str, Any] = field(default_factory=lambda: {"name": "conv-civae", "latent": 3})
    optimiser: str = "sgd"

    def codes(self, w: Weights, x: Tensor) -> Tensor:
        for name, padding in (("encoder.0", 2), ("encoder.3", 1)):
            x = F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], padding=padding)
            x = F.max_pool2d(x.relu(), 2)
        return affine(w, "encoder.9", affine(w, "encoder.7", x.flatten(1)).relu())

    def drawn(self, w: Weights, z: Tensor) -> Tensor:
        x = affine(w, "decoder.2", affine(w, "decoder.0", z).relu()).relu().reshape(-1, 32, 7, 7)
        for name in ("decoder.5", "decoder.7"):
            x = F.conv_transpose2d(x, w[f"{name}.weight"], w[f"{name}.bias"], 2, 1, 1).relu()
        x = F.conv_transpose2d(x, w["decoder.9.weight"], w["decoder.9.bias"])
        return x.sigmoid().flatten(1)


@dataclass(frozen=True)
class Plain:
    data: Federation
    net: Dense = field(default_factory=Dense)

    def start(self) -> Weights:
        name, knobs = self.net.settings["name"], {**self.net.settings}
        del knobs["name"]
        model = seeded(name, (1, 28, 28), 10, seed=torch_seed(SEED, "main", "model"), **knobs)
        return {n: t.detach().clone() for n, t in model.state_dict().items()}

    def terms(
        self, w: Weights, rows: Indices, noise: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of every sample: Σ(x̂ - x)², the mean over codes of KL, and the logits."""
        x = self.data.x[torch.from_numpy(rows)]
        found = self.net.codes(w, x)
        mu, sigma = found[:, :3], found[:, 3:].exp().sqrt()
        z = mu if noise is None else mu + 0.5 * sigma * noise
        error = ((self.net.drawn(w, z) - x.flatten(1)) ** 2).sum(1)
        divergence = ((mu**2 + sigma**2 - 1) / 2 - sigma.log()).mean(1)
        return error, divergence, affine(w, "classifier", z)

    def moved(
        self,
        start: Weights,
        rows: Indices,
        key: tuple[str | int, ...],
        epochs: int = EPOCHS,
        alpha: float = 3.0,
        moving: Sequence[str] = PARTS,
    ) -> Weights:
        """Some epochs of a new optimiser; parts that are not ``moving`` stay."""
        plan = schedule(rows, key, BATCH, epochs, True)
        shape = (plan.steps, BATCH, 3)
        noise = stream(0, "noise", "codes", *key).standard_normal(shape, dtype=np.float32)
        w = {n: t.clone().requires_grad_(n.split(".")[0] in moving) for n, t in start.items()}
        free = [t for t in w.values() if t.requires_grad]
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        optimiser = kinds[self.net.optimiser](free, LR)
        for positions, mask, drawn in zip(plan.positions, plan.mask, noise, strict=True):
            real = mask > 0
            here = rows[positions[real]]
            error, divergence, logits = self.terms(w, here, torch.from_numpy(drawn[real]))
            wrong = F.cross_entropy(logits, self.data.y[torch.from_numpy(here)])
            optimiser.zero_grad()
            loss = error.mean() + divergence.mean() + alpha * wrong
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return {n: t.detach() for n, t in w.items()}

    def trained(self, start: Weights, client: Client, t: int) -> Weights:
        return self.moved(start, client.train, (SEED, "main", "train", 0, client.name, t))

    def scores(self, w: Weights, rows: Indices) -> dict[str, float]:
        """Of the mean codes."""
        error, divergence, logits = self.terms(w, rows, None)
        y = self.data.y[torch.from_numpy(rows)]
        wrong = F.cross_entropy(logits, y, reduction="none")
        right = (logits.argmax(1) == y).float()
        found = {
            "loss": error + divergence + 3 * wrong, "accuracy": right,
            "reconstruction": error, "kl": divergence,
        }  # fmt: skip
        return {metric: float(values.mean()) for metric, values in found.items()}


def ours(
    out: Path,
    data: Federation,
    method: dict[str, Any],
    rounds: int = 2,
    net: Dense | None = None,
    shots: Sequence[int | str] = (0,),
) -> Run:
    net = net or Dense()
    train = {
        "rounds": rounds, "epochs": EPOCHS, "batch_size": BATCH, "optimiser": net.optimiser,
        "lr": LR,
    }  # fmt: skip
    config = {
        "seed": SEED, "model": net.settings, "method": method, "train": train,
        "evaluate": {"fine_tune_epochs": 3, "shots": list(shots)},
    }  # fmt: skip
    return run(config, out=out, federation=data, draw=False)


def measured(done: Run, client: str, model: str, adapted: str = "none") -> dict[str, float]:
    """Scores of the last round on a client's test samples."""
    return {
        r.metric: r.value
        for r in done.rows()
        if (r.client, r.model, r.adapted, r.split) == (client, model, adapted, "test")
        and r.round == done.result["rounds"]
        and r.metric != "macro_f1"
    }


def close(scores: dict[str, float]) -> Any:
    return pytest.approx(scores, rel=2e-4, abs=1e-5)


@pytest.mark.parametrize("net", [Dense(), Conv()])
def test_the_mean_by_size_of_civaes(writers: Federation, tmp_path: Path, net: Dense) -> None:
    plain = Plain(writers, net)
    w = plain.start()
    for t in (1, 2):
        w = combination(SHARES, [plain.trained(w, c, t) for c in writers.clients])
    done = ours(tmp_path, writers, {"name": "civae"}, net=net)
    assert_close(final(done), w, CLOSE)
    for client in (*writers.clients, *writers.unseen):
        assert measured(done, client.name, "global") == close(plain.scores(w, client.test))


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_reptile_goes_all_of_the_way_at_first_and_then_ever_less(
    writers: Federation, tmp_path: Path, weights: str
) -> None:
    plain = Plain(writers)
    w = plain.start()
    shares = SHARES if weights == "size" else [1 / 3] * 3
    for t, step in enumerate(STEPS, start=1):
        mean = combination(shares, [plain.trained(w, c, t) for c in writers.clients])
        w = {n: w[n] + step * (mean[n] - w[n]) for n in w}
    done = ours(tmp_path, writers, {**REPTILE, "weights": weights}, rounds=3)
    assert_close(final(done), w, CLOSE)


def apart(plain: Plain, rounds: int) -> tuple[list[Weights], Weights]:
    """Every client's model, and the classifier of them all, where only classifiers meet."""
    models = [plain.start()] * 3
    shared: Weights = {}
    for t in range(1, rounds + 1):
        models = [plain.trained(w, c, t) for w, c in zip(models, plain.data.clients, strict=True)]
        mean = combination(SHARES, models)
        shared = {n: mean[n] for n in mean if n.startswith("classifier.")}
        models = [{**w, **shared} for w in models]
    return models, shared


def test_fed_civae_shares_the_classifier_and_a_newcomer_begins_untrained(
    writers: Federation, tmp_path: Path
) -> None:
    plain = Plain(writers)
    models, shared = apart(plain, 2)
    done = ours(tmp_path, writers, {"name": "fed-civae"})
    for client, w in zip(writers.clients, models, strict=True):
        assert_close(final(done, client.name), w, CLOSE)
        assert measured(done, client.name, "personal") == close(plain.scores(w, client.test))
    (eve,) = writers.unseen
    begins = plain.scores({**plain.start(), **shared}, eve.test)
    assert measured(done, eve.name, "personal") == close(begins)
    assert not (done.path / "models/last/global.safetensors").exists()
    assert done.result["bytes"]["up"] == 2 * 3 * 4 * (3 * 10 + 10)


def test_fed_civae_gives_newcomers_the_mean_encoder_and_a_volunteers_decoder(
    writers: Federation, tmp_path: Path
) -> None:
    """Clients themselves end as if nobody had sent anything but classifiers."""
    plain = Plain(writers)
    models, shared = apart(plain, 2)
    mean = combination(SHARES, models)
    given = {n: models[0][n] if n.startswith("decoder.") else mean[n] for n in mean} | shared
    method = {"name": "fed-civae", "encoder": "mean", "decoder": "volunteer"}
    done = ours(tmp_path, writers, method)
    assert_close(final(done), given, CLOSE)
    for client, w in zip(writers.clients, models, strict=True):
        assert_close(final(done, client.name), w, CLOSE)
    (eve,) = writers.unseen
    assert measured(done, eve.name, "personal") == close(plain.scores(given, eve.test))
    assert done.result["primary_model"] == "personal"


def test_clients_adapt_encoder_and_decoder_on_their_shots_with_alpha_one(
    writers: Federation, tmp_path: Path
) -> None:
    """Three epochs of Adam from the shared model; the scores weigh the classes with 3 again."""
    plain = Plain(writers)
    done = ours(tmp_path, writers, REPTILE, rounds=1, shots=[2, "all"])
    shared = final(done)
    said = load_predictions(done.path)
    for client in (*writers.clients, *writers.unseen):
        few = shots(client.train, writers.y, 2, SEED, client.name)
        for rows, label in ((few, "2-shot 3"), (client.train, "fine-tuned 3")):
            key = (SEED, "main", "adapt", 0, client.name, 1)
            w = plain.moved(shared, rows, key, 3, 1.0, ("encoder", "decoder"))
            assert measured(done, client.name, "global", label) == close(
                plain.scores(w, client.test)
            )
            logits = plain.terms(w, client.test, None)[2]
            mine = (said["client"] == client.name) & (said["adapted"] == label)
            confidence = logits.softmax(1).max(1).values
            np.testing.assert_allclose(said["confidence"][mine], confidence, atol=1e-4)
            assert said["predicted"][mine].tolist() == logits.argmax(1).tolist()


def test_reptile_over_a_plain_classifier(mnist: Federation) -> None:
    plain = classifiers.Plain(mnist, classifiers.logistic(), momentum=0.9)
    w = plain.start()
    for t, step in enumerate(STEPS, start=1):
        mean = combination([1 / 4] * 4, [plain.local_sgd(w, c, t)[0] for c in plain.clients])
        w = {n: w[n] + step * (mean[n] - w[n]) for n in w}
    knobs = {"eta": 0.35, "first": 1.0, "decay": 0.9}
    found = classifiers.ours("fedreptile", mnist, classifiers.logistic(), 0.9, **knobs)
    assert_close(found.shared, w, 1e-5)


def test_a_whole_unweighted_reptile_step_is_the_plain_mean_bit_for_bit(
    writers: Federation, tmp_path: Path
) -> None:
    whole = ours(tmp_path, writers, {"name": "fedreptile-civae", "eta": 1.0})
    base = {"name": "fedavg", "weights": "uniform"}
    mean = ours(tmp_path, writers, {"name": "civae", "base": base})
    assert_same_bits(final(whole), final(mean))


def test_paper_is_nought_and_ink_is_one_if_so_asked(data_dir: Path, writers: Federation) -> None:
    stored = load("femnist", data_dir, normalise="unit", digits_only=True)
    assert stored.owner is not None
    rows = np.flatnonzero(stored.owner == 0)[:40]
    torch.testing.assert_close(writers.x[:40], 1 - stored.x[rows])
    assert float(stored.x[rows].median()) == 1.0
