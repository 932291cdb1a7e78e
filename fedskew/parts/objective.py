"""What a client minimises on a batch, written for one client; the engine runs it for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedskew.engine.evaluate import trains_batch_statistics
from fedskew.engine.graph import differentiate
from fedskew.errors import ConfigError
from fedskew.types import Tensors

if TYPE_CHECKING:
    from fedskew.federate.roster import Roster

Context = Mapping[str, Any]
MOMENTARY = ("received", "class_counts", "lr", "adaptive")
"""Names of the client context that are the same in whatever rounds a client took part before."""


@dataclass(frozen=True)
class Batch:
    """One minibatch of one client.

    ``mask`` is 1 for a real sample and 0 for padding; ``weight`` is the sample's importance,
    already 0 for padding. Divide by ``mask.sum()``: weights then scale losses, not step sizes.
    ``noise`` holds the standard normal draws the objective asked for; ``step`` counts the
    client's steps over all rounds, for an objective that ``counts_steps``.

    For an objective that works ``by_environment`` the samples of each environment are contiguous,
    with the same number of positions for each; an environment the client lacks is all padding.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    weight: Tensor
    noise: Tensors = field(default_factory=dict)
    step: Tensor | None = None
    environments: int = 1

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean of one value per sample; padding is ignored."""
        return (values * self.weight).sum() / self.mask.sum().clamp(min=1.0)

    def by_environment(self, values: Tensor) -> Tensor:
        """One value per sample, as [environment, position, ...]."""
        return values.reshape(self.environments, -1, *values.shape[1:])

    @property
    def present(self) -> Tensor:
        """By environment: 1 if the client has samples of it, else 0."""
        return self.by_environment(self.mask).amax(dim=1)

    def risks(self, values: Tensor) -> Tensor:
        """By environment, the weighted mean of one value per sample; 0 if there is none."""
        sums = self.by_environment(values * self.weight).sum(dim=1)
        return sums / self.by_environment(self.mask).sum(dim=1).clamp(min=1.0)

    def over_environments(self, values: Tensor) -> Tensor:
        """The mean of one value per environment, over those the client has."""
        present = self.present
        return (values * present).sum() / present.sum().clamp(min=1.0)


class Bound:
    """A model with the tensors of one client bound to it: call it whole or by part.

    Buffers are copied on binding, so a forward pass in training mode updates the copies (read
    them back from ``buffers``) and never a tensor that is used elsewhere.
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
    """Base of all objectives: override ``loss`` (and ``scores``), or ``gradient`` if the client
    does not follow the plain gradient of one loss."""

    needs: tuple[str, ...] = ("body", "head")
    """The parts of a model this objective calls; a model without them is refused."""

    reads: tuple[str, ...] = ()
    """Names of the client context this part needs (see ``context_of`` in federate/holdings.py)."""

    by_environment: bool = False
    """Whether each step draws a batch from every environment of the client."""

    draws: bool = False
    """Whether its models generate samples, which are judged at the end of a run."""

    counts_steps: bool = False
    """Whether batches must have the client's step count (annealed penalties)."""

    divides: bool = False
    """Whether ``loss`` comes divided by something, and so its gradient (see ``divisor``)."""

    personal: bool = False
    """Whether its steps also make a model of the client's own, which stays there and is scored.

    ``gradient`` then also returns that model's trained parameters, named by ``own``, and finds
    those of the previous step under the same names in its context. In every round they start from
    the model the client starts from.
    """

    @property
    def replaceable(self) -> bool:
        """Whether another objective may replace it without losing the idea of the method."""
        return False

    def trained_by(self, method: str) -> dict[str, Any]:
        """The method that minimises this objective with another method: its name and knobs."""
        return {"name": method}

    def check(self, module: nn.Module, roster: Roster, batch_size: int) -> None:
        """Refuse samples, a model or a batch size that this objective cannot work with."""
        if self.by_environment:
            _check_environments(module, roster, batch_size)

    def remarks(self, roster: Roster) -> tuple[str, ...]:
        """What a user should know about this objective on these clients, in sentences."""
        return ()

    @property
    def remembers(self) -> bool:
        """Whether it has a memory, so that a client's steps may depend on earlier rounds."""
        return type(self).memory is not Objective.memory

    def memory(self, environments: int, parameters: Tensors) -> Tensors:
        """What a client remembers from step to step and from round to round, at the start.

        ``parameters`` are those it trains, as they are before the first round. The objective reads
        its memory from its context by name; ``gradient`` returns the new values beside the buffers.
        """
        return {}

    def noise(self, module: nn.Module, samples: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the standard normal draws it needs for a batch of ``samples``."""
        return {}

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        raise NotImplementedError

    def divisor(self, batch: Batch) -> Tensor:
        """What an objective that ``divides`` has divided its loss on a batch by.

        Whatever else is added to the loss (pulls, weight decay) is divided the same way.
        """
        raise NotImplementedError

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        """Gradient by trained parameter, the loss, and buffers and memory after the step."""

        def value(trained: Tensors) -> tuple[Tensor, Tensors]:
            model = Bound(module, {**fixed, **trained})
            loss = self.loss(model, batch, client)
            return loss, model.buffers

        return differentiate(value, trained)

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        """One value per sample and metric, from which ``summed`` computes a client's scores."""
        raise NotImplementedError

    def summed(self, values: Tensors) -> dict[str, float]:
        """The scores of all samples of a split, given one value per sample and metric.

        Means; for classifiers, macro F1 replaces the answers for each sample.
        """
        scores = {m: float(found.mean()) for m, found in values.items() if m not in ANSWERS}
        if "predicted" in values:
            scores["macro_f1"] = macro_f1(values["label"], values["predicted"])
        return scores

    primary: str = "accuracy"
    """The metric that tables rank by."""
    higher_is_better: bool = True


OWN = "own "


def own(parameters: Tensors) -> Tensors:
    """The trained parameters of a client's own model, under the names an objective returns."""
    return {OWN + name: t for name, t in parameters.items()}


def owned(held: Context) -> Tensors:
    """The trained parameters of a client's own model in its context, by their usual names."""
    return {name.removeprefix(OWN): t for name, t in held.items() if name.startswith(OWN)}


def _check_environments(module: nn.Module, roster: Roster, batch_size: int) -> None:
    """Refuse clients that cannot draw a whole batch from each of their environments.

    A client with one environment has ordinary batches, which may be short.
    """
    counts = roster.counts("environments")
    several = (counts > 0).sum(axis=1) > 1
    short = (counts > 0) & (counts < batch_size) & several[:, None]
    if short.any():
        client, environment = np.argwhere(short)[0]
        raise ConfigError(
            f"environment {environment} of client {roster.seen[client].name!r} has "
            f"{counts[client, environment]} training samples, but every step draws "
            f"train.batch_size = {batch_size} from each environment: lower it, ask for fewer "
            "environments, or set federation.environments = 'none'."
        )
    if trains_batch_statistics(module) and (counts == 0).any() and several.any():
        lacking = roster.seen[int(np.argwhere(counts == 0)[0, 0])].name
        raise ConfigError(
            f"client {lacking!r} lacks an environment that others have, and the padding in its "
            "place would enter the statistics that the model keeps: choose a model without "
            "BatchNorm and the like."
        )


ANSWERS = ("label", "predicted", "confidence")
"""A classifier's answer for each sample: not scores, but what scores are computed from."""


def classified(logits: Tensor, y: Tensor) -> Tensors:
    """What a classifier's scores are computed from, sample by sample."""
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
    """Empirical risk: the mean cross-entropy, with sample weights if a client has them."""

    @property
    def replaceable(self) -> bool:
        # A subclass exists for what it adds.
        return type(self) is Erm

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        return batch.mean(F.cross_entropy(model(batch.x), batch.y, reduction="none"))

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        return classified(model(batch.x), batch.y)
