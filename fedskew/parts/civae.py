"""Training class-informed variational autoencoders."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.errors import ConfigError
from fedskew.parts.generative import (
    Encoded,
    Reduction,
    check_reductions,
    check_weights,
    divergence,
    latent_of,
    squared_error,
)
from fedskew.parts.objective import Batch, Bound, Context, Objective, classified
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

    beta: float = 1.0
    alpha: float = 3.0
    l1: float = 0.0
    scale: float = 0.5
    reconstruction: Reduction = "sum"
    kl: Reduction = "mean"
    l1_reduction: Reduction = "sum"
    classifies: Encoded = "sample"
    sampled: bool = False
    needs = ("encoder", "decoder", "classifier")
    draws = True

    def __post_init__(self) -> None:
        check_weights(self, "beta", "alpha", "l1", "scale")
        check_reductions(self, "reconstruction", "kl", "l1_reduction")
        if self.classifies not in ("sample", "mean"):
            raise ConfigError(f"classifies must be 'sample' or 'mean', not {self.classifies!r}.")

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
        answers = classified(model.part("classifier", codes), batch.y)
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
        """The absolute weights, added up or averaged."""
        weights = [model.tensors[name] for name, p in model.module.named_parameters() if p.ndim > 1]
        total = torch.stack([weight.abs().sum() for weight in weights]).sum()
        count = sum(weight.numel() for weight in weights)
        return total if self.l1_reduction == "sum" else total / count
