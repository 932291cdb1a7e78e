"""fedskew itself: its round loop, backend and engine on the shared workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.models import BetaVae, Made
from benchmarks.protocol import Reply, serve
from benchmarks.workloads import WORKLOADS, Data, Workload, load
from fedskew.data.federation import Client, Federation
from fedskew.engine.executor import choose
from fedskew.engine.optim import Optimiser
from fedskew.federate.backends.local import LocalBackend
from fedskew.federate.metrics import CENTRAL, Row
from fedskew.federate.plan import Plan, Settings
from fedskew.federate.progress import Progress, RoundRecord
from fedskew.federate.recipe import Recipe
from fedskew.federate.rounds import Rounds
from fedskew.federate.rows import score_tasks
from fedskew.federate.server import federate
from fedskew.federate.tasks import Ask, ScoreTask
from fedskew.methods import find
from fedskew.models.made import BernoulliMade
from fedskew.parts.objective import Batch, Bound, Context, Erm, Objective
from fedskew.types import Tensors


class NoisyBetaVae(BetaVae):
    """The same model, with the noise handed in: fedskew refuses draws it cannot repeat."""

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, spread = self.mean(hidden), self.spread(hidden)
        return self.decoder(mean + spread.exp() * noise), mean, spread


@dataclass(frozen=True)
class VaeLoss(Objective):
    """Squared error summed over pixels plus beta times the KL divergence."""

    beta: float = 10.0

    def noise(self, module: nn.Module, samples: int) -> dict[str, tuple[int, ...]]:
        return {"latent": (samples, 2)}

    def _terms(self, model: Bound, batch: Batch) -> tuple[Tensor, Tensor]:
        image, mean, spread = model(batch.x, batch.noise["latent"])
        error = (image - batch.x).square().sum(1)
        return error, -0.5 * (1 + 2 * spread - mean.square() - (2 * spread).exp()).sum(1)

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        error, divergence = self._terms(model, batch)
        return batch.mean(error + self.beta * divergence)

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        error, divergence = self._terms(model, batch)
        return {"loss": error + divergence}


class _EnoughRounds(Exception):
    pass


class _Counter:
    """A journal that remembers the last round and stops the loop after so many more."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.left = 0

    def resume(self, stage: str) -> Progress | None:
        return self.progress

    def commit(self, progress: Progress, rows: Sequence[Row], record: RoundRecord) -> None:
        if record.failures:
            raise RuntimeError(f"clients failed: {record.failures}")
        self.progress = progress
        self.left -= 1
        if self.left == 0:
            raise _EnoughRounds


class Engine:
    """Keeps the federation and the global model between commands."""

    def setup(self, workload: str, clients: int | None) -> Reply:
        self.workload = WORKLOADS[workload]
        data = load(workload, clients)
        self.plan, federation = _planned(self.workload, data)
        self.backend = LocalBackend(federation, self.plan)
        self.journal = _Counter()
        return {
            "versions": {"torch": torch.__version__},
            "real_data": data.real,
            "plan": self.plan.execution.as_dict(),
        }

    def train_rounds(self, rounds: int) -> None:
        """Whole rounds as a user runs them: choosing, training, checking and aggregating."""
        self.journal.left = rounds
        never = 10**9
        # The stage of clients' own MADEs looks at what they held out after every round.
        scored = 1 if self.workload.apart else never
        try:
            federate(
                self.plan,
                self.backend,
                Rounds(never, clients_per_round=self.workload.per_round, score_every=scored),
                self.journal,
            )
        except _EnoughRounds:
            return

    def evaluate(self) -> float:
        assert self.journal.progress is not None
        if self.workload.apart:
            kept = self.journal.progress.kept
            asked = score_tasks(self.plan, self.backend.roster, self.journal.progress.state, 0)
            asks = [Ask(c, tuple(tasks), since=kept.get(c, "")) for c, tasks in asked.items()]
            scored = [each for answer in self.backend.exchange(asks) for each in answer.scored]
            return fmean(each.scores["validation"]["loss"] for each in scored)
        shared = self.journal.progress.state.shared
        task = ScoreTask(CENTRAL, 0, shared, "global", ("test",))
        (answer,) = self.backend.exchange([Ask(CENTRAL, (task,))])
        scores = answer.scored[0].scores["test"]
        return scores.get("accuracy", scores["loss"])

    def close(self) -> None:
        """Nothing was started."""


def _planned(workload: Workload, data: Data) -> tuple[Plan, Federation]:
    x, y = torch.cat([data.x, data.test_x]), torch.cat([data.y, data.test_y])
    held_out = data.held_out or (torch.empty(0, dtype=torch.int64),) * len(data.clients)
    parts = zip(data.clients, held_out, strict=True)
    federation = Federation(
        workload.name,
        x,
        y,
        tuple(str(label) for label in range(int(y.max()) + 1)),
        tuple(Client(f"{i:05d}", *(r.numpy() for r in rows)) for i, rows in enumerate(parts)),
        central_test=np.arange(len(data.x), len(x)),
    )
    module: nn.Module = workload.model()
    recipe = Recipe(objective=Erm())
    if isinstance(module, BetaVae):
        noisy = NoisyBetaVae()
        noisy.load_state_dict(module.state_dict())
        module, recipe = noisy, Recipe(objective=VaeLoss())
    if isinstance(module, Made):
        given, module = module, BernoulliMade((784,), (30,), False, mask_seed=1, binarise=False)
        for ours, theirs in zip(module.parameters(), given.parameters(), strict=True):
            ours.data.copy_(theirs.data)
        # The very stage FedDisk trains them in, with its look at what is held out.
        recipe = find("feddisk").recipe().prepares[-1].recipe
    plan = Plan(
        recipe=recipe,
        module=module.train(),
        initial={name: t.detach().clone() for name, t in module.state_dict().items()},
        settings=Settings(
            Optimiser(workload.optimizer, workload.learning_rate),
            epochs=workload.epochs,
            batch_size=workload.batch,
        ),
        execution=choose(module),
        seed=0,
    )
    return plan, federation


if __name__ == "__main__":
    serve(Engine())
