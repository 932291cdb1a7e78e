"""Knobs and helpers that families of methods share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Recipe
from fedskew.methods.registry import find
from fedskew.parts.aggregate import BySize, Uniform, Weighting
from fedskew.parts.step import LearningRate
from fedskew.registry.knobs import Knob

Base = Annotated[
    str | Mapping[str, Any],
    Knob("the method this one is built on, a name or {name = …, knob = …}"),
]
Weights = Annotated[
    Literal["size", "uniform"], Knob("clients' weights: by number of training samples, or equal")
]
ServerLr = Annotated[
    float,
    Knob(
        "step of the server towards its target; 1 is the target itself",
        gt=0,
        tries=(0.3, 1.0, 3.0),
    ),
]
Epochs = Annotated[int | None, Knob("epochs of this phase; none: the run's own", ge=1)]


@dataclass(frozen=True)
class Server:
    """A server that takes a weighted mean and steps towards it."""

    weights: Weights = "size"
    server_lr: ServerLr = 1.0

    @property
    def weighting(self) -> Weighting:
        return weighting(self.weights)

    @property
    def step(self) -> LearningRate:
        return LearningRate(self.server_lr)


BY_SIZE = Server()
ALL_ALIKE = Server(weights="uniform")


def weighting(weights: Weights) -> Weighting:
    """The weighting with this name."""
    return BySize() if weights == "size" else Uniform()


def based_on(base: Base) -> tuple[str, Recipe]:
    """The name and the recipe of the method another is built on."""
    knobs: dict[str, Any] = dict(base) if isinstance(base, Mapping) else {"name": base}
    name = knobs.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"base must name a method, like 'fedprox', not {base!r}.")
    return name, find(name).recipe(**knobs)
