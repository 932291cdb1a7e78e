"""What a client minimises on a batch, written for one client; the engine runs it for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.engine.evaluate import trains_batch_statistics
from fedskew.engine.graph import differentiate
from fedskew.errors import ConfigError
from fedskew.parts.losses import SQUARED, Loss, task_losses
from fedskew.parts.scores import RANKED_BY, answered, scores_of
from fedskew.problem import CLASSIFICATION, Problem
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

    ``loss`` is that of a target which is a number; see ``losses`` for what an objective minimises.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    weight: Tensor
    noise: Tensors = field(default_factory=dict)
    step: Tensor | None = None
    environments: int = 1
    loss: Loss = SQUARED

    def losses(self, outputs: Tensor) -> Tensor:
        """What a model's outputs for this batch cost, sample by sample, whatever ``y`` is."""
        return task_losses(outputs, self.y, self.loss)

    def answered(self, outputs: Tensor) -> Tensors:
        """What scores are computed from, sample by sample."""
        return answered(outputs, self.y, self.loss)

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

    in_parts: bool = True
    """Whether it calls parts by themselves, so that a classifier in one piece will not do."""

    reads: tuple[str, ...] = ()
    """Names of the client context this part needs (see ``context_of`` in federate/holdings.py)."""

    classes_for: str = ""
    """What it needs each sample to have one class for; without, it trains whatever is learned."""
    of_numbers: bool = False
    """Whether it compares what a model makes with the sample itself, so that samples must be
    numbers: token ids are names."""

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

    def summed(self, values: Tensors, problem: Problem = CLASSIFICATION) -> dict[str, float]:
        """The scores of all samples of a split, given one value per sample and metric."""
        return scores_of(values, problem)

    primary: str = ""
    """The metric that tables rank by; none: that of what is to be learned (``RANKED_BY``)."""
    higher_is_better: bool = True


def ranked_by(objective: Objective, problem: Problem) -> tuple[str, bool]:
    """The metric that tables rank by, and whether more of it is better."""
    if objective.primary:
        return objective.primary, objective.higher_is_better
    return RANKED_BY[problem.kind]


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


@dataclass(frozen=True)
class Erm(Objective):
    """Empirical risk: the mean loss of the task, with sample weights if a client has them."""

    in_parts = False

    @property
    def replaceable(self) -> bool:
        # A subclass exists for what it adds.
        return type(self) is Erm

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        return batch.mean(batch.losses(model(batch.x)))

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        return batch.answered(model(batch.x))
