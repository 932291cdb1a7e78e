"""Augmentation is data: whoever trains, carries or resumes, every batch is changed the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    Run,
    Tensors,
    assert_close,
    assert_same_bits,
    make_holdings,
    over_the_wire,
    run,
    scores_of,
    toy_federation,
)
from here import three_sites
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from studies import assert_same
from torch import Tensor, nn
from torch.nn import functional as F
from workers import OpenDealt, ThreadPool

import fedskew
from fedskew.config import make_config
from fedskew.data.federation import Federation
from fedskew.engine.batches import stacked_batches
from fedskew.engine.cohort import scheduled, train
from fedskew.engine.executor import ONE_BY_ONE
from fedskew.engine.optim import Optimiser
from fedskew.engine.training import Work
from fedskew.federate.backends.dealer import Dealer
from fedskew.federate.holdings import Holdings
from fedskew.federate.plan import Settings
from fedskew.federate.recipe import Phase, Recipe
from fedskew.methods import find
from fedskew.models.registry import Classifier
from fedskew.parts.augment import Augmentation, Crop, Flip, Jitter
from fedskew.rng import stream
from fedskew.runs.experiment import Run as Finished
from fedskew.runs.identity import resolve
from fedskew.sites.run import run_on_sites

ALL = (Crop(1), Flip(0.5), Jitter(0.3))


def pictures() -> Federation:
    """The toy clients, with images of two channels for samples."""
    return toy_federation(features=24).with_data(
        x=toy_federation(features=24).x.reshape(-1, 2, 3, 4)
    )


def model(kind: str = "dense") -> nn.Module:
    layers: dict[str, Any] = {
        "dense": lambda: (nn.Flatten(), nn.Linear(24, 5), nn.Tanh()),
        "convolution": lambda: (nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 5)),
        "batch-norm": lambda: (nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(),
                               nn.Linear(18, 5)),
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Classifier(nn.Sequential(*layers[kind]()), nn.Linear(5, 3))


def holdings(
    augments: tuple[Augmentation, ...] = ALL,
    kind: str = "dense",
    method: str = "fedavg",
    lr: float = 0.1,
    **how: Any,
) -> Holdings:
    settings = Settings(Optimiser("sgd", lr), epochs=2, batch_size=8, augments=augments)
    return make_holdings(find(method).recipe(), pictures(), model(kind), settings, **how)


@cache
def standard(augments: tuple[Augmentation, ...] = ALL, kind: str = "dense") -> Run:
    return run(holdings(augments, kind))


def as_trained(training: Any, batches: Any, step: int) -> Tensor:
    """The samples of a stack's step, as its gradient would get them."""
    seen: list[Tensor] = []

    def look(trained: Tensors, fixed: Tensors, context: Any, batch: dict[str, Any]) -> list[Tensor]:
        seen.append(batch["x"])
        return []

    training._gradient = look
    batch = {n: t[step] for n, t in batches.items() if isinstance(t, Tensor)}
    batch["drawn"] = {n: t[step] for n, t in batches["drawn"].items()}
    training._step({}, torch.tensor(0.1), {}, {}, (training.x, training.y), batch)
    return seen[0]


def test_a_client_s_batches_are_the_same_bits_alone_and_in_a_stack() -> None:
    made = holdings()
    training = made.training(Phase())
    works = [
        Work(c.name, c.train, {}, key=(0, "main", "train", 0, c.name, 1))
        for c in made.federation.clients
    ]
    schedules = [scheduled(training, w.rows, w.key) for w in works]
    longest = max(range(len(works)), key=lambda i: schedules[i].steps)
    order = [longest, *(i for i in range(len(works)) if i != longest)]
    works, schedules = [works[i] for i in order], [schedules[i] for i in order]
    together = stacked_batches(works, schedules, training)
    for place, (work, schedule) in enumerate(zip(works, schedules, strict=True)):
        alone = stacked_batches([work], [schedule], training)
        for step in range(schedule.steps):
            mine = as_trained(training, alone, step)[0]
            assert torch.equal(as_trained(training, together, step)[place], mine)
            plain = made.x[torch.from_numpy(work.rows[schedule.positions[step]])]
            assert not torch.equal(mine, plain)


@pytest.mark.parametrize("kind", ["dense", "convolution"])
@pytest.mark.parametrize("how", [{"chunk": 4}, {"chunk": 1}, {"chunk": 1, "executor": ONE_BY_ONE}])
def test_every_executor_trains_the_same(kind: str, how: dict[str, Any]) -> None:
    other, usual = run(holdings(kind=kind, **how)), standard(kind=kind)
    assert_close(other.everything(), usual.everything(), 1e-5)
    assert other.scores == pytest.approx(usual.scores, abs=1e-5)


def test_batch_norm_trains_the_same_one_by_one() -> None:
    plain = run(holdings(kind="batch-norm", chunk=1, executor=ONE_BY_ONE))
    assert_close(plain.everything(), standard(kind="batch-norm").everything(), 1e-5)


def test_a_carrier_of_bytes_and_workers_change_no_bit() -> None:
    usual = standard()
    carried = over_the_wire(holdings())
    assert_same_bits(carried.everything(), usual.everything())
    assert carried.journal.rows == usual.journal.rows
    made = holdings()
    dealt = run(made, backend=OpenDealt(made, Dealer(ThreadPool(2))))
    assert_same_bits(dealt.everything(), usual.everything())


def test_a_plain_loop_trains_the_same() -> None:
    """One client, autograd and the same streams: what a batch is and how it is changed, by hand."""
    made = holdings((Flip(0.5), Crop(1)), chunk=1)
    client = made.federation.clients[1]
    key = (0, "main", "train", 0, client.name, 1)
    training = made.training(Phase())
    order = scheduled(training, client.train, key)
    flips = stream(0, "augment", 0, *key).random((order.steps, 8, 1), dtype=np.float32)
    moves = stream(0, "augment", 1, *key).random((order.steps, 8, 2), dtype=np.float32)
    own = model()
    optimiser = torch.optim.SGD(own.parameters(), lr=0.1)
    for step in range(order.steps):
        real = order.mask[step] > 0
        images = made.federation.x[client.train[order.positions[step]]].numpy()
        changed = []
        for image, mirror, (down, right) in zip(images, flips[step], moves[step], strict=True):
            image = image[:, :, ::-1] if mirror[0] < 0.5 else image
            wide = np.pad(image, ((0, 0), (1, 1), (1, 1)), mode="edge")
            top, left = int(down * 3), int(right * 3)
            changed.append(wide[:, top : top + 3, left : left + 4])
        x = torch.from_numpy(np.stack(changed))[real]
        y = made.federation.y[client.train[order.positions[step]]][real]
        optimiser.zero_grad()
        F.cross_entropy(own(x), y).backward()
        optimiser.step()
    (found,) = train([Work(client.name, client.train, made.plan.initial, key=key)], training)
    assert not isinstance(found, Exception)
    assert_close(found.tensors, dict(own.state_dict()), 1e-5)


@pytest.mark.parametrize("neutral", [Crop(0), Flip(0.0), Jitter(0.0)], ids=repr)
def test_a_neutral_knob_trains_as_without_to_the_bit(neutral: Augmentation) -> None:
    plain = standard(())
    assert_same_bits(run(holdings((neutral,))).everything(), plain.everything())
    changed = run(holdings((ALL[0],))).everything()
    assert any(not torch.equal(changed[n], t) for n, t in plain.everything().items())


def test_what_one_part_draws_does_not_depend_on_another() -> None:
    """A part that changes nothing, put behind, changes nothing."""
    one = run(holdings((Crop(1),))).everything()
    assert_same_bits(run(holdings((Crop(1), Flip(0.0)))).everything(), one)


def test_scores_are_of_samples_as_they_are() -> None:
    """With steps too small to move anything, scores are those of a run without."""
    still, plain = (run(holdings(a, lr=1e-30)) for a in (ALL, ()))
    assert scores_of(still.journal.rows) == scores_of(plain.journal.rows)
    losses = [[r.train_loss for r in each.journal.records] for each in (still, plain)]
    assert losses[0] != losses[1], "while what is trained on was changed"


def test_other_objectives_and_environments_are_changed_too() -> None:
    for method in ("irm", "scaffold"):
        stacked, alone = (run(holdings(method=method, chunk=n)) for n in (4, 1))
        assert_close(stacked.everything(), alone.everything(), 1e-5)
        plain = run(holdings((), method=method, chunk=4)).everything()
        assert any(not torch.equal(plain[n], t) for n, t in stacked.everything().items())


SETTINGS: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [8]},
    "federation": {"clients": 3, "samples": 200},
}
CHANGES = [{"name": "crop", "pad": 1}, {"name": "jitter"}]


def settings(rounds: int) -> dict[str, Any]:
    return {**SETTINGS, "train": {"rounds": rounds, "augment": CHANGES}}


def weights(done: Finished) -> Tensors:
    return load_file(done.path / "models/last/global.safetensors")


def test_a_run_that_goes_on_ends_with_the_bits_of_one_that_never_stopped(tmp_path: Path) -> None:
    fedskew.run(settings(2), out=tmp_path / "a", draw=False)
    longer = fedskew.run(settings(4), out=tmp_path / "a", draw=False)
    whole = fedskew.run(settings(4), out=tmp_path / "b", draw=False)
    assert_same_bits(weights(longer), weights(whole))
    plain = fedskew.run({**SETTINGS, "train": {"rounds": 4}}, out=tmp_path / "b", draw=False)
    ours, theirs = weights(plain), weights(whole)
    assert any(not torch.equal(ours[n], theirs[n]) for n in ours)


def test_settings_without_it_are_those_they_always_were() -> None:
    assert "augment" not in resolve(make_config(SETTINGS)).resolved()["train"]
    told = resolve(make_config(settings(1))).resolved()["train"]["augment"]
    assert told == [{"name": "crop", "pad": 1}, {"name": "jitter", "strength": 0.2}]
    short = make_config({"train": {"augment": "flip"}})
    assert resolve(short).resolved()["train"]["augment"] == [{"name": "flip", "p": 0.5}]


def test_sites_train_as_one_machine_does(tmp_path: Path) -> None:
    digits = load_digits()
    (tmp_path / "all").mkdir()
    files = {}
    for k, name in enumerate(("ann", "bob", "cleo", "dan")):
        rows = slice(80 * k, 80 * (k + 1))
        files[name] = tmp_path / "all" / f"{name}.npz"
        np.savez(files[name], x=np.float32(digits.images[rows] / 16), y=digits.target[rows],
                 class_names=[str(n) for n in range(10)])  # fmt: skip
    sites = three_sites(tmp_path / "sites", files)
    given = {**settings(2), "executor": "threads"}
    del given["federation"]
    there = run_on_sites(make_config(given), sites, tmp_path / "runs")
    section = {"dataset": str(tmp_path / "all"), "partition": "owner", "clients": "all"}
    here = fedskew.run({**given, "federation": section}, out=tmp_path / "one", draw=False)
    assert_same(here, there)


def test_a_user_s_own_part_that_draws_by_itself_fails_its_clients() -> None:
    class Drawing(Augmentation):
        def change(self, x: Tensor, drawn: Tensor) -> Tensor:
            return x + torch.randn_like(x)

    made = holdings((Drawing(),))
    client = made.federation.clients[0]
    (found,) = train([Work(client.name, client.train, made.plan.initial)], made.training(Phase()))
    assert "draws random numbers by itself" in str(found)


def test_a_user_s_own_part_that_changes_the_shape_is_named() -> None:
    class Halved(Augmentation):
        def change(self, x: Tensor, drawn: Tensor) -> Tensor:
            return x[:, :, ::2]

    made = holdings((Halved(),))
    client = made.federation.clients[0]
    (found,) = train([Work(client.name, client.train, made.plan.initial)], made.training(Phase()))
    assert "Halved made [2, 2, 4] of images of [2, 3, 4]" in str(found)


def test_parts_are_used_by_whatever_recipe() -> None:
    recipe = replace(Recipe(), trains=(Phase(), Phase(epochs=1)))
    made = make_holdings(
        recipe, pictures(), model(), Settings(Optimiser("sgd", 0.1), 1, 8, augments=(Flip(1.0),))
    )
    assert all(made.training(phase).augments == (Flip(1.0),) for phase in recipe.trains)
