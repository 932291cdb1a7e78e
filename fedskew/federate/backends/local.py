"""All clients in this process: they train as cohorts; private state is in memory or packs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedskew.data.federation import KEEPING, Federation
from fedskew.federate.adapting import adapted_folder
from fedskew.federate.client import Outcome, describe_clients, train_clients
from fedskew.federate.holdings import Holdings, roster_of
from fedskew.federate.metrics import Measured
from fedskew.federate.own_models import save_own_model
from fedskew.federate.plan import Plan
from fedskew.federate.predictions import PREDICTIONS, Predictions
from fedskew.federate.private import PrivateStates, States
from fedskew.federate.recipe import Adapt
from fedskew.federate.scoring import SampleScores, personal_model, score_clients
from fedskew.federate.tasks import (
    Answer,
    Ask,
    DescribeTask,
    FindTask,
    SaveTask,
    Scored,
    ScoreTask,
    TogetherTask,
    TrainTask,
)
from fedskew.federate.together import measured_together
from fedskew.parts.finding import Holder
from fedskew.store import save_arrays
from fedskew.types import Groups, Tensors


class LocalBackend:
    """Runs asks on the engine: the first task of all asks, then the second, and so on.

    ``folder`` is where clients' private states are kept, ``results`` where the files go that stay
    with the clients: their own models, and the models' answers for every sample.
    """

    pools = True
    apart = False
    rides = False

    def __init__(
        self,
        federation: Federation,
        plan: Plan | None = None,
        folder: Path | None = None,
        results: Path | None = None,
    ) -> None:
        self.roster = roster_of(federation)
        self._federation = federation
        self._states = PrivateStates(folder)
        self._results = results
        if plan is not None:
            self.begin(plan)

    def begin(self, plan: Plan, made_up: Tensor | None = None) -> None:
        self.holdings = Holdings(plan, self._federation, made_up)

    def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
        private = self._states.of({ask.client: ask.since for ask in asks})
        scores = self._scored(asks, private)
        outcomes = self._outcomes(asks, private)
        labels = self._remembered(asks, outcomes, private)
        for ask in asks:
            if ask.save is not None:
                self._save(ask.save, private[ask.client])
            self._states.sweep(ask.client, {*ask.keep, ask.since, labels[ask.client]})
        found = self._found(asks, private)
        answers = []
        for ask in asks:
            outcome = outcomes.get(ask.client, Outcome(ask.client))
            answers.append(
                Answer(
                    ask.client, tuple(scores[ask.client]), outcome.update, outcome.loss,
                    outcome.error, labels[ask.client], found.get(ask.client, {}),
                )
            )  # fmt: skip
        return answers

    def together(self, task: TogetherTask) -> list[Measured]:
        return measured_together(self.holdings, task, self._states.of(task.since))

    def _scored(self, asks: Sequence[Ask], private: States) -> dict[str, list[Scored]]:
        """The first models of all clients, then the second: equal models are scored together."""
        found: dict[str, list[Scored]] = {ask.client: [] for ask in asks}
        predictions = Predictions()
        for place in range(max((len(ask.scores) for ask in asks), default=0)):
            tasks = [ask.scores[place] for ask in asks if place < len(ask.scores)]
            results = self._score(tasks, private)
            for task, (scores, result) in zip(tasks, results, strict=True):
                found[task.client].append(scores)
                if task.samples:
                    adapt = None if task.adapt is None else self.holdings.plan.adapts[task.adapt]
                    predictions.add(self._on(task), adapt, result, self.holdings.plan.problem)
                    if adapt is not None:
                        self._save_adapted(adapt, result)
        if self._results is not None:
            predictions.save(self._results / PREDICTIONS)
        return found

    def _score(
        self, tasks: Sequence[ScoreTask], private: States
    ) -> list[tuple[Scored, SampleScores]]:
        return score_clients(self.holdings, tasks, private)

    def _train(self, tasks: Sequence[TrainTask], private: States) -> list[Outcome]:
        return train_clients(self.holdings, tasks, private)

    def _describe(self, tasks: Sequence[DescribeTask], private: States) -> list[Outcome]:
        return describe_clients(self.holdings, tasks, private)

    def _on(self, task: ScoreTask) -> str:
        return "seen" if self.roster.by_name[task.client].seen else "unseen"

    def _outcomes(self, asks: Sequence[Ask], private: States) -> dict[str, Outcome]:
        trained = [ask.train for ask in asks if ask.train is not None]
        described = [ask.describe for ask in asks if ask.describe is not None]
        outcomes = self._train(trained, private) if trained else []
        if described:
            outcomes += self._describe(described, private)
        return {outcome.client: outcome for outcome in outcomes}

    def _remembered(
        self, asks: Sequence[Ask], outcomes: Mapping[str, Outcome], private: States
    ) -> dict[str, str]:
        """Write what clients keep, and return the label of each client's newest state."""
        labels = {ask.client: ask.since for ask in asks}
        written: dict[str, States] = {}
        for ask in asks:
            outcome = outcomes.get(ask.client)
            if outcome is None or outcome.error is not None:
                continue
            # The next stage begins with nothing but what this one hands over.
            before = private[ask.client] if ask.train is not None else {}
            if outcome.keeps:
                written.setdefault(ask.until, {})[ask.client] = {**before, **outcome.keeps}
            if outcome.keeps or ask.describe is not None:
                labels[ask.client] = ask.until if outcome.keeps else ""
        for label, states in written.items():
            self._states.put(label, states)
        return labels

    def _found(self, asks: Sequence[Ask], private: States) -> dict[str, dict[str, Any]]:
        """The numbers of findings, by client; their arrays go into one file each."""
        found: dict[str, dict[str, Any]] = {}
        tasks = [ask.find for ask in asks if ask.find is not None]
        for finding in self.holdings.plan.recipe.leaves:
            left = {t.client: finding.leave(self._holder(t, private[t.client])) for t in tasks}
            arrays = [each.arrays for each in left.values() if each and each.arrays]
            for client, each in left.items():
                if each is not None:
                    found.setdefault(client, {})[finding.name] = each.numbers
            if arrays and self._results is not None:
                path = self._results / f"{finding.name}.npz"
                save_arrays(path, {n: np.concatenate([a[n] for a in arrays]) for n in arrays[0]})
        return found

    def _holder(self, task: FindTask, private: Groups) -> Holder:
        client = self.holdings.clients[task.client]
        ratio = self.holdings.log_ratio_of(client.train)
        return Holder(client, self._federation.y, private, task.total, ratio)

    def _save(self, task: SaveTask, own: Groups) -> None:
        if self._results is not None:
            model = personal_model(self.holdings, task.client, task.sent, own, task.broadcast)
            self._write(task.name, task.client, model)

    def _save_adapted(self, adapt: Adapt, result: SampleScores) -> None:
        """Save the adapted model of a client that may keep it."""
        chooses = KEEPING in self.roster.by_name[result.client].sizes
        if self._results is not None and chooses and result.model and not result.error:
            self._write(adapted_folder(adapt.label), result.client, result.model)

    def _write(self, name: str, client: str, model: Tensors) -> None:
        if self._results is not None:
            clients = [member.name for member in self.roster.members]
            save_own_model(self._results / "models" / name, clients, client, model)
