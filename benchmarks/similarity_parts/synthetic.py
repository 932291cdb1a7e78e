"""Features drawn from known class means: what each way to compare clients makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.similarity_parts.plan import Numbers, Plan, plus_minus
from fedskew.papers.page import table
from fedskew.parts.similarity import Kernel, feature_fingerprint, sample_fingerprint

Order = Literal["random", "sorted"]
Make = Callable[[Tensor, Kernel, bool], Tensor]

FEATURES, SAMPLES, NOISE = 64, 100, 0.7
COMPARED: dict[str, tuple[Make, Order]] = {
    "own samples, rows random": (sample_fingerprint, "random"),
    "own samples, rows sorted by label": (sample_fingerprint, "sorted"),
    "features": (feature_fingerprint, "random"),
}
KERNELS: tuple[Kernel, ...] = ("linear", "rbf")
SHAPES = ((50, 256), (50, 512), (200, 256), (1000, 256))


@dataclass(frozen=True)
class Drawn:
    """A client before it is said which two classes it holds: who is in which, and the noise."""

    second: NDArray[np.bool_]
    noise: NDArray[np.float64]

    def features(self, means: NDArray[np.float64], order: Order) -> Tensor:
        """Class mean plus noise, a row a sample."""
        second = np.sort(self.second) if order == "sorted" else self.second
        return torch.from_numpy(means[second.astype(int)] + self.noise)


def drawn(rng: np.random.Generator, samples: int = SAMPLES) -> Drawn:
    noise = NOISE * rng.normal(size=(samples, FEATURES))
    return Drawn(rng.random(samples) < 0.5, noise)


def product(make: Make, one: Tensor, two: Tensor, kernel: Kernel, debiased: bool) -> float:
    """What the server computes from two fingerprints, before it clips."""
    return float(make(one, kernel, debiased) @ make(two, kernel, debiased))


def measure(plan: Plan) -> Numbers:
    rng = np.random.default_rng(0)
    # Same and different classes on the same draws: nothing but the classes differs.
    draws = [(rng.normal(size=(4, FEATURES)), drawn(rng), drawn(rng)) for _ in range(plan.draws)]
    classes: Numbers = {}
    for name, (make, order) in COMPARED.items():
        for kernel in KERNELS:
            for debiased in (False, True):
                found: dict[str, list[float]] = {"same": [], "different": []}
                for means, one, two in draws:
                    mine = one.features(means[:2], order)
                    for pair, held in (("same", means[:2]), ("different", means[2:])):
                        theirs = two.features(held, order)
                        found[pair].append(product(make, mine, theirs, kernel, debiased))
                classes[f"{name}/{kernel}/{debiased}"] = found
    gaussians: Numbers = {}
    for n, d in SHAPES[:2] if plan.quick else SHAPES:
        pairs = [
            tuple(torch.from_numpy(rng.normal(size=(n, d))) for _ in range(2))
            for _ in range(plan.draws)
        ]
        for kernel in KERNELS:
            for debiased in (False, True):
                gaussians[f"{n}/{d}/{kernel}/{debiased}"] = [
                    product(sample_fingerprint, one, two, kernel, debiased) for one, two in pairs
                ]
    return {"classes": classes, "gaussians": gaussians}


def tell(numbers: Numbers) -> list[str]:
    classes, gaussians = numbers["classes"], numbers["gaussians"]
    draws = len(next(iter(gaussians.values())))
    rows = []
    for key, found in classes.items():
        name, kernel, debiased = key.split("/")
        gaps = [a - b for a, b in zip(found["same"], found["different"], strict=True)]
        rows.append(
            (name, kernel, _kind(debiased), plus_minus(found["same"]),
             plus_minus(found["different"]), plus_minus(gaps))
        )  # fmt: skip
    heads = ("what is compared", "kernel", "", "same classes", "different classes", "difference")
    about = (
        f"Two classes a client, {FEATURES} features, each class mean drawn from a unit normal and "
        f"noise of {NOISE:g} times its size around it, {SAMPLES} samples a client, each of "
        "either class. Two clients hold the same two classes or have none in common, all else "
        f"being equal. Mean ± standard deviation over {draws} draws, before the server "
        "clips to 0–1."
    )
    return [
        "### Made-up features", about, table(heads, rows), _verdict(classes),
        "### Independent Gaussians", *_tell_gaussians(gaussians, draws),
    ]  # fmt: skip


def _kind(debiased: str) -> str:
    return "debiased" if debiased == "True" else "biased"


def _verdict(classes: Numbers) -> str:
    def gap(found: dict[str, list[float]]) -> float:
        return fmean(found["same"]) - fmean(found["different"])

    own = [gap(found) for key, found in classes.items() if key.startswith("own")]
    level = [fmean(f["different"]) for key, f in classes.items() if "sorted" in key]
    feature = [gap(found) for key, found in classes.items() if key.startswith("features")]
    return (
        "CKA multiplies two matrices entry by entry, so row i of both has to mean the same thing. "
        "With own samples it does not. Same or different classes then move the number by "
        f"{min(own):+.3f} to {max(own):+.3f}, whatever the kernel; sorting the rows by label only "
        f"lifts both (to {min(level):.2f}–{max(level):.2f} for clients with nothing in common), "
        "because two blocks then line up with two blocks whatever is in them. Compared feature by "
        f"feature the same clients differ by {min(feature):.2f} to {max(feature):.2f}."
    )


def _tell_gaussians(gaussians: Numbers, draws: int) -> list[str]:
    shapes = list(dict.fromkeys(tuple(key.split("/")[:2]) for key in gaussians))
    rows = [
        (n, d, *(plus_minus(gaussians[f"{n}/{d}/{kernel}/{debiased}"])
                 for kernel in KERNELS for debiased in (False, True)))
        for n, d in shapes
    ]  # fmt: skip
    heads = ("samples n", "features D", "linear, biased", "linear, debiased", "RBF, biased",
             "RBF, debiased")  # fmt: skip
    biased = [fmean(values) for key, values in gaussians.items() if key.endswith("False")]
    debiased = [fmean(values) for key, values in gaussians.items() if key.endswith("True")]
    return [
        "Two clients whose features have nothing to do with each other, on a shared probe of n "
        f"samples; {draws} draws.",
        table(heads, rows),
        f"Biased, nothing in common reads {min(biased):.2f} to {max(biased):.2f}, the more the "
        "more features there are for each sample: similarities near 1 make FedSHIBU average like "
        "FedBABU, similarities near 0 leave every client alone, and neither says anything about "
        f"the clients. Debiased it reads {min(debiased):+.3f} to {max(debiased):+.3f}; the server "
        "then counts what is below zero as none.",
    ]
