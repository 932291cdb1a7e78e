"""Training class-informed variational autoencoders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.parts.generative import (
    Divergence,
    Encoded,
    Reconstruction,
    Reduction,
    Sampled,
    divergence,
    latent_of,
    squared_error,
)
from fedskew.parts.objective import Batch, Bound, Context, Objective
from fedskew.registry.knobs import Knob, check_fields
from fedskew.types import Tensors


@dataclass(frozen=True)
class CivaeLoss(Objective):
    """Reconstruction + β·divergence + α·cross-entropy of the codes' classes + λ·|weights|₁.

    ``reconstruction`` and ``kl`` say how a sample's numbers (pixels, latent dimensions) become
    one: their sum or their mean; batches are always means over samples. ``l1`` weighs the sum or
    the mean (``l1_reduction``) of the absolute weights, biases left out. In training a code is
    drawn as mean + ``scale``·deviation·ε; the classifier reads that draw, or with
    ``classifies = "mean"`` the mean. Scores decode and classify the mean, or a draw if
    ``sampled``.
    """

    beta: Annotated[
        float, Knob("weight of the codes' divergence", ge=0, tries=(0.1, 1.0, 10.0))
    ] = 1.0
    alpha: Annotated[
        float, Knob("weight of the classifier's cross-entropy", ge=0, tries=(1.0, 3.0, 10.0))
    ] = 3.0
    l1: Annotated[float, Knob("weight of the L1 norm of all layers' weights", ge=0)] = 0.0
    scale: Annotated[float, Knob("factor on the codes' deviation when a code is drawn", ge=0)] = 0.5
    reconstruction: Reconstruction = "sum"
    kl: Divergence = "mean"
    l1_reduction: Annotated[Reduction, Knob("of the absolute weights")] = "sum"
    classifies: Annotated[
        Encoded, Knob("the classifier learns from a drawn code or from the mean code")
    ] = "sample"
    sampled: Sampled = False
    needs = ("encoder", "decoder", "classifier")
    of_numbers = True
    draws = True
    classes_for = "to make its codes tell classes apart"

    def __post_init__(self) -> None:
        check_fields(self)

    def noise(self, module: nn.Module, samples: int) -> dict[str, tuple[int, ...]]:
        return {"codes": (samples, latent_of(module))}

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        mean, log_variance, codes = self._encoded(model, batch)
        read = codes if self.classifies == "sample" else mean
        wrong = F.cross_entropy(model.part("classifier", read), batch.y, reduction="none")
        error = squared_error(model.part("decoder", codes), batch.x, self.reconstruction)
        apart = divergence(mean, log_variance, self.kl)
        loss = batch.mean(error + self.beta * apart + self.alpha * wrong)
        return loss + self.l1 * self._lengths(model) if self.l1 else loss

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        mean, log_variance, drawn = self._encoded(model, batch)
        codes = drawn if self.sampled else mean
        answers = batch.answered(model.part("classifier", codes))
        error = squared_error(model.part("decoder", codes), batch.x, self.reconstruction)
        apart = divergence(mean, log_variance, self.kl)
        loss = error + self.beta * apart + self.alpha * answers["loss"]
        return {**answers, "loss": loss, "reconstruction": error, "kl": apart}

    def _encoded(self, model: Bound, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The means and log-variances of a batch's codes, and a draw of each."""
        mean, log_variance = model.part("encoder", batch.x).chunk(2, dim=1)
        deviation = self.scale * (0.5 * log_variance).exp()
        return mean, log_variance, mean + deviation * batch.noise["codes"]

    def _lengths(self, model: Bound) -> Tensor:
        """The sum or the mean of the absolute weights."""
        weights = [model.tensors[name] for name, p in model.module.named_parameters() if p.ndim > 1]
        total = torch.stack([weight.abs().sum() for weight in weights]).sum()
        count = sum(weight.numel() for weight in weights)
        return total if self.l1_reduction == "sum" else total / count
