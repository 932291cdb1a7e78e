"""The model that a client keeps, ready to use: one of two runs, or a mean of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.deploy.model import (
    ABOUT,
    EXPORTED,
    Deployed,
    finished_run,
    has_global,
    of_run,
    owners_of,
    with_usual,
)
from fedskew.deploy.preparation import preparation_of
from fedskew.deploy.threshold import Threshold
from fedskew.diagnosis.candidates import answered as answers_of_runs
from fedskew.errors import RunError
from fedskew.federate.adapting import adapted_folder
from fedskew.federate.confidence import answered, choose_threshold
from fedskew.problem import Problem
from fedskew.runs.experiment import Run
from fedskew.runs.kept import ALONE, FEDERATED, JOINED, Kept

NEAR = 1e-12
"""Probabilities end this far from 0 and 1, where their logarithms do."""


class MeanOfAnswers(nn.Module):
    """Models in one, which answers with the mean of what they say; its outputs say that mean."""

    def __init__(self, members: Sequence[nn.Module], problem: Problem) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.problem = problem

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([member(x).double() for member in self.members])
        if self.problem.classifies:
            return outputs.softmax(dim=2).mean(dim=0).clamp(min=NEAR).log()
        if self.problem.kind == "multi-label":
            return outputs.sigmoid().mean(dim=0).clamp(NEAR, 1 - NEAR).logit()
        return outputs.mean(dim=0)


def open_kept(
    source: str | Path | Run | Deployed,
    client: str,
    accuracy: float,
    data_dir: Path | None = None,
    allow_code: bool = False,
) -> Deployed | None:
    """What a client keeps of a run; None where nothing was decided for it."""
    if isinstance(source, Deployed):
        return None
    if not isinstance(source, Run) and any((Path(source) / n).is_file() for n in (ABOUT, EXPORTED)):
        return None
    run = finished_run(source, allow_code=allow_code)
    kept = run.results.kept
    mine = None if kept is None else kept.of(client)
    if kept is None or mine is None:
        return None
    beside = _beside(run, kept, allow_code)
    preparation = preparation_of(run, data_dir).of_client(client)
    members = [_member(run, beside, client, name) for name in mine.kept.split(JOINED)]
    made = of_run(run, members[0], preparation, client)
    problem = preparation.problem
    module = members[0] if len(members) == 1 else MeanOfAnswers(members, problem)
    threshold = _threshold(run, beside, kept, accuracy) if problem.classifies else None
    made = replace(made, module=module.eval(), about={**made.about, "kept": mine.kept})
    return replace(with_usual(made, run, data_dir), threshold=threshold)


def _beside(run: Run, kept: Kept, allow_code: bool) -> Run:
    """The run of clients alone, if it is still where it was."""
    path = run.path / kept.beside
    try:
        beside = finished_run(path, allow_code=allow_code)
    except RunError as error:
        raise RunError(
            f"{run.path}: clients keep models of {path}, which cannot be read ({error}) Bring that "
            "folder back, or decide anew with 'fedskew keep --beside'."
        ) from error
    if beside.results.settings.get("identity", "") != kept.beside_identity:
        raise RunError(
            f"{path} holds another run than when clients of {run.path} chose: repeat 'fedskew "
            "keep'."
        )
    return beside


def _member(run: Run, beside: Run, client: str, name: str) -> nn.Module:
    """One model of the two runs, by what candidates are called."""
    if name == ALONE:
        return beside.model(client)
    if name == FEDERATED:
        return run.model(client if client in owners_of(run) or not has_global(run) else None)
    folder = adapted_folder(name)
    if not (run.path / "models" / folder).is_dir():
        raise RunError(
            f"{client} keeps a model that is {name}, which {run.path} has not saved: repeat the "
            "run with evaluate.keep = 'best', on this machine's cores."
        )
    return run.model(client, folder)


def _threshold(run: Run, beside: Run, kept: Kept, accuracy: float) -> Threshold:
    """From which probability on kept models are right so often, on the samples that decided."""
    sure, right = [], []
    for each in answers_of_runs(run.path, beside.path, kept.chosen_by):
        mine = kept.of(each.client)
        if mine is not None and len(each.label):
            said = each.said[mine.kept]
            sure.append(said.max(axis=1))
            right.append(said.argmax(axis=1) == each.label)
    confidence, correct = np.concatenate(sure), np.concatenate(right)
    value = choose_threshold(confidence, correct, accuracy)
    reached = answered(confidence, correct, value)
    return Threshold(value, accuracy, reached.accuracy, reached.coverage, len(correct), "none")
