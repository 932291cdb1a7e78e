"""What a client minimises on a batch, written for one client; the engine runs it for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn import functional as F

from fedskew.data.federation import Federation

Tensors = dict[str, Tensor]
Context = Mapping[str, Any]


@dataclass(frozen=True)
class Batch:
    """One minibatch of one client.

    ``mask`` is 1 for a real sample and 0 for padding; ``weight`` is the sample's importance,
    already 0 for padding. Divide by ``mask.sum()``: weights then scale losses, not step sizes.
    ``noise`` holds the standard normal draws the objective asked for; ``step`` counts the
    client's steps over all rounds, for an objective that ``counts_steps``.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    weight: Tensor
    noise: Tensors = field(default_factory=dict)
    environment: Tensor | None = None
    step: Tensor | None = None

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean of one value a sample; padding counts for nothing."""
        return (values * self.weight).sum() / self.mask.sum().clamp(min=1.0)


class Bound:
    """A model with the tensors of one client bound to it: call it whole or by part.

    Buffers are copied on binding, so a forward pass in training mode updates the copies (read
    them back from ``buffers``) and never a tensor that somebody else holds.
    """

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self.module = module
        own = {name for name, _ in module.named_buffers()} if module.training else set()
        self.tensors = {name: t.clone() if name in own else t for name, t in tensors.items()}
        self.buffers = {name: self.tensors[name] for name in sorted(own & set(tensors))}

    def __call__(self, *inputs: Tensor) -> Any:
        return functional_call(self.module, self.tensors, inputs)

    def part(self, path: str, *inputs: Tensor) -> Any:
        """The output of one part of the model, e.g. ``bound.part("body", x)``."""
        prefix = f"{path}."
        inside = {n[len(prefix) :]: t for n, t in self.tensors.items() if n.startswith(prefix)}
        return functional_call(self.module.get_submodule(path), inside, inputs)


class Objective:
    """Base of all objectives: override ``loss`` (and ``scores``), or ``gradient`` where a plain
    gradient of one loss is not what the client follows."""

    needs: tuple[str, ...] = ("body", "head")
    """The parts of a model this objective calls; a model without them is refused."""

    reads: tuple[str, ...] = ()
    """Names of the client context this part needs (see ``fedskew.site.context_of``)."""

    environments: int = 0
    """How many environments each step draws a batch from; 0 for one ordinary batch."""

    counts_steps: bool = False
    """Whether batches must say how many steps the client has made (annealed penalties)."""

    def check(self, module: nn.Module, federation: Federation) -> None:
        """Refuse a federation whose samples this objective makes no sense of."""

    def noise(self, module: nn.Module, samples: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the standard normal draws wanted for a batch of ``samples``."""
        return {}

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        raise NotImplementedError

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        """Gradient by trained parameter, the loss, and the buffers after the step."""

        def value(trained: Tensors) -> tuple[Tensor, Tensors]:
            model = Bound(module, {**fixed, **trained})
            loss = self.loss(model, batch, client)
            return loss, model.buffers

        gradients, (loss, buffers) = grad_and_value(value, has_aux=True)(trained)
        return gradients, loss, buffers

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        """One value a sample and metric, from which ``summed`` makes a client's scores."""
        raise NotImplementedError

    def summed(self, values: Tensors) -> dict[str, float]:
        """The scores of all samples of a split, given one value a sample and metric.

        Means, and of classifiers also the macro F1, in the place of what each sample got.
        """
        scores = {m: float(found.mean()) for m, found in values.items() if m not in ANSWERS}
        if "predicted" in values:
            scores["macro_f1"] = macro_f1(values["label"], values["predicted"])
        return scores

    primary: str = "accuracy"
    """The metric that tables rank by."""
    higher_is_better: bool = True


ANSWERS = ("label", "predicted", "confidence")
"""What a classifier said of each sample: no scores, but what scores are made of."""


def classified(logits: Tensor, y: Tensor) -> Tensors:
    """What a classifier's scores are made of, sample by sample."""
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    return {
        "loss": F.cross_entropy(logits, y, reduction="none"),
        "accuracy": (predicted == y).to(torch.float32),
        "label": y,
        "predicted": predicted,
        "confidence": confidence,
    }


def macro_f1(label: Tensor, predicted: Tensor) -> float:
    """The F1 of each class that occurs or is predicted, and their mean (micro F1 is accuracy).

    >>> macro_f1(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    0.6666666666666666
    """
    label, predicted = label.to(torch.int64), predicted.to(torch.int64)
    least = int(torch.maximum(label.max(), predicted.max())) + 1
    hits = torch.bincount(label[label == predicted], minlength=least)
    both = torch.bincount(label, minlength=least) + torch.bincount(predicted, minlength=least)
    known = both > 0
    return float((2.0 * hits[known].double() / both[known]).mean())


@dataclass(frozen=True)
class Erm(Objective):
    """Empirical risk: the mean cross-entropy, with sample weights where a client has them."""

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        return batch.mean(F.cross_entropy(model(batch.x), batch.y, reduction="none"))

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        return classified(model(batch.x), batch.y)
