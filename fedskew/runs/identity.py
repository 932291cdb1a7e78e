"""What decides a run's numbers, and the name that follows from it.

A run is named by the hash of its *identity*: all settings with every default written out (of the
method and the methods it is made of, the model and the models of earlier stages, the partition,
skews, environments and options of the dataset), the user's own code where some is used, every byte
of the data, and a format version. Device and executor are settings and count: they decide the last
bits. Where files lie, whether figures are drawn, and how many rounds there are, does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

from pydantic_core import PydanticSerializationError

import fedskew
from fedskew.config import Config, EvaluateSection, FederationSection, Named, TrainSection
from fedskew.data.datasets import DATASETS
from fedskew.data.environments import ENVIRONMENTS
from fedskew.data.features import SETTINGS
from fedskew.data.own import FILE_KNOBS
from fedskew.data.partition import PARTITIONS
from fedskew.data.presets import PRESETS, expanded
from fedskew.data.skew import SKEWS
from fedskew.errors import ConfigError
from fedskew.federate.planning import stage_model
from fedskew.federate.recipe import Stage
from fedskew.federate.roster import Roster
from fedskew.methods import METHODS, find
from fedskew.methods.registry import noting
from fedskew.models.registry import MODELS
from fedskew.parts.augment import AUGMENTATIONS, augmentations
from fedskew.parts.losses import LOSSES
from fedskew.parts.metrics import check_metric
from fedskew.registry.entries import Registry
from fedskew.registry.sources import code_of
from fedskew.runs.given import GIVEN
from fedskew.trust.plain import check_plain

FORMAT = 2
"""The version of run folders. Raise it with every change of code that changes a number of any run
for the same settings, or the files of a run folder: no run is then mistaken for one made before.
The version of the package does not count, so an update that changes no number keeps every run."""
LABEL = FILE_KNOBS["label"].default
ADDED = ("skip", "vocabulary", "length", "signals")
"""Options of a user's own files that runs had names without: their defaults are not written."""
KEEP_EPOCHS = 5
"""Of fine-tuning where clients keep what serves them best, unless the method or user says."""
SCALED_BY_CLIENTS = 2
"""The first version whose clients standardise by their training rows. Before, all rows outside the
published test split counted: those of unseen clients and, without such a split, of tests."""


def spelled_out(section: FederationSection) -> FederationSection:
    """The section with the base dataset, the skew and the rest that a preset stands for.

    One column of labels is an option of a user's own files, as it always was.
    """
    section = _label_spelled_out(section)
    if section.dataset not in PRESETS:
        return section
    found = expanded(section.dataset, section.options, section.normalise)
    return section.model_copy(
        update={
            "dataset": found.dataset,
            "options": {},
            "normalise": found.normalise,
            "classes": found.classes if section.classes is None else section.classes,
            "image": found.image if section.image is None else section.image,
            "skew": [Named(**found.skew), *section.skew],
        }
    )


def _label_spelled_out(section: FederationSection) -> FederationSection:
    known = section.dataset in DATASETS or section.dataset in PRESETS or ":" in section.dataset
    for name in ("label", "columns"):
        if known and getattr(section, name) is not None:
            raise ConfigError(
                f"federation.{name} is about columns of your own tables, but {section.dataset!r} "
                "has none: leave it out."
            )
    named = [section.label] if isinstance(section.label, str) else section.label or []
    if len(named) != 1:
        return section
    given = section.options.get("label", named[0])
    if given not in (named[0], LABEL):
        raise ConfigError(
            f"federation.label is {named[0]!r} and federation.options.label {given!r}: keep one."
        )
    return section.model_copy(
        update={"label": None, "options": {**section.options, "label": named[0]}}
    )


def resolve(config: Config) -> Config:
    """The same config with every default written out, so that equal runs have equal configs.

    >>> from fedskew.config import make_config
    >>> short = resolve(make_config({"method": {"name": "private", "base": "fedprox"}}))
    >>> short.model.knobs, short.method.knobs["base"]["mu"]
    ({'hidden': [200, 200]}, 0.01)
    """
    if config.evaluate.metric is not None:
        check_metric(config.evaluate.metric)
    find(config.method.name).recipe(**config.method.knobs)
    check_plain({"method": config.method.knobs})
    return config.model_copy(
        update={
            "method": resolved_method(config.method),
            "model": _with_defaults(config.model, MODELS),
            "federation": _resolved_federation(spelled_out(config.federation)),
            "train": _resolved_train(config.train),
            "evaluate": _resolved_evaluate(config),
        }
    )


def resolved_method(method: Named) -> Named:
    """A method with its defaults, and its base, if it has one, with those of the base.

    A user's own function gets its base as it was given, for it may take nothing but a name; what
    the base's defaults are is noted when its recipe is made (see ``identify``).
    """
    found = find(method.name)
    knobs = {**found.defaults, **method.knobs}
    base = knobs.get("base")
    given: dict[str, Any] = dict(base) if isinstance(base, Mapping) else {"name": base}
    name = given.get("name")
    ours = found.function.__module__.startswith("fedskew.")
    if ours and isinstance(name, str) and (":" in name or name in METHODS):
        knobs["base"] = resolved_method(Named(**given)).model_dump()
    return _plain(Named(name=method.name, **knobs))


def _resolved_federation(section: FederationSection) -> FederationSection:
    updates: dict[str, Any] = {
        "skew": [_with_defaults(skew, SKEWS) for skew in section.skew],
        "environments": _with_defaults(section.environments, ENVIRONMENTS),
    }
    if section.features is not None:
        features = {**dict.fromkeys(SETTINGS), **section.features}
        updates["features"] = None if set(features.values()) == {None} else features
    if ":" not in section.dataset and section.dataset != GIVEN:
        partition = section.partition
        PARTITIONS.find(partition.name).check(partition.knobs)
        updates["partition"] = _with_defaults(partition, PARTITIONS)
        entry = DATASETS.get(section.dataset)
        files = {name: knob.default for name, knob in FILE_KNOBS.items()}
        options = {**(entry.defaults if entry else files), **section.options}
        for name in () if entry else ADDED:
            if options[name] == files[name]:
                del options[name]
        updates["options"] = options
    return section.model_copy(update=updates)


def _resolved_train(section: TrainSection) -> TrainSection:
    augmentations(section.augment)
    named = [_with_defaults(each, AUGMENTATIONS) for each in section.augment]
    loss = _with_defaults(section.loss, LOSSES)
    return section.model_copy(update={"loss": loss, "augment": named})


def _resolved_evaluate(config: Config) -> EvaluateSection:
    """With epochs of fine-tuning where clients may keep a fine-tuned model and nobody says any."""
    section, own = config.evaluate, find(config.method.name).recipe(**config.method.knobs).adapts
    said = section.fine_tune_epochs or (own and own.phases[-1].epochs)
    if section.keep is None or said:
        return section
    return section.model_copy(update={"fine_tune_epochs": KEEP_EPOCHS})


def _with_defaults(chosen: Named, known: Registry[Any]) -> Named:
    """What was picked by name, with its defaults."""
    defaults = known.find(chosen.name).defaults
    return _plain(Named(name=chosen.name, **{**defaults, **chosen.knobs}))


def _plain(chosen: Named) -> Named:
    """With lists for tuples, as settings are read back from a file."""
    try:
        return Named(**chosen.model_dump(mode="json"))
    except PydanticSerializationError as error:
        raise ConfigError(
            f"a knob of {chosen.name!r} is no plain value, which no run folder can keep: {error}."
        ) from error


@dataclass(frozen=True)
class Identity:
    """All that decides a run's numbers.

    ``config`` is resolved. ``methods`` are all that the recipe is made of, with those defaults that
    ``config`` does not tell, ``stages`` what runs before its main stage. ``code`` has file and hash
    of the user's own modules by name, ``data`` is the fingerprint of the federation.
    """

    config: Config
    methods: tuple[dict[str, Any], ...]
    stages: tuple[dict[str, Any], ...]
    code: dict[str, dict[str, str]]
    data: str

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that decide numbers, as plain values.

        The rounds are left out, for a run of more begins like one of fewer. An earlier stage that
        lasts as long as the run has them among ``stages``: it cannot be made longer afterwards.
        """
        values = self.config.resolved()
        del values["train"]["rounds"]
        federation = values["federation"]
        federation["seed"] = self.config.split_seed
        if federation["dataset"] == GIVEN:
            # The data are known by their hash, whatever they are called.
            federation["options"], federation["seed"] = {}, None
        if ":" not in federation["dataset"]:
            federation["dataset"] = PurePath(federation["dataset"]).name
        return values

    @cached_property
    def sha256(self) -> str:
        parts = (FORMAT, self.settings, self.methods, self.stages, self.code, self.data)
        return hash_of(parts)

    @property
    def name(self) -> str:
        """The folder's name: the method and twelve digits of the hash."""
        return f"{self.config.method.name.replace(':', '-')}-{self.sha256[:12]}"

    def recorded(self) -> dict[str, Any]:
        """What a run folder keeps of it in config.json."""
        return {
            "format": FORMAT,
            "fedskew": fedskew.__version__,
            "identity": self.sha256,
            "config": self.config.resolved(),
            "code": self.code,
            "data": self.data,
        }

    def of_stage(self, stages: Sequence[Stage]) -> str:
        """All that decides the numbers of the last of these: runs that agree on it may share it."""
        settings = {k: v for k, v in self.settings.items() if k not in ("method", "evaluate")}
        lengths = [stage.lasts(self.config.train.rounds) for stage in stages]
        # What is handed over afterwards changes nothing about the rounds.
        stages = [*stages[:-1], replace(stages[-1], hands_over=())]
        planned = self.stages[: len(stages)]
        text = repr((FORMAT, settings, self.config.evaluate.every, self.data, self.code, planned,
                     lengths, stages))  # fmt: skip
        if "<locals>" in text:
            # A class made inside a function may hold more than its name says.
            text += repr(self.config.method)
        return hashlib.sha256(text.encode()).hexdigest()


def identify(config: Config, roster: Callable[[], Roster], data: str) -> Identity:
    """The identity of a run with these settings, resolved, on data with this fingerprint.

    ``roster`` is called where a stage picks its model by what is known of the data.
    """
    with noting() as noted:
        recipe = find(config.method.name).recipe(**config.method.knobs)
    models: list[tuple[Named | None, Stage]] = []
    if recipe.prepares:
        models = [(stage_model(stage, roster()), stage) for stage in recipe.prepares]
    stages = tuple(
        {
            "name": stage.name,
            "rounds": stage.lasts(config.train.rounds),
            "train": stage.train,
            "model": None if model is None else _with_defaults(model, MODELS).model_dump(),
        }
        for model, stage in models
    )
    chosen = [config.model, *(model for model, _ in models if model is not None)]
    picked = [(method.name, method.function) for method, _ in noted]
    loss = config.train.loss.name
    picked += [(loss, LOSSES.find(loss).function)]
    picked += [*_models(chosen), *_data_functions(config.federation)]
    picked += [(each.name, AUGMENTATIONS.find(each.name).function) for each in config.train.augment]
    return Identity(
        config=config,
        methods=tuple({"name": method.name, **defaults} for method, defaults in noted),
        stages=stages,
        code=code_of(picked),
        data=data,
    )


def _models(chosen: Sequence[Named]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for model in chosen:
        yield model.name, MODELS.find(model.name).function


def _data_functions(section: FederationSection) -> Iterator[tuple[str, Callable[..., Any]]]:
    if ":" in section.dataset or section.dataset in DATASETS:
        yield section.dataset, DATASETS.find(section.dataset).function
    registries: list[tuple[Named, Registry[Any]]] = [
        (section.environments, ENVIRONMENTS),
        *((skew, SKEWS) for skew in section.skew),
    ]
    if ":" not in section.dataset:
        registries.append((section.partition, PARTITIONS))
    for chosen, known in registries:
        yield chosen.name, known.find(chosen.name).function


def hash_of(values: Any) -> str:
    """The SHA-256 of plain values, whatever order their keys stand in."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
