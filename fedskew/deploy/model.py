"""A deployed model: where it comes from, its inputs, and when it should ask for a label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch import Tensor, nn

from fedskew.deploy.preparation import SamplePreparation, load_preparation, preparation_of
from fedskew.errors import RunError
from fedskew.federate.confidence import ACCURACY, answered, choose_threshold
from fedskew.federate.own_models import own_models
from fedskew.federate.predictions import load_predictions
from fedskew.methods import find
from fedskew.models import seeded
from fedskew.runs.experiment import Run, load_run
from fedskew.runs.identity import hash_of
from fedskew.runs.summary import Picked, Positive, Shape, checked
from fedskew.store import load_into, make_folder, read_table, save_tensors, write_json
from fedskew.trust.consent import allow_code_in

ABOUT, MODEL = "about.json", "model.safetensors"
AT_ONCE = 512
NOT_ADAPTED = "none"


@dataclass(frozen=True)
class Threshold:
    """The confidence below which to ask, and its effect on the validation samples used."""

    value: float
    wished: float
    accuracy: float
    coverage: float
    samples: int
    adapted: str

    def __str__(self) -> str:
        reached = f"{self.accuracy:.3f}"
        if self.accuracy < self.wished - 1e-9:
            reached = f"only {reached}, because no threshold reaches {self.wished:g}"
        models = "" if self.adapted == NOT_ADAPTED else f" of models adapted alike ({self.adapted})"
        return (
            f"{self.value:.4f}, chosen on {self.samples} validation samples{models}: it answers "
            f"{self.coverage:.1%} of them with accuracy {reached}"
        )


@dataclass(frozen=True, eq=False)
class Deployed:
    """A classifier ready to use; ``about`` says where it comes from, in plain values."""

    module: nn.Module
    preparation: SamplePreparation
    about: dict[str, Any]
    threshold: Threshold | None = None

    def probabilities(self, x: Tensor) -> Tensor:
        """The probability of each class, for prepared samples."""
        with torch.no_grad():
            parts = [self.module(part).softmax(dim=1) for part in torch.split(x, AT_ONCE)]
        return torch.cat(parts)

    def __str__(self) -> str:
        about = self.about
        start = "the global model" if about["from"] == "global" else f"{about['from']}'s model"
        lines = [f"model:     {start} of {about['run']}, round {about['round']}"]
        if (facts := about.get("adapted")) is not None:
            most = "" if facts["patience"] is None else "at most "
            given = ", ".join(f"{name} {count}" for name, count in facts["given"].items())
            lines += [
                f"adapted:   {', '.join(facts['parts'])} for {most}{facts['epochs']} "
                f"epoch{'s' if facts['epochs'] != 1 else ''}, lr {facts['lr']:g}",
                f"samples:   {facts['samples']} given ({given})",
                f"learned:   {facts['right_before']} of them right before, {facts['right_after']} "
                "after (it learned from these)",
            ]
            if facts["shots"] is not None:
                lines[-2] += f", {facts['shots']} of each class used"
            if facts["lacks"]:
                lines.append(f"lacking:   no samples of {', '.join(facts['lacks'])}")
        lines.append(f"threshold: {self.threshold or 'none'}")
        return "\n".join([*lines, *(f"note: {note}" for note in about.get("notes", ()))])

    def save(self, folder: Path) -> None:
        """Write ``model.safetensors``, ``about.json`` and how samples are prepared."""
        make_folder(folder)
        save_tensors(folder / MODEL, self.module.state_dict())
        self.preparation.save(folder)
        threshold = None if self.threshold is None else vars(self.threshold)
        write_json(folder / ABOUT, {**self.about, "threshold": threshold})


def open_model(
    source: str | Path | Run | Deployed,
    client: str | None = None,
    data_dir: Path | None = None,
    *,
    allow_code: bool = False,
) -> Deployed:
    """The classifier of an adapted folder, or of a run: the global one or a client's."""
    if isinstance(source, Deployed):
        return source
    if allow_code and not isinstance(source, Run):
        allow_code_in(source)
    if not isinstance(source, Run) and (Path(source) / ABOUT).is_file():
        if client is not None:
            raise RunError(f"{source} holds one adapted model: leave the client out.")
        return _load(Path(source))
    run = finished_run(source)
    module, preparation = run_model(run, client), preparation_of(run, data_dir)
    return of_run(run, module, preparation.of_client(client) if client else preparation, client)


def of_run(
    run: Run, module: nn.Module, preparation: SamplePreparation, client: str | None
) -> Deployed:
    """A run's classifier, and all that is needed to rebuild it without the run."""
    if not {"head", "classifier"} & dict(module.named_children()).keys():
        name = run.config.model.name
        raise RunError(f"{run.path} has no classifier: its model {name!r} predicts no labels.")
    return Deployed(module, preparation, {**about_run(run), "from": client or "global"})


def about_run(run: Run) -> dict[str, Any]:
    """Which run it is, and what its models are made of, in plain values."""
    config, result = run.config, run.result
    recorded = run.results.settings
    return {
        "run": run.path.resolve().name,
        "config": hash_of(recorded["config"])[:12],
        "data": recorded["data"],
        "round": result["selected_round"],
        "method": {"name": config.method.name, "knobs": config.method.knobs},
        "model": result["model"],
        "sample_shape": result["sample_shape"],
        "classes": result["classes"],
    }


class _About(BaseModel):
    """What about.json must say; it may say more."""

    model_config = ConfigDict(extra="allow")
    run: str
    start: str = Field(alias="from")
    round: int
    method: Picked
    model: Picked
    sample_shape: Shape
    classes: Positive
    threshold: Threshold | None


def _load(folder: Path) -> Deployed:
    about = read_table(folder / ABOUT)
    known = checked(folder / ABOUT, about, TypeAdapter(_About), "about an adapted model")
    module = load_into(empty_model(about), folder / MODEL)
    del about["threshold"]
    return Deployed(module, load_preparation(folder), about, known.threshold)


def empty_model(about: Mapping[str, Any]) -> nn.Module:
    """A model of the kind described, untrained."""
    module = seeded(
        about["model"]["name"], tuple(about["sample_shape"]), about["classes"],
        seed=0, **about["model"]["knobs"],
    )  # fmt: skip
    extends = find(about["method"]["name"]).recipe(**about["method"]["knobs"]).extends
    return extends(module) if extends else module


def finished_run(source: str | Path | Run, *, allow_code: bool = False) -> Run:
    """A run that has models to use; unfinished runs are refused."""
    run = source if isinstance(source, Run) else load_run(source, allow_code=allow_code)
    if not run.results.is_finished:
        raise RunError(f"{run.path} is not finished: repeat the command that began it.")
    return run


def has_global(run: Run) -> bool:
    """Whether the run ended with a global model."""
    return (run.path / "models" / "selected" / "global.safetensors").is_file()


def owners_of(run: Run) -> list[str]:
    """Clients that ended with a model of their own."""
    return sorted(own_models(run.path / "models" / "selected"))


def run_model(run: Run, client: str | None = None) -> nn.Module:
    """A run's global model, or a client's own, at the selected round."""
    owners = owners_of(run)
    if client is None and not has_global(run):
        if not owners:
            raise RunError(f"{run.path} has no model, neither a global one nor its clients'.")
        raise RunError(
            f"{run.path} has no global model, only its clients': name one, like {owners[0]!r}."
        )
    if client is not None and not owners:
        raise RunError(f"{run.path} has a global model only: leave the client out.")
    return run.model(client)


def validation_threshold(
    run: Path, accuracy: float = ACCURACY, adapted: str = NOT_ADAPTED
) -> Threshold:
    """The threshold that reaches an accuracy on the validation samples of a run.

    The answers are those of models adapted in the same way if the run scored any, else those of
    its models as they are.
    """
    found = load_predictions(run)
    validation = found["split"] == "validation"
    if not (validation & (found["adapted"] == adapted)).any():
        adapted = NOT_ADAPTED
    rows = np.flatnonzero(validation & (found["adapted"] == adapted))
    confidence, correct = found["confidence"][rows], found["correct"][rows]
    value = choose_threshold(confidence, correct, accuracy)
    reached = answered(confidence, correct, value)
    return Threshold(value, accuracy, reached.accuracy, reached.coverage, len(rows), adapted)
