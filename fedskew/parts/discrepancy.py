"""How far a client is from what all should hold, and weights that take it into account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedskew.errors import ConfigError
from fedskew.parts.aggregate import BySize, ServerState, Update, Weighting
from fedskew.parts.report import Finished, Report, Reported

Metric = Literal["kl", "l1", "l2", "cosine"]
AllZero = Literal["size", "best"]

DISCREPANCY = "discrepancy"


def label_discrepancy(counts: Tensor, metric: Metric) -> float:
    """How far class counts are from being equal.

    >>> label_discrepancy(torch.tensor([3.0, 1.0]), "l1")
    0.5
    """
    share = counts / counts.sum()
    equal = torch.full_like(share, 1.0 / len(share))
    if metric == "kl":
        return float(torch.special.xlogy(share, share / equal).sum())
    if metric == "cosine":
        return float(1.0 - (share @ equal) / (share.norm() * equal.norm()))
    return float((share - equal).norm(p=1 if metric == "l1" else 2))


@dataclass(frozen=True)
class LabelDiscrepancy(Report):
    """Sends one number: how far the client's labels are from being equally frequent."""

    metric: Metric = "kl"

    def __post_init__(self) -> None:
        if self.metric not in ("kl", "l1", "l2", "cosine"):
            raise ConfigError(f"metric must be one of kl, l1, l2, cosine, not {self.metric!r}.")

    def report(self, finished: Finished) -> Reported:
        labels = finished.samples()[1]
        counts = torch.bincount(labels, minlength=finished.classes).to(torch.float64)
        value = torch.tensor(label_discrepancy(counts, self.metric), dtype=torch.float64)
        return Reported(sends={DISCREPANCY: {"d": value}})


@dataclass(frozen=True)
class ByDiscrepancy(Weighting):
    """max(0, n_k - α·d_k + b), n_k the share of all samples; d is divided by its sum if asked.

    Where every weight is zero the sizes take over, or, with ``all_zero="best"``, the client with
    the largest n_k - α·d_k + b alone.
    """

    alpha: float
    b: float
    normalise: bool
    all_zero: AllZero = "size"

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise ConfigError(f"alpha must not be negative, not {self.alpha}.")
        if self.all_zero not in ("size", "best"):
            raise ConfigError(f"all_zero must be 'size' or 'best', not {self.all_zero!r}.")

    def weights(self, updates: Sequence[Update], state: ServerState) -> Tensor:
        sizes = BySize().weights(updates, state)
        found = torch.stack([u.reports[DISCREPANCY]["d"].to(sizes) for u in updates])
        total = found.sum()
        if self.normalise and total > 0:
            found = found / total
        raw = sizes / sizes.sum() - self.alpha * found + self.b
        if self.all_zero == "best" and not (raw > 0).any():
            return torch.nn.functional.one_hot(raw.argmax(), len(raw)).to(raw)
        return raw.clamp(min=0.0)

    def measured(
        self, updates: Sequence[Update], weights: Sequence[float]
    ) -> dict[str, dict[str, float]]:
        return {
            u.client: {"weight": weight, "discrepancy": float(u.reports[DISCREPANCY]["d"])}
            for u, weight in zip(updates, weights, strict=True)
        }
