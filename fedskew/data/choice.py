"""Functions users pick by name in a config: their one-line summary, their knobs, their checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fedskew.errors import ConfigError, unknown

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Choice:
    """A function users pick by name, with what the command line prints about it."""

    kind: str
    name: str
    function: Callable[..., Any]

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def knobs(self) -> dict[str, Any]:
        """Its settings and their defaults: the keyword-only arguments."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse knobs it does not have, and values of another type than the default's."""
        knobs = self.knobs
        for name, value in given.items():
            if name not in knobs:
                if not knobs:
                    raise ConfigError(f"{self.kind} {self.name!r} has no knob {name!r}, nor any.")
                raise unknown(f"knob of {self.kind} {self.name!r}", name, knobs)
            if not same_type(value, knobs[name]):
                wanted = type(knobs[name]).__name__
                raise ConfigError(
                    f"{name} of {self.kind} {self.name!r} must be a {wanted}, not {value!r}."
                )


def same_type(value: Any, default: Any) -> bool:
    """Whether a value may stand where this default stands; whole numbers may for fractions."""
    if default is None:
        return True
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)


def register(kind: str, registry: dict[str, Choice], name: str) -> Callable[[Function], Function]:
    """A decorator that enters a function into a registry under the name users type."""

    def add(function: Function) -> Function:
        registry[name] = Choice(kind, name, function)
        return function

    return add


def at_least(name: str, value: int, least: int) -> None:
    """Refuse a whole number below the least that makes sense."""
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, not {value}.")
