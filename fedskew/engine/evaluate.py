"""Scores models on samples: one model on many clients at once, or each client's own."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.data.federation import Indices
from fedskew.engine.cohort import in_workers
from fedskew.engine.streams import stream

Tensors = dict[str, Tensor]
Scores = dict[str, float]


@dataclass(frozen=True)
class Question:
    """How good are these tensors on these rows? ``key`` fixes the noise of a sampled model."""

    tensors: Tensors
    rows: Indices
    key: tuple[str | int, ...]


class EvaluationModules:
    """A model in evaluation mode, a copy for each thread.

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
    """How to score: ``score(module, tensors, batch)`` gives one value a sample and metric."""

    modules: EvaluationModules
    score: Callable[[nn.Module, Tensors, dict[str, Tensor | Tensors]], Tensors]
    noise: Callable[[int], dict[str, tuple[int, ...]]]
    x: Tensor
    y: Tensor
    batch_size: int = 256


def evaluate(questions: Sequence[Question], scoring: Scoring) -> list[Scores]:
    """The mean of every metric, question by question; no rows give no scores.

    Neighbouring questions about the same tensors are answered together, in full batches, unless
    the model looks at its batch (statistics without running averages) and would see a mixture.
    """
    groups: list[list[int]] = []
    mixes = not uses_batch_statistics(scoring.modules.here())
    for i, question in enumerate(questions):
        together = groups and questions[groups[-1][0]].tensors is question.tensors
        if together and mixes and sum(len(questions[j].rows) for j in groups[-1]) < 8192:
            groups[-1].append(i)
        else:
            groups.append([i])

    def answer(group: list[int]) -> list[Scores]:
        module = scoring.modules.here()
        values = _values(module, [questions[i] for i in group], scoring)
        ends = np.cumsum([len(questions[i].rows) for i in group])
        starts = [0, *ends[:-1].tolist()]
        return [
            {metric: float(v[a:b].mean()) for metric, v in values.items()} if b > a else {}
            for a, b in zip(starts, ends.tolist(), strict=True)
        ]

    results: list[Scores] = [{}] * len(questions)
    for group, scores in zip(groups, in_workers(answer, groups), strict=True):
        for i, score in zip(group, scores, strict=True):
            results[i] = score
    return results


def _values(
    module: nn.Module, questions: Sequence[Question], scoring: Scoring
) -> dict[str, Tensor]:
    device = scoring.x.device
    rows = torch.from_numpy(np.concatenate([question.rows for question in questions])).to(device)
    noise = {
        kind: torch.from_numpy(
            np.concatenate(
                [
                    stream(0, "score", kind, *q.key).standard_normal(
                        (len(q.rows), *shape[1:]), dtype=np.float32
                    )
                    for q in questions
                ]
            )
        ).to(device)
        for kind, shape in scoring.noise(1).items()
    }
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for start in range(0, len(rows), scoring.batch_size):
            here = slice(start, start + scoring.batch_size)
            ones = torch.ones(len(rows[here]), device=device)
            batch: dict[str, Tensor | Tensors] = {
                "x": scoring.x[rows[here]], "y": scoring.y[rows[here]], "mask": ones,
                "weight": ones, "noise": {kind: draws[here] for kind, draws in noise.items()},
            }  # fmt: skip
            scores = scoring.score(module, questions[0].tensors, batch)
            for metric, values in scores.items():
                found.setdefault(metric, []).append(values.to(torch.float64))
    return {metric: torch.cat(values) for metric, values in found.items()}


def uses_batch_statistics(module: nn.Module) -> bool:
    """Whether scoring one sample depends on the others in its batch."""
    return any(
        isinstance(layer, nn.modules.batchnorm._NormBase) and not layer.track_running_stats
        for layer in module.modules()
    )


def trains_batch_statistics(module: nn.Module) -> bool:
    """Whether training on one sample depends on the others in its batch."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())
