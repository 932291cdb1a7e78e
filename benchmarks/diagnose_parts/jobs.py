"""What is measured: one job is one federation, and what the diagnosis says of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.diagnose_parts.trained import split, worth
from benchmarks.diagnose_parts.worlds import DESIGN, HELD_OUT, SHIFTS, diabetes, pool, world
from fedskew.diagnosis.carry_out import diagnose
from fedskew.diagnosis.report import Diagnosis

EVERY = (*DESIGN, *HELD_OUT)
LARGE = ("mnist", "har", "fashion-mnist", "femnist", "cifar10", "gtsrb")
ALPHAS = (0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
EPSILONS = (1.0, 3.0, 10.0)


class Job(NamedTuple):
    """``part`` is the section it belongs to; ``size`` rows a client."""

    part: str
    data: str
    kind: str
    clients: int
    size: int
    seed: int
    alpha: float = 0.5
    epsilon: float = 0.0


def jobs() -> Iterator[Job]:
    for seed in range(8):
        for data in EVERY:
            yield Job("iid", data, "iid", 20, 30, seed)
            yield Job("iid", data, "iid", 20 if data != "digits" else 9, 150, seed)
    for seed in range(10):
        for data in LARGE:
            yield Job("iid", data, "iid", 5, 1000, seed)
    for data in EVERY:
        clients = 20 if data != "digits" else 9
        for seed in range(4):
            for kind in SHIFTS:
                yield Job("shift", data, kind, clients, 150, 100 + seed)
        for seed in range(2):
            for kind in ("iid", *SHIFTS):
                yield Job("few", data, kind, 20, 20, 100 + seed)
        yield Job("selection", data, "selection", clients, 150, 100)
        for seed in range(3):
            for kind in ("one-rotated", "one-permuted", "one-noisy"):
                yield Job("outlier", data, kind, clients, 150, 200 + seed)
            yield Job("four", data, "four", clients, 150, 200 + seed)
        for seed in range(2):
            for alpha in ALPHAS:
                yield Job("label", data, "dirichlet", clients, 150, 300 + seed, alpha)
    for data in ("har", "femnist", "xray"):
        yield Job("owners", data, "owners", 20, 150, 400)
    for data in ("mnist", "digits", "har", "fashion-mnist", "gtsrb", "xray"):
        for kind, alpha in (("iid", 0.5), ("dirichlet", 0.1), ("dirichlet", 0.5),
                            ("rotation", 0.5), ("permuted", 0.5), ("owners", 0.5)):  # fmt: skip
            yield Job("gain", data, kind, 10, 150, 500, alpha)
    for data in ("mnist",):
        for size, clients in ((150, 20), (1000, 10)):
            for epsilon in EPSILONS:
                for kind in ("iid", "dirichlet", "rotation", "permuted"):
                    yield Job("epsilon", data, kind, clients, size, 600, 0.3, epsilon)
    yield Job("speed", "mnist", "iid", 1000, 60, 700)
    for seed in range(4):
        yield Job("numbers", "diabetes", "iid", 6, 73, 800 + seed)
        yield Job("numbers", "diabetes", "sorted", 6, 73, 800 + seed)


def measured(job: Job, folder: Path) -> dict[str, Any] | None:
    """What came out; nothing where the dataset cannot be dealt so."""
    if job.part == "numbers":
        federation = diabetes(job.clients, job.seed, job.kind == "sorted")
    else:
        made = world(pool(job.data, folder), job.kind, job.clients, job.size, job.seed, job.alpha)
        if made is None:
            return None
        federation = made
    truth = {}
    if job.part == "gain":
        federation = split(federation)
        truth = {"trained": [worth(federation, name) for name in ("logistic", "mlp")]}
    start, busy = time.perf_counter(), time.process_time()
    found = diagnose(federation, epsilon=job.epsilon or None, seed=job.seed)
    seconds, worked = time.perf_counter() - start, time.process_time() - busy
    told: dict[str, Any] = {
        "verdicts": {each.kind: each.verdict for each in found.findings},
        "scores": {each.kind: each.score.value for each in found.findings},
        "standouts": [[each.client, each.by, each.far] for each in found.standouts],
        "groups": found.groups,
        "gain": None if found.gain is None else vars(found.gain.pooled),
        "seconds": seconds,
        "busy": worked,
        "bytes": found.sent / len(found.clients),
    }
    if job.part == "outlier":
        told["auc"] = _auc(found)
    return told | truth


def _auc(found: Diagnosis) -> float:
    """The share of the others that the last client lies further out than."""
    unlike = np.array([found["feature"].unlike, found["concept"].unlike])
    apart = unlike.sum(axis=0)
    return float((apart[:-1] < apart[-1]).mean())
