"""A run's settings: one model per section, TOML in, unknown keys are errors."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedskew.errors import ConfigError, unknown

FEWEST_JUDGED = 4
"""Samples have neighbours only if there are some."""
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Shots = Annotated[int, Field(ge=0, strict=True)] | Literal["all"]
WHOLE_BATCH = 2**31
"""More samples than any client has."""


def _named(value: Any) -> Any:
    """Let users write ``partition = "iid"`` for ``partition = {name = "iid"}``."""
    return {"name": value} if isinstance(value, str) else value


def _all(value: Any) -> Any:
    """TOML has no null: "all" stands for no limit."""
    return None if value == "all" else value


def _whole(value: Any) -> Any:
    return WHOLE_BATCH if value == "all" else value


def _several(value: Any) -> Any:
    return value if isinstance(value, list) else ["all" if value is None else value]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(BaseModel):
    """Something picked by name with settings of its own, which its owner checks."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def knobs(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


Choice = Annotated[Named, BeforeValidator(_named)]


class FederationSection(Section):
    """Which data, and how they are divided over clients."""

    dataset: str = Field("digits", description="a dataset's name, a path, or module:function")
    options: dict[str, Any] = Field({}, description="options of the dataset's loader")
    classes: list[Annotated[int, Field(strict=True)]] | None = Field(
        None, description="keep only these classes, numbered anew in this order; none: all"
    )
    image: dict[str, Annotated[int, Field(strict=True)]] | None = Field(
        None, description="images of another size or other channels: {side = 32, channels = 3}"
    )
    normalise: Literal["standard", "unit", "signed"] = "standard"
    partition: Choice = Named(name="dirichlet", alpha=0.3)
    clients: Annotated[Positive | None, BeforeValidator(_all)] = Field(
        10, description="how many; 'all' lets the partition decide (every owner, every class)"
    )
    unseen: int | float | list[str] = Field(0, description="clients kept out of training")
    validation: Share = 0.1
    test: Share = 0.2
    test_from: Literal["auto", "matched", "holdout"] = "auto"
    by_segment: bool = Field(
        True, description="windows that overlap stay on one side of every split; false: anywhere"
    )
    samples: Positive | None = Field(None, description="thin the training data to so many")
    public: Annotated[int, Field(ge=0)] = Field(
        0, description="samples set aside for everybody to look at, e.g. as a shared probe"
    )
    test_samples: Positive | None = Field(None, description="thin the published test data")
    skew: list[Choice] = []
    environments: Choice = Field(
        Named(name="auto"),
        description="what tells a client's samples apart for objectives that look for what does "
        "not change: 'auto' (what a skew made, else random), 'random', 'owner' or 'none'",
    )
    features: dict[str, Any] | None = Field(
        None, description="fewer or scaled features: {top = 144, scale = 'client' or 'feature'}"
    )
    seed: int | None = Field(None, description="seed of the split; none takes the run's")


class TrainSection(Section):
    """How clients train and how long the federation goes on."""

    rounds: Positive = 20
    epochs: Positive = 1
    batch_size: Positive = 32
    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: Rate = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    lr_decay: Rate = Field(1.0, description="factor on lr after each round in lr_steps")
    lr_steps: list[Positive] = []
    clients_per_round: Annotated[Positive | None, BeforeValidator(_all)] = Field(
        None, description="how many take part in a round; 'all' by default"
    )
    min_clients: Positive = Field(1, description="fewest usable updates that make a new model")
    patience: Positive | None = Field(
        None, description="stop after so many scored rounds without a better validation score"
    )


class EvaluateSection(Section):
    """What is scored, and whether models are fine-tuned before a last look."""

    every: Positive = 1
    fine_tune_epochs: Annotated[int, Field(ge=0)] = Field(
        0, description="how long models adapt before a last look; 0: as the method says, if it does"
    )
    fine_tune_part: str | list[str] = Field(
        "method",
        description="what adapts: 'method' (what the method says, else all), 'all', or parts of "
        "the model like 'head' or ['encoder', 'decoder']; the others stay frozen",
    )
    fine_tune_lr: Rate | None = None
    fine_tune_batch: Annotated[Positive | None, BeforeValidator(_whole)] = Field(
        None, description="samples a step; 'all' in one; none: the run's own"
    )
    fine_tune_at: Literal["both", "last", "selected"] = Field(
        "both", description="adapt the models of the last round, of the selected one, or of both"
    )
    fine_tune_patience: Positive | None = Field(
        None,
        description="find the number of epochs on held-out shots: looks without a smaller loss",
    )
    shots: Annotated[list[Shots], BeforeValidator(_several)] = Field(
        ["all"],
        min_length=1,
        description="samples a class to adapt on, each number is scored: [0, 1, 2, 5, 'all']",
    )
    generated: Annotated[int, Field(ge=0)] = Field(
        0, description="samples drawn from a generative model at the end, to judge it by"
    )
    matrix_rounds: list[Positive] | None = Field(
        None,
        description="rounds whose similarity matrices are kept; none: 1, 4, 16, ... and the last",
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
        description="how clients train: 'vectorised' in stacks, 'threads' one a thread, "
        "'one-by-one' in plain PyTorch for a debugger; 'auto' chooses by the model",
    )
    device: str = "cpu"

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
        return self.model_dump(mode="json")


def make_config(values: Mapping[str, Any]) -> Config:
    """A config from plain nested values, with an error a user can act on.

    >>> make_config({"train": {"rounds": 3}}).train.rounds
    3
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise _explained(error) from None


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read a TOML file and apply ``key=value`` overrides on top."""
    return make_config(apply_overrides(read_toml(path), overrides))


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"could not read {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """``train.rounds=5`` and the like; values are read as TOML, bare words as strings.

    >>> apply_overrides({"train": {"lr": 0.1}}, ["train.lr=0.2", "method=fedprox"])
    {'train': {'lr': 0.2}, 'method': 'fedprox'}
    """
    result: dict[str, Any] = json.loads(json.dumps(values))
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
    except tomllib.TOMLDecodeError:
        return None if text == "none" else text


def _explained(error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown("setting", path, _known_settings())
    message = str(first["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = "" if first["type"] == "value_error" else f" (given: {first['input']!r})"
    return ConfigError(f"{path or 'config'}: {message}{given}.")


def _known_settings() -> list[str]:
    known = []
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            known += [f"{name}.{inner}" for inner in section.model_fields]
        else:
            known.append(name)
    return known
