"""From the folder of a finished run to its outcome."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.comparisons.selection import Curve, Members, curves_of, left_out_curve
from fedskew.comparisons.statistics import mean
from fedskew.federate.confidence import aurc, risk_coverage
from fedskew.federate.metrics import CENTRAL, MAIN, summarise
from fedskew.papers.outcome import BOTH, Exchanged, OfClients, Outcome, Scores, Series, Together
from fedskew.papers.scores import CENTRAL_METRICS
from fedskew.runs.experiment import Run
from fedskew.runs.rows import Rows
from fedskew.store import read_arrays, read_json

MADE_WITH = "made-with.json"
"""In a run's folder: the code of the suite's call that finished it."""
DIVERGENCE = "divergence "
"""Metrics of how far an entry of the clients' models is apart begin so; its name follows."""
COVERAGES: NDArray[np.float64] = np.linspace(0.02, 1.0, 50)
"""The shares of samples answered that figures have a risk of."""
KEPT = (
    "method", "seed", "primary_model", "primary_metric", "higher_is_better", "rounds",
    "selected_round", "bytes", "privacy", "failures", "seconds", "stages", "made_on",
)  # fmt: skip
"""What pages read of a summary beside its scores."""
PER_CLIENT = ("legacy",)
"""Metrics other than the main one that pages show client by client."""


def outcome_of(run: Run, *, is_fold: bool = False) -> Outcome:
    """What a page needs of a finished run; a fold's last unseen client is the one left out."""
    result, metric = run.result, run.result["primary_metric"]
    rows = run.results.rows.where(stage=MAIN)
    members = Members.found_in(run.results.rows)
    looked_at = curves_of(run)
    risk, risks = _confidence(run)
    return Outcome(
        code=_code(run),
        summary={key: result[key] for key in KEPT if key in result},
        scores=_scores(result["scores"]),
        curves=list(_curves(run.results.as_trained.where(metric=metric), result)),
        validation=_plain(looked_at.validation),
        ood=_plain(looked_at.ood),
        environment=_plain(looked_at.environment),
        in_domain=dict(looked_at.in_domain),
        left_out=_plain(left_out_curve(run)) if is_fold else {},
        seen=list(members.seen),
        unseen=list(members.unseen),
        silent=list(members.silent),
        clients=list(_clients(rows, result, members)),
        weights=_weights(rows, result),
        together=list(_together(rows, result)),
        divergences=_divergences(rows.where(split="server")),
        exchanged=list(_exchanged(run)),
        parameters=_parameters(run),
        aurc=risk,
        risks=risks,
    )  # fmt: skip


def _scores(entries: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The rows of a summary; those that are the same at both rounds once."""
    heads = ("model", "on", "adapted", "split", "metric", "mean", "worst", "clients")
    told: dict[str, list[str]] = {}
    rows: dict[str, tuple[Any, ...]] = {}
    for entry in entries:
        row = tuple(entry[head] for head in heads)
        # As text, since a score nobody has is not equal to itself.
        rows[repr(row)] = row
        told.setdefault(repr(row), []).append(entry["at"])
    return [(BOTH if len(at) > 1 else at[0], *rows[row]) for row, at in told.items()]


def _curves(rows: Rows, result: dict[str, Any]) -> Iterator[Series]:
    higher = bool(result["higher_is_better"])
    for model in rows.names("model"):
        for on in rows.names("on"):
            for split in rows.names("split"):
                found = rows.where(model=model, on=on, split=split).by_round()
                means = {n: (float(np.mean(v)), summarise(v, higher).worst)
                         for n, v in found.items()}  # fmt: skip
                if means:
                    yield Series(model=model, on=on, split=split, rounds=means)


def _plain(curve: Curve) -> Scores:
    return {number: (s.value, s.loss, s.clients) for number, s in curve.items()}


def _clients(rows: Rows, result: dict[str, Any], members: Members) -> Iterator[OfClients]:
    for on, names in (("seen", members.seen), ("unseen", members.unseen)):
        last = rows.where(
            round=result["rounds"], model=result["primary_model"], on=on, split="test",
            metric=(result["primary_metric"], *PER_CLIENT),
        )  # fmt: skip
        for metric in last.names("metric"):
            for adapted in last.names("adapted"):
                found = last.where(metric=metric, adapted=adapted).by_client()
                if found:
                    values = [found.get(name, math.nan) for name in names]
                    yield OfClients(on=on, adapted=adapted, metric=metric, values=values)


def _told(result: dict[str, Any]) -> list[int]:
    """The rounds the summary tells of."""
    return sorted({result["rounds"], result.get("selected_round", result["rounds"])})


def _weights(rows: Rows, result: dict[str, Any]) -> dict[int, list[float]]:
    kept = rows.where(split="server", metric="weight")
    found = {number: kept.where(round=number).value.tolist() for number in _told(result)}
    return {number: values for number, values in found.items() if values}


def _together(rows: Rows, result: dict[str, Any]) -> Iterator[Together]:
    own = rows.where(model="personal", on="central", adapted="none", split="test")
    for number in _told(result):
        for metric in (result["primary_metric"], *CENTRAL_METRICS.values()):
            by = own.where(round=number, metric=metric).by_client()
            if by:
                yield Together(
                    round=number, metric=metric, together=by.get(CENTRAL, math.nan),
                    mean=mean([value for client, value in by.items() if client != CENTRAL]),
                )  # fmt: skip


def _divergences(rows: Rows) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for metric in rows.names("metric"):
        if metric.startswith(DIVERGENCE):
            for number, values in rows.where(metric=metric).by_round().items():
                entry = metric.removeprefix(DIVERGENCE)
                found.setdefault(number, {})[entry] = sum(values) / len(values)
    return {number: found[number] for number in sorted(found)}


def _exchanged(run: Run) -> Iterator[Exchanged]:
    """The records of rounds, those that say the same taken together."""
    told = [
        (r.stage, r.round, (r.participants, len(r.failures), r.bytes_down, r.bytes_up))
        for r in run.results.records
    ]
    starts = [0, *(
        at for at, (before, now) in enumerate(pairwise(told), start=1)
        if (before[0], before[1] + 1, before[2]) != now
    )]  # fmt: skip
    for first, end in pairwise([*starts, len(told)] if told else []):
        stage, number, (participants, failures, down, up) = told[first]
        yield Exchanged(
            stage=stage, first=number, last=told[end - 1][1], participants=participants,
            failures=failures, down=down, up=up,
        )  # fmt: skip


def _code(run: Run) -> str:
    path = run.path / MADE_WITH
    return str(read_json(path)["code"]) if path.is_file() else "unknown code"


def _parameters(run: Run) -> float:
    if run.result.get("model") is None or run.result.get("sample_shape") is None:
        return math.nan
    return float(sum(p.numel() for p in run.untrained().parameters()))


def _confidence(run: Run) -> tuple[float, list[float]]:
    """How sure and how right the main models are about the unseen clients' test data.

    A coverage between two thresholds has the risk of the laxer one, which answers so many.
    """
    path = run.path / "predictions.npz"
    if not path.is_file():
        return math.nan, []
    saved = read_arrays(path)
    wanted = {"on": "unseen", "split": "test", "adapted": "none"}
    if "confidence" not in saved:
        return math.nan, []
    mine = np.all([saved[name] == value for name, value in wanted.items()], axis=0)
    if not mine.any():
        return math.nan, []
    sure, right = saved["confidence"][mine], saved["correct"][mine]
    coverage, risk = risk_coverage(sure, right)
    return aurc(sure, right), risk[np.searchsorted(coverage, COVERAGES - 1e-9)].tolist()
