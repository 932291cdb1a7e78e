"""Each client keeps what serves it best: decided of two finished runs, the second of it alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.comparisons.comparison import Compared, references_of, role
from fedskew.config import Config
from fedskew.data.federation import KEEPING
from fedskew.diagnosis.candidates import Judged, Scores, candidates, score_of
from fedskew.diagnosis.keep_rule import Choice, Evidence, choose
from fedskew.errors import FedskewError, RunError
from fedskew.problem import Problem
from fedskew.runs.experiment import Run, Tell, load_run
from fedskew.runs.identity import resolve
from fedskew.runs.kept import ALONE, FEDERATED, Kept, KeptClient, write_kept
from fedskew.runs.preparation import load_preparation
from fedskew.runs.results import CONFIG

VALIDATION, TEST = "validation", "test"
CLEARLY = 2.0
"""Standard errors by which a client must be worse to be clearly so."""
FREE = ("method", "executor", "device")
FREE_IN_EVALUATE = (
    "fine_tune_epochs", "fine_tune_part", "fine_tune_lr", "fine_tune_batch", "fine_tune_at",
    "fine_tune_patience", "shots", "generated", "matrix_rounds",
)  # fmt: skip
"""Settings in which the run of clients alone may differ."""
SAID = (
    "evaluate.keep: now clients train alone, on the same rows for as many rounds; then each keeps "
    "what serves it best"
)
METRICS = {"regression": "rmse", "multi-label": "label_accuracy"}


def keep(
    run: str | Path | Run, *, beside: str | Path | Run | None = None, allow_code: bool = False
) -> Kept:
    """What every client of a run keeps; written into the run's folder as ``kept.json``.

    ``beside`` is the run in which the same clients trained alone; without it, it is searched for
    among the folders beside the run. Nothing is trained. Clients choose by samples that chose no
    round if both runs were made with ``evaluate.keep = "best"``, else by their validation samples.
    """
    run = _opened(run, allow_code)
    if role(run.config.method) == ALONE:
        raise RunError(f"in {run.path} clients trained alone: give the run of a method.")
    other = _found_beside(run) if beside is None else _opened(beside, allow_code)
    if why := _unlike(run, other):
        raise RunError(f"{other.path} {why}")
    split = VALIDATION if run.config.evaluate.keep is None else KEEPING
    problem = load_preparation(run.path).problem
    judged = candidates(run.path, other.path, problem, split)
    if len(judged) < 2:
        raise RunError(f"{run.path} has one client only, which has nobody to learn from or with.")
    if not any(len(each.keeping[ALONE]) for each in judged):
        raise RunError(
            f"no client of {run.path} has validation samples to choose by: run both again with "
            "federation.validation = 0.2."
        )
    kept = Kept(
        beside=os.path.relpath(other.path, run.path),
        beside_identity=str(other.results.settings.get("identity", "")),
        chosen_by=split,
        metric=METRICS.get(problem.kind, "accuracy"),
        rising=problem.kind != "regression",
        candidates=_names(judged),
        clients=[*_clients(judged, problem)],
    )
    write_kept(run.path, kept)
    return kept


def alone_config(config: Config) -> Config | None:
    """The run of clients alone that a run with ``evaluate.keep`` needs beside it."""
    if config.evaluate.keep is None or role(config.method) == ALONE:
        return None
    return resolve(config.model_copy(update={"method": references_of(config.method)[ALONE]}))


def keep_after(
    run: Run, config: Config, train: Callable[[Config], Run], tell: Tell | None = None
) -> None:
    """Where the config of a finished run asks for it, train alone beside it, and keep the best."""
    if (alone := alone_config(config)) is not None:
        if tell is not None:
            tell(SAID)
        keep(run, beside=train(alone))


def keep_compared(compared: Compared, tell: Tell | None = None) -> None:
    """Where it is asked for, the same for every method of a comparison that has clients alone."""
    if all(run.config.evaluate.keep is None for runs in compared.runs.values() for run in runs):
        return
    alone = next((name for name, role in compared.roles.items() if role == ALONE), None)
    if alone is None:
        if tell is not None:
            tell("evaluate.keep: nothing was kept, for clients alone are not among the methods")
        return
    for name, runs in compared.runs.items():
        for run, beside in zip(runs, compared.runs[alone], strict=True):
            if compared.roles[name] is None:
                keep(run, beside=beside)


def _opened(run: str | Path | Run, allow_code: bool) -> Run:
    found = run if isinstance(run, Run) else load_run(run, allow_code=allow_code)
    if not found.results.is_finished:
        raise RunError(f"{found.path} is not finished: repeat the command that began it.")
    return found


def _found_beside(run: Run) -> Run:
    """The run of the same clients alone in a folder beside this one."""
    for path in sorted(run.path.resolve().parent.glob(f"*/{CONFIG}")):
        try:
            other = Run(path.parent)
            if other.results.is_finished and _unlike(run, other) is None:
                return other
        except FedskewError:
            continue  # a damaged folder, or one of code that is gone, is none of ours
    raise RunError(
        f"no finished run of the same clients alone is beside {run.path}: name its folder with "
        "--beside, or set evaluate.keep = 'best' and repeat the run, which then makes both."
    )


def _unlike(run: Run, other: Run) -> str | None:
    """Why the second is not the first with its clients alone, if it is not."""
    if role(other.config.method) != ALONE:
        return (
            f"is a run of method {other.config.method.name!r}, in which clients do not train alone."
        )
    mine, its = run.results.settings, other.results.settings
    if mine.get("data") != its.get("data"):
        return (
            f"was made with other data than {run.path}, or another split: repeat it with the same "
            "[federation] and seed."
        )
    ours, theirs = mine.get("code", {}), its.get("code", {})
    if any(ours[name] != theirs[name] for name in ours.keys() & theirs.keys()):
        return f"was made with other code of your own than {run.path}: repeat it."
    here, there = (dict(_settings(found["config"])) for found in (mine, its))
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            return (
                f"has {name} = {there.get(name)!r}, but {run.path} has {here.get(name)!r}: repeat "
                "it with the same settings."
            )
    return None


def _settings(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings that two runs must have in common, by name; data are known by their hash."""
    for section, values in config.items():
        if not isinstance(values, dict):
            values = {"": values}
        for name, value in values.items():
            free = section == "evaluate" and name in FREE_IN_EVALUATE
            if not free and section not in (*FREE, "federation"):
                yield f"{section}.{name}".rstrip("."), value


def _names(judged: Sequence[Judged]) -> list[str]:
    """All candidates but the model alone, in the order in which they were made."""
    names = {name: None for each in judged for name in each.keeping if name != ALONE}
    return sorted(names, key=lambda name: (name.startswith(ALONE), list(names).index(name)))


def decided(judged: Sequence[Judged]) -> list[Choice]:
    """What every client keeps."""
    told = {}
    for name in _names(judged):
        differences = [
            each.keeping[name] - each.keeping[ALONE] if name in each.keeping else np.empty(0)
            for each in judged
        ]
        told[name] = Evidence.of(differences)
    return choose(told)


def _clients(judged: Sequence[Judged], problem: Problem) -> Iterator[KeptClient]:
    for each, choice in zip(judged, decided(judged), strict=True):
        name = choice.kept or ALONE
        known = {
            "client": each.client, "kept": name, "rows": len(each.keeping[ALONE]),
            "gain": choice.gain, "worse": choice.worse,
        }  # fmt: skip
        test = each.test
        if not len(test[ALONE]):
            yield KeptClient(**known)
            continue
        scores = {n: score_of(found, problem) for n, found in test.items()}
        pick = max if problem.kind != "regression" else min
        yield KeptClient(
            **known,
            test_rows=len(test[ALONE]),
            alone=scores[ALONE],
            federated=scores.get(FEDERATED),
            score=scores.get(name),
            best=pick(scores.values()),
            clearly_before=_clearly_worse(test, FEDERATED),
            clearly_after=_clearly_worse(test, name),
        )


def _clearly_worse(test: Scores, name: str) -> bool:
    """Whether a candidate is worse than alone on test samples by more than their noise."""
    if name not in test or name == ALONE:
        return False
    difference = test[name] - test[ALONE]
    told = Evidence.of([difference])
    return bool(told.difference[0] < -CLEARLY * np.sqrt(told.variance[0]))
