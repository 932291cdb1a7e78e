"""Objectives for clients that should each end with a model of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.engine.evaluate import trains_batch_statistics
from fedskew.parts.objective import Batch, Bound, Context, Erm, Objective
from fedskew.types import Tensors

ABSENT = 1e-30
"""Replaces a count of zero: its logarithm exists, and the class has no weight in a softmax."""


def balanced_logits(logits: Tensor, class_counts: Tensor, gamma: float) -> Tensor:
    """z_c + γ·log n_c: frequent classes of a client need a smaller logit z_c."""
    return logits + gamma * class_counts.clamp(min=ABSENT).log()


@dataclass(frozen=True)
class GenericAndPersonal(Objective):
    """FedROD's two losses on a model with the parts ``body``, ``head`` and ``personal``.

    The generic head g (and with it the body f) minimises a balanced softmax,
    CE(g(f(x)) + γ·log n, y); the personal head h minimises CE(g(f(x)) + h(f(x)), y) and takes
    g and f as given. Minimising their sum equals using two optimisers: the second loss sees g and f
    only through stopped gradients and the first does not see h at all, so every parameter has a
    gradient from exactly one of the two; and optimisers treat each parameter separately.
    """

    gamma: float = 1.0
    reads = ("class_counts",)
    classes_for = "to balance a softmax by how many samples of each a client has"

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        features = model.part("body", batch.x)
        generic = model.part("head", features)
        personal = generic.detach() + model.part("personal", features.detach())
        balanced = balanced_logits(generic, client["class_counts"], self.gamma)
        losses = F.cross_entropy(balanced, batch.y, reduction="none")
        return batch.mean(losses + F.cross_entropy(personal, batch.y, reduction="none"))

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        """Both heads together, and the accuracy of the generic one alone."""
        features = model.part("body", batch.x)
        generic = model.part("head", features)
        personal = generic + model.part("personal", features)
        return {
            **batch.answered(personal),
            "generic_accuracy": (generic.argmax(dim=1) == batch.y).to(torch.float32),
        }


@dataclass(frozen=True)
class OneStepAhead(Erm):
    """Per-FedAvg, first order: the gradient at the point one step of rate α ahead.

    The step uses one half of the batch, the gradient at that point the other half. Buffers are
    updated by both; the loss is the second one, after the step.
    """

    alpha: float = 0.01

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        first, second = halves(batch, 2 if trains_batch_statistics(module) else 1)
        step, _, buffers = super().gradient(module, trained, fixed, first, client)
        ahead = {name: t - self.alpha * step[name] for name, t in trained.items()}
        return super().gradient(module, ahead, {**fixed, **buffers}, second, client)


def halves(batch: Batch, least: int = 1) -> tuple[Batch, Batch]:
    """Every other sample, and those between; the whole batch twice if that leaves under ``least``.

    Padding is at the end of a batch, so the first half holds a real sample whenever there is one.
    A second half that is all padding is replaced by the same number of samples of the first half,
    whose one real sample comes first: clients in a stack, all padded to one width, then train as
    each would alone.
    """
    if len(batch.x) < 2 * least:
        return batch, batch
    first, second = _every_other(batch, 0), _every_other(batch, 1)
    real = second.mask.sum() > 0
    return first, replace(
        second,
        x=_choose(real, second.x, first.x),
        y=_choose(real, second.y, first.y),
        mask=_choose(real, second.mask, first.mask),
        weight=_choose(real, second.weight, first.weight),
    )


def _every_other(batch: Batch, start: int) -> Batch:
    return replace(
        batch,
        x=batch.x[start::2],
        y=batch.y[start::2],
        mask=batch.mask[start::2],
        weight=batch.weight[start::2],
    )


def _choose(condition: Tensor, wanted: Tensor, other: Tensor) -> Tensor:
    """One of two tensors; ``other``, which may be one sample longer, is cut to equal length."""
    return torch.where(condition, wanted, other[: len(wanted)])
