"""Scores models on samples: one model on many clients at once, or each client's own."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.engine.torch_private import is_batch_norm, is_batch_or_instance_norm
from fedskew.engine.workers import in_workers
from fedskew.errors import locate
from fedskew.rng import stream
from fedskew.types import Indices, Tensors

Scores = dict[str, float]
ROWS_TOGETHER = 8192
"""A group of questions about one model takes no more once it has so many rows."""


@dataclass(frozen=True)
class Question:
    """How good are these tensors on these rows?

    ``key`` fixes the noise of a sampled model; its last entry names the client whose rows they are.
    """

    tensors: Tensors
    rows: Indices
    key: tuple[str | int, ...]


class EvaluationModules:
    """A model in evaluation mode, one copy per thread.

    ``functional_call`` swaps a module's tensors in place: two threads cannot share one.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._local = threading.local()

    def here(self) -> nn.Module:
        if not hasattr(self._local, "module"):
            self._local.module = copy.deepcopy(self._module).eval()
        module: nn.Module = self._local.module
        return module


@dataclass(frozen=True)
class Scoring:
    """How to score: ``score(module, tensors, batch)`` gives one value per sample and metric.

    ``summed`` computes the scores of a question from the values of all its samples.
    """

    modules: EvaluationModules
    score: Callable[[nn.Module, Tensors, dict[str, Tensor | Tensors]], Tensors]
    summed: Callable[[Tensors], Scores]
    noise: Callable[[int], dict[str, tuple[int, ...]]]
    x: Tensor
    y: Tensor
    batch_size: int = 256
    plain: bool = False
    """Whether to work in the calling thread, where a debugger can stop."""


def evaluate(questions: Sequence[Question], scoring: Scoring) -> list[Scores]:
    """The scores, question by question; no rows give no scores."""
    return [scoring.summed(v) if v else {} for v in sample_values(questions, scoring)]


def sample_values(questions: Sequence[Question], scoring: Scoring) -> list[Tensors]:
    """One value per sample and metric, question by question; no rows give no values.

    Consecutive questions about the same tensors are answered together, in full batches that the
    workers share, unless the model depends on its batch (statistics without running averages) and
    would see a mixture of clients.
    """
    mixes = not uses_batch_statistics(scoring.modules.here())
    groups = in_groups([id(q.tensors) for q in questions], [len(q.rows) for q in questions], mixes)
    gathered = [_gather([questions[i] for i in group], scoring) for group in groups]
    jobs = [
        (g, slice(start, start + scoring.batch_size))
        for g, (rows, _) in enumerate(gathered)
        for start in range(0, len(rows), scoring.batch_size)
    ]

    def answer(job: tuple[int, slice]) -> Tensors:
        g, here = job
        rows, noise = gathered[g]
        try:
            return _score(questions[groups[g][0]].tensors, rows[here], _at(noise, here), scoring)
        except Exception as error:
            whose = _whose([questions[i] for i in groups[g]], here)
            batch, batches = here.start // scoring.batch_size, -(-len(rows) // scoring.batch_size)
            locate(error, f"scoring {whose}, batch {batch + 1} of {batches}")
            raise

    found: list[dict[str, list[Tensor]]] = [{} for _ in groups]
    for (g, _), values in zip(jobs, in_workers(answer, jobs, scoring.plain), strict=True):
        for metric, value in values.items():
            found[g].setdefault(metric, []).append(value)
    results: list[Tensors] = [{}] * len(questions)
    for group, parts in zip(groups, found, strict=True):
        values = {metric: torch.cat(part) for metric, part in parts.items()}
        start = 0
        for i in group:
            end = start + len(questions[i].rows)
            if end > start:
                results[i] = {metric: v[start:end] for metric, v in values.items()}
            start = end
    return results


def in_groups(models: Sequence[int], rows: Sequence[int], mixes: bool) -> list[list[int]]:
    """Which questions are answered together, given the model and the number of rows of each.

    >>> in_groups([7, 7, 8], [10, 10, 10], mixes=True), in_groups([7, 7], [10, 10], mixes=False)
    ([[0, 1], [2]], [[0], [1]])
    """
    groups: list[list[int]] = []
    held = 0
    for i, (model, count) in enumerate(zip(models, rows, strict=True)):
        if groups and models[groups[-1][0]] == model and mixes and held < ROWS_TOGETHER:
            groups[-1].append(i)
            held += count
        else:
            groups.append([i])
            held = count
    return groups


def _gather(questions: Sequence[Question], scoring: Scoring) -> tuple[Tensor, Tensors]:
    """The rows of some questions, one after the other, and the noise for their samples."""
    rows = torch.from_numpy(np.concatenate([question.rows for question in questions]))
    noise = {}
    for kind, shape in scoring.noise(1).items():
        draws = [
            stream(0, "score", kind, *q.key).standard_normal(
                (len(q.rows), *shape[1:]), dtype=np.float32
            )
            for q in questions
        ]
        noise[kind] = torch.from_numpy(np.concatenate(draws)).to(scoring.x.device)
    return rows.to(scoring.x.device), noise


def _whose(questions: Sequence[Question], here: slice) -> str:
    """The clients with samples in this slice of the questions' rows, in words."""
    ends = np.cumsum([len(question.rows) for question in questions])
    names: dict[str | int, None] = {}
    for question, end in zip(questions, ends, strict=True):
        if end - len(question.rows) < here.stop and end > here.start:
            names[question.key[-1]] = None
    shown = ", ".join(repr(name) if name else "the central test set" for name in [*names][:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _at(noise: Tensors, here: slice) -> Tensors:
    return {kind: draws[here] for kind, draws in noise.items()}


def _score(tensors: Tensors, rows: Tensor, noise: Tensors, scoring: Scoring) -> Tensors:
    """One value per sample and metric, for one batch."""
    ones = torch.ones(len(rows), device=scoring.x.device)
    batch: dict[str, Tensor | Tensors] = {
        "x": scoring.x[rows],
        "y": scoring.y[rows],
        "mask": ones,
        "weight": ones,
        "noise": noise,
    }
    with torch.no_grad():
        scores = scoring.score(scoring.modules.here(), tensors, batch)
    # A number for every sample in double precision; rows of them (probabilities) as they are.
    return {m: found.double() if found.ndim == 1 else found for m, found in scores.items()}


def uses_batch_statistics(module: nn.Module) -> bool:
    """Whether scoring one sample depends on the others in its batch."""
    return any(
        is_batch_or_instance_norm(layer) and not layer.track_running_stats
        for layer in module.modules()
    )


def trains_batch_statistics(module: nn.Module) -> bool:
    """Whether a training batch leaves its mark as a whole: on its samples, or on a buffer.

    BatchNorm does both. Any other layer with a buffer in the model's state may keep statistics
    there (InstanceNorm with running averages, a user's own), which padding would enter.
    """
    buffers = dict(module.named_buffers(remove_duplicate=False))
    return any(map(is_batch_norm, module.modules())) or not buffers.keys().isdisjoint(
        module.state_dict()
    )
