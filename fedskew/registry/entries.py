"""Registries: the entries of one kind by name, built in, installed, or a user's own.

A name is looked up among the package's own entries, then among installed plug-ins (entry points of
the group ``fedskew.methods``, ``fedskew.models``, …); ``module:function`` is a user's own function.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, TypeVar

from fedskew.errors import ConfigError, FedskewError, locate, unknown
from fedskew.registry.knobs import (
    Declared,
    arguments_of,
    check_given,
    declared_knobs,
    signature_of,
)
from fedskew.registry.own import import_function
from fedskew.registry.sources import remember

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A function users pick by name. Its first ``leading`` parameters are not knobs."""

    kind: str
    name: str
    function: Callable[..., Any]
    leading: int = field(default=0, kw_only=True)
    contract: ClassVar[str] = ""
    """A sentence on what users' functions of this kind take and return, for errors."""

    @cached_property
    def knobs(self) -> dict[str, Declared]:
        return declared_knobs(self.function, self.leading)

    @property
    def defaults(self) -> dict[str, Any]:
        """Every knob's default; a knob that must be given has none."""
        return {
            name: knob.default
            for name, knob in self.knobs.items()
            if knob.default is not inspect.Parameter.empty
        }

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def details(self) -> str:
        """The rest of the docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[2].strip()

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name!r}"

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse unknown knobs, missing ones, and values of another type or out of range."""
        known = given.keys() & self.knobs.keys() if self._takes_any else given
        check_given({name: given[name] for name in known}, self.knobs, self.title)
        for name in self.knobs.keys() - self.defaults.keys() - given.keys():
            raise ConfigError(f"{self.title} needs its knob {name!r}: give it a value.")

    def make(self, *arguments: Any, **given: Any) -> Any:
        """Call the function with the leading arguments and checked knobs."""
        self.check(given)
        knobs = arguments_of(self.function, self.knobs, given)
        try:
            signature_of(self.function).bind(*arguments, **knobs)
        except TypeError as error:
            raise ConfigError(
                f"{self.title} cannot be called as a {self.kind}: {error}. {self.contract}".rstrip()
            ) from None
        try:
            return self.function(*arguments, **knobs)
        except FedskewError:
            raise
        except SystemExit as error:
            raise ConfigError(f"{self.title} ended Python (SystemExit: {error}).") from error
        except Exception as error:
            locate(error, self.title)
            raise

    @property
    def _takes_any(self) -> bool:
        parameters = signature_of(self.function).parameters.values()
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


E = TypeVar("E", bound=Entry)


class Registry(Mapping[str, E], Generic[E]):
    """The entries of a kind by name, in the order in which they were registered.

    ``plural`` names the kind's group of entry points; ``entry`` makes an entry of kind, name and
    function. A plug-in that cannot be loaded is left out with a warning; naming it is an error.
    """

    def __init__(self, kind: str, plural: str, entry: type[E], leading: int = 0) -> None:
        self.kind, self.group = kind, f"fedskew.{plural}"
        self._entry, self._leading = entry, leading
        self.entries: dict[str, E] = {}
        self._broken: dict[str, ConfigError] = {}
        self._has_plugins = False

    def register(self, name: str, **facts: Any) -> Callable[[F], F]:
        """A decorator that registers a function under the name users type."""

        def enter(function: F) -> F:
            self._check_free(name, function)
            self.entries[name] = self.entry_of(name, function, **facts)
            return function

        return enter

    def entry_of(self, name: str, function: Callable[..., Any], **facts: Any) -> E:
        return self._entry(self.kind, name, function, leading=self._leading, **facts)

    def find(self, name: str) -> E:
        """An entry by name, or the one of a user's ``module:function``."""
        if ":" in name:
            declared = [entry.function for entry in self.values()]
            return self._named(name, import_function(self.kind, name, self.group, declared))
        if name in self:
            return self.entries[name]
        raise self._broken.get(name) or unknown(self.kind, name, self)

    def __getitem__(self, name: str) -> E:
        if name not in self.entries:
            self._install()
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        self._install()
        return iter(self.entries)

    def __len__(self) -> int:
        self._install()
        return len(self.entries)

    def _named(self, name: str, function: Callable[..., Any]) -> E:
        """A function under another name, with the facts it was registered with, if it was."""
        known = (e for e in self.entries.values() if e.function is function)
        entry = next(known, None) or self.entry_of(name, function)
        return replace(entry, name=name)

    def _install(self) -> None:
        """Load the installed plug-ins, once. Looking for them costs time, so built-ins go first."""
        if self._has_plugins:
            return
        self._has_plugins = True
        for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
            try:
                function = point.load()
                self._check_free(point.name, function)
                remember(point.module)
                self.entries[point.name] = self._named(point.name, function)
            except (Exception, SystemExit) as error:
                package = f"package {point.dist.name!r}" if point.dist else "an installed package"
                self._broken[point.name] = ConfigError(
                    f"{self.kind} {point.name!r} of {package} cannot be loaded "
                    f"({type(error).__name__}: {error}); update or uninstall it."
                )
                warnings.warn(str(self._broken[point.name]), stacklevel=3)

    def _check_free(self, name: str, function: Callable[..., Any]) -> None:
        """Refuse a name another function has; a reloaded module may replace its own functions."""
        if not callable(function):
            raise ConfigError(f"{self.kind} {name!r} must be a function, not {function!r}.")
        known = self.entries.get(name)
        if known is not None and place_of(known.function) != place_of(function):
            raise ConfigError(
                f"{self.kind} {name!r} is taken by {place_of(known.function)}: rename the one of "
                f"{place_of(function)}."
            )


def place_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__qualname__}"
