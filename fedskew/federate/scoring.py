"""What scoring a model means: which tensors, adapted how, on which of a client's samples."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from fedskew.engine.evaluate import Question, Scores, sample_values
from fedskew.engine.torch_private import is_batch_or_instance_norm
from fedskew.errors import ConfigError, failure, located
from fedskew.federate.adapting import Adaptation, adapted
from fedskew.federate.holdings import Holdings
from fedskew.federate.tasks import Scored, ScoreTask
from fedskew.parts.metrics import answers_of, measured, metric_for, needs
from fedskew.parts.objective import Bound
from fedskew.parts.report import PERSONAL, SHARED
from fedskew.parts.select import BATCH_NORM, only
from fedskew.types import Groups, Tensors


@dataclass(frozen=True)
class SampleScores:
    """A model as it was scored, and one value per sample and metric of each split."""

    client: str
    model: Tensors
    values: dict[str, Tensors] = field(default_factory=dict)
    error: str | None = None


def score_samples(
    holdings: Holdings, tasks: Sequence[ScoreTask], private: Mapping[str, Groups]
) -> list[SampleScores]:
    """Every task's model, adapted if asked, on the splits asked for; nothing leaves the client."""
    cache: dict[int, Tensors] = {}
    models: list[Tensors] = []
    for task in tasks:
        own = private.get(task.client, {})
        if task.model == "personal":
            place = f"client {task.client!r}, stage {holdings.plan.stage!r}, round {task.round}"
            with located(f"{place}, scoring"):
                model = personal_model(holdings, task.client, task.sent, own, task.broadcast)
            models.append(_with_statistics(holdings, task, model, own))
        else:
            # One object for all clients that are sent the same tensors: they are scored together.
            whole = {**holdings.plan.initial, **task.sent}
            models.append(cache.setdefault(id(task.sent), whole))
    stage = holdings.plan.stage
    errors: dict[int, str] = {}
    changed = [i for i, task in enumerate(tasks) if task.adapt is not None]
    adaptations = [_adaptation(holdings, tasks[i], models[i], private) for i in changed]
    for i, result in zip(changed, adapted(holdings, adaptations), strict=True):
        if isinstance(result, Exception):
            where = f"client {tasks[i].client!r}, stage {stage!r}, round {tasks[i].round}"
            errors[i] = failure(result, f"{where}, adapting")
        else:
            models[i] = result
    asked = [(i, s) for i in range(len(tasks)) for s in tasks[i].splits if i not in errors]
    questions = [
        Question(
            models[i], holdings.rows(tasks[i].client, split), _key(holdings, split, tasks[i].client)
        )
        for i, split in asked
    ]
    with located(f"stage {stage!r}, round {max((t.round for t in tasks), default=0)}"):
        answers = sample_values(questions, holdings.scoring())
    values: list[dict[str, Tensors]] = [{} for _ in tasks]
    for (i, split), found in zip(asked, answers, strict=True):
        if found:
            values[i][split] = found
    return [
        SampleScores(task.client, models[i], values[i], errors.get(i))
        for i, task in enumerate(tasks)
    ]


def score_clients(
    holdings: Holdings, tasks: Sequence[ScoreTask], private: Mapping[str, Groups]
) -> list[tuple[Scored, SampleScores]]:
    """Every task's scores, which are sent to the server, and what they were computed from."""
    found = score_samples(holdings, tasks, private)
    pairs = zip(tasks, found, strict=True)
    return [(scored(holdings, each, task.samples), each) for task, each in pairs]


def scored(holdings: Holdings, found: SampleScores, all_metrics: bool = False) -> Scored:
    """The scores that are sent to the server; with ``all_metrics``, of the test samples all."""
    scores = {split: told(holdings, values) for split, values in found.values.items()}
    plan, final = holdings.plan, {}
    if all_metrics and "test" in found.values:
        answers = answers_of(found.values["test"], plan.problem, holdings.federation.class_names)
        if answers is not None:
            final = measured(answers, plan.problem, *([plan.metric] if plan.metric else []))
    return Scored(found.client, scores, found.error, final)


def told(holdings: Holdings, values: Tensors) -> Scores:
    """The scores of every round: the method's, and the metric that was asked for.

    A metric that is not defined on these samples is left out.
    """
    plan = holdings.plan
    found = plan.recipe.objective.summed(values, plan.problem)
    if plan.metric is not None and plan.metric not in found:
        answers = answers_of(values, plan.problem, holdings.federation.class_names)
        if answers is None:
            raise ConfigError(
                f"evaluate.metric = {plan.metric!r} is about answers, but the method's objective "
                "hands over none (label and output): leave it out."
            )
        metric = metric_for(plan.metric, plan.problem)
        found[plan.metric] = metric.value(plan.problem.kind, answers)
    return {name: value for name, value in found.items() if not (math.isnan(value) and needs(name))}


def _key(holdings: Holdings, split: str, client: str) -> tuple[str | int, ...]:
    return (holdings.plan.seed, holdings.plan.stage, split, client)


def _adaptation(
    holdings: Holdings, task: ScoreTask, model: Tensors, private: Mapping[str, Groups]
) -> Adaptation:
    assert task.adapt is not None
    how = holdings.plan.adapts[task.adapt]
    return Adaptation(task.client, model, how, task.round, private.get(task.client, {}))


def on_central_test(holdings: Holdings, models: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """One value per sample and metric of each model on the central test set, by name."""
    # The same noise for all, so that only the models differ.
    key = _key(holdings, "test", "")
    rows = holdings.federation.central_test
    questions = [Question(tensors, rows, key) for tensors in models.values()]
    return dict(zip(models, sample_values(questions, holdings.scoring()), strict=True))


def personal_model(
    holdings: Holdings, client: str, sent: Tensors, own: Groups, broadcast: Groups
) -> Tensors:
    """A client's own model: one it keeps whole, or the one it starts from."""
    if PERSONAL in own:
        return own[PERSONAL]
    return holdings.begins_with(client, sent, own, broadcast).model


def _with_statistics(holdings: Holdings, task: ScoreTask, model: Tensors, own: Groups) -> Tensors:
    """The model with BatchNorm statistics of the client's inputs, unless it keeps private ones."""
    plan = holdings.plan
    missing = only(BATCH_NORM).names(plan.module) - plan.shared - plan.parameters
    rows = holdings.clients[task.client].train
    if not missing or SHARED in own or len(rows) < 2:
        return model
    module = copy.deepcopy(plan.module).eval()
    normalising = [layer for layer in module.modules() if is_batch_or_instance_norm(layer)]
    for layer in normalising:
        layer.train()
    counters = {n: torch.zeros_like(model[n]) for n in missing if n.endswith("_tracked")}
    fresh = {n: model[n].clone() for n in missing} | counters
    bound = Bound(module, {**model, **fresh})
    with torch.no_grad():
        # Equal parts: a single sample left over would have no variance.
        for before, part in enumerate(np.array_split(rows, -(-len(rows) // 256))):
            for layer in normalising:
                # The plain average over its inputs; a moving one would keep most of its start.
                layer.momentum = 1 / (before + 1)
            bound(holdings.x[torch.from_numpy(part)])
    return bound.tensors
