"""Training variational autoencoders, and reports about a client's codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.parts.aggregate import Mean, ServerState, Update, Weighting
from fedskew.parts.begin import Opening
from fedskew.parts.discrepancy import DISCREPANCY
from fedskew.parts.objective import Batch, Bound, Context, Objective
from fedskew.parts.report import Finished, Report, Reported
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.registry.knobs import Knob, check_fields
from fedskew.types import Groups, Tensors

Reduction = Literal["sum", "mean"]
Reconstruction = Annotated[Reduction, Knob("of a sample's squared errors")]
Divergence = Annotated[Reduction, Knob("of a sample's divergences over latent dimensions")]
Encoded = Literal["sample", "mean"]
Sampled = Annotated[bool, Knob("score with a drawn code (true) or with the mean code")]

LEGACY_BATCH = 128
"""The batch size of the one-class paper's test loader, which its metric depends on."""
AT_ONCE = 1024
ACTIVE = 0.01
LOSS = "loss"
CLOCK = "clock"
"""The server's count of completed rounds, for reports that depend on it."""


@dataclass(frozen=True)
class VaeLoss(Objective):
    """Squared error of the reconstruction plus β times the codes' divergence from N(0, I).

    ``reconstruction`` and ``kl`` say how a sample's numbers (pixels, latent dimensions) become
    one: their sum or their mean. Batches are always means over samples. Training weighs the
    divergence with ``beta``, scoring with ``eval_beta``; scores draw one code per sample, or
    decode the mean code if not ``sampled``.
    """

    beta: Annotated[
        float,
        Knob("weight of the codes' divergence in training", ge=0, tries=(0.1, 1.0, 10.0)),
    ] = 10.0
    eval_beta: Annotated[float, Knob("weight of the divergence in scores", ge=0)] = 1.0
    reconstruction: Reconstruction = "sum"
    kl: Divergence = "sum"
    sampled: Sampled = True
    needs = ("encoder", "decoder")
    of_numbers = True
    draws = True
    primary = "loss"
    higher_is_better = False

    def __post_init__(self) -> None:
        check_fields(self)

    def trained_by(self, method: str) -> dict[str, Any]:
        changed = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = {name: v for name, v in changed.items() if v != getattr(VaeLoss, name)}
        return {"name": "vae", "base": method, **changed}

    def noise(self, module: nn.Module, samples: int) -> dict[str, tuple[int, ...]]:
        return {"codes": (samples, latent_of(module))}

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        error, divergence = self._terms(model, batch, sampled=True)
        return batch.mean(error + self.beta * divergence)

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        error, divergence = self._terms(model, batch, self.sampled)
        loss = error + self.eval_beta * divergence
        return {"loss": loss, "reconstruction": error, "kl": divergence}

    def summed(self, values: Tensors, problem: Problem = CLASSIFICATION) -> dict[str, float]:
        """Means, and the one-class paper's number: the sum of batch means over the sample count."""
        found = super().summed(values, problem)
        batches = in_parts(values["loss"], LEGACY_BATCH)
        found["legacy"] = sum(float(b.mean()) for b in batches) / len(values["loss"])
        return found

    def _terms(self, model: Bound, batch: Batch, sampled: bool) -> tuple[Tensor, Tensor]:
        """Every sample's reconstruction error and divergence."""
        mean, log_variance = model.part("encoder", batch.x).chunk(2, dim=1)
        codes = mean + (0.5 * log_variance).exp() * batch.noise["codes"] if sampled else mean
        error = squared_error(model.part("decoder", codes), batch.x, self.reconstruction)
        return error, divergence(mean, log_variance, self.kl)


def squared_error(drawn: Tensor, x: Tensor, reduction: Reduction) -> Tensor:
    """The squared error of each sample's reconstruction."""
    return _reduced((drawn - x).square().flatten(1), reduction)


def divergence(mean: Tensor, log_variance: Tensor, reduction: Reduction) -> Tensor:
    """How far each sample's codes are from N(0, I): the Kullback-Leibler divergence."""
    each = -0.5 * (1.0 + log_variance - mean.square() - log_variance.exp())
    return _reduced(each, reduction)


def in_parts(values: Tensor, size: int = AT_ONCE) -> list[Tensor]:
    """The rows in portions whose activations fit into memory."""
    return [values[start : start + size] for start in range(0, max(len(values), 1), size)]


def _reduced(values: Tensor, reduction: Reduction) -> Tensor:
    return values.sum(dim=1) if reduction == "sum" else values.mean(dim=1)


def latent_of(module: nn.Module) -> int:
    """How many numbers a code of this model has."""
    latent = module.latent
    assert isinstance(latent, int)
    return latent


def w1_to_normal(values: Tensor) -> Tensor:
    """The exact Wasserstein-1 distance of samples from N(0, 1), column by column.

    Between two quantile levels a and b the i-th smallest sample x meets the normal quantiles
    q(a)..q(b), and ∫|x - q| has a closed form on either side of Φ(x).

    >>> round(float(w1_to_normal(torch.zeros(4, 1))), 6)  # E|N(0, 1)|
    0.797885
    """
    x = values.to(torch.float64).sort(dim=0).values
    n = len(x)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    below, above = steps[:-1, None], steps[1:, None]
    met = torch.minimum(torch.maximum(torch.special.ndtr(x), below), above)
    pieces = x * (2.0 * met - below - above)
    pieces += 2.0 * _density_at_quantile(met)
    pieces -= _density_at_quantile(below) + _density_at_quantile(above)
    return pieces.sum(dim=0)


def _density_at_quantile(level: Tensor) -> Tensor:
    """φ(Φ⁻¹(p)), which is 0 at both ends."""
    density = (-0.5 * torch.special.ndtri(level).square()).exp() / math.sqrt(2.0 * math.pi)
    return torch.where((level > 0) & (level < 1), density, 0.0)


def describe_codes(model: Bound, x: Tensor) -> tuple[Tensor, Tensor]:
    """The means and standard deviations of the codes of some samples."""
    with torch.no_grad():
        parts = [model.part("encoder", part) for part in in_parts(x)]
    mean, log_variance = torch.cat(parts).chunk(2, dim=1)
    return mean, (0.5 * log_variance).exp()


def decode(model: Bound, codes: Tensor) -> Tensor:
    """What the decoder draws from some codes."""
    with torch.no_grad():
        return torch.cat([model.part("decoder", part) for part in in_parts(codes)])


def from_prior(model: Bound, count: int, rng: np.random.Generator) -> Tensor:
    """Samples of a model: codes from N(0, I), decoded."""
    shape = (count, latent_of(model.module))
    return decode(model, torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)))


@dataclass(frozen=True)
class LatentDiscrepancy(Report):
    """Sends how far the client's codes are from N(0, 1): W1, the mean over latent dimensions.

    Codes come from the encoder as the client received it, so all clients are measured with the
    same one. Also sent are the number of samples, a random number for controls, and how many latent
    dimensions are in use. ``every`` measures only every n-th round, counted by the server.
    """

    encoded: Annotated[
        Encoded, Knob("codes are one draw per sample ('sample') or their means ('mean')")
    ] = "sample"
    every: Annotated[int | None, Knob("rounds from one measurement to the next", ge=1)] = None
    tells = "how far their codes are from N(0, 1), and their samples and used dimensions"

    def __post_init__(self) -> None:
        check_fields(self)

    def report(self, finished: Finished) -> Reported:
        if self.every is not None:
            done = int(finished.broadcast[CLOCK]["rounds"])
            if done == 0 or done % self.every:
                return Reported()
        mean, deviation = describe_codes(
            Bound(finished.module, finished.received), finished.samples()[0]
        )
        codes = mean
        if self.encoded == "sample":
            codes = mean + deviation * torch.from_numpy(
                finished.rng.standard_normal(mean.shape, dtype=np.float32)
            ).to(mean)
        distance = float(w1_to_normal(codes.cpu()).mean())
        # Codes of a broken encoder have no distance; the server treats it as the largest.
        found = {
            "d": distance if math.isfinite(distance) else -1.0,
            "n": float(len(mean)),
            "lot": finished.rng.random(),
            "active": float(active_dimensions(mean)),
        }
        numbers = {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}
        return Reported(sends={DISCREPANCY: numbers})


def active_dimensions(means: Tensor) -> int:
    """How many latent dimensions distinguish samples: the variance of their means exceeds 0.01.

    >>> active_dimensions(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    1
    """
    return int((means.var(dim=0, correction=0) > ACTIVE).sum())


@dataclass(frozen=True)
class LocalLoss(Report):
    """Sends the objective's main score after training, as a mean over the training data."""

    objective: VaeLoss
    tells = "their training loss"

    def report(self, finished: Finished) -> Reported:
        x, y = finished.samples()
        model, total = finished.model(), 0.0
        with torch.no_grad():
            for here in in_parts(torch.arange(len(x))):
                ones = torch.ones(len(here), device=x.device)
                noise = {
                    name: torch.from_numpy(finished.rng.standard_normal(shape, dtype=np.float32))
                    for name, shape in self.objective.noise(finished.module, len(here)).items()
                }
                batch = Batch(x[here], y[here], ones, ones, noise)
                total += float(self.objective.scores(model, batch)[self.objective.primary].sum())
        return Reported(sends={LOSS: {"mean": torch.tensor(total / len(x), dtype=torch.float64)}})


@dataclass(frozen=True)
class ByLoss(Weighting):
    """In proportion to 1/loss: a client with a small loss on its own data counts more."""

    def weights(self, updates: Sequence[Update], state: ServerState) -> Tensor:
        return torch.stack([1.0 / update.reports[LOSS]["mean"] for update in updates])

    def measured(
        self, updates: Sequence[Update], weights: Sequence[float], state: ServerState
    ) -> dict[str, dict[str, float]]:
        return {u.client: {"weight": w} for u, w in zip(updates, weights, strict=True)}


@dataclass(frozen=True)
class RememberingMean(Mean):
    """The mean, which also remembers every client's last discrepancy and counts rounds."""

    broadcasts = (CLOCK,)

    def start(self, opening: Opening) -> Groups:
        return {CLOCK: {"rounds": torch.tensor(0)}}

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        known = dict(state.memory.get(DISCREPANCY, {}))
        for update in updates:
            for name, value in update.reports.get(DISCREPANCY, {}).items():
                known[f"{update.client}/{name}"] = value
        clock = {"rounds": state.memory[CLOCK]["rounds"] + 1}
        memory = {**state.memory, CLOCK: clock, **({DISCREPANCY: known} if known else {})}
        return super().aggregate(replace(state, memory=memory), updates, clients)
