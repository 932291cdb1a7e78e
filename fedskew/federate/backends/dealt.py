"""A backend whose clients' work is dealt to workers in slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedskew.data.federation import Federation
from fedskew.engine.cohort import scheduled, stacks
from fedskew.engine.evaluate import in_groups, uses_batch_statistics
from fedskew.errors import ConfigError, may_clients_fail
from fedskew.federate.backends.dealer import Dealer
from fedskew.federate.backends.local import LocalBackend
from fedskew.federate.backends.parcel import Parcel, pack
from fedskew.federate.backends.workbench import Kind, Slice, Task, results_of
from fedskew.federate.client import Outcome
from fedskew.federate.plan import Plan
from fedskew.federate.private import States
from fedskew.federate.roster import POOLED
from fedskew.federate.scoring import SampleScores
from fedskew.federate.tasks import DescribeTask, Scored, ScoreTask, TrainTask
from fedskew.types import Tensors

SLICES_EACH = 4
"""So many slices a worker: the last ones are small, and a lost one costs little."""
SUMMED = 64
"""So many clients' models are at least added up by a worker, where that is asked for."""


AnyTask = TypeVar("AnyTask", TrainTask, DescribeTask, ScoreTask)


class DealtBackend(LocalBackend):
    """Tasks are dealt to workers that hold the data; private states and files stay here.

    Slices are cut where this process would cut: between two stacks, or between two groups of rows
    that are scored together. So every number has the bits it would have here. What makes a single
    slice is not sent away at all.

    With ``presum`` workers send the mean of some clients' models in place of each of them, which
    changes the last digits, and how long a client's own update was is not known.
    """

    def __init__(
        self,
        federation: Federation,
        dealer: Dealer,
        folder: Path | None = None,
        results: Path | None = None,
        presum: bool = False,
    ) -> None:
        super().__init__(federation, folder=folder, results=results)
        self._dealer, self._presum = dealer, presum
        self._steps: dict[str, int] = {}

    def begin(self, plan: Plan, made_up: Tensor | None = None) -> None:
        if any(tensor.device.type != "cpu" for tensor in plan.initial.values()):
            raise ConfigError(
                "--workers ray computes on CPUs: set device = 'cpu', or leave the option out."
            )
        recipe = plan.recipe
        whole = recipe.aggregates.presums and not recipe.packs.says
        if self._presum and not (whole or recipe.pools):
            raise ConfigError(
                f"--presum adds up clients' models where they train, but stage {plan.stage!r} of "
                "this method uses or packs each of them, or weighs clients by more than their "
                "sizes: leave it out."
            )
        super().begin(plan, made_up)
        self._steps = {}

    def _train(self, tasks: Sequence[TrainTask], private: States) -> list[Outcome]:
        if any(task.client == POOLED for task in tasks):
            return super()._train(tasks, private)
        units = self._stacks(tasks)
        if self._presum:
            units = _at_least(SUMMED, units)
        found = self._dealt("train", tasks, units, private)
        return super()._train(tasks, private) if found is None else found

    def _describe(self, tasks: Sequence[DescribeTask], private: States) -> list[Outcome]:
        found = self._dealt("describe", tasks, [[i] for i in range(len(tasks))], private)
        return super()._describe(tasks, private) if found is None else found

    def _score(
        self, tasks: Sequence[ScoreTask], private: States
    ) -> list[tuple[Scored, SampleScores]]:
        if self.holdings.plan.execution.chunk > 1 and any(t.adapt is not None for t in tasks):
            # Models are adapted in stacks of all clients; such small ones take little time here.
            return super()._score(tasks, private)
        found = self._dealt("score", tasks, self._groups(tasks), private)
        return super()._score(tasks, private) if found is None else found

    def _stacks(self, tasks: Sequence[TrainTask]) -> list[Sequence[int]]:
        """Who trains in one stack: places among the tasks."""
        training = self.holdings.training(self.holdings.plan.recipe.trains[0])
        for task in tasks:
            if task.client not in self._steps:
                rows = self.holdings.clients[task.client].train
                self._steps[task.client] = scheduled(training, rows).steps
        names = [task.client for task in tasks]
        return stacks(names, [self._steps[name] for name in names], training)

    def _groups(self, tasks: Sequence[ScoreTask]) -> list[Sequence[int]]:
        """Places among the tasks whose rows may be scored together."""
        asked = [(i, split) for i, task in enumerate(tasks) for split in task.splits]
        common = [task.model == "global" and task.adapt is None for task in tasks]
        models = [id(tasks[i].sent if common[i] else tasks[i]) for i, _ in asked]
        rows = [len(self.holdings.rows(tasks[i].client, split)) for i, split in asked]
        mixes = not uses_batch_statistics(self.holdings.plan.module)
        starts = {asked[group[0]] for group in in_groups(models, rows, mixes)}
        units: list[list[int]] = []
        for i, task in enumerate(tasks):
            if not units or not task.splits or (i, task.splits[0]) in starts:
                units.append([i])
            else:
                units[-1].append(i)
        return [*units]

    def _dealt(
        self, kind: Kind, tasks: Sequence[AnyTask], units: Sequence[Sequence[int]], private: States
    ) -> list[Any] | None:
        """The results in the order of the tasks; none if there is too little to deal out."""
        presum = self._presum and kind == "train"
        # What is added up must not depend on the number of workers.
        count = len(units) if presum else min(len(units), SLICES_EACH * self._dealer.size)
        if count < 2:
            return None
        parts = [
            [i for unit in part for i in units[unit]]
            for part in np.array_split(np.arange(len(units)), count)
        ]
        models = _sent_to_several(tasks)
        there = [tensor for model in models for tensor in model.values()]
        plan, federation = self.holdings.plan, self.holdings.federation
        # A copy of the plan leaves out what was computed from it, which cannot be packed.
        data = self._dealer.sent("data", [federation], lambda: pack(federation))
        agreed = self._dealer.sent("plan", [plan], lambda: pack(replace(plan)))
        common = self._dealer.sent("common", models, lambda: pack(there))
        may_fail = may_clients_fail()

        def packed(part: Sequence[int]) -> Parcel:
            mine = [tasks[i] for i in part]
            own = {task.client: private[task.client] for task in mine if _reads_own(task)}
            return pack(Slice(kind, mine, own, may_fail, presum), there)

        slices = [partial(packed, part) for part in parts]
        results: list[Any] = [None] * len(tasks)
        for number, parcel in self._dealer.deal(slices, data, agreed, common):
            for i, result in zip(parts[number], results_of(parcel), strict=True):
                results[i] = result
        return results


def _at_least(count: int, units: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Neighbouring units put together until each has so many members, but for the last.

    >>> _at_least(3, [[0, 1], [2, 3], [4]])
    [[0, 1, 2, 3], [4]]
    """
    found: list[list[int]] = []
    for unit in units:
        if found and len(found[-1]) < count:
            found[-1] += unit
        else:
            found.append([*unit])
    return [*found]


def _reads_own(task: Task) -> bool:
    return not isinstance(task, ScoreTask) or task.model == "personal" or task.adapt is not None


def _sent_to_several(tasks: Sequence[Task]) -> list[Tensors]:
    """The models and broadcasts that more than one client is sent."""
    models = [each for task in tasks for each in (task.sent, *task.broadcast.values())]
    times = Counter(map(id, models))
    return list({id(each): each for each in models if times[id(each)] > 1}.values())
