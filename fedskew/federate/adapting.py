"""Adapting a model to a client: some epochs on its training data, or on a few shots of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from fedskew.data.strata import kinds
from fedskew.engine.cohort import train
from fedskew.engine.evaluate import Question, evaluate
from fedskew.engine.training import Work
from fedskew.errors import Diverged, locate
from fedskew.federate.holdings import Holdings, context_of, remembered
from fedskew.federate.recipe import Adapt, Phase
from fedskew.federate.tasks import not_finite
from fedskew.parts.objective import Objective, owned
from fedskew.rng import stream
from fedskew.types import Groups, Indices, Tensors

HELD_OUT = 4
"""One in this many samples of a class is held out to choose the number of epochs."""


@dataclass(frozen=True)
class Adaptation:
    """A client's model, and how to adapt it; ``own`` is the client's private state."""

    client: str
    model: Tensors
    how: Adapt
    round: int = 0
    own: Groups = field(default_factory=dict)


def adapted(holdings: Holdings, adaptations: Sequence[Adaptation]) -> list[Tensors | Exception]:
    """Every model after its adaptation, or what went wrong.

    With ``patience`` the last phase is first tried on a part of the samples, for 0, 1, 2, 4, ...
    epochs up to its own number, and checked on the samples held out; then the model is adapted
    again on all samples for the number of epochs that did best. No label beyond the shots is used.
    """
    given = [_rows(holdings, adaptation) for adaptation in adaptations]
    epochs = _epochs(holdings, adaptations, given)
    return _through(holdings, adaptations, given, epochs)


def adapted_folder(label: str) -> str:
    """Under which name models that adapted are saved, beside "last" and "selected".

    >>> adapted_folder("fine-tuned 5")
    'fine-tuned-5'
    """
    return label.replace(" ", "-")


def _rows(holdings: Holdings, adaptation: Adaptation) -> Indices:
    rows = holdings.clients[adaptation.client].train
    count = adaptation.how.shots
    if count is None:
        return rows
    return shots(rows, holdings.federation.y, count, holdings.plan.seed, adaptation.client)


def shots(rows: Indices, y: Tensor, count: int, seed: int, client: str) -> Indices:
    """``count`` rows of every class the client has (all of a class that has fewer).

    Where samples have no class they are that many in all.
    """
    order = stream(seed, "shots", client).permutation(rows)
    labels = kinds(y)[order]
    taken = [order[labels == label][:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(taken)) if taken else rows


def held_out(rows: Indices, y: Tensor, seed: int, client: str) -> tuple[Indices, Indices]:
    """Rows to adapt on, and rows to check on: a quarter, at least one, of every class with two."""
    order = stream(seed, "held out", client).permutation(rows)
    labels = kinds(y)[order]
    away = []
    for label in np.unique(labels):
        members = order[labels == label]
        if len(members) > 1:
            away.append(members[: max(1, round(len(members) / HELD_OUT))])
    apart = np.sort(np.concatenate(away)) if away else rows[:0]
    return np.setdiff1d(rows, apart), apart


def _epochs(
    holdings: Holdings, adaptations: Sequence[Adaptation], given: Sequence[Indices]
) -> list[int | None]:
    """The number of epochs of each adaptation's last phase, if it is to be chosen; else None."""
    found: list[int | None] = [None] * len(adaptations)
    parts = {
        i: held_out(rows, holdings.federation.y, holdings.plan.seed, adaptation.client)
        for i, (adaptation, rows) in enumerate(zip(adaptations, given, strict=True))
        if adaptation.how.patience is not None
    }
    going = {i: 0 for i, (_, apart) in parts.items() if len(apart)}
    best = dict.fromkeys(going, float("inf"))
    for length in _ladder(max((_longest(holdings, adaptations[i].how) for i in going), default=0)):
        tried = [i for i in going if length <= _longest(holdings, adaptations[i].how)]
        models = _through(
            holdings, [adaptations[i] for i in tried], [parts[i][0] for i in tried],
            [length] * len(tried),
        )  # fmt: skip
        losses = _losses(holdings, [(adaptations[i], parts[i][1]) for i in tried], models)
        for i, loss in zip(tried, losses, strict=True):
            if loss < best[i]:
                best[i], found[i], going[i] = loss, length, 0
            else:
                going[i] += 1
        going = {i: n for i, n in going.items() if n < (adaptations[i].how.patience or 1)}
    return found


def _ladder(longest: int) -> list[int]:
    """Numbers of epochs to try: none, 1, 2, 4, ... and the longest.

    >>> _ladder(10), _ladder(0)
    ([0, 1, 2, 4, 8, 10], [0])
    """
    steps = [0, *(2**i for i in range(longest.bit_length())), longest]
    return sorted(set(steps))


def _longest(holdings: Holdings, how: Adapt) -> int:
    last = how.phases[-1].epochs
    return holdings.plan.settings.epochs if last is None else last


def _losses(
    holdings: Holdings,
    checks: Sequence[tuple[Adaptation, Indices]],
    models: Sequence[Tensors | Exception],
) -> list[float]:
    """The mean loss of every model on the rows held out for it; infinite if there is no model."""
    losses = [float("inf")] * len(checks)
    groups: dict[Objective, dict[int, Question]] = {}
    for i, ((adaptation, rows), model) in enumerate(zip(checks, models, strict=True)):
        if not isinstance(model, Exception):
            objective = adaptation.how.phases[-1].objective or holdings.plan.recipe.objective
            key = (holdings.plan.seed, holdings.plan.stage, "look", adaptation.client)
            groups.setdefault(objective, {})[i] = Question(model, rows, key)
    for objective, asked in groups.items():
        answers = evaluate(list(asked.values()), holdings.scoring(objective))
        for i, scores in zip(asked, answers, strict=True):
            losses[i] = scores["loss"]
    return losses


def _through(
    holdings: Holdings,
    adaptations: Sequence[Adaptation],
    given: Sequence[Indices],
    epochs: Sequence[int | None],
) -> list[Tensors | Exception]:
    """All models after their phases; models that share a phase train together."""
    settings = holdings.plan.settings
    now: list[Tensors | Exception] = [adaptation.model for adaptation in adaptations]
    depth = max((len(adaptation.how.phases) for adaptation in adaptations), default=0)
    for number in range(depth):
        groups: dict[tuple[Phase, int], list[int]] = {}
        for i, adaptation in enumerate(adaptations):
            if number < len(adaptation.how.phases) and not isinstance(now[i], Exception):
                phase = adaptation.how.phases[number]
                if number == len(adaptation.how.phases) - 1 and epochs[i] is not None:
                    phase = replace(phase, epochs=epochs[i])
                if phase.epochs != 0:
                    wanted = adaptation.how.batch_size
                    # No wider than the client's samples, whatever clients adapt beside it: the
                    # width decides which noise a sample gets.
                    width = min(wanted, len(given[i])) if wanted else settings.batch_size
                    groups.setdefault((phase, width), []).append(i)
        for (phase, batch_size), members in groups.items():
            chosen = {i: (adaptations[i], given[i], now[i]) for i in members}
            for i, result in _trained(holdings, phase, batch_size, number, chosen):
                now[i] = result
    return now


def _trained(
    holdings: Holdings,
    phase: Phase,
    batch_size: int,
    number: int,
    members: Mapping[int, tuple[Adaptation, Indices, Tensors | Exception]],
) -> list[tuple[int, Tensors | Exception]]:
    seed, stage = holdings.plan.seed, holdings.plan.stage
    training = holdings.training(phase)
    training.batch_size = batch_size
    works = []
    for i, (adaptation, rows, model) in members.items():
        assert not isinstance(model, Exception)
        key = (seed, stage, "adapt", number, adaptation.client, adaptation.round)
        context = context_of(holdings, phase, training, rows, model, adaptation.own, {})
        memory = remembered(training, model, {})
        works.append(Work(str(i), rows, model, context, key=key, memory=memory))
    diverged = Diverged("its parameters are not finite after adapting")
    results: list[tuple[int, Tensors | Exception]] = []
    for i, result in zip(members, train(works, training), strict=True):
        if isinstance(result, Exception):
            locate(result, f"phase {number + 1}")
            results.append((i, result))
        else:
            # If steps make a model of the client's own, that is the adapted model.
            mine = owned(result.memory)
            finite = result.finite and not not_finite(mine)
            results.append((i, {**result.tensors, **mine} if finite else diverged))
    return results
