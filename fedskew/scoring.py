"""What scoring a model means: which tensors, adapted how, on which of a client's samples."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedskew.client import Scored, ScoreTask
from fedskew.engine.cohort import Work, train
from fedskew.engine.evaluate import Question, Scores, Scoring, evaluate, sample_values
from fedskew.engine.streams import stream
from fedskew.parts.objective import Batch, Bound, Tensors
from fedskew.parts.report import Groups
from fedskew.parts.select import BATCH_NORM, only
from fedskew.recipe import Phase
from fedskew.score import CENTRAL
from fedskew.site import PERSONAL, SHARED, Site, context_of


def score_clients(
    site: Site, tasks: Sequence[ScoreTask], private: Mapping[str, Groups]
) -> list[Scored]:
    """Every task's model, adapted where asked, on the splits asked for."""
    cache: dict[int, Tensors] = {}
    models: list[Tensors] = []
    for task in tasks:
        own = private.get(task.client, {})
        if task.model == "personal":
            model = personal_model(site, task.sent, own)
            models.append(_with_statistics(site, task, model, own))
        else:
            # One object for all who are sent the same tensors: they are then scored together.
            models.append(cache.setdefault(id(task.sent), {**site.initial, **task.sent}))
    errors: dict[int, str] = {}
    for i, result in _adapted(site, tasks, models, private):
        if isinstance(result, Exception):
            errors[i] = f"{type(result).__name__}: {result}"
        else:
            models[i] = result
    asked = [(i, s) for i in range(len(tasks)) for s in tasks[i].splits if i not in errors]
    answers = evaluate(
        [
            Question(
                models[i],
                site.federation.central_test if tasks[i].client == CENTRAL else
                site.clients[tasks[i].client].split(s),
                (site.seed, site.stage, s, tasks[i].client),
            )
            for i, s in asked
        ],
        _scoring(site),
    )  # fmt: skip
    scores: list[dict[str, Scores]] = [{} for _ in tasks]
    for (i, split), answer in zip(asked, answers, strict=True):
        if answer:
            scores[i][split] = answer
    return [
        Scored(task.client, scores[i], models[i], errors.get(i)) for i, task in enumerate(tasks)
    ]


def on_central_test(site: Site, models: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """One value a sample and metric of each model on the central test set, by name."""
    rows = site.federation.central_test
    # The same noise for all: what differs is the model.
    key = (site.seed, site.stage, "test", CENTRAL)
    questions = [Question(tensors, rows, key) for tensors in models.values()]
    return dict(zip(models, sample_values(questions, _scoring(site)), strict=True))


def personal_model(site: Site, sent: Tensors, own: Groups) -> Tensors:
    """The model a client calls its own: kept whole, or what was sent completed by its parts."""
    return own[PERSONAL] if PERSONAL in own else site.received(sent, own)


def _scoring(site: Site) -> Scoring:
    objective = site.recipe.objective

    def score(module: nn.Module, tensors: Tensors, batch: dict[str, Any]) -> Tensors:
        return objective.scores(Bound(module, tensors), Batch(**batch))

    noise = partial(objective.noise, site.module)
    return Scoring(site.evaluation, score, objective.summed, noise, site.x, site.y)


def _adapted(
    site: Site,
    tasks: Sequence[ScoreTask],
    models: Sequence[Tensors],
    private: Mapping[str, Groups],
) -> list[tuple[int, Tensors | Exception]]:
    """The models of the tasks that ask for adaptation, after it; phase by phase for all."""
    now: dict[int, Tensors | Exception] = {
        i: models[i] for i, task in enumerate(tasks) if task.adapt is not None
    }
    depth = max((len(task.adapt.phases) for task in tasks if task.adapt), default=0)
    for number in range(depth):
        groups: dict[Phase, list[int]] = {}
        for i, model in now.items():
            adapt = tasks[i].adapt
            if adapt and number < len(adapt.phases) and not isinstance(model, Exception):
                groups.setdefault(adapt.phases[number], []).append(i)
        for phase, members in groups.items():
            training = site.training(phase)
            works = []
            for i in members:
                task, model = tasks[i], now[i]
                assert task.adapt is not None
                assert not isinstance(model, Exception)
                rows = site.clients[task.client].train
                key = (site.seed, site.stage, "adapt", number, task.client, task.round)
                if task.adapt.shots is not None:
                    rows = shots(rows, site.federation.y, task.adapt.shots, site.seed, task.client)
                own = private.get(task.client, {})
                context = context_of(site, phase, training, task.client, model, own, {})
                works.append(Work(str(i), rows, model, context, key=key))
            for i, result in zip(members, train(works, training), strict=True):
                if isinstance(result, Exception):
                    now[i] = result
                else:
                    diverged = ArithmeticError("its parameters are not finite after adapting")
                    now[i] = result.tensors if result.finite else diverged
    return list(now.items())


def shots(
    rows: np.ndarray[Any, np.dtype[np.int64]], y: Tensor, count: int, seed: int, client: str
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """``count`` rows of every class the client has (all of a class that has fewer)."""
    order = stream(seed, "shots", client).permutation(rows)
    labels = y.numpy()[order]
    taken = [order[labels == label][:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(taken))


def _with_statistics(site: Site, task: ScoreTask, model: Tensors, own: Groups) -> Tensors:
    """A client without private BatchNorm statistics takes them from its own inputs."""
    missing = only(BATCH_NORM).names(site.module) - site.shared - site.parameters
    rows = site.clients[task.client].train
    if not missing or SHARED in own or len(rows) < 2:
        return model
    module = copy.deepcopy(site.module).eval()
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.train()
            # The plain average over its inputs; a moving one would keep most of where it began.
            layer.momentum = None
    counters = {n: torch.zeros_like(model[n]) for n in missing if n.endswith("_tracked")}
    fresh = {n: model[n].clone() for n in missing} | counters
    bound = Bound(module, {**model, **fresh})
    with torch.no_grad():
        # Equal parts: a single sample left over would have no variance.
        for part in np.array_split(rows, -(-len(rows) // 256)):
            bound(site.x[torch.from_numpy(part)])
    return bound.tensors
