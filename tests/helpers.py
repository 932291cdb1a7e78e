"""Toy federations, toy models and whole runs on them, shared by the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskew.comparisons.runner import FederationCache
from fedskew.config import Config
from fedskew.data.federation import Client, Federation
from fedskew.engine.executor import Execution
from fedskew.engine.graph import TracedStep
from fedskew.engine.optim import Optimiser
from fedskew.federate.backends.carrier import Carrier
from fedskew.federate.backends.local import LocalBackend
from fedskew.federate.holdings import Holdings
from fedskew.federate.metrics import MAIN, Row
from fedskew.federate.plan import Plan, Settings
from fedskew.federate.privacy import Course, spent
from fedskew.federate.progress import Progress, RoundRecord
from fedskew.federate.recipe import Recipe, Stage
from fedskew.federate.rounds import Rounds
from fedskew.federate.rows import broadcast_of
from fedskew.federate.server import federate
from fedskew.federate.tasks import Answer, Ask
from fedskew.methods import METHODS, find
from fedskew.models.civae import Civae
from fedskew.models.made import GaussianMade
from fedskew.models.registry import MADE, Classifier
from fedskew.models.vae import Vae
from fedskew.parts.agreement import PerEnvironment
from fedskew.parts.begin import Opening
from fedskew.parts.finding import Finding, Holder, Left
from fedskew.parts.report import Finished
from fedskew.problem import Problem
from fedskew.types import Groups

Tensors = dict[str, Tensor]
Knobs = Mapping[str, Any]

RAGGED = (7, 19, 40, 41)
"""Sizes with short last batches, different step counts and, for batches of 8, one left over."""

every_method = pytest.mark.parametrize("name", sorted(METHODS))


def folder_of(config: Config, out: Path) -> Path:
    """Where a run with these settings stands."""
    return out / FederationCache(None).identity(config).name


def toy_federation(
    sizes: Sequence[int] = RAGGED, features: int = 6, classes: int = 3, seed: int = 0
) -> Federation:
    """Clients ``c0, c1, ...`` with shifted inputs, each scored on rows of its own, one unseen.

    Their samples are of two environments in turn, those of clients with few all of one.
    """
    rng = np.random.default_rng(seed)
    clients, inputs, environments, start = [], [], [], 0
    for k, size in enumerate([*sizes, 12]):
        count = size + 10
        inputs.append(rng.normal(0.4 * k, 1.0, (count, features)))
        environments.append(np.arange(count) % (2 if size >= 16 else 1))
        rows = np.arange(start, start + count)
        clients.append(Client(f"c{k}", rows[:size], rows[size : size + 5], rows[size + 5 :]))
        start += count
    x = torch.from_numpy(np.concatenate(inputs)).to(torch.float32)
    teacher = torch.from_numpy(rng.normal(size=(features, classes))).to(torch.float32)
    return Federation(
        name="toy",
        x=x,
        y=(x @ teacher).argmax(dim=1),
        class_names=tuple("abcdefgh"[:classes]),
        clients=tuple(clients[:-1]),
        unseen=(clients[-1],),
        central_test=np.concatenate([client.test for client in clients]),
        environment=torch.from_numpy(np.concatenate(environments)),
    )


def toy_model(kind: str = "mlp", features: int = 6, classes: int = 3) -> Classifier:
    """A seeded two-layer network; ``batch-norm`` has running statistics, ``mlp`` has none."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        # A bias before BatchNorm has no gradient: every client would hold the same one for ever.
        layers = {
            "mlp": (nn.Linear(features, 5), nn.Tanh()),
            "batch-norm": (nn.Linear(features, 5, bias=False), nn.BatchNorm1d(5)),
        }
        return Classifier(nn.Sequential(*layers[kind]), nn.Linear(5, classes))


def toy_vae(kind: str = "mlp", features: int = 6, latent: int = 2) -> Vae:
    """A seeded autoencoder of the same kinds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = {
            "mlp": (nn.Linear(features, 5), nn.Tanh()),
            "batch-norm": (nn.Linear(features, 5, bias=False), nn.BatchNorm1d(5)),
        }
        encoder = nn.Sequential(*layers[kind], nn.Linear(5, 2 * latent))
        decoder = nn.Sequential(nn.Linear(latent, 5), nn.Tanh(), nn.Linear(5, features))
        return Vae(encoder, decoder, latent)


def toy_civae(kind: str = "mlp", features: int = 6, latent: int = 2, classes: int = 3) -> Civae:
    """The same autoencoder with a classifier on its codes."""
    vae = toy_vae(kind, features, latent)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return Civae(vae.encoder, vae.decoder, latent, classes)


def toy_made(features: int = 6) -> GaussianMade:
    """A seeded density estimator; it has no layers of other kinds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return GaussianMade((features,), (8,), shuffled=False, mask_seed=1, components=2)


def toy_task(kind: str, sizes: Sequence[int] = RAGGED) -> Federation:
    """The toy federation with a number to learn, in units of its own, or with three labels."""
    federation = toy_federation(sizes)
    teacher = torch.from_numpy(np.random.default_rng(5).normal(size=(6, 3))).to(torch.float32)
    said = federation.x @ teacher
    if kind == "multi-label":
        return federation.with_data(y=(said > 0.5).float(), problem=Problem("multi-label"))
    y = (said[:, 0] - said[:, 0].mean()) / said[:, 0].std()
    problem = Problem("regression", units=(150.0, 40.0))
    return federation.with_data(y=y, class_names=(), problem=problem)


def model_for(recipe: Recipe, kind: str = "mlp", outputs: int = 3) -> nn.Module:
    """A toy model with the parts the recipe's objective calls."""
    needs = recipe.objective.needs
    if needs == MADE:
        return toy_made()
    if "classifier" in needs:
        return toy_civae(kind)
    return toy_vae(kind) if "decoder" in needs else toy_model(kind, classes=outputs)


def copied(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: t.detach().clone() for name, t in tensors.items()}


def make_holdings(
    recipe: Recipe,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    settings: Settings | None = None,
    chunk: int = 2,
    seed: int = 0,
    executor: str = "vectorised",
) -> Holdings:
    """Holdings with the toy federation and model, where no others are given."""
    federation = federation or toy_federation()
    module = module or model_for(recipe, outputs=federation.outputs)
    if recipe.extends is not None:
        module = recipe.extends(module)
    plan = Plan(
        recipe=recipe,
        module=module,
        initial=copied(module.state_dict()),
        settings=settings or Settings(Optimiser("sgd", 0.1), epochs=2, batch_size=8),
        execution=Execution(executor, chunk, "the test says so"),
        seed=seed,
        problem=federation.problem,
    )
    return Holdings(plan, federation)


def opening(parameters: Tensors, *clients: str) -> Opening:
    """A server of these parameters and clients, before its first round."""
    module = nn.Module()
    for name, t in parameters.items():
        module.register_parameter(name, nn.Parameter(t))
    return Opening(module, parameters, clients)


def just_trained(module: nn.Module, federation: Federation, **changes: Any) -> Finished:
    """A client as its reports see it, all of it real; ``changes`` replace what a test is about."""
    tensors = copied(module.state_dict())
    known: dict[str, Any] = {
        "client": federation.clients[0],
        "x": federation.x,
        "y": federation.y,
        "classes": federation.classes,
        "module": module.eval(),
        "received": tensors,
        "trained": tensors,
        "changed": frozenset(tensors),
        "steps": 2,
        "optimiser": Optimiser("sgd", 0.1),
        "private": {},
        "broadcast": {},
        "public": federation.public,
        "rng": np.random.default_rng(0),
        "agreed": np.random.default_rng(1),
    }
    return Finished(**{**known, **changes})


def left_by(
    finding: Finding, federation: Federation, private: Mapping[str, Groups]
) -> dict[str, Left]:
    """What a finding leaves of clients that keep these groups to themselves."""
    total = sum(len(client.train) for client in federation.clients)
    left = {}
    for client in federation.clients:
        known = federation.log_ratio
        ratio = None if known is None else known[torch.from_numpy(client.train)]
        holder = Holder(client, federation.y, private.get(client.name, {}), total, ratio)
        if (found := finding.leave(holder)) is not None:
            left[client.name] = found
    return left


def unknown_tensors(module: nn.Module) -> Tensors:
    """A model of nothing but NaN: whoever reads it is found out."""
    return {name: torch.full_like(t, torch.nan) for name, t in copied(module.state_dict()).items()}


class ListJournal:
    """Remembers every round; never resumes."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.records: list[RoundRecord] = []
        self.states: list[Progress] = []

    def resume(self, stage: str) -> Progress | None:
        return None

    def commit(self, progress: Progress, rows: Sequence[Row], record: RoundRecord) -> None:
        self.rows.extend(rows)
        self.records.append(record)
        self.states.append(progress)


class OpenBackend(LocalBackend):
    """Works on given holdings, and lets a test look at what clients keep to themselves."""

    def __init__(self, holdings: Holdings, folder: Path | None = None) -> None:
        super().__init__(holdings.federation, folder=folder)
        self.holdings = holdings
        self.labels: dict[str, str] = {}

    def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
        answers = super().exchange(asks)
        self.labels |= {ask.client: ask.since for ask in asks if ask.since}
        self.labels |= {answer.client: answer.label for answer in answers if answer.label}
        return answers

    def private_of(self, client: str) -> Groups:
        return self._states.of({client: self.labels.get(client, "")})[client]


@dataclass
class Run:
    """One finished stage with everything anybody could have kept of it."""

    holdings: Holdings
    backend: OpenBackend
    journal: ListJournal = field(default_factory=ListJournal)
    progress: Progress = field(init=False)

    @property
    def shared(self) -> Tensors:
        return self.progress.state.shared

    @property
    def scores(self) -> dict[tuple[Any, ...], float]:
        return scores_of(self.journal.rows)

    def model_of(self, client: str) -> Tensors:
        """The model a client would start its next round from."""
        sent = self.progress.state.sent_to(client)
        own = self.backend.private_of(client)
        broadcast = broadcast_of(self.holdings.plan, self.progress.state)
        return self.holdings.begins_with(client, sent, own, broadcast, trains=True).model

    def everything(self) -> Tensors:
        """All tensors of the server and of every client, under one name each."""
        state = self.progress.state
        groups = {"shared": state.shared}
        groups |= {f"memory/{name}": group for name, group in state.memory.items()}
        groups |= {f"for/{client}": tensors for client, tensors in state.personal.items()}
        for client in sorted(self.holdings.clients):
            for name, group in self.backend.private_of(client).items():
                groups[f"private/{client}/{name}"] = group
        return {f"{g}/{n}": t for g, tensors in groups.items() for n, t in tensors.items()}


def scores_of(rows: Iterable[Row]) -> dict[tuple[Any, ...], float]:
    return {(r.round, r.model, r.on, r.client, r.adapted, r.split, r.metric): r.value for r in rows}


def run(holdings: Holdings, rounds: int | Rounds = 3, backend: OpenBackend | None = None) -> Run:
    """Federate from the start to the last round."""
    rounds = Rounds(rounds) if isinstance(rounds, int) else rounds
    result = Run(holdings, backend or OpenBackend(holdings))
    result.progress = federate(holdings.plan, result.backend, rounds, result.journal)
    return result


def over_the_wire(holdings: Holdings, rounds: int = 3, backend: Carrier | None = None) -> Run:
    """The same, with nothing but bytes between the server and the clients."""
    clients = OpenBackend(holdings)
    carrier = backend or Carrier(clients)
    result = Run(holdings, getattr(carrier, "clients", clients))
    result.progress = federate(holdings.plan, carrier, Rounds(rounds), result.journal)
    return result


_graphs: dict[tuple[Any, ...], dict[Any, Any]] = {}


def method_holdings(
    name: str, kind: str = "mlp", knobs: Knobs | None = None, **changes: Any
) -> Holdings:
    """Holdings for a method by name.

    Tracing a step takes most of a small run's time and depends on none of the data, so those of
    the same method, model and optimiser share their graphs; ``make_holdings`` traces anew.
    """
    recipe = find(name).recipe(**(knobs or {}))
    if kind == "batch-norm" and isinstance(recipe.objective, PerEnvironment):
        pytest.skip("the method refuses BatchNorm")
    federation = changes.pop("federation", None) or toy_federation()
    module = model_for(recipe, kind, federation.outputs)
    holdings = make_holdings(recipe, federation, module, **changes)
    optimiser = replace(holdings.plan.settings.optimiser, lr=0.0)
    for number, phase in enumerate(holdings.plan.recipe.trains):
        environments = holdings.federation.environments
        learned = (federation.problem.kind, federation.outputs)
        key = (name, kind, repr(knobs), optimiser, number, environments, learned)
        step = holdings.training(phase, 1.0).step
        if isinstance(step, TracedStep):
            step._graphs = _graphs.setdefault(key, {})
    return holdings


@cache
def standard_run(name: str, kind: str = "mlp") -> Run:
    """Three rounds of a method with its default knobs on the ragged toy federation."""
    return run(method_holdings(name, kind))


def assert_close(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], tol: float) -> None:
    """Same names, and every tensor the same up to ``tol``, absolute and relative."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        try:
            torch.testing.assert_close(tensor, theirs[name], rtol=tol, atol=tol)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def assert_same_bits(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    differing = [name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])]
    assert differing == []


def spent_on(recipe: Recipe, rounds: int, per_round: int, clients: int) -> dict[str, Any]:
    """What a method tells of a client in so many rounds of each of its stages."""
    stages = (*recipe.prepares, Stage(MAIN, recipe))
    found = spent([Course(stage, rounds, per_round) for stage in stages], clients)
    assert found is not None
    return found


def needs_noise(recipe: Recipe) -> bool:
    """Whether clients draw random numbers in training, which are keyed by their names."""
    objectives = [phase.objective or recipe.objective for phase in recipe.trains]
    return any(objective.noise(model_for(recipe), 1) for objective in objectives)
