"""How alike clients see the world: kernels of what their bodies make of samples, compared by CKA.

CKA compares two n x n matrices entry by entry, so row i of both must mean the same thing. It does
for a shared probe (row i is probe sample i) and for the features themselves (row i is feature i of
bodies that grew from one initialisation); it does not for samples each client draws on its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from fedskew.errors import ConfigError
from fedskew.parts.report import Finished, Report, Reported
from fedskew.registry.knobs import Knob, check_fields

if TYPE_CHECKING:
    from fedskew.federate.roster import Roster

Mode = Literal["probe", "feature", "own"]
Kernel = Literal["linear", "rbf"]
Probe = Literal["noise", "public"]

FINGERPRINT = "fingerprint"
"""The report, and the server's memory of it: a client's centred kernel as one vector."""
NEGLIGIBLE = 1e-9
"""Kernels flatter than this share of their own size hold rounding errors, not structure."""


def kernel_of(products: Tensor, kernel: Kernel, size: float) -> Tensor:
    """A kernel matrix from the inner products of its items, whose mean square is ``size``.

    The RBF's width is the median of all squared distances, those of items to themselves included.
    """
    if kernel == "linear":
        return products
    squares = products.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * products).clamp(min=0)
    width = torch.quantile(distances.flatten(), 0.5)
    if width <= NEGLIGIBLE * size:
        return torch.ones_like(products)
    return torch.exp(-distances / (2 * width))


def centred(kernel: Tensor, debiased: bool = False) -> Tensor:
    """The kernel without its row and column means.

    Debiased, the diagonal counts for nothing and the means are those of a U-statistic, so that
    unrelated items come out at zero on average; it takes at least four items.
    """
    n = len(kernel)
    if not debiased:
        means = kernel.mean(dim=0)
        return kernel - means[None, :] - means[:, None] + means.mean()
    if n < 4:
        return torch.zeros_like(kernel)
    off = kernel - torch.diag(kernel.diagonal())
    means = off.sum(dim=0) / (n - 2)
    means = means - means.sum() / (2 * (n - 1))
    off = off - means[None, :] - means[:, None]
    return off - torch.diag(off.diagonal())


def flattened(matrix: Tensor) -> Tensor:
    """A symmetric matrix as the vector of its upper half, with the same inner products.

    >>> one, two = torch.tensor([[1.0, 2.0], [2.0, 3.0]]), torch.tensor([[0.0, 1.0], [1.0, 5.0]])
    >>> float((one * two).sum()), round(float(flattened(one) @ flattened(two)), 4)
    (19.0, 19.0)
    """
    rows, columns = torch.triu_indices(len(matrix), len(matrix), device=matrix.device)
    return matrix[rows, columns] * torch.where(rows == columns, 1.0, math.sqrt(2.0))


def unit(vector: Tensor, scale: float) -> Tensor:
    """The vector at length one; zeros (like nothing) where it is flat beside ``scale``."""
    length = vector.norm()
    return vector / length if length > NEGLIGIBLE * scale else torch.zeros_like(vector)


def sample_fingerprint(features: Tensor, kernel: Kernel, debiased: bool) -> Tensor:
    """A client's centred, normalised Gram matrix over samples; CKA is their inner product."""
    products = features @ features.T
    gram = kernel_of(products, kernel, float(products.diagonal().mean()))
    return unit(flattened(centred(gram, debiased)), float(gram.norm()))


def feature_fingerprint(features: Tensor, kernel: Kernel, debiased: bool) -> Tensor:
    """A client's normalised feature covariance, or the centred RBF kernel of its features.

    Products of two clients' covariances are unbiased already, because their samples are
    independent; only a covariance's own length is too large. Debiased, the U-statistic of |Σ|²
    takes its place. The RBF kernel compares features as it compares samples elsewhere.
    """
    n = len(features)
    deviations = features - features.mean(dim=0)
    products = deviations.T @ deviations
    if kernel == "rbf":
        gram = kernel_of(products, kernel, float(features.square().sum(dim=0).mean()))
        return unit(flattened(centred(gram, debiased)), float(gram.norm()))
    vector = flattened(products)
    scale = float(features.square().sum())
    if not debiased:
        return unit(vector, scale)
    square = centred(features @ features.T, debiased=True).square().sum() / max(n * (n - 3), 1)
    length = (n - 1) * square.clamp(min=0).sqrt()
    return vector / length if length > NEGLIGIBLE * scale else torch.zeros_like(vector)


@dataclass(frozen=True)
class Fingerprint(Report):
    """Sends a centred, normalised kernel matrix of the body's output, never the output itself.

    ``mode`` says over what: "probe", ``samples`` inputs all clients share (the federation's public
    samples or noise of unit variance); "feature", the features themselves, on the client's own
    training data; "own", ``samples`` of the client's own, whose rows mean nothing to others.
    """

    mode: Annotated[
        Mode,
        Knob(
            "what is compared: 'feature' (covariances of the features on own data), 'probe' (Gram "
            "matrices on shared inputs) or 'own' (Gram matrices on own samples: the thesis to the "
            "letter, which measures nothing)",
            tries=("feature", "probe"),
        ),
    ] = "probe"
    kernel: Annotated[
        Kernel, Knob("of the representations; 'rbf' has the median squared distance as its width")
    ] = "linear"
    debiased: Annotated[
        bool, Knob("unrelated clients count as 0 on average; negative estimates are 0")
    ] = False
    samples: Annotated[
        int,
        Knob("probe or own samples compared (≥ 4 debiased); 'feature' uses all it has", ge=2),
    ] = 50
    probe: Annotated[
        Probe, Knob("unit normal inputs, or the first samples of federation.public")
    ] = "noise"
    in_parts = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.debiased and self.samples < 4:
            raise ConfigError(
                f"samples must be at least 4 for a debiased similarity, not {self.samples}."
            )

    @property
    def tells(self) -> str:
        if self.mode == "feature":
            return "the covariances of their features, centred and normalised"
        inputs = "shared inputs" if self.mode == "probe" else "some of their samples"
        return f"a Gram matrix of their features of {inputs}, centred and normalised"

    @property
    def longest(self) -> float:
        """How long an honest fingerprint can be: one, but for covariances of debiased length."""
        debiased_length = self.mode == "feature" and self.kernel == "linear" and self.debiased
        return math.inf if debiased_length else 1.0

    def check(self, roster: Roster) -> None:
        looks = self.mode == "probe" and self.probe == "public"
        if looks and roster.public < self.samples:
            raise ConfigError(
                f"probe = 'public' with samples = {self.samples} needs as many samples that "
                f"belong to nobody: set federation.public, which is {roster.public}."
            )

    def report(self, finished: Finished) -> Reported:
        features = self.features(finished)
        make = feature_fingerprint if self.mode == "feature" else sample_fingerprint
        vector = make(features, self.kernel, self.debiased)
        return Reported(sends={FINGERPRINT: {"v": vector.to(torch.float32)}})

    def features(self, finished: Finished) -> Tensor:
        """What the body makes of the samples of this mode, one row each."""
        model = finished.model()
        parts = torch.split(self._inputs(finished), 256)
        with torch.no_grad():
            made = [model.part("body", part).flatten(start_dim=1) for part in parts]
        return torch.cat(made).to(torch.float64)

    def _inputs(self, finished: Finished) -> Tensor:
        if self.mode == "feature":
            return finished.samples()[0]
        if self.mode == "own":
            rows = finished.client.train
            few = len(rows) < self.samples
            chosen = finished.rng.choice(rows, self.samples, replace=few)
            return finished.x[torch.from_numpy(chosen)]
        if self.probe == "public":
            return finished.x[torch.from_numpy(finished.public[: self.samples])]
        shape = (self.samples, *finished.x.shape[1:])
        if finished.vocabulary:
            drawn = finished.agreed.integers(1, finished.vocabulary, shape)
            return torch.from_numpy(drawn).to(finished.x.device)
        noise = finished.agreed.standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(noise).to(finished.x.device)


def shortened(vector: Tensor, longest: float) -> Tensor:
    """A fingerprint no longer than honest ones are: length would buy likeness to everybody."""
    length = float(vector.norm())
    # A little above is rounding, and then the bits stay as they came.
    return vector if length <= 1.001 * longest else vector * (longest / length)


def similarities(rows: Tensor, columns: Tensor) -> Tensor:
    """How alike fingerprints are, from 0 to 1: one matrix product. Negative CKA counts as none."""
    return (rows @ columns.T).clamp(0.0, 1.0)
