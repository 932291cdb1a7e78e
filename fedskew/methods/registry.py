"""The methods by name: each has a card that explains it and makes a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from fedskew.errors import ConfigError
from fedskew.federate.recipe import Recipe
from fedskew.parts.aggregate import Aggregator
from fedskew.parts.begin import Begin
from fedskew.parts.objective import Objective
from fedskew.parts.packing import Packing
from fedskew.parts.step import Step
from fedskew.registry.entries import Entry, Registry
from fedskew.registry.knobs import signature_of

F = TypeVar("F", bound=Callable[..., Recipe])

PARTS = {
    "objective": Objective, "aggregates": Aggregator, "steps": Step, "begins": Begin,
    "packs": Packing,
}  # fmt: skip


@dataclass(frozen=True)
class ReducesTo:
    """Knobs at which a method equals another; the tests check it."""

    method: str
    at: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    """Knobs of the other method."""


@dataclass(frozen=True)
class Card:
    """What a user should know before choosing a method. Its knobs are declared by its function."""

    summary: str
    paper: str
    update: str
    reduces: tuple[ReducesTo, ...] = ()
    sends: str = "model parameters"
    batch_norm: str = "statistics averaged with the same weights, counters copied"
    fails: str = ""
    defaults: str = ""
    """Why the defaults are what they are, if that needs explaining."""
    reference: Literal["alone", "pooled"] | None = None
    """If it is a reference: which one, no federation or all data pooled."""
    side: Literal["objective", "aggregator"] | None = None
    """Its side when objectives are crossed with aggregators, if it has one."""
    plain: bool = False
    """Whether others on its side are compared with it."""


@dataclass(frozen=True)
class Method(Entry):
    """A named function that returns a recipe, and its card."""

    card: Card = field(kw_only=True)

    @property
    def summary(self) -> str:
        return self.card.summary

    def recipe(self, **knobs: Any) -> Recipe:
        """The recipe with these knobs, checked; a method it is built on is made the same way."""
        self.check(knobs)
        if (noted := _NOTED.get(None)) is not None:
            noted.append((self, {n: v for n, v in self.defaults.items() if n not in knobs}))
        recipe = self.make(**knobs)
        if not isinstance(recipe, Recipe):
            raise ConfigError(f"{self.title} returned {type(recipe).__name__}, not a Recipe.")
        for name, base in PARTS.items():
            if not isinstance(part := getattr(recipe, name), base):
                raise ConfigError(
                    f"{self.title}: {name} of its recipe must be of a class based on "
                    f"{base.__name__}, not {part!r:.60}."
                )
        return recipe


class Methods(Registry[Method]):
    """The registry of methods; a function without a card gets a plain one."""

    def entry_of(self, name: str, function: Callable[..., Any], **facts: Any) -> Method:
        facts.setdefault("card", plain_card(function))
        return super().entry_of(name, function, **facts)


def plain_card(function: Callable[..., Any]) -> Card:
    """A card made from the function's own docstring."""
    summary = (inspect.getdoc(function) or "A user's own method.").partition("\n")[0]
    crosses = {"base", "environments"} <= signature_of(function).parameters.keys()
    return Card(summary, paper="the user's own", update="", side="objective" if crosses else None)


METHODS = Methods("method", "methods", Method)
find = METHODS.find


def method(name: str, card: Card) -> Callable[[F], F]:
    """Register a function that returns a recipe under a name.

    Its parameters are the method's knobs: see :mod:`fedskew.registry.knobs`.
    """
    return METHODS.register(name, card=card)


Noted = tuple[Method, dict[str, Any]]
_NOTED: ContextVar[list[Noted]] = ContextVar("noted")


@contextmanager
def noting() -> Iterator[list[Noted]]:
    """Record every method whose recipe is made inside the block, with its defaults.

    A method may be built on others, which any of its knobs may name.
    """
    noted: list[Noted] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)
