"""pFedMe in a file of a user's own: every batch moves a model of the client's own beside w."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Recipe
from fedskew.parts.objective import Batch, Context, Erm, own, owned
from fedskew.parts.step import LearningRate
from fedskew.types import Tensors


@dataclass(frozen=True)
class Envelope(Erm):
    """The gradient λ(w - θ) of the Moreau envelope, θ ≈ argmin f(θ) + λ/2·|θ - w|² on a batch.

    θ takes ``inner`` steps from where the batch before left it, as in the authors' code.
    """

    lam: float = 15.0
    inner: int = 5
    inner_lr: float = 0.01
    personal = True

    def __post_init__(self) -> None:
        if self.inner < 1:
            raise ConfigError(f"inner must be at least 1 step, not {self.inner}.")

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        theta, moved = owned(client), fixed
        for _ in range(self.inner):
            slopes, loss, moved = super().gradient(module, theta, {**fixed, **moved}, batch, client)
            for name, w in trained.items():
                pulled = slopes[name] + self.lam * (theta[name] - w)
                theta[name] = theta[name] - self.inner_lr * pulled
        pulls = {name: self.lam * (w - theta[name]) for name, w in trained.items()}
        return pulls, loss, {**moved, **own(theta)}


def pfedme(lam: float = 15.0, inner: int = 5, inner_lr: float = 0.01, beta: float = 1.0) -> Recipe:
    """Dinh et al. 2020, Personalized Federated Learning with Moreau Envelopes."""
    return Recipe(objective=Envelope(lam, inner, inner_lr), steps=LearningRate(beta))
