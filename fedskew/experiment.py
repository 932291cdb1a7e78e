"""From a config to a finished run: build the federation, run the stages, sum up, save."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.backends import Backend
from fedskew.backends.local import LocalBackend
from fedskew.client import DescribeTask
from fedskew.config import Config, Named, TrainSection, make_config
from fedskew.data.build import build
from fedskew.data.datasets import REGISTRY, load
from fedskew.data.environments import whole_where_small, with_environments
from fedskew.data.federation import Client, Federation
from fedskew.data.own import OPTIONS, load_function, load_own
from fedskew.data.presets import PRESETS
from fedskew.engine.dropout import with_stream_dropout
from fedskew.engine.graph import Graphs
from fedskew.engine.optim import Optimiser
from fedskew.engine.plan import choose
from fedskew.engine.streams import stream, torch_seed
from fedskew.errors import ConfigError, RunError, unknown
from fedskew.finish import finish
from fedskew.folder import RunFolder
from fedskew.models import seeded
from fedskew.models.registry import MODELS
from fedskew.parts.report import Groups
from fedskew.parts.select import EVERYTHING, only
from fedskew.recipe import Adapt, ModelChoice, Phase, Recipe, Stage, find
from fedskew.report.figures import draw_run, is_drawn
from fedskew.runs.earlier import why_anew
from fedskew.runs.identity import Identity, identify, resolve, spelled_out
from fedskew.score import Row
from fedskew.server import Handed, Progress, RoundRecord, Rounds, federate, tensor_bytes
from fedskew.site import Settings, Site
from fedskew.sources import edited
from fedskew.store import load_tensors, read_json

MAIN = "main"
Watch = Callable[[Progress, RoundRecord, Sequence[Row]], None]
Tell = Callable[[str], None]
"""Takes a sentence for whoever started a run."""


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
            if name not in OPTIONS:
                raise unknown("option of your own data", name, OPTIONS)
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


def run(
    config: Config | Mapping[str, Any],
    *,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    watch: Watch | None = None,
    federation: Federation | None = None,
    draw: bool = True,
    tell: Tell | None = None,
) -> Run:
    """Run one experiment, or finish it, or return it if it is finished already.

    A run is known by what decided its numbers: settings, your own code, and data (see
    :mod:`fedskew.runs.identity`). ``tell`` is given a sentence where a run begins anew because
    code or data changed; without it that is a Python warning. ``draw=False`` leaves figures out,
    for programs that make hundreds of runs.

    >>> import tempfile
    >>> settings = {"train": {"rounds": 2}, "model": {"name": "logistic"}}
    >>> done = run(settings, out=tempfile.mkdtemp())
    >>> done.result["rounds"], sorted(done.result["bytes"])
    (2, ['down', 'up'])
    """
    config = resolve(config if isinstance(config, Config) else make_config(config))
    directory = None if data_dir is None else Path(data_dir)
    data = federation or make_federation(config, directory)
    return carry_out(identify(config, data), lambda: data, Path(out), watch, draw=draw, tell=tell)


def carry_out(
    identity: Identity,
    load: Callable[[], Federation],
    out: Path,
    watch: Watch | None = None,
    *,
    draw: bool = True,
    tell: Tell | None = None,
) -> Run:
    """Run what an identity says, or finish it; the data are loaded if they are needed."""
    tell = tell or _warn
    folder = RunFolder(out / identity.name)
    if files := edited(identity.code):
        tell(
            f"{', '.join(files)} changed on disk since Python imported it, and is run as it was "
            "imported: start Python again to run it as it is now"
        )
    begun = folder.holds(identity)
    if begun and folder.is_finished and (is_drawn(folder.path) or not draw):
        return Run(folder.path)
    federation = whole_where_small(load(), identity.config.train.batch_size)
    if not folder.is_finished:
        if not begun and (sentence := why_anew(identity, out)):
            tell(sentence)
        with folder.opened(identity):
            _run_stages(identity, federation, folder, watch)
    if draw:
        draw_run(folder.path, federation)
    return Run(folder.path)


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=4)


@dataclass(frozen=True)
class _Watched:
    """The run folder as the server's journal, telling somebody after every round."""

    folder: RunFolder
    watch: Watch | None

    def resume(self, stage: str) -> Progress | None:
        return self.folder.resume(stage)

    def commit(
        self, progress: Progress, rows: Sequence[Row], record: RoundRecord, backend: Backend
    ) -> None:
        self.folder.commit(progress, rows, record, backend)
        if self.watch is not None:
            self.watch(progress, record, rows)


def _run_stages(
    identity: Identity, federation: Federation, folder: RunFolder, watch: Watch | None
) -> None:
    config = identity.config
    recipe = find(config.method.name).recipe(**config.method.knobs)
    stages = [*recipe.prepares, Stage(MAIN, recipe)]
    for stage in stages[1:]:
        # What a later stage refuses should not be told after the first has run for hours.
        checked_model(config, federation, stage)
    private: dict[str, Groups] = {}
    handed = Handed()
    sent: dict[str, int] = {}
    for number, stage in enumerate(stages):
        prepares = stage is not stages[-1]
        made_by = identity.of_stage(stages[: number + 1]) if prepares else ""
        if prepares and folder.private(stage.name) is None:
            folder.adopt(stage.name, made_by)
        if (begun := folder.resume(stage.name)) is not None:
            handed = Handed(begun.state.memory)
        site = make_site(config, federation, stage, handed.memory)
        sent[stage.name] = site.sent_parameters
        backend = LocalBackend(site, folder.checkpoint_folder, private)
        if (kept := folder.private(stage.name)) is not None:
            backend.restore(kept)
        rounds = make_rounds(config, stage, site)
        progress = federate(site, backend, rounds, _Watched(folder, watch), handed)
        if prepares:
            folder.offer(stage.name, made_by)
            if folder.private(stages[number + 1].name) is None:
                if stage.hands == "selected":
                    progress, kept = folder.selected(stage.name)
                    backend.restore(kept)
                private, handed = hand_over(site, backend, stage, progress)
    finish(config, site, backend, rounds, folder, sent)


def make_site(
    config: Config, federation: Federation, stage: Stage, memory: Groups | None = None
) -> Site:
    """A stage's recipe with the model, settings and executor it trains with.

    ``memory`` is what the server was handed: a recipe that invents its data makes them of it.
    """
    module = checked_model(config, federation, stage)
    chosen, train = _model_of(config, federation, stage), _train_section(config, stage)
    invented = None
    if stage.recipe.invents is not None:
        rng = stream(config.seed, stage.name, "invented")
        x = stage.recipe.invents.samples(module, memory or {}, rng)
        federation, invented = _with_invented(federation, x)
    device = torch.device(config.device)
    initial = {name: t.detach().clone().to(device) for name, t in module.state_dict().items()}
    optimiser = Optimiser(train.optimiser, train.lr, train.momentum, train.weight_decay)
    return Site(
        federation=federation,
        recipe=stage.recipe,
        module=module.to(device).train(),
        initial=initial,
        settings=Settings(optimiser, train.epochs, train.batch_size),
        plan=choose(module, config.executor),
        seed=config.seed,
        stage=stage.name,
        invented=invented,
        graphs=_graphs_for(chosen, federation, stage.recipe, device),
    )


def _model_of(config: Config, federation: Federation, stage: Stage) -> Named:
    if isinstance(stage.model, ModelChoice):
        return Named(**stage.model.fitting(federation))
    return Named(**stage.model) if stage.model else config.model


def checked_model(config: Config, federation: Federation, stage: Stage) -> nn.Module:
    """The model a stage begins with, if its recipe, the settings and the data go together."""
    chosen = _model_of(config, federation, stage)
    module = seeded(
        chosen.name, federation.sample_shape, federation.classes,
        seed=torch_seed(config.seed, stage.name, "model"), **chosen.knobs,
    )  # fmt: skip
    if stage.recipe.extends:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(config.seed, stage.name, "extension"))
            module = stage.recipe.extends(module)
    _check_parts(config.method.name, chosen.name, module, stage.recipe)
    module = with_stream_dropout(module)
    train = _train_section(config, stage)
    if train.optimiser != "sgd" and any(report.needs_sgd for report in stage.recipe.reports):
        raise ConfigError(
            f"method {config.method.name!r} reads gradients off the way its clients went: "
            f"it needs train.optimiser = 'sgd', not {train.optimiser!r}."
        )
    fitting = whole_where_small(federation, train.batch_size)
    stage.recipe.objective.check(module, fitting, train.batch_size)
    for report in (*stage.recipe.reports, *stage.hands_over):
        report.check(federation)
    return module


def _check_parts(method: str, name: str, module: nn.Module, recipe: Recipe) -> None:
    """Refuse a model that lacks what the method's objective calls."""
    parts = dict(module.named_children())
    missing = [part for part in recipe.objective.needs if part not in parts]
    if missing:
        wanted = " and ".join(
            f"{'an' if part[0] in 'aeiou' else 'a'} {part}" for part in recipe.objective.needs
        )
        fitting = sorted(n for n, e in MODELS.items() if set(missing) <= set(e.parts))
        raise ConfigError(
            f"method {method!r} needs a model with {wanted}, which "
            f"{name!r} is not: choose from {', '.join(fitting)}."
        )


def _with_invented(federation: Federation, x: Tensor) -> tuple[Federation, Client]:
    """The federation with made-up samples behind its own, and who holds them: the server alone.

    They have no labels; the first class stands in, which nobody reads.
    """
    rows = np.arange(len(federation.y), len(federation.y) + len(x))
    y = torch.zeros(len(x), dtype=federation.y.dtype)
    grown = federation.with_data(
        x=torch.cat([federation.x, x]), y=torch.cat([federation.y, y]), environment=None
    )
    return grown, Client("pooled", rows)


def _graphs_for(
    model: Named, federation: Federation, recipe: Recipe, device: torch.device
) -> dict[Hashable, Graphs]:
    """Traced steps, shared by all runs of this process whose models are made the same way.

    Not for a user's own factory, whose code may change between two runs of one session.
    """
    if ":" in model.name:
        return {}
    made = (model.name, sorted(model.knobs.items()), federation.sample_shape, federation.classes)
    return _shared_graphs(repr((made, recipe.extends, device)))


@lru_cache(maxsize=16)
def _shared_graphs(key: str) -> dict[Hashable, Graphs]:
    return {}


def _train_section(config: Config, stage: Stage) -> TrainSection:
    """The run's settings with the stage's own, which the user may have written."""
    return make_config({"train": {**config.train.model_dump(), **stage.train}}).train


def make_rounds(config: Config, stage: Stage, site: Site) -> Rounds:
    train, evaluate = _train_section(config, stage), config.evaluate
    if train.clients_per_round and train.clients_per_round > len(site.federation.clients):
        raise ConfigError(
            f"train.clients_per_round is {train.clients_per_round}, "
            f"but there are {len(site.federation.clients)} clients."
        )
    return Rounds(
        rounds=train.rounds if stage.rounds is None else stage.rounds,
        clients_per_round=train.clients_per_round,
        min_clients=train.min_clients,
        patience=train.patience,
        score_every=evaluate.every if stage.score_every is None else stage.score_every,
        lr_decay=train.lr_decay,
        lr_steps=tuple(train.lr_steps),
        adapts=adaptations(config, site) if stage.name == MAIN else (),
        matrix_rounds=None if evaluate.matrix_rounds is None else tuple(evaluate.matrix_rounds),
    )


def adaptations(config: Config, site: Site) -> tuple[Adapt, ...]:
    """What a run's models do before they are scored as adapted, for each number of shots."""
    evaluate, own = config.evaluate, site.recipe.adapts
    wanted = [count for count in evaluate.shots if count != 0]
    phases = own.phases if own else (Phase(epochs=evaluate.fine_tune_epochs),)
    if not phases[-1].epochs and not evaluate.fine_tune_epochs:
        if any(count != "all" for count in wanted):
            raise ConfigError(
                f"evaluate.shots asks for adaptation, but method {config.method.name!r} says "
                "nothing about it: set evaluate.fine_tune_epochs."
            )
        return ()
    *before, last = phases
    parts = evaluate.fine_tune_part
    if parts == "all":
        last = replace(last, trains=EVERYTHING)
    elif parts != "method":
        last = replace(last, trains=only(*([parts] if isinstance(parts, str) else parts)))
    if evaluate.fine_tune_epochs:
        last = replace(last, epochs=evaluate.fine_tune_epochs)
    if evaluate.fine_tune_lr is not None:
        last = replace(last, lr=evaluate.fine_tune_lr)
    site.training(last)
    _check_shots(wanted, site.federation)
    return tuple(
        Adapt(
            (*before, last), None if count == "all" else count, evaluate.fine_tune_patience,
            evaluate.fine_tune_batch,
        )
        for count in wanted
    )  # fmt: skip


def _check_shots(wanted: Sequence[int | str], federation: Federation) -> None:
    """Refuse a number of shots nobody has: it would be the same as all data."""
    y = federation.y.numpy()
    clients = (*federation.clients, *federation.unseen)
    most = max(int(np.bincount(y[c.train]).max()) for c in clients if len(c.train))
    for count in wanted:
        if isinstance(count, int) and count > most:
            raise ConfigError(
                f"evaluate.shots asks for {count} samples a class, but no client has more than "
                f"{most} of any."
            )


def hand_over(
    site: Site, backend: LocalBackend, stage: Stage, progress: Progress
) -> tuple[dict[str, Groups], Handed]:
    """What a finished stage leaves: groups the clients keep, and what they tell the server."""
    state = progress.state
    names = [client.name for client in site.federation.clients]
    tasks = [
        DescribeTask(name, progress.round, state.sent_to(name), stage.hands_over) for name in names
    ]
    private: dict[str, Groups] = {}
    memory: Groups = {}
    for outcome in backend.describe(tasks):
        if outcome.error:
            raise RunError(f"stage {stage.name!r}, client {outcome.client!r}: {outcome.error}.")
        private[outcome.client] = outcome.keeps
        for group, tensors in outcome.update.reports.items() if outcome.update else ():
            for name, tensor in tensors.items():
                memory.setdefault(group, {})[f"{outcome.client}/{name}"] = tensor
    up = tensor_bytes(*memory.values())
    return private, Handed(memory, up, sum(tensor_bytes(task.sent) for task in tasks))
