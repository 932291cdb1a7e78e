"""A deployed model: where it comes from, its inputs, and when it should ask for a label."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch import Tensor, nn

from fedskew.data.profile import Counted, Profile, plain
from fedskew.deploy.answers import in_words, usual_answers
from fedskew.deploy.preparation import preparation_of, profile_of
from fedskew.deploy.threshold import NOT_ADAPTED, Threshold
from fedskew.errors import FedskewError, RunError
from fedskew.federate.own_models import own_models
from fedskew.methods import find
from fedskew.models import seeded, tells_classes
from fedskew.runs.experiment import Run, load_run
from fedskew.runs.identity import hash_of
from fedskew.runs.inputs import PROFILE, load_profile, save_profile
from fedskew.runs.preparation import SamplePreparation, load_preparation
from fedskew.runs.summary import Picked, Positive, Shape, checked
from fedskew.store import load_into, make_folder, read_table, save_tensors, write_json
from fedskew.trust.consent import allow_code_in

ABOUT, MODEL, USUAL = "about.json", "model.safetensors", "answers.json"
EXPORTED, FLOATS = "export.json", "float32.safetensors"
AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Deployed:
    """A classifier ready to use; ``about`` says where it comes from, in plain values."""

    module: nn.Module
    preparation: SamplePreparation
    about: dict[str, Any]
    threshold: Threshold | None = None
    profile: Profile | None = None
    usual: tuple[Counted, ...] = ()
    """Its answers for validation samples, in counts."""

    def answers(self, x: Tensor) -> NDArray[Any]:
        """What it says of prepared samples: probabilities, or numbers in the target's units."""
        problem = self.preparation.problem
        with torch.no_grad():
            parts = [in_words(problem, self.module(part)) for part in torch.split(x, AT_ONCE)]
        found: NDArray[Any] = torch.cat(parts).numpy()
        return found

    def __str__(self) -> str:
        about = self.about
        start = "the global model" if about["from"] == "global" else f"{about['from']}'s model"
        lines = [f"model:     {start} of {about['run']}, round {about['round']}"]
        if (facts := about.get("adapted")) is not None:
            most = "" if facts["patience"] is None else "at most "
            given = ", ".join(f"{name} {count}" for name, count in facts["given"].items())
            given = f" ({given})" if given else ""
            lines += [
                f"adapted:   {', '.join(facts['parts'])} for {most}{facts['epochs']} "
                f"epoch{'s' if facts['epochs'] != 1 else ''}, lr {facts['lr']:g}",
                f"samples:   {facts['samples']} given{given}",
                _learned(facts),
            ]
            if facts["shots"] is not None:
                of_each = " of each class" if facts["given"] else ""
                lines[-2] += f", {facts['shots']}{of_each} used"
            if facts["lacks"]:
                lines.append(f"lacking:   no samples of {', '.join(facts['lacks'])}")
        lines.append(f"threshold: {self.threshold or 'none'}")
        return "\n".join([*lines, *(f"note: {note}" for note in about.get("notes", ()))])

    def save(self, folder: Path) -> None:
        """Write ``model.safetensors``, ``about.json`` and how samples are prepared."""
        make_folder(folder)
        save_tensors(folder / MODEL, self.module.state_dict())
        self.save_inputs(folder)
        threshold = None if self.threshold is None else vars(self.threshold)
        write_json(folder / ABOUT, {**self.about, "threshold": threshold})

    def save_inputs(self, folder: Path) -> None:
        """Write how samples are prepared, and what inputs and answers usually are."""
        # One model is one client's or everybody's: what single clients scale by is left behind.
        replace(self.preparation, clients={}, own_scales={}).save(folder)
        if self.profile is not None:
            save_profile(folder, self.profile)
        if self.usual:
            usual = Profile("answers", 0, 0, self.usual)
            write_json(folder / USUAL, plain(usual))


def _learned(facts: Mapping[str, Any]) -> str:
    """What adapting did to the samples it was done with."""
    if "rmse_before" in facts:
        found = f"{facts['rmse_before']:.6g} off before (RMSE), {facts['rmse_after']:.6g} after"
    else:
        found = f"{facts['right_before']} of them right before, {facts['right_after']} after"
    return f"learned:   {found} (it learned from these)"


def open_model(
    source: str | Path | Run | Deployed,
    client: str | None = None,
    data_dir: Path | None = None,
    *,
    allow_code: bool = False,
) -> Deployed:
    """The model of an adapted or exported folder, or of a run: the global one or a client's."""
    if isinstance(source, Deployed):
        return source
    if allow_code and not isinstance(source, Run):
        allow_code_in(source)
    if not isinstance(source, Run) and (Path(source) / ABOUT).is_file():
        if client is not None:
            raise RunError(f"{source} holds one adapted model: leave the client out.")
        return _load(Path(source))
    if not isinstance(source, Run) and (Path(source) / EXPORTED).is_file():
        if client is not None:
            raise RunError(f"{source} holds one exported model: leave the client out.")
        return _exported(Path(source))
    run = finished_run(source)
    module, preparation = run_model(run, client), preparation_of(run, data_dir)
    made = of_run(run, module, preparation.of_client(client) if client else preparation, client)
    return with_usual(made, run, data_dir)


def with_usual(
    made: Deployed, run: Run, data_dir: Path | None = None, adapted: str = NOT_ADAPTED
) -> Deployed:
    """The model, with what inputs and answers of models adapted so usually are, as a run tells."""
    problem, names = made.preparation.problem, made.preparation.class_names
    profile, usual = None, made.usual
    with suppress(FedskewError):  # of a folder of an earlier version, without its data
        profile = profile_of(run, data_dir)
    with suppress(RunError):
        usual = usual_answers(run.path, problem, names, adapted)
    return replace(made, profile=profile, usual=usual)


def of_run(
    run: Run, module: nn.Module, preparation: SamplePreparation, client: str | None
) -> Deployed:
    """A run's classifier, and all that is needed to rebuild it without the run."""
    if not tells_classes(module):
        name = run.config.model.name
        raise RunError(f"{run.path} has no classifier: its model {name!r} predicts no labels.")
    kind = preparation.problem.kind
    return Deployed(module, preparation, {**about_run(run), "from": client or "global",
                                          "problem": kind})  # fmt: skip


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
        "metric": result["primary_metric"],
        "fedskew": recorded.get("fedskew", ""),
        "torch": _torch_of(result),
    }


def _torch_of(result: Mapping[str, Any]) -> str:
    """The version of torch that computed the last rounds; earlier folders did not tell."""
    told: list[dict[str, str]] = result.get("made_on", [])
    return told[-1].get("torch", "").partition(" ")[0] if told else ""


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
    threshold: Threshold | None = None


def _load(folder: Path) -> Deployed:
    about = read_table(folder / ABOUT)
    known = checked(folder / ABOUT, about, TypeAdapter(_About), "about an adapted model")
    module = load_into(empty_model(about), folder / MODEL)
    del about["threshold"]
    return _with_inputs(folder, module, about, known.threshold)


def _with_inputs(
    folder: Path, module: nn.Module, about: dict[str, Any], threshold: Threshold | None
) -> Deployed:
    profile = load_profile(folder) if (folder / PROFILE).is_file() else None
    usual = load_profile(folder, USUAL).columns if (folder / USUAL).is_file() else ()
    return Deployed(module, load_preparation(folder), about, threshold, profile, usual)


def _exported(folder: Path) -> Deployed:
    """The float model of a folder that export wrote."""
    about = read_table(folder / EXPORTED)
    known = checked(folder / EXPORTED, about, TypeAdapter(_About), "about an exported model")
    path = folder / FLOATS
    if not path.is_file():
        raise RunError(
            f"{folder} was exported without safetensors, which other programs load: give the run's "
            "folder, or export it once more with format safetensors."
        )
    module = load_into(without_decoder(empty_model(about)), path)
    return _with_inputs(folder, module, {**about, "adapted": None}, known.threshold)


def empty_model(about: Mapping[str, Any]) -> nn.Module:
    """A model of the kind described, untrained."""
    module = seeded(
        about["model"]["name"], tuple(about["sample_shape"]), about["classes"],
        seed=0, **about["model"]["knobs"],
    )  # fmt: skip
    extends = find(about["method"]["name"]).recipe(**about["method"]["knobs"]).extends
    return extends(module) if extends else module


def without_decoder(module: nn.Module) -> nn.Module:
    """The part that predicts: all of a classifier, or encoder and classifier of a CI-VAE."""
    if not hasattr(module, "decoder"):
        return module
    slim = copy.deepcopy(module)
    del slim.decoder
    return slim


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
