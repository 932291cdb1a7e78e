"""What a method is: a recipe of parts, a card that explains it, and the list of named methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from fedskew.errors import ConfigError, located, unknown
from fedskew.parts.aggregate import Aggregator, Mean
from fedskew.parts.begin import Begin
from fedskew.parts.correct import Correction
from fedskew.parts.distil import Invention
from fedskew.parts.finding import Finding
from fedskew.parts.objective import Erm, Objective
from fedskew.parts.report import Report
from fedskew.parts.select import EVERYTHING, Select
from fedskew.parts.step import Step, Whole
from fedskew.plugins import import_function

if TYPE_CHECKING:
    from fedskew.federate.roster import Roster


@dataclass(frozen=True)
class Phase:
    """One stretch of a client's training: which parameters move, for how long, how corrected.

    ``model`` says which of the client's models: "shared" (what the server sent, completed by the
    client's private parameters) or "personal" (a whole model of its own, as in Ditto).
    ``epochs``, ``lr`` and ``objective`` are the run's and the recipe's own where they are None.
    """

    trains: Select = EVERYTHING
    epochs: int | None = None
    lr: float | None = None
    objective: Objective | None = None
    corrects: tuple[Correction, ...] = ()
    model: Literal["shared", "personal"] = "shared"


@dataclass(frozen=True)
class Adapt:
    """What a client does to its model before it is scored as adapted.

    ``shots`` labelled samples a class (None: all of its training data), each phase in turn, in
    batches of ``batch_size`` (None: the run's). With ``patience`` the number of epochs is found on
    samples held out of those (see ``fedskew.federate.adapting``): so many looks without a smaller
    loss end the search.
    """

    phases: tuple[Phase, ...]
    shots: int | None = None
    patience: int | None = None
    batch_size: int | None = None

    @property
    def label(self) -> str:
        epochs = sum(phase.epochs or 1 for phase in self.phases)
        return f"fine-tuned {epochs}" if self.shots is None else f"{self.shots}-shot {epochs}"


@dataclass(frozen=True)
class Recipe:
    """A method, as the parts it is made of (see the README's table of methods)."""

    objective: Objective = field(default_factory=Erm)
    trains: tuple[Phase, ...] = (Phase(),)
    shares: Select = EVERYTHING
    reports: tuple[Report, ...] = ()
    aggregates: Aggregator = field(default_factory=Mean)
    steps: Step = field(default_factory=Whole)
    adapts: Adapt | None = None
    leaves: tuple[Finding, ...] = ()
    prepares: tuple[Stage, ...] = ()
    begins: Begin = field(default_factory=Begin)
    pools: bool = False
    """Train on everyone's data in one place (the central reference)."""
    invents: Invention | None = None
    """What makes the data a server trains on, from what an earlier stage handed over."""
    extends: Callable[[nn.Module], nn.Module] | None = None
    """Changes the model before anything else, e.g. to give it a second head."""

    def __post_init__(self) -> None:
        if self.aggregates.several and not self.steps.whole:
            raise ConfigError(
                "a server step needs one target for all clients, but this server makes several "
                "models: leave the step out."
            )
        phase = any(phase.model == "personal" for phase in self.trains)
        if phase and any(objective.personal for objective in self.shared_objectives):
            raise ConfigError(
                "a phase and an objective of this method both make a client's own model: leave one "
                "of them out."
            )

    @property
    def shared_objectives(self) -> tuple[Objective, ...]:
        """What is minimised in the phases that train the shared model."""
        phases = [phase for phase in self.trains if phase.model == "shared"]
        return tuple(phase.objective or self.objective for phase in phases)


class ModelChoice:
    """Base of what picks a stage's model by what is known of the data."""

    def fitting(self, roster: Roster) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class Stage:
    """A recipe that runs before another, and what it hands over.

    After its last round every client runs ``hands_over`` on the finished model; what the reports
    keep stays at the client for the next stage (e.g. "sample_weight"), what they send enters the
    server's memory there, as "client/name". ``train`` replaces settings of the run's [train].
    """

    name: str
    recipe: Recipe
    rounds: int | None = None
    train: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] | ModelChoice | None = None
    hands_over: tuple[Report, ...] = ()
    hands: Literal["last", "selected"] = "last"
    """Which round's model is handed over: the last, or the one with the best validation score."""
    score_every: int | None = None
    """Rounds from one score to the next; none: as often as the run's main stage."""

    def lasts(self, run: int) -> int:
        """How many rounds it goes on in a run of so many: its own number, else its settings'."""
        return int(self.train.get("rounds", run) if self.rounds is None else self.rounds)


@dataclass(frozen=True)
class Reduction:
    """Settings at which a method equals another: a law the tests hold it to."""

    knobs: dict[str, Any]
    equals: str
    equals_knobs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    """What a user should know before choosing a method."""

    summary: str
    paper: str
    update: str
    knobs: dict[str, str] = field(default_factory=dict)
    reduces: tuple[Reduction, ...] = ()
    sends: str = "model parameters"
    batch_norm: str = "statistics averaged with the same weights, counters copied"
    fails: str = ""
    defaults: str = ""
    """Why the settings are what they are, where they were chosen by looking."""
    reference: Literal["alone", "pooled"] | None = None
    """What any method is held against, where it is that: no federation, or all data pooled."""
    side: Literal["objective", "aggregator"] | None = None
    """Where every client objective is crossed with every aggregator: what it is, if either."""
    plain: bool = False
    """Whether it is the one that others on its side are measured against."""


@dataclass(frozen=True)
class Method:
    name: str
    make: Callable[..., Recipe]
    card: Card

    @property
    def defaults(self) -> dict[str, Any]:
        return {n: p.default for n, p in inspect.signature(self.make).parameters.items()}

    def recipe(self, **knobs: Any) -> Recipe:
        for name in knobs:
            if name not in self.defaults:
                if not self.defaults:
                    raise ConfigError(f"method {self.name!r} has no settings, so remove {name!r}.")
                raise unknown(f"setting of method {self.name!r}", name, self.defaults)
            self._check_kind(name, knobs[name])
        if (noted := _NOTED.get(None)) is not None:
            noted.append((self, {n: v for n, v in self.defaults.items() if n not in knobs}))
        with located(f"method {self.name!r}"):
            recipe = self.make(**knobs)
        if not isinstance(recipe, Recipe):
            raise ConfigError(
                f"method {self.name!r} returned {type(recipe).__name__}, not a fedskew Recipe."
            )
        return recipe

    def _check_kind(self, name: str, value: Any) -> None:
        """Hold a number or switch to its annotation; what other values mean, the method knows."""
        hint = self.make.__annotations__.get(name, "anything")
        kinds = [kind.strip() for kind in str(getattr(hint, "__name__", hint)).split("|")]
        if not set(kinds) <= {"int", "float", "bool", "None"}:
            return
        given = type(value).__name__.replace("NoneType", "None")
        if given not in kinds and not (given == "int" and "float" in kinds):
            wanted = " or ".join(WANTED[kind] for kind in kinds)
            raise ConfigError(
                f"setting {name!r} of method {self.name!r} must be {wanted}, not {value!r}."
            )


WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "None": "none"}

_METHODS: dict[str, Method] = {}
Noted = tuple[Method, dict[str, Any]]
_NOTED: ContextVar[list[Noted]] = ContextVar("noted")


@contextmanager
def noting() -> Iterator[list[Noted]]:
    """Note every method whose recipe is made meanwhile, with the defaults that it was made with.

    For a method may be made of others, by whatever knob they are named.
    """
    noted: list[Noted] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def method(name: str, card: Card) -> Callable[[Callable[..., Recipe]], Callable[..., Recipe]]:
    """Register a function that returns a recipe under a name."""

    def register(make: Callable[..., Recipe]) -> Callable[..., Recipe]:
        _METHODS[name] = Method(name, make, card)
        return make

    return register


@cache
def _load() -> None:
    import fedskew.methods  # noqa: F401


def methods() -> dict[str, Method]:
    """All registered methods by name."""
    _load()
    return dict(_METHODS)


def find(name: str) -> Method:
    """A registered method, or the user's own ``module:function`` that returns a recipe."""
    if ":" in name:
        own = import_function("method", name)
        summary = (inspect.getdoc(own) or "The user's own method.").partition("\n")[0]
        crosses = {"base", "environments"} <= inspect.signature(own).parameters.keys()
        side: Literal["objective"] | None = "objective" if crosses else None
        return Method(name, own, Card(summary, paper="the user's own", update="", side=side))
    known = methods()
    if name not in known:
        raise unknown("method", name, known)
    return known[name]
