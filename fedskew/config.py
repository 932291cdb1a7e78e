"""A run's settings: one model per section, TOML in, unknown keys are errors."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedskew.errors import ConfigError, unknown
from fedskew.trust.consent import allow_code_in, typed
from fedskew.trust.plain import check_plain
from fedskew.trust.toml import read_toml

FEWEST_JUDGED = 4
"""The fewest generated samples that have neighbours to judge them by."""
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[int, Field(ge=1, le=10**7)]
BatchSize = Annotated[int, Field(ge=1, le=2**31)]
Rate = Annotated[float, Field(gt=0)]
Shots = Annotated[int, Field(ge=0, strict=True)] | Literal["all"]
ClassNumber = Annotated[int, Field(strict=True)]
ColumnKind = Literal["number", "category", "hash", "boolean", "date", "text", "client", "ignore"]
ADDED: dict[str, dict[str, Any]] = {
    "federation": {"task": "auto", "positive": None, "label": None, "columns": None},
    "train": {"loss": {"name": "squared"}, "augment": []},
    "evaluate": {"metric": None, "keep": None},
}
"""By section, settings that runs had names without, with their defaults."""
ALTERNATIVE = re.compile(r"(int|float|str)$|\w+[\[(-]")
"""What pydantic adds to the path of a setting that may be of several types."""
WHOLE_BATCH = 2**31
"""More samples than any client has."""


def _named(value: Any) -> Any:
    """Let users write ``partition = "iid"`` for ``partition = {name = "iid"}``."""
    return {"name": value} if isinstance(value, str) else value


def _all(value: Any) -> Any:
    """TOML has no null: "all" stands for no limit."""
    return None if value == "all" else value


def _switched(value: Any) -> Any:
    """``secure = true`` stands for a section with its defaults, false for none."""
    return {True: {}, False: None}[value] if type(value) is bool else value


def _whole(value: Any) -> Any:
    return WHOLE_BATCH if value == "all" else value


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _several(value: Any) -> Any:
    return value if isinstance(value, list) else ["all" if value is None else value]


SWITCH = BeforeValidator(_switched)
S = TypeVar("S", bound="Section")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python takes true for 1; a user who wrote it meant something else."""
        items = value if isinstance(value, list | tuple) else [value]
        field = cls.model_fields[str(info.field_name)]
        switch = field.annotation is bool or SWITCH in field.metadata
        if not switch and any(type(item) is bool for item in items):
            raise ValueError("must not be true or false")
        return value


class Named(BaseModel):
    """Something picked by name, with knobs of its own that its registry checks."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def knobs(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


Choice = Annotated[Named, BeforeValidator(_named)]


class FederationSection(Section):
    """Which data, and how they are divided among clients."""

    dataset: str = Field("digits", description="a dataset's name, a path, or module:function")
    options: dict[str, Any] = Field({}, description="knobs of the dataset")
    label: str | list[str] | None = Field(
        None,
        description="column of the labels in your own tables, or several of 0 and 1 each; none: "
        "the one named 'label'",
    )
    columns: dict[str, ColumnKind] | None = Field(
        None,
        description="what columns of your own tables are, where it is not as it looks: "
        "{id = 'ignore', ward = 'category'}; 'client' says whose a row is",
    )
    task: Literal["auto", "classification", "binary", "multi-label", "regression"] = Field(
        "auto", description="what is learned of a sample; 'auto': as the labels look"
    )
    positive: str | None = Field(
        None, description="of two classes, the one that is looked for; none: the last"
    )
    classes: list[ClassNumber | list[ClassNumber]] | None = Field(
        None,
        description="keep only these classes, renumbered in this order; a list among them makes "
        "several into one: [[0, 1], [2, 3]]; none: all",
    )
    image: dict[str, Annotated[int, Field(strict=True)]] | None = Field(
        None, description="images of another size or other channels: {side = 32, channels = 3}"
    )
    normalise: Literal["standard", "unit", "signed", "client"] = Field(
        "standard",
        description="the scale of samples: 'standard' (mean 0 and deviation 1 over training rows), "
        "'unit' (images in 0..1; features as stored), 'signed' (images in -1..1) or 'client' (as "
        "'standard', each client by itself, as for scanners that differ)",
    )
    partition: Choice = Named(name="dirichlet", alpha=0.3)
    clients: Annotated[Positive | None, BeforeValidator(_all)] = Field(
        10, description="how many clients; 'all': the partition decides (every owner, every class)"
    )
    unseen: int | float | list[str] = Field(0, description="clients kept out of training")
    validation: Share = 0.1
    test: Share = 0.2
    test_from: Literal["auto", "matched", "holdout"] = "auto"
    by_segment: bool = Field(
        True, description="overlapping windows stay together in every split; false: they need not"
    )
    samples: Positive | None = Field(None, description="keep only this many training samples")
    public: Annotated[int, Field(ge=0)] = Field(
        0, description="samples set aside that everybody may see, e.g. as a shared probe"
    )
    test_samples: Positive | None = Field(None, description="keep only this many test samples")
    skew: list[Choice] = []
    environments: Choice = Field(
        Named(name="auto"),
        description="how a client's samples are divided into environments, for objectives that "
        "look for what does not change: 'auto' (by the skew, else random), 'random', 'owner' or "
        "'none'",
    )
    held_out_environment: Annotated[int, Field(ge=0, strict=True)] | Literal["last"] | None = Field(
        None,
        description="an environment nobody trains on: its number, or 'last'; models are scored on "
        "what clients have of it, so that rounds can be chosen by rule 'environment' (scaling by "
        "normalise = 'standard' counts it, since skews make environments after it)",
    )
    features: dict[str, Any] | None = Field(
        None, description="fewer or scaled features: {top = 144, scale = 'client' or 'feature'}"
    )
    seed: int | None = Field(None, description="seed of the split; none takes the run's")


class TrainSection(Section):
    """How clients train, and for how many rounds."""

    rounds: Positive = 20
    epochs: Positive = 1
    batch_size: BatchSize = 32
    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: Rate = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    lr_decay: Rate = Field(1.0, description="factor on lr after each round in lr_steps")
    lr_steps: list[Positive] = []
    clients_per_round: Annotated[Positive | None, BeforeValidator(_all)] = Field(
        None, description="how many clients take part in a round; 'all' by default"
    )
    min_clients: Positive = Field(1, description="fewest usable updates for a new model")
    loss: Choice = Field(
        Named(name="squared"),
        description="what errors of a target that is a number cost: 'squared', 'absolute', 'huber' "
        "or {name = 'pinball', quantile = 0.9}; classes and labels have their cross-entropy",
    )
    augment: Annotated[list[Choice], BeforeValidator(_listed)] = Field(
        [],
        description="how images are changed while clients train, in this order: [{name = 'crop', "
        "pad = 4}, 'flip']; none: as they are",
    )
    patience: Positive | None = Field(
        None,
        description="stop after this many scored rounds below the best validation score",
    )


class EvaluateSection(Section):
    """What is scored, and whether models are fine-tuned before the final scores."""

    metric: str | None = Field(
        None,
        description="what rounds are selected and methods ranked by: 'accuracy', "
        "'balanced_accuracy', 'macro_f1', 'auroc', 'auprc', 'log_loss', 'brier', 'ece', 'rmse', "
        "'mae', 'r2', 'pinball@0.9', 'loss' and more (docs/how-to/metrics.md); none: as the method "
        "and what is learned suggest",
    )
    keep: Literal["best"] | None = Field(
        None,
        description="'best': each client keeps what serves it best of its own model trained alone, "
        "the method's, the same fine-tuned, and means of their answers; clients also train alone "
        "for it (docs/how-to/keep.md)",
    )
    every: Positive = 1
    fine_tune_epochs: Annotated[int, Field(ge=0)] = Field(
        0, description="epochs of fine-tuning before the final scores; 0: as the method says"
    )
    fine_tune_part: str | Annotated[list[str], Field(min_length=1)] = Field(
        "method",
        description="what is fine-tuned: 'method' (as the method says, else all), 'all', or parts "
        "of the model like 'head' or ['encoder', 'decoder']; the others stay frozen",
    )
    fine_tune_lr: Rate | None = None
    fine_tune_batch: Annotated[BatchSize | None, BeforeValidator(_whole)] = Field(
        None, description="samples per step; 'all': all in one step; none: train.batch_size"
    )
    fine_tune_at: Literal["both", "last", "selected"] = Field(
        "both", description="adapt the models of the last round, of the selected one, or of both"
    )
    fine_tune_patience: Positive | None = Field(
        None,
        description="choose the number of epochs on held-out shots: stop after this many checks "
        "without a smaller loss",
    )
    shots: Annotated[list[Shots], BeforeValidator(_several)] = Field(
        ["all"],
        min_length=1,
        description="samples per class to adapt on; each number is scored: [0, 1, 2, 5, 'all']",
    )
    generated: Annotated[int, Field(ge=0)] = Field(
        0, description="samples drawn from a generative model at the end, to judge the model by"
    )
    matrix_rounds: list[Positive] | None = Field(
        None,
        description="rounds whose similarity matrices are kept; none: 1, 4, 16, ... and the last",
    )


class SecureSection(Section):
    """How the updates of real sites are hidden in sums."""

    threshold: Annotated[float, Field(gt=0.5, le=1)] = Field(
        2 / 3, description="share of a round's sites that must stay to its end"
    )
    clip: Rate = Field(8.0, description="the most that a round may change a client's parameter")
    bits: Annotated[int, Field(ge=8, le=30)] = Field(
        24, description="of a client's number in the sum: 24 leave room for 255 clients in a round"
    )


class Config(Section):
    """The settings of a run: with code and data, what decides its numbers."""

    seed: Annotated[int, Field(ge=0)] = 0
    federation: FederationSection = FederationSection()
    model: Choice = Named(name="mlp")
    method: Choice = Named(name="fedavg")
    train: TrainSection = TrainSection()
    evaluate: EvaluateSection = EvaluateSection()
    executor: Literal["auto", "vectorised", "threads", "one-by-one"] = Field(
        "auto",
        description="how clients train: 'vectorised' in stacks, 'threads' one per thread, "
        "'one-by-one' in plain PyTorch for a debugger; 'auto' chooses by the model",
    )
    device: str = "cpu"
    secure: Annotated[SecureSection | None, SWITCH] = Field(
        None,
        description="true: on real sites, the server sees sums of updates only "
        "(docs/secure-aggregation.md)",
    )

    @model_validator(mode="after")
    def _check(self) -> Config:
        if self.train.min_clients > (self.train.clients_per_round or self.train.min_clients):
            raise ValueError("min_clients is larger than clients_per_round")
        if len(set(self.evaluate.shots)) < len(self.evaluate.shots):
            raise ValueError(f"evaluate.shots names a number twice: {self.evaluate.shots}")
        if 0 < self.evaluate.generated < FEWEST_JUDGED:
            raise ValueError(f"evaluate.generated must be 0 or at least {FEWEST_JUDGED}")
        return self

    @property
    def split_seed(self) -> int:
        return self.seed if self.federation.seed is None else self.federation.seed

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, the defaults of every section written out."""
        values = self.model_dump(mode="json")
        if self.secure is None:
            # Runs had names before there were these settings.
            del values["secure"]
        for section, settings in ADDED.items():
            for name, default in settings.items():
                if values[section][name] == default:
                    del values[section][name]
        return values


def make_config(values: Mapping[str, Any]) -> Config:
    """A config from plain nested values, with an error a user can act on.

    Code named in them is the caller's own choice: see :mod:`fedskew.trust.consent`.

    >>> make_config({"train": {"rounds": 3}}).train.rounds
    3
    """
    typed(values)
    return config_of(values)


def config_of(values: Mapping[str, Any]) -> Config:
    """A config from values that somebody else wrote down; code they name needs consent."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"a config must be a table of settings, not {type(values).__name__}.")
    # Numbers of the method are looked at with its knobs, which say better what they should be.
    check_plain({name: value for name, value in values.items() if name != "method"})
    check_plain({"method": values.get("method", "")}, finite=False)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise _explained(error, Config) from None


def load_config(path: Path, overrides: Iterable[str] = (), *, allow_code: bool = False) -> Config:
    """Read a TOML file and apply ``key=value`` overrides on top.

    The file may name code (``module:function``) only with ``allow_code``, or in a trusted folder.
    """
    if allow_code:
        allow_code_in(path)
    overrides = list(overrides)
    typed(overrides)
    return config_of(apply_overrides(read_toml(path), overrides))


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """``train.rounds=5`` and the like; values are read as TOML, bare words as strings.

    >>> apply_overrides({"train": {"lr": 0.1}}, ["train.lr=0.2", "method=fedprox"])
    {'train': {'lr': 0.2}, 'method': 'fedprox'}
    """
    check_plain(values, finite=False)
    result: dict[str, Any] = copy.deepcopy(dict(values))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set wants key=value, not {override!r}.")
        *path, last = key.strip().split(".")
        place = result
        for part in path:
            inner = place.get(part, {})
            if isinstance(inner, str):
                inner = _named(inner)
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {key}: {part!r} is not a section.")
            place[part] = inner
            place = inner
        place[last] = _value(text.strip())
    return result


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return None if text == "none" else text


def checked_section(kind: type[S], values: Mapping[str, Any], origin: str) -> S:
    """A section of another file than a config; errors begin with where they come from."""
    check_plain(values)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {_explained(error, kind)}") from None


def _explained(error: ValidationError, kind: type[Section]) -> ConfigError:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"] if not ALTERNATIVE.match(str(part)))
    if first["type"] == "extra_forbidden":
        return unknown("setting", path, _known_settings(kind))
    message = str(first["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = "" if first["type"] == "value_error" else f" (given: {first['input']!r:.200})"
    return ConfigError(f"{path or 'config'}: {message}{given}.")


def _known_settings(kind: type[Section]) -> list[str]:
    known = []
    for name, field in kind.model_fields.items():
        types = get_args(field.annotation) or (field.annotation,)
        sections = [each for each in types if isinstance(each, type) and issubclass(each, Section)]
        known += [f"{name}.{inner}" for each in sections for inner in each.model_fields]
        if not sections or SWITCH in field.metadata:
            known.append(name)
    return known
