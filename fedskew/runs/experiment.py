"""From a config to a finished run: build the federation, run the stages, sum up, save."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedskew.config import Config, FederationSection
from fedskew.data.build import build
from fedskew.data.dataset import with_problem
from fedskew.data.datasets import DATASETS, load
from fedskew.data.environments import (
    whole_where_small,
    with_environments,
    without_environment,
)
from fedskew.data.example_data import EXAMPLE_DATA
from fedskew.data.federation import Federation
from fedskew.data.keeping import with_keeping
from fedskew.data.own import FILE_KNOBS, check_learnable, load_function, load_own
from fedskew.data.presets import PRESETS
from fedskew.data.scaling import scaled_targets, standardised
from fedskew.engine.arithmetic import one_order
from fedskew.errors import ConfigError, RunError, unknown
from fedskew.federate.backends import Backend
from fedskew.federate.backends.local import LocalBackend
from fedskew.federate.metrics import MAIN, Row
from fedskew.federate.planning import checked_model, made_up, make_plan, make_rounds
from fedskew.federate.progress import Handed, Progress, RoundRecord
from fedskew.federate.recipe import Stage
from fedskew.federate.server import federate, hand_over
from fedskew.methods import find
from fedskew.models import seeded
from fedskew.models.given import known_as
from fedskew.registry.knobs import check_given
from fedskew.registry.sources import edited
from fedskew.runs.earlier import why_anew, why_going_on
from fedskew.runs.finish import finish
from fedskew.runs.folder import RunFolder
from fedskew.runs.given import refuse_given
from fedskew.runs.identity import FORMAT, SCALED_BY_CLIENTS, Identity, spelled_out
from fedskew.runs.inputs import save_inputs
from fedskew.runs.results import CONFIG, RESULT, Results
from fedskew.store import load_into, sweep, write_atomically
from fedskew.trust.consent import allow_code_in

SKIPPED = "skipped.txt"
"""The files of data that were left out, a line each, in a run's folder."""
Watch = Callable[[Progress, RoundRecord, Sequence[Row]], None]
Tell = Callable[[str], None]
"""Takes a sentence for whoever started a run."""


@dataclass(frozen=True)
class Run:
    """A run on disk, finished or not."""

    path: Path
    _read: dict[tuple[int, int], Results] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def just_finished(cls, results: Results) -> Run:
        """The run whose last line has just been written, and what was read of it since."""
        run = cls(results.path)
        run._read[_stamp(results.path)] = results
        return run

    @property
    def results(self) -> Results:
        """All that the folder tells, read once; of an unfinished run, as it is just now."""
        if not (self.path / RESULT).is_file():
            return Results(self.path)
        stamp = _stamp(self.path)
        if stamp not in self._read:
            # A run that went on, after it had been finished, has other numbers now.
            self._read.clear()
            self._read[stamp] = Results(self.path)
        return self._read[stamp]

    @property
    def config(self) -> Config:
        return self.results.config

    @property
    def result(self) -> dict[str, Any]:
        """The summary of a finished run."""
        return self.results.summary

    def rows(self) -> list[Row]:
        """Every measured number."""
        return self.results.rows.rows()

    def model(self, client: str | None = None, round: str = "selected") -> nn.Module:
        """The global model, or a client's personal one, ready to use.

        ``round`` is "selected" (best validation score) or "last".
        """
        return load_into(self.untrained(), self.results.model_file(round, client))

    def untrained(self) -> nn.Module:
        """A client's model before any training, with whatever the method adds to it."""
        result = self.result
        module = seeded(
            result["model"]["name"], tuple(result["sample_shape"]), result["classes"],
            seed=0, **result["model"]["knobs"],
        )  # fmt: skip
        method = self.config.method
        extends = find(method.name).recipe(**method.knobs).extends
        return extends(module) if extends else module


def _stamp(path: Path) -> tuple[int, int]:
    """Tells one summary of a finished run from the next: each is a file of its own."""
    found = (path / RESULT).stat()
    return found.st_ino, found.st_mtime_ns


def load_run(path: str | Path, *, allow_code: bool = False, model: Any = None) -> Run:
    """Open a run folder.

    ``model`` is the module or factory that was handed over when it was made, if one was.
    Code that it names (``module:function``) runs only with ``allow_code``, in a trusted folder
    (``FEDSKEW_TRUST``), or where this process was given the same name already.
    """
    if allow_code:
        allow_code_in(path)
    if not (Path(path) / CONFIG).is_file():
        raise RunError(f"{path} is not a run folder (it has no config.json).")
    run = Run(Path(path))
    if model is not None:
        known_as(run.config.model.name, model)
    return run


@one_order()
def make_federation(
    config: Config, data_dir: Path | None = None, version: int = FORMAT
) -> Federation:
    """The federation a config describes, as run folders of some version have it."""
    federation = _with_all_environments(config, data_dir, version)
    held_out = config.federation.held_out_environment
    return federation if held_out is None else without_environment(federation, held_out)


def _with_all_environments(config: Config, data_dir: Path | None, version: int) -> Federation:
    refuse_given(config.federation)
    section = spelled_out(config.federation)
    environments = {"kind": section.environments.name, **section.environments.knobs}
    wanted: dict[str, Any] = {
        name: getattr(section, name) for name in ("normalise", "classes", "image")
    }
    for name in wanted:
        if name in section.options and ":" not in section.dataset:
            raise ConfigError(f"{name} is not a knob of a dataset: set federation.{name} instead.")
    if ":" in section.dataset:
        for name in ("classes", "image", "features"):
            if getattr(section, name) is not None:
                raise ConfigError(
                    f"federation.{name} cannot change what {section.dataset!r} returns: let the "
                    "function do it."
                )
        own = load_function(section.dataset, **section.options)
        _check_problem(section, own)
        own = scaled_targets(own)
        return with_environments(own, environments, config.split_seed)
    if section.dataset in DATASETS:
        dataset = load(section.dataset, data_dir, **wanted, **section.options)
        dataset = with_problem(dataset, section.task, section.positive)
    elif os.path.exists(section.dataset):
        check_given(section.options, FILE_KNOBS, "your own data")
        wanted |= {"task": section.task, "positive": section.positive, "columns": section.columns}
        wanted["labels"] = section.label
        dataset = load_own(section.dataset, **wanted, **section.options)
        check_learnable(section.dataset, dataset)
    else:
        if section.dataset in EXAMPLE_DATA:
            raise ConfigError(
                f"there is no folder {section.dataset!r} here: 'fedskew data example "
                f"{section.dataset}' writes it."
            )
        known = [*DATASETS, *PRESETS]
        raise unknown("dataset (nor is it a file or folder)", section.dataset, known)
    if version < SCALED_BY_CLIENTS:
        dataset = replace(standardised(dataset, [dataset.train_rows]), table=None)
    return build(
        dataset,
        partition=section.partition.name,
        clients=section.clients,
        seed=config.split_seed,
        knobs=section.partition.knobs,
        unseen=section.unseen,
        validation=section.validation,
        test=section.test,
        test_from=section.test_from,
        samples=section.samples,
        test_samples=section.test_samples,
        skew=[{"kind": skew.name, **skew.knobs} for skew in section.skew],
        public=section.public,
        by_segment=section.by_segment,
        features=section.features,
        environments=environments,
    )


def _check_problem(section: FederationSection, own: Federation) -> None:
    """What a user's own function says is to be learned stands."""
    if section.task not in ("auto", own.problem.kind) or section.positive is not None:
        raise ConfigError(
            f"federation.task and federation.positive cannot change what {section.dataset!r} "
            f"returns ({own.problem.kind}): let the function set the federation's problem."
        )


def local_backend(federation: Federation, folder: RunFolder) -> Backend:
    """All clients in this process; what stays with them lies in the run folder."""
    return LocalBackend(federation, folder=folder.checkpoint.folder, results=folder.path)


MakeBackend = Callable[[Federation, RunFolder], Backend]


def on_data(
    config: Config, load: Callable[[], Federation], backend: MakeBackend = local_backend
) -> Callable[[RunFolder], Backend]:
    """Makes a backend for a run on data that are loaded only if there is something to run."""
    if config.secure is not None:
        raise ConfigError(
            "secure hides the updates of real sites, but here all data are in one place: leave it "
            "out, or run the study on sites."
        )

    def made(folder: RunFolder) -> Backend:
        federation = load()
        save_inputs(folder.path, config, federation)
        if skipped := federation.remarks.skipped:
            write_atomically(folder.path / SKIPPED, ("\n".join(skipped) + "\n").encode())
        if config.evaluate.keep is not None:
            federation = with_keeping(federation, config.split_seed)
        return backend(whole_where_small(federation, config.train.batch_size), folder)

    return made


def carry_out(
    identity: Identity,
    backend: Callable[[RunFolder], Backend],
    out: Path,
    watch: Watch | None = None,
    *,
    tell: Tell | None = None,
    grows: bool = False,
) -> Run:
    """Run what an identity says, or finish it, or return it if it is finished already.

    ``backend`` makes who carries asks to clients, and is called only if anybody is asked. That a
    shorter run goes on is told, unless it ``grows`` on purpose.
    """
    tell = tell or _warn
    folder = RunFolder.of(identity, out)
    if files := edited(identity.code):
        tell(
            f"{', '.join(files)} changed on disk since Python imported it, and is run as it was "
            "imported: start Python again to run it as it is now"
        )
    sweep(folder.path)
    begun = folder.holds(identity)
    if begun and folder.has_finished(identity):
        return Run(folder.path)
    sentence = why_going_on(identity, folder) if begun else why_anew(identity, out)
    if sentence and not (begun and grows):
        tell(sentence)
    with folder.opened(identity), one_order():
        if sentence := folder.checkpoint.why_other_bits():
            tell(sentence)
        made = backend(folder)
        folder.checkpoint.apart = made.apart
        return Run.just_finished(_run_stages(identity, made, folder, watch))


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=4)


@dataclass(frozen=True)
class _Watched:
    """The run folder as the server's journal, telling somebody after every round."""

    folder: RunFolder
    watch: Watch | None

    def resume(self, stage: str) -> Progress | None:
        return self.folder.resume(stage)

    def commit(self, progress: Progress, rows: Sequence[Row], record: RoundRecord) -> None:
        self.folder.commit(progress, rows, record)
        if self.watch is not None:
            self.watch(progress, record, rows)


def _run_stages(
    identity: Identity, backend: Backend, folder: RunFolder, watch: Watch | None
) -> Results:
    config = identity.config
    recipe = find(config.method.name).recipe(**config.method.knobs)
    stages = [*recipe.prepares, Stage(MAIN, recipe)]
    for stage in stages[1:]:
        # What a later stage refuses should not be told after the first has run for hours.
        checked_model(config, backend.roster, stage)
    handed = Handed()
    sent: dict[str, int] = {}
    for number, stage in enumerate(stages):
        prepares = stage is not stages[-1]
        made_by = identity.of_stage(stages[: number + 1]) if prepares else ""
        if prepares and not backend.apart and not folder.checkpoint.holds(stage.name):
            folder.adopt(stage.name, made_by)
        if (begun := folder.resume(stage.name)) is not None:
            handed = Handed(begun.state.memory)
        plan = make_plan(config, backend.roster, stage)
        backend.begin(plan, made_up(config, plan, handed.memory))
        sent[stage.name] = plan.sent_parameters
        rounds = make_rounds(config, stage, backend.roster)
        progress = federate(plan, backend, rounds, _Watched(folder, watch), handed)
        if prepares:
            if not backend.apart:
                folder.offer(stage.name, made_by)
            if not folder.checkpoint.holds(stages[number + 1].name):
                if stage.hands == "selected":
                    progress = folder.selected(stage.name)
                handed = hand_over(plan, backend, progress)
    return finish(config, plan, backend, folder, sent)
