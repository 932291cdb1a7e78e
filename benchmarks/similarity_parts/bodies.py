"""Bodies trained on Fashion-MNIST by clients in known groups, compared in every way at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.similarity_parts.plan import Numbers, Plan, listed, plus_minus
from fedskew import make_config, make_federation, run
from fedskew.data.federation import Federation
from fedskew.federate.recipe import Recipe
from fedskew.methods.similarity import fedbabu
from fedskew.papers.page import table
from fedskew.parts.aggregate import Matrix, Mean, ServerState, Uniform, Update
from fedskew.parts.report import Finished, Report, Reported
from fedskew.parts.similarity import (
    Fingerprint,
    Kernel,
    feature_fingerprint,
    sample_fingerprint,
    similarities,
)
from fedskew.views.similarity import SimilarityMatrix, similarity_series

SHOWN = 50
LOOKS = {
    "probe, noise": Fingerprint("probe", samples=SHOWN, probe="noise"),
    "probe, public": Fingerprint("probe", samples=SHOWN, probe="public"),
    "feature": Fingerprint("feature"),
    "own": Fingerprint("own", samples=SHOWN),
}
VARIANTS: tuple[tuple[Kernel, bool], ...] = (
    ("linear", False), ("linear", True), ("rbf", False), ("rbf", True),
)  # fmt: skip
NAMES = [f"{look} {kernel} {debiased}" for look in LOOKS for kernel, debiased in VARIANTS]
GROUPS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
CLIENTS, SAMPLES, ROUNDS, CHANNELS = 20, 1000, 5, 16


@dataclass(frozen=True)
class EveryFingerprint(Report):
    """All fingerprints of one body: every mode, kernel and estimate sees the same samples of it."""

    def check(self, federation: Federation) -> None:
        for look in LOOKS.values():
            look.check(federation)

    def report(self, finished: Finished) -> Reported:
        sends = {}
        for name, look in LOOKS.items():
            features = look.features(finished)
            make = feature_fingerprint if look.mode == "feature" else sample_fingerprint
            for kernel, debiased in VARIANTS:
                vector = make(features, kernel, debiased).to(torch.float32)
                sends[f"{name} {kernel} {debiased}"] = {"v": vector}
        return Reported(sends=sends)


@dataclass(frozen=True)
class MeanWithMatrices(Mean):
    """FedBABU's plain mean; the similarities are recorded and decide nothing."""

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        moved = super().aggregate(state, updates, clients)
        present = tuple(update.client for update in updates)
        matrices = {}
        for name in NAMES:
            prints = torch.stack([update.reports[name]["v"] for update in updates])
            matrices[name] = Matrix(present, partial(similarities, prints, prints))
        return replace(moved, matrices=matrices)


def fedbabu_compared() -> Recipe:
    """FedBABU whose clients send every fingerprint there is."""
    return replace(
        fedbabu(fine_tune_epochs=0),
        reports=(EveryFingerprint(),),
        aggregates=MeanWithMatrices(Uniform()),
    )


def measure(plan: Plan) -> Numbers:
    """By way to compare: mean similarity inside and between groups and the AUC, one a seed."""
    found: Numbers = {name: {"inside": [], "between": [], "auc": []} for name in NAMES}
    train = []
    for seed in range(plan.seeds):
        rounds = 1 if plan.quick else ROUNDS
        config = make_config(
            {
                "seed": seed,
                "federation": {
                    "dataset": "fashion-mnist", "clients": CLIENTS, "samples": SAMPLES,
                    "public": SHOWN, "test_samples": 500,
                    "partition": {"name": "label-groups", "groups": GROUPS},
                },
                "model": {"name": "cnn-babu", "channels": CHANNELS},
                "method": {"name": f"{__name__}:{fedbabu_compared.__name__}"},
                "train": {"rounds": rounds},
                "evaluate": {"every": rounds, "matrix_rounds": [rounds]},
            }
        )  # fmt: skip
        federation = make_federation(config)
        classes = {c.name: frozenset(federation.y[c.train].tolist()) for c in federation.clients}
        train.append(fmean(len(client.train) for client in federation.clients))
        done = run(config, out=plan.runs, federation=federation, draw=False)
        for name in NAMES:
            matrix = similarity_series(done.path, name)[-1]
            for what, value in told_apart(matrix, classes).items():
                found[name][what].append(value)
    return {"found": found, "train": fmean(train)}


def told_apart(matrix: SimilarityMatrix, classes: dict[str, frozenset[int]]) -> dict[str, float]:
    """How well similarity says which pairs of clients hold the same classes."""
    rows, columns = np.triu_indices(len(matrix.clients), 1)
    held = [classes[client] for client in matrix.clients]
    same = np.array([held[i] == held[j] for i, j in zip(rows, columns, strict=True)])
    values = matrix.values[rows, columns]
    return {
        "inside": float(values[same].mean()),
        "between": float(values[~same].mean()),
        "auc": float(roc_auc_score(same, values)),
    }


def tell(numbers: Numbers) -> list[str]:
    found = numbers["found"]
    seeds = len(found[NAMES[0]]["auc"])
    rows = []
    for look in LOOKS:
        for kernel, debiased in VARIANTS:
            values = found[f"{look} {kernel} {debiased}"]
            rows.append(
                (look, kernel, "debiased" if debiased else "biased",
                 *(plus_minus(values[what]) for what in ("inside", "between", "auc")))
            )  # fmt: skip
    heads = ("mode", "kernel", "", "inside a group", "between groups", "AUC")
    about = (
        f"Fashion-MNIST, {CLIENTS} clients in {len(GROUPS)} groups of {CLIENTS // len(GROUPS)}; a "
        f"group shares two classes ({_written()}), a client has {numbers['train']:.0f} training "
        f"samples. FedBABU trains `cnn-babu` with {CHANNELS} channels for {ROUNDS} rounds; the "
        "bodies are compared as the clients trained them, before the server averages. All rows of "
        f"the table are of the same bodies. A probe or own sample has {SHOWN} inputs. Similarities "
        "as the server uses them, clipped to 0–1; mean ± standard deviation over "
        f"{seeds} seeds. AUC: the chance that a pair inside a group looks more alike than a pair "
        "across groups; 0.5 is guessing."
    )
    return ["### Real bodies", about, table(heads, rows), _verdict(found)]


def _written() -> str:
    return ", ".join("+".join(map(str, group)) for group in GROUPS)


def _verdict(found: Numbers) -> str:
    sentences = []
    for look in LOOKS:
        aucs = [fmean(found[f"{look} {k} {debiased}"]["auc"]) for k, debiased in VARIANTS]
        low, high = min(aucs), max(aucs)
        span = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
        sentences.append(f"`{look}`: {span}, {_word(low, high)}.")
    useful = [look for look in LOOKS if _word(*_span(found, look)) != GUESSING]
    mean_gap = {
        look: fmean(found[f"{look} linear False"]["inside"])
        - fmean(found[f"{look} linear False"]["between"])
        for look in LOOKS
    }
    widest = max(mean_gap, key=lambda look: mean_gap[look])
    gap = f"{mean_gap[widest]:.2f}"
    end = (
        f"Linear and biased, `{widest}` keeps the groups furthest apart ({gap} between inside and "
        "across)."
    )
    seen = f"Who shares classes shows in {listed([f'`{look}`' for look in useful])}. "
    return "Mean AUC over kernels and estimates. " + " ".join(sentences) + " " + (
        seen if useful else ""
    ) + end  # fmt: skip


GUESSING = "no better than guessing"


def _span(found: Numbers, look: str) -> tuple[float, float]:
    aucs = [fmean(found[f"{look} {kernel} {debiased}"]["auc"]) for kernel, debiased in VARIANTS]
    return min(aucs), max(aucs)


def _word(low: float, high: float) -> str:
    if low >= 0.9:
        return "the groups are seen"
    if low >= 0.65:
        return "the groups are partly seen"
    if low > 0.35 and high < 0.65:
        return GUESSING
    return "it depends on kernel and estimate"
