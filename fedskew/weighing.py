"""What a run tells about its sample weights: their worth, what they leak, how true they are."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.data.federation import Client, Federation
from fedskew.errors import RunError
from fedskew.parts.ratio import FINE, WEIGHING, effective_size
from fedskew.parts.report import SAMPLE_WEIGHT, Groups
from fedskew.store import save_arrays

SAMPLE_WEIGHTS = "sample_weights.npz"
Arrays = dict[str, NDArray[Any]]
Numbers = NDArray[np.float64]


def told(federation: Federation, private: Mapping[str, Groups]) -> dict[str, Any] | None:
    """By client, how its weights came out; None where no seen client has any.

    ``power`` is what log ratios were multiplied by, if they were tempered.
    """
    samples = sum(len(client.train) for client in federation.clients)
    found: dict[str, Any] = {}
    for client, weights in _weighed(federation, private):
        weighing = {n: float(t) for n, t in private[client.name].get(WEIGHING, {}).items()}
        entropy = _number(weighing.get("entropy", math.nan))
        entry: dict[str, Any] = {
            "n": len(weights),
            "effective": effective_size(weights),
            "least": float(weights.min()),
            "most": float(weights.max()),
            "entropy": entropy,
            "power": _number(weighing.get("power", math.nan)),
            "trouble": int(weighing.get("trouble", FINE)),
            "leak": leak(len(client.train) / samples, entropy),
        }
        true = _truth(federation, client)
        if bool(torch.isfinite(true).any()):
            entry["truth"] = agreement(weights, true)
        found[client.name] = entry
    return found or None


def leak(share: float, entropy: float | None) -> dict[str, float] | None:
    """The paper's bound on what knowing everybody's density tells of a client: I ≤ κ_k·H(Z_k).

    I is in bits, between a sample of the client and a draw from everybody's density, which is the
    client's own with probability κ_k, its share of all training samples. No model needs fewer bits
    a sample than H, so those of the client's own take its place. Where that has none (real-valued
    samples), there is no bound.

    >>> leak(0.25, 80.0)
    {'share': 0.25, 'bits': 20.0}
    """
    return None if entropy is None else {"share": share, "bits": share * entropy}


def agreement(weights: Tensor, log_ratio: Tensor) -> dict[str, float | None]:
    """How logs of weights agree with the true log ratios, and what true weights would be worth.

    ``slope`` is that of the truth over the estimate: 1 is right, below 1 says that the weights
    differ too much. Weights that are all equal agree with nothing.
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
        # Relative to the largest, so that no exponential is infinite.
        "effective": effective_size((finite - finite.max()).exp()),
    }


def _correlation(a: Numbers, b: Numbers) -> float | None:
    if len(a) < 2 or not np.ptp(a) or not np.ptp(b):
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _slope(x: Numbers, y: Numbers) -> float | None:
    if len(x) < 2 or not np.ptp(x):
        return None
    centred = x - x.mean()
    return float(centred @ (y - y.mean()) / (centred @ centred))


def _ranks(values: Numbers) -> Numbers:
    from scipy.stats import rankdata

    return np.asarray(rankdata(values), dtype=np.float64)


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _weighed(
    federation: Federation, private: Mapping[str, Groups]
) -> Iterator[tuple[Client, Tensor]]:
    for client in federation.clients:
        group = private.get(client.name, {}).get(SAMPLE_WEIGHT)
        if group is not None:
            yield client, group["w"].cpu()


def _truth(federation: Federation, client: Client) -> Tensor:
    """The true log ratios of a client's training rows: NaN where nobody knows them."""
    if federation.log_ratio is None:
        return torch.full((len(client.train),), math.nan)
    return federation.log_ratio[torch.from_numpy(client.train)].cpu()


def save(path: Path, federation: Federation, private: Mapping[str, Groups]) -> None:
    """Write every weight of the seen clients into one file; none where nobody has any."""
    parts: list[Arrays] = []
    for client, weights in _weighed(federation, private):
        rows = torch.from_numpy(client.train)
        parts.append(
            {
                "client": np.full(len(rows), client.name),
                "row": client.train.astype(np.int64),
                "weight": weights.numpy().astype(np.float32),
                "truth": _truth(federation, client).numpy().astype(np.float32),
                "label": federation.y[rows].numpy().astype(np.int64),
            }
        )
    if parts:
        save_arrays(path, {name: np.concatenate([p[name] for p in parts]) for name in parts[0]})


def load_weights(path: Path) -> Arrays:
    """The arrays of a run's file: client, row in the federation, weight, true log ratio, label.

    The truth is NaN where nobody knows it.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise RunError(
            f"could not read {path}, which finished runs of methods with sample weights have: "
            f"{error}."
        ) from error
