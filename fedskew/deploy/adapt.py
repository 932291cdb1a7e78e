"""A new client's own model, from a finished run and the client's few labelled samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from fedskew.config import Config, config_of
from fedskew.data.federation import Client, Federation
from fedskew.data.scaling import in_scale
from fedskew.deploy.model import (
    Deployed,
    about_run,
    empty_model,
    finished_run,
    has_global,
    of_run,
    run_model,
    with_usual,
)
from fedskew.deploy.newcomer import begun, newcomers
from fedskew.deploy.prediction import Prediction
from fedskew.deploy.preparation import preparation_of
from fedskew.deploy.samples import Samples, prepared, read_samples
from fedskew.deploy.threshold import NOT_ADAPTED, Threshold, validation_threshold
from fedskew.errors import ConfigError, DataError, RunError
from fedskew.federate.confidence import ACCURACY, check_share
from fedskew.federate.holdings import Holdings
from fedskew.federate.metrics import MAIN
from fedskew.federate.recipe import Adapt
from fedskew.federate.scoring import score_samples
from fedskew.federate.tasks import ScoreTask
from fedskew.methods import find
from fedskew.parts.report import PERSONAL, SHARED
from fedskew.runs.experiment import Run
from fedskew.runs.folder import RunFolder
from fedskew.runs.preparation import SamplePreparation
from fedskew.types import Groups, Indices

NEWCOMER = "newcomer"
NEVER_SCORED = ""
EPOCHS = 10
"""Epochs of adaptation if neither the user nor the run nor its method gives a number."""


def adapt(
    run: str | Path | Run,
    x: ArrayLike | str | Path,
    y: ArrayLike | None = None,
    *,
    out: str | Path | None = None,
    client: str | None = None,
    shots: int | None = None,
    epochs: int | None = None,
    part: str | Sequence[str] | None = None,
    lr: float | None = None,
    patience: int | None = None,
    seed: int | None = None,
    accuracy: float = ACCURACY,
    label: str | None = None,
    data_dir: str | Path | None = None,
    allow_code: bool = False,
) -> Deployed:
    """A run's model, adapted to the samples of a client that took no part; saved in ``out``.

    It always starts from a model the run ended with: that of ``client``, or the one newcomers
    get, which is the global model if there is one. ``x`` is in the shape and scale of the dataset
    as stored, ``y`` its labels by name or number; or ``x`` is the file or folder that holds both.
    ``shots`` samples of every class are drawn (none given: all are used). ``epochs``, ``part``,
    ``lr`` and ``patience`` replace the run's own ``evaluate.fine_tune_*``; if the run and its
    method say nothing, everything adapts for ten epochs. ``accuracy`` is what the threshold for
    asking should reach on the run's validation data.
    """
    check_share("accuracy", accuracy)
    finished = finished_run(run, allow_code=allow_code)
    wanted = {
        "shots": "all" if shots is None else shots, "fine_tune_epochs": epochs,
        "fine_tune_part": part, "fine_tune_lr": lr, "fine_tune_patience": patience,
    }  # fmt: skip
    config = _with_settings(finished.config, wanted)
    preparation = preparation_of(finished, None if data_dir is None else Path(data_dir))
    stored = read_samples(x, y, preparation, label)
    preparation = preparation.of_new(stored.x, stored.origin)
    samples = prepared(stored, preparation)
    labels = samples.labels()
    _check_shots(shots, labels, preparation)
    holdings = _holdings(config, samples, labels, preparation)
    (how,) = holdings.plan.adapts
    start = of_run(finished, _start(finished, holdings, client), preparation, client)
    # Only now: parameters that were never trained are drawn with the run's own seed.
    if seed is not None:
        holdings = replace(holdings, plan=replace(holdings.plan, seed=seed))
    module = _adapted(holdings, start, own=client is not None)
    facts = _adaptation_facts(how, holdings, labels, preparation)
    for when, model in (("before", start), ("after", replace(start, module=module))):
        facts |= {f"{what}_{when}": found for what, found in _scored(model, samples).items()}
    scored = _tuning(config) == _tuning(finished.config)
    threshold: Threshold | None = None
    notes: list[str] = []
    if preparation.problem.classifies:
        threshold, notes = _threshold(finished.path, accuracy, how.label if scored else NOT_ADAPTED)
    about = {**start.about, "adapted": facts, "notes": notes}
    made = Deployed(module, preparation, about, threshold)
    # Models adapted in another way are more or less sure than this one.
    made = with_usual(made, finished, None, how.label if scored else NEVER_SCORED)
    if out is not None:
        made.save(_free(Path(out)))
    return made


def _check_shots(shots: int | None, labels: Indices, preparation: SamplePreparation) -> None:
    """Refuse more shots than a class has; classes without any sample are ignored."""
    if shots is None:
        return
    if shots < 1:
        raise ConfigError(f"shots must be at least 1 sample per class, not {shots}.")
    if not preparation.problem.classifies:
        if shots > len(labels):
            raise ConfigError(
                f"shots asks for {shots} samples, but there are {len(labels)}: ask for fewer, or "
                "leave shots out to use all."
            )
        return
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        if count < shots:
            raise ConfigError(
                f"shots asks for {shots} samples of every class, but there are {count} of class "
                f"{preparation.class_names[label]!r}: ask for fewer, or leave shots out to use all."
            )


def _with_settings(config: Config, wanted: dict[str, Any]) -> Config:
    """The run's settings with the user's changes, for this machine."""
    for name, least in (("fine_tune_epochs", 1), ("fine_tune_patience", 1)):
        given = wanted[name]
        if given is not None and given < least:
            raise ConfigError(f"{name.removeprefix('fine_tune_')} must be at least 1, not {given}.")
    lr = wanted["fine_tune_lr"]
    if lr is not None and not 0 < lr < float("inf"):
        raise ConfigError(f"lr must be above 0, not {lr:g}.")
    values = config.resolved()
    values["evaluate"] |= {name: value for name, value in wanted.items() if value is not None}
    own = find(config.method.name).recipe(**config.method.knobs).adapts
    if not values["evaluate"]["fine_tune_epochs"] and not (own and own.phases[-1].epochs):
        values["evaluate"]["fine_tune_epochs"] = EPOCHS
    return config_of({**values, "device": "cpu"})


def _holdings(
    config: Config, samples: Samples, labels: Indices, preparation: SamplePreparation
) -> Holdings:
    """What the newcomer works with: the run's recipe and settings, and only its own samples."""
    problem = preparation.problem
    y = torch.from_numpy(labels)
    if problem.units is not None:
        y = in_scale(y, problem.units)
    federation = Federation(
        "the new client's samples",
        samples.x,
        y if problem.classifies else y.float(),
        preparation.class_names,
        (Client(NEWCOMER, np.arange(len(labels))),),
        problem=problem,
        vocabulary=preparation.vocabulary,
    )
    return newcomers(config, federation)


def _start(run: Run, holdings: Holdings, client: str | None) -> nn.Module:
    """The model to start from: a client's own, or what a newcomer makes of what it is sent.

    If clients keep parts private, a newcomer has these parts as they were before training.
    """
    if client is not None:
        return run_model(run, client)
    if has_global(run):
        module = run_model(run)
        sent = dict(module.state_dict())
    else:
        module = empty_model(about_run(run))
        sent = RunFolder(run.path).selected(MAIN).state.sent_to(NEWCOMER)
    module.load_state_dict(begun(run, holdings, NEWCOMER, sent))
    return module.eval()


def _adapted(holdings: Holdings, start: Deployed, own: bool) -> nn.Module:
    """The model after its adaptation; a run scores unseen clients in the same way."""
    tensors = dict(start.module.state_dict())
    # A model that starts from a client's own also has that client's BatchNorm statistics.
    private: Groups = {PERSONAL: tensors, **({SHARED: {}} if own else {})}
    task = ScoreTask(NEWCOMER, int(start.about["round"]), tensors, "personal", (), adapt=0)
    (result,) = score_samples(holdings, [task], {NEWCOMER: private})
    if result.error:
        raise RunError(f"the model could not be adapted: {result.error}.")
    module = copy.deepcopy(start.module)
    module.load_state_dict(result.model)
    return module.eval()


def _scored(model: Deployed, samples: Samples) -> dict[str, float]:
    """How many samples a model gets right, or how far it is off."""
    found = Prediction(
        model.answers(samples.x), 0.0, model.preparation.class_names, samples.y,
        problem=model.preparation.problem,
    )  # fmt: skip
    if found.errors is not None:
        return {"rmse": found.errors[0]}
    return {} if found.right is None else {"right": int(found.right.sum())}


def _tuning(config: Config) -> dict[str, Any]:
    """Everything that decides how models adapt, except the shots."""
    settings = config.evaluate.model_dump()
    return {name: value for name, value in settings.items() if name.startswith("fine_tune")}


def _threshold(run: Path, accuracy: float, adapted: str) -> tuple[Threshold | None, list[str]]:
    """The threshold for asking for a label, chosen on the run's validation samples."""
    try:
        chosen = validation_threshold(run, accuracy, adapted)
    except (DataError, RunError) as error:
        return None, [f"no threshold was chosen: {error}"]
    if chosen.adapted != NOT_ADAPTED:
        return chosen, []
    return chosen, [
        "the threshold is that of the run's models as they are, for it scored none that adapted "
        "in this way and may be more or less sure: give predict a threshold, or have the run score "
        "such models (evaluate.shots, evaluate.fine_tune_epochs)."
    ]


def _free(out: Path) -> Path:
    """A folder to write to; a run's folder is not overwritten."""
    if (out / "config.json").exists():
        raise RunError(f"{out} is the folder of a run: choose another one for the adapted model.")
    return out


def _adaptation_facts(
    how: Adapt, holdings: Holdings, labels: Indices, preparation: SamplePreparation
) -> dict[str, Any]:
    """How a model was adapted, in plain values."""
    phases = [holdings.training(phase) for phase in how.phases]
    trained = {name.partition(".")[0] for phase in phases for name in phase.trained}
    names = preparation.class_names
    counts: Any = []
    if preparation.problem.classifies:
        counts = np.bincount(labels, minlength=len(names)).tolist()
    elif names:
        counts = labels.sum(axis=0).astype(int).tolist()
    named = dict(zip(names, counts, strict=True))
    return {
        "how": how.label,
        "samples": len(labels),
        "shots": how.shots,
        "given": {name: count for name, count in named.items() if count},
        "lacks": [name for name, count in named.items() if not count],
        "epochs": sum(phase.epochs for phase in phases),
        "patience": how.patience,
        "parts": sorted(trained),
        "lr": phases[-1].optimiser.lr,
        "seed": holdings.plan.seed,
    }
