"""From a config to a finished run: build the federation, run the stages, sum up, save."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedskew.config import Config, FederationSection, Named, make_config
from fedskew.data.build import build
from fedskew.data.datasets import REGISTRY, load
from fedskew.data.environments import whole_where_small, with_environments
from fedskew.data.federation import Federation
from fedskew.data.own import load_function, load_own
from fedskew.data.partition import PARTITIONS
from fedskew.data.presets import PRESETS, expanded
from fedskew.errors import ConfigError, RunError, unknown
from fedskew.federate.backends.local import LocalBackend
from fedskew.federate.planning import MAIN, checked_model, made_up, make_plan, make_rounds
from fedskew.finish import finish
from fedskew.folder import RunFolder
from fedskew.models import seeded
from fedskew.recipe import Stage, find
from fedskew.report.figures import draw_run, is_drawn
from fedskew.score import Row
from fedskew.server import Handed, Progress, RoundRecord, federate, hand_over
from fedskew.store import load_tensors, read_json

Watch = Callable[[Progress, RoundRecord, Sequence[Row]], None]


@dataclass(frozen=True)
class Run:
    """A run on disk, finished or not."""

    path: Path

    @property
    def config(self) -> Config:
        return make_config(read_json(self.path / "config.json")["config"])

    @property
    def result(self) -> dict[str, Any]:
        """The summary of a finished run."""
        if not (self.path / "result.json").is_file():
            raise RunError(f"{self.path} is not a finished run; repeat its command to finish it.")
        found: dict[str, Any] = read_json(self.path / "result.json")
        return found

    def rows(self) -> list[Row]:
        """Every measured number."""
        return RunFolder(self.path).rows()

    def model(self, client: str | None = None, round: str = "selected") -> nn.Module:
        """The global model, or a client's personal one, ready to use.

        ``round`` is "selected" (best validation score) or "last".
        """
        name = "global" if client is None else f"personal/{client}"
        path = self.path / "models" / round / f"{name}.safetensors"
        if not path.is_file():
            saved = sorted(p.stem for p in path.parent.glob("*.safetensors"))
            raise RunError(f"no model {name!r} in {self.path}; there are: {', '.join(saved)}.")
        result = self.result
        module = seeded(
            result["model"]["name"], tuple(result["sample_shape"]), result["classes"],
            seed=0, **result["model"]["knobs"],
        )  # fmt: skip
        extends = find(self.config.method.name).recipe(**self.config.method.knobs).extends
        module = extends(module) if extends else module
        module.load_state_dict(load_tensors(path))
        return module.eval()


def load_run(path: str | Path) -> Run:
    """Open a run folder."""
    if not (Path(path) / "config.json").is_file():
        raise RunError(f"{path} is not a run folder (it has no config.json).")
    return Run(Path(path))


def spelled_out(section: FederationSection) -> FederationSection:
    """The section with the base dataset and the skew that a preset stands for."""
    if section.dataset not in PRESETS:
        return section
    found = expanded(section.dataset, section.options, section.normalise)
    return section.model_copy(
        update={
            "dataset": found.dataset,
            "options": {},
            "normalise": found.normalise,
            "skew": [Named(**found.skew), *section.skew],
        }
    )


def resolve(config: Config) -> Config:
    """The same config with the defaults of its method and partition written out.

    So the hash that names a run changes when a default does.
    """
    config = config.model_copy(update={"federation": spelled_out(config.federation)})
    method = find(config.method.name)
    method.recipe(**config.method.knobs)
    updates: dict[str, Any] = {
        "method": Named(name=method.name, **{**method.defaults, **config.method.knobs})
    }
    chosen = config.federation.partition
    if ":" not in config.federation.dataset:
        if chosen.name not in PARTITIONS:
            raise unknown("partition", chosen.name, PARTITIONS)
        partition = PARTITIONS[chosen.name]
        partition.check(chosen.knobs)
        named = Named(name=chosen.name, **{**partition.knobs, **chosen.knobs})
        updates["federation"] = config.federation.model_copy(update={"partition": named})
    return config.model_copy(update=updates)


def make_federation(config: Config, data_dir: Path | None = None) -> Federation:
    """The federation a config describes."""
    section = spelled_out(config.federation)
    environments = {"kind": section.environments.name, **section.environments.knobs}
    wanted: dict[str, Any] = {
        name: getattr(section, name) for name in ("normalise", "classes", "image")
    }
    for name in wanted:
        if name in section.options and ":" not in section.dataset:
            raise ConfigError(f"{name} is no option of a dataset: set federation.{name} instead.")
    if ":" in section.dataset:
        for name in ("classes", "image", "features"):
            if getattr(section, name) is not None:
                raise ConfigError(
                    f"federation.{name} cannot change what {section.dataset!r} returns: let the "
                    "function do it."
                )
        own = load_function(section.dataset, **section.options)
        return with_environments(own, environments, config.split_seed)
    if section.dataset in REGISTRY:
        dataset = load(section.dataset, data_dir, **wanted, **section.options)
    elif Path(section.dataset).exists():
        for name in section.options:
            if name not in ("label", "image_size"):
                raise unknown("option of your own data", name, ("label", "image_size"))
        dataset = load_own(section.dataset, **wanted, **section.options)
    else:
        known = [*REGISTRY, *PRESETS]
        raise unknown("dataset (nor is it a file or folder)", section.dataset, known)
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


def fingerprint(federation: Federation) -> str:
    """A short hash of the data and who holds them: the same run must see the same."""
    digest = hashlib.sha256()
    digest.update(str(tuple(federation.x.shape)).encode())
    digest.update(federation.y.numpy().tobytes())
    flat = federation.x.reshape(-1)
    digest.update(flat[:: max(1, len(flat) // 65536)].contiguous().numpy().tobytes())
    for client in (*federation.clients, *federation.unseen):
        digest.update(client.name.encode())
        for split in ("train", "validation", "test"):
            digest.update(client.split(split).tobytes())
    if len(federation.public):
        digest.update(b"public")
        digest.update(federation.public.tobytes())
    return digest.hexdigest()[:16]


def run(
    config: Config | Mapping[str, Any],
    *,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    watch: Watch | None = None,
    federation: Federation | None = None,
    draw: bool = True,
) -> Run:
    """Run one experiment, or finish it, or return it if it is finished already.

    ``draw=False`` leaves its figures out, for programs that make hundreds of runs.

    >>> import tempfile
    >>> settings = {"train": {"rounds": 2}, "model": {"name": "logistic"}}
    >>> done = run(settings, out=tempfile.mkdtemp())
    >>> done.result["rounds"], sorted(done.result["bytes"])
    (2, ['down', 'up'])
    """
    config = resolve(config if isinstance(config, Config) else make_config(config))
    folder = RunFolder.of(config, Path(out))
    if folder.is_finished and (is_drawn(folder.path) or not draw):
        return Run(folder.path)
    directory = None if data_dir is None else Path(data_dir)
    federation = federation or make_federation(config, directory)
    federation = whole_where_small(federation, config.train.batch_size)
    if not folder.is_finished:
        with folder.opened(config, fingerprint(federation)):
            _run_stages(config, federation, folder, watch)
    if draw:
        draw_run(folder.path, federation)
    return Run(folder.path)


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
    config: Config, federation: Federation, folder: RunFolder, watch: Watch | None
) -> None:
    recipe = find(config.method.name).recipe(**config.method.knobs)
    stages = [*recipe.prepares, Stage(MAIN, recipe)]
    backend = LocalBackend(federation, folder=folder.checkpoint_folder, results=folder.path)
    for stage in stages[1:]:
        # What a later stage refuses should not be told after the first has run for hours.
        checked_model(config, backend.roster, stage)
    handed = Handed()
    sent: dict[str, int] = {}
    for number, stage in enumerate(stages):
        prepares = stage is not stages[-1]
        made_by = _made_by(config, federation, stages[: number + 1]) if prepares else ""
        if prepares and folder.resume(stage.name) is None:
            folder.adopt(stage.name, made_by)
        if (begun := folder.resume(stage.name)) is not None:
            handed = Handed(begun.state.memory)
        plan = make_plan(config, backend.roster, stage)
        backend.begin(plan, made_up(config, plan, handed.memory))
        sent[stage.name] = plan.sent_parameters
        rounds = make_rounds(config, stage, backend.roster)
        progress = federate(plan, backend, rounds, _Watched(folder, watch), handed)
        if prepares:
            folder.offer(stage.name, made_by)
            if folder.resume(stages[number + 1].name) is None:
                if stage.hands == "selected":
                    progress = folder.selected(stage.name)
                handed = hand_over(plan, backend, progress)
    finish(config, plan, backend, folder, sent)


def _made_by(config: Config, federation: Federation, stages: Sequence[Stage]) -> str:
    """All that decides the numbers of a stage: runs that agree on it may share the stage."""
    settings = {k: v for k, v in config.resolved().items() if k not in ("method", "evaluate")}
    # What is handed over afterwards changes nothing about the rounds.
    stages = [*stages[:-1], replace(stages[-1], hands_over=())]
    text = repr((settings, config.evaluate.every, fingerprint(federation), stages))
    if "<locals>" in text:
        # A class made inside a function may hold more than its name says.
        text += repr(config.method)
    return hashlib.sha256(text.encode()).hexdigest()
