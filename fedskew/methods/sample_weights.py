"""What a run reports about its sample weights: effective size, leakage and accuracy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.parts.finding import Arrays, Finding, Holder, Left
from fedskew.parts.report import SAMPLE_WEIGHT
from fedskew.parts.sample_weights import FINE, WEIGHING, effective_size

if TYPE_CHECKING:
    from fedskew.canvas import Picture

Numbers = NDArray[np.float64]


class SampleWeightsLeft(Finding):
    """Statistics of each client's sample weights; the weights themselves stay at the client."""

    name = "sample_weights"

    def leave(self, holder: Holder) -> Left | None:
        # Runs where the data are; a server reads the rest of this module.
        from fedskew.data.strata import strata

        group = holder.private.get(SAMPLE_WEIGHT)
        if group is None:
            return None
        weights, rows = group["w"].cpu(), holder.client.train
        found = {n: float(t) for n, t in holder.private.get(WEIGHING, {}).items()}
        entropy = _number(found.get("entropy", math.nan))
        numbers: dict[str, Any] = {
            "n": len(weights),
            "effective": effective_size(weights),
            "least": float(weights.min()),
            "most": float(weights.max()),
            "entropy": entropy,
            # The factor on log ratios, if they were tempered.
            "power": _number(found.get("power", math.nan)),
            "trouble": int(found.get("trouble", FINE)),
            "leak": leak(len(rows) / holder.total, entropy),
        }
        unknown = torch.full((len(rows),), math.nan)
        true = unknown if holder.log_ratio is None else holder.log_ratio.cpu()
        if bool(torch.isfinite(true).any()):
            numbers["truth"] = agreement(weights, true)
        return Left(
            numbers,
            {
                "client": np.full(len(rows), holder.client.name),
                "row": rows.astype(np.int64),
                "weight": weights.numpy().astype(np.float32),
                "truth": true.numpy().astype(np.float32),
                "label": strata(holder.y)[rows].astype(np.int64),
            },
        )

    def lines(self, numbers: Mapping[str, Any]) -> list[str]:
        from fedskew.methods.weight_figures import weight_lines

        return weight_lines(numbers)

    def pictures(
        self, numbers: Mapping[str, Any], arrays: Arrays, result: Mapping[str, Any]
    ) -> Iterator[Picture]:
        from fedskew.methods.weight_figures import weight_pictures

        return weight_pictures(numbers, arrays, result)


def leak(share: float, entropy: float | None) -> dict[str, float] | None:
    """The paper's bound on what the shared density reveals about a client: I ≤ κ_k·H(Z_k).

    I is in bits, between a sample of the client and a draw from the shared density, which is the
    client's own with probability κ_k, its share of all training samples. No model needs fewer bits
    per sample than H, so those of the client's own model are used for H. If that has none
    (real-valued samples), there is no bound.

    >>> leak(0.25, 80.0)
    {'share': 0.25, 'bits': 20.0}
    """
    return None if entropy is None else {"share": share, "bits": share * entropy}


def agreement(weights: Tensor, log_ratio: Tensor) -> dict[str, float | None]:
    """How well log weights agree with the true log ratios, and the effective size of true weights.

    ``slope`` is the slope of the truth against the estimate: 1 is right, below 1 means that the
    weights differ too much. For weights that are all equal there is no agreement.
    """
    log_weights = weights.double().log().cpu().numpy()
    true = log_ratio.double().cpu().numpy()
    known = np.isfinite(log_weights) & np.isfinite(true)
    ours, truth = log_weights[known], true[known]
    finite = log_ratio[torch.isfinite(log_ratio)].double()
    return {
        "pearson": _correlation(ours, truth),
        "spearman": _correlation(_ranks(ours), _ranks(truth)),
        "slope": _slope(ours, truth),
        # Relative to the largest, so that no exponential overflows.
        "effective": effective_size((finite - finite.max()).exp()),
    }


def _correlation(a: Numbers, b: Numbers) -> float | None:
    if len(a) < 2 or not np.ptp(a) or not np.ptp(b):
        return None
    # Exact sums: those of a BLAS differ in the last bits from one processor to the next.
    return statistics.correlation(a.tolist(), b.tolist())


def _slope(x: Numbers, y: Numbers) -> float | None:
    if len(x) < 2 or not np.ptp(x):
        return None
    return statistics.linear_regression(x.tolist(), y.tolist()).slope


def _ranks(values: Numbers) -> Numbers:
    from scipy.stats import rankdata

    return np.asarray(rankdata(values), dtype=np.float64)


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
