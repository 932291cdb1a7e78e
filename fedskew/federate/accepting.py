"""Which answers can be used: what is broken, or not what was asked for, never meets a rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from fedskew.engine.workers import in_workers
from fedskew.errors import RunError, RunStopped, StoppedAtOnce
from fedskew.federate.plan import Plan
from fedskew.federate.tasks import Answer, not_finite
from fedskew.parts.aggregate import ServerState, Update

AT_ONCE = 1 << 17
FAR_ABOVE = 100.0
"""An update so many times as long as the median is named when a run stops."""


def accept(
    answers: Sequence[Answer], plan: Plan, state: ServerState
) -> tuple[list[Update], dict[str, str]]:
    """Separate the updates that can be used from those that cannot, with the reason.

    They come unpacked; ``state`` is the one whose model clients were sent.
    """
    updates: dict[int, Update] = {}
    failures: dict[str, str] = {}
    for answer in answers:
        found = _usable(answer, plan, state)
        if isinstance(found, str):
            failures[answer.client] = found
        else:
            # Clients whose updates were summed before they came all answer with one object.
            updates[id(answer.update)] = found
    return list(updates.values()), failures


def _usable(answer: Answer, plan: Plan, state: ServerState) -> Update | str:
    """The update, unpacked, or why it cannot be used."""
    update = answer.update
    if answer.error or update is None:
        return answer.error or "no answer"
    if answer.client not in update.clients:
        return f"it answers for {update.client!r}"
    if update.size < 0 or update.steps < 0:
        return f"it claims {update.size} samples and {update.steps} steps"
    if update.tensors.keys() != plan.shared:
        return "the update has other entries than the shared model"
    try:
        update = _unpacked(update, plan, state)
    except RunError as error:
        return str(error)
    for name, tensor in update.tensors.items():
        if tensor.shape != plan.initial[name].shape:
            return f"{name} has shape {tuple(tensor.shape)}"
        if tensor.dtype != plan.initial[name].dtype:
            return f"{name} is of type {str(tensor.dtype).removeprefix('torch.')}"
    wrong = not_finite(update.tensors, *update.reports.values())
    return f"{wrong} is not finite" if wrong else update


def _unpacked(update: Update, plan: Plan, state: ServerState) -> Update:
    came = {name: update.tensors[name] for name in plan.packed}
    opened = plan.recipe.packs.unpack(came, state.sent_to(update.client))
    return replace(update, tensors={**update.tensors, **opened})


def update_norms(updates: Sequence[Update], state: ServerState) -> dict[str, float]:
    """By client, the length of y - x: how far its parameters went from those it was sent.

    Of an update that is several clients' mean no client's length is known.
    """
    updates = [update for update in updates if not update.of]

    def norm(update: Update) -> float:
        sent = state.sent_to(update.client)
        pairs = [
            (tensor.reshape(-1), sent[name].reshape(-1))
            for name, tensor in update.tensors.items()
            if tensor.is_floating_point() and name not in state.buffers
        ]
        return math.hypot(*(_distance(one, other) for one, other in _portions(pairs)))

    small = sum(t.numel() for update in updates[:1] for t in update.tensors.values()) <= AT_ONCE
    return dict(zip([u.client for u in updates], in_workers(norm, updates, small), strict=True))


def _portions(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """All values, some at a time: what stays in the cache costs a tenth of whole copies."""
    few = [pair for pair in pairs if len(pair[0]) <= AT_ONCE]
    if few:
        yield torch.cat([one for one, _ in few]), torch.cat([other for _, other in few])
    for one, other in pairs:
        if len(one) > AT_ONCE:
            yield from zip(torch.split(one, AT_ONCE), torch.split(other, AT_ONCE), strict=True)


def _distance(one: Tensor, other: Tensor) -> float:
    # In double precision no square overflows.
    return float(torch.linalg.vector_norm(one - other, dtype=torch.float64))


def nobody_left(
    plan: Plan, number: int, failures: dict[str, str], norms_before: dict[str, float]
) -> RunStopped:
    """Why a run cannot go on: in this round there is no update that can be used.

    In a first round that is a wrong set-up. Later the rounds before it stand, and repeating the
    command goes on from them.
    """
    client, reason = next(iter(failures.items()))
    if number == 1:
        return StoppedAtOnce(f"every client failed in the first round; {client!r}: {reason}.")
    hint = ""
    if norms_before:
        longest = max(norms_before, key=lambda name: norms_before[name])
        usual = median(norms_before.values())
        if norms_before[longest] > FAR_ABOVE * usual:
            hint = (
                f" in round {number - 1} {longest!r} sent an update {norms_before[longest]:.3g} "
                f"long, the median being {usual:.3g};"
            )
    return RunStopped(
        f"every client failed in round {number} of stage {plan.stage!r} ({client!r}: {reason});"
        f"{hint} the rounds before it are kept, and repeating the command goes on from there."
    )
