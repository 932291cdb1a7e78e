"""What a fingerprint costs to send, and what it gives away."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.similarity_parts.plan import Numbers, Plan
from benchmarks.similarity_parts.synthetic import FEATURES, drawn
from fedskew import make_config, make_federation, run
from fedskew.papers.page import table
from fedskew.parts.similarity import feature_fingerprint, sample_fingerprint

PROBE = 50
WIDTHS = (64, 256, 512)
FLOAT = 4
"""Bytes of a number on its way."""


def measure(plan: Plan) -> Numbers:
    return {"bytes": _bytes(plan), "reveals": _reveals()}


def _bytes(plan: Plan) -> Numbers:
    """Bytes a client sends beyond the body in one round, by mode and features, as runs count."""
    settings: dict[str, Any] = {
        "federation": {"dataset": "digits", "clients": 4},
        "train": {"rounds": 1},
    }
    federation = make_federation(make_config(settings))
    methods: dict[str, dict[str, Any]] = {
        "body": {"name": "fedbabu"},
        "probe": {"name": "fedshibu", "mode": "probe", "samples": PROBE},
        "feature": {"name": "fedshibu", "mode": "feature"},
    }
    found: Numbers = {}
    for width in WIDTHS:
        sent = {}
        for name, method in methods.items():
            config = {
                **settings,
                "model": {"name": "mlp", "hidden": [width]},
                "method": {**method, "fine_tune_epochs": 0},
            }
            done = run(config, out=plan.runs, federation=federation, draw=False)
            sent[name] = done.result["bytes"]["up"] // len(federation.clients)
        found[str(width)] = {
            "body": sent["body"],
            **{name: sent[name] - sent["body"] for name in ("probe", "feature")},
        }
    return found


def unflattened(vector: Tensor) -> Tensor:
    """The symmetric matrix whose upper half was sent."""
    n = int(np.sqrt(2 * len(vector)))
    rows, columns = torch.triu_indices(n, n)
    matrix = torch.zeros(n, n, dtype=torch.float64)
    matrix[rows, columns] = vector.double() / torch.where(rows == columns, 1.0, 2.0**0.5)
    whole: Tensor = matrix + matrix.triu(1).T
    return whole


def rebuilt(vector: Tensor) -> Tensor:
    """Points with exactly the Gram matrix that was sent: K = UΛUᵀ, so X = UΛ^½."""
    values, vectors = torch.linalg.eigh(unflattened(vector))
    points: Tensor = vectors * values.clamp(min=0).sqrt()
    return points


def distance_up_to_rotation(one: Tensor, two: Tensor) -> float:
    """Relative distance of two sets of points, both of unit length, after the best rotation."""
    one, two = one / one.norm(), two / two.norm()
    width = max(one.shape[1], two.shape[1])
    one, two = (torch.nn.functional.pad(x, (0, width - x.shape[1])) for x in (one, two))
    left, _, right = torch.linalg.svd(one.T @ two)
    return float((one @ left @ right - two).norm())


def _reveals() -> Numbers:
    rng = np.random.default_rng(0)
    features = drawn(rng, PROBE).features(rng.normal(size=(2, FEATURES)), "random")
    deviations = features - features.mean(dim=0)
    sent = sample_fingerprint(features, "linear", False).to(torch.float32)
    points = rebuilt(sent)
    gram = unflattened(sent)
    # An orthogonal mixing of the samples that keeps their mean: other samples, same covariance.
    steps = torch.eye(PROBE, dtype=torch.float64)[:, 1:]
    centre = torch.ones(PROBE, 1, dtype=torch.float64)
    basis, _ = torch.linalg.qr(torch.cat([centre, steps], dim=1))
    inner, _ = torch.linalg.qr(torch.from_numpy(rng.normal(size=(PROBE - 1, PROBE - 1))))
    turn = basis[:, :1] @ basis[:, :1].T + basis[:, 1:] @ inner @ basis[:, 1:].T
    others = turn @ features
    prints = [feature_fingerprint(x, "linear", False) for x in (features, others)]
    return {
        "gram": float((points @ points.T - gram).norm() / gram.norm()),
        "points": distance_up_to_rotation(points, deviations),
        "covariance": float((prints[0] - prints[1]).norm()),
        "samples": float((features - others).norm() / features.norm()),
    }


def tell(numbers: Numbers) -> list[str]:
    rows = [
        (width, f"{found['body']:,}", f"{PROBE * int(width) * FLOAT:,}", f"{found['probe']:,}",
         f"{found['feature']:,}")
        for width, found in numbers["bytes"].items()
    ]  # fmt: skip
    heads = ("features d", "body of an `mlp` on digits", f"{PROBE} raw representations",
             f"fingerprint, `probe` with n = {PROBE}", "fingerprint, `feature`")  # fmt: skip
    larger = [
        width
        for width, found in numbers["bytes"].items()
        if found["feature"] > PROBE * int(width) * FLOAT
    ]
    wide = f" (here at d = {', '.join(larger)})" if larger else ""
    return [
        "Bytes a client sends in a round, counted by the runs themselves; the raw "
        "representations, which are never sent, are n·d numbers of four bytes.",
        table(heads, rows),
        "The upper half of an n × n matrix is n(n+1)/2 numbers whatever the body's width, so "
        f"`probe` is the smaller one wherever d > (n+1)/2. `feature` sends d(d+1)/2 numbers, "
        f"which is **larger** than {PROBE} raw representations from d = {2 * PROBE} on{wide}: it "
        "is sent for what it compares and for what it hides, not because it is short.",
        _about_reveals(numbers["reveals"]),
    ]


def _about_reveals(found: Numbers) -> str:
    return (
        "What it gives away: a linear centred Gram matrix determines the centred features up to "
        "rotation and scale. One eigendecomposition of what was sent gives points with the same "
        f"Gram matrix (relative error {found['gram']:.0e}) which, turned, are the client's "
        f"centred features themselves (relative error {found['points']:.0e}). So in `probe` mode "
        "the server learns how the body sees public inputs, which it could compute from the body "
        "it is sent anyway; in `own` mode it learns the geometry of private samples: which are "
        "alike, how many clusters there are and how large. In `feature` mode it learns the second "
        "moments of d features over all own samples and, from the fingerprint, nothing else: "
        f"samples that differ from a client's by {found['samples']:.0%} of their length have "
        f"the same fingerprint (distance {found['covariance']:.0e}). Second moments of very few "
        "samples are still those samples: of two, their difference. None of this is "
        "differential privacy."
    )
