"""What scoring a model means: which tensors, adapted how, on which of a client's samples."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from fedskew.adapting import Adaptation, adapted, scoring
from fedskew.client import Scored, ScoreTask
from fedskew.engine.evaluate import Question, Scores, sample_values
from fedskew.errors import failure, located
from fedskew.parts.objective import Bound, Tensors
from fedskew.parts.report import PERSONAL, SHARED, Groups
from fedskew.parts.select import BATCH_NORM, only
from fedskew.score import CENTRAL
from fedskew.site import Site


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
    changed = [i for i, task in enumerate(tasks) if task.adapt is not None]
    adaptations = [_adaptation(tasks[i], models[i], private) for i in changed]
    for i, result in zip(changed, adapted(site, adaptations), strict=True):
        if isinstance(result, Exception):
            where = f"client {tasks[i].client!r}, stage {site.stage!r}, round {tasks[i].round}"
            errors[i] = failure(result, f"{where}, adapting")
        else:
            models[i] = result
    asked = [(i, s) for i in range(len(tasks)) for s in tasks[i].splits if i not in errors]
    questions = [
        Question(
            models[i],
            site.federation.central_test if tasks[i].client == CENTRAL else
            site.clients[tasks[i].client].split(s),
            (site.seed, site.stage, s, tasks[i].client),
        )
        for i, s in asked
    ]  # fmt: skip
    with located(f"stage {site.stage!r}, round {max((t.round for t in tasks), default=0)}"):
        answers = sample_values(questions, scoring(site))
    scores: list[dict[str, Scores]] = [{} for _ in tasks]
    samples: list[dict[str, Tensors]] = [{} for _ in tasks]
    for (i, split), values in zip(asked, answers, strict=True):
        if values:
            scores[i][split] = site.recipe.objective.summed(values)
            if tasks[i].samples:
                samples[i][split] = values
    return [
        Scored(task.client, scores[i], models[i], errors.get(i), samples[i])
        for i, task in enumerate(tasks)
    ]


def _adaptation(task: ScoreTask, model: Tensors, private: Mapping[str, Groups]) -> Adaptation:
    assert task.adapt is not None
    return Adaptation(task.client, model, task.adapt, task.round, private.get(task.client, {}))


def on_central_test(site: Site, models: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """One value a sample and metric of each model on the central test set, by name."""
    rows = site.federation.central_test
    # The same noise for all: what differs is the model.
    key = (site.seed, site.stage, "test", CENTRAL)
    questions = [Question(tensors, rows, key) for tensors in models.values()]
    return dict(zip(models, sample_values(questions, scoring(site)), strict=True))


def personal_model(site: Site, sent: Tensors, own: Groups) -> Tensors:
    """The model a client calls its own: kept whole, or what was sent completed by its parts."""
    return own[PERSONAL] if PERSONAL in own else site.received(sent, own)


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
