"""Knobs: the values users can choose for a method, model, partition, skew, environment or dataset.

A knob is declared once, in the signature of the function it belongs to. Text, range and values
worth trying are in a :class:`Knob` beside the type; the default is the parameter's own::

    def fedprox(mu: Annotated[float, Knob("strength of the pull", ge=0)] = 0.01) -> Recipe: ...

Knobs that several functions share are declared once as a type alias, or together as the fields of
a frozen dataclass, which may be the very part they set up. A function with a parameter whose
default is such an object has its fields as knobs::

    def fedavg(server: Server = BY_SIZE) -> Recipe: ...     # knobs weights and server_lr

Cards, ``fedskew list``, error messages and sweeps all read these declarations.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fedskew.errors import ConfigError, unknown


@dataclass(frozen=True)
class Knob:
    """What a knob does, the numbers it takes, and values worth trying.

    The range holds for numbers, and for each number of a list.
    """

    text: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    tries: tuple[Any, ...] = ()
    untuned: str = ""
    """Why it is not tuned unless named: it spends what validation scores do not count."""

    def contains(self, number: float) -> bool:
        """Whether a number is finite and within the range."""
        return (
            math.isfinite(number)
            and (self.ge is None or number >= self.ge)
            and (self.gt is None or number > self.gt)
            and (self.le is None or number <= self.le)
            and (self.lt is None or number < self.lt)
        )

    @property
    def range(self) -> str:
        """The range in words, to follow "a number".

        >>> Knob("", gt=0).range, Knob("", ge=0, le=1).range, Knob("", gt=0, lt=1).range
        (' above 0', ' from 0 to 1', ' above 0 and below 1')
        """
        if self.ge is not None and self.le is not None:
            return f" from {self.ge:g} to {self.le:g}"
        bounds = {"of at least": self.ge, "above": self.gt, "of at most": self.le, "below": self.lt}
        said = [f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None]
        return f" {' and '.join(said)}" if said else ""


@dataclass(frozen=True)
class Declared:
    """A knob as a function declares it: its name, type, default and description."""

    name: str
    hint: Any
    default: Any
    knob: Knob
    group: str | None = None
    """The parameter whose dataclass has the knob as a field."""

    @property
    def wanted(self) -> str:
        """The values it takes, in words."""
        return wanted(self.hint, self.knob)

    def check(self, value: Any, owner: str = "") -> None:
        """Refuse a value of another type or out of range; ``owner`` says whose knob it is."""
        if not fits(value, self.hint, self.knob):
            of = f" of {owner}" if owner else ""
            raise ConfigError(f"{self.name}{of} must be {self.wanted}, not {value!r}.")


def declared_knobs(function: Callable[..., Any], leading: int = 0) -> dict[str, Declared]:
    """The knobs a function declares: its parameters after the leading ones; groups are expanded."""
    hints = hints_of(function)
    found: dict[str, Declared] = {}
    for parameter in list(signature_of(function).parameters.values())[leading:]:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        hint, knob = split(hints.get(parameter.name, Any))
        if is_dataclass(parameter.default):
            found |= {d.name: d for d in fields_of(parameter.default, parameter.name)}
        else:
            found[parameter.name] = Declared(parameter.name, hint, parameter.default, knob)
    return found


def fields_of(group: Any, parameter: str | None = None) -> Iterator[Declared]:
    """The knobs among the fields of a dataclass, with an instance's values as defaults."""
    hints = hints_of(type(group))
    for field in fields(group):
        hint, knob = split(hints.get(field.name, Any))
        if knob.text:
            yield Declared(field.name, hint, getattr(group, field.name), knob, parameter)


def check_given(given: Mapping[str, Any], knobs: Mapping[str, Declared], owner: str) -> None:
    """Refuse unknown knobs, and values of another type or out of range."""
    for name, value in given.items():
        if name not in knobs:
            raise unknown("knob", name, knobs, of=owner)
        knobs[name].check(value, owner)


def check_fields(part: Any) -> None:
    """Check the fields of a dataclass against the knobs they declare (for ``__post_init__``)."""
    for declared in fields_of(part):
        declared.check(declared.default)


def values_of(group: Any) -> dict[str, Any]:
    """The knobs of a dataclass by name, with an instance's values."""
    return {declared.name: declared.default for declared in fields_of(group)}


def arguments_of(
    function: Callable[..., Any], knobs: Mapping[str, Declared], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Knob values as function arguments: those of a group become one instance of its class."""
    arguments: dict[str, Any] = {}
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        group = knobs[name].group if name in knobs else None
        if group is None:
            arguments[name] = value
        else:
            grouped.setdefault(group, {})[name] = value
    parameters = signature_of(function).parameters
    for parameter, values in grouped.items():
        arguments[parameter] = replace(parameters[parameter].default, **values)
    return arguments


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """What a function takes; of some that are not written in Python nobody can tell."""
    try:
        return inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{function!r} does not say what it takes: {error}.") from error


def hints_of(function: Any) -> dict[str, Any]:
    """Types as annotated; none where a user's own annotations cannot be evaluated."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}


def split(hint: Any) -> tuple[Any, Knob]:
    """A type and the knob annotated with it."""
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        return inner, next((e for e in extras if isinstance(e, Knob)), Knob(""))
    return hint, Knob("")


def options_of(hint: Any) -> list[Any]:
    """The members of a union, or the type alone."""
    if get_origin(hint) in (Union, types.UnionType):
        return [option for member in get_args(hint) for option in options_of(split(member)[0])]
    return [hint]


def fits(value: Any, hint: Any, knob: Knob) -> bool:
    """Whether a value is of a type and, where it is a number, within the knob's range."""
    return any(_fits_one(value, option, knob) for option in options_of(hint))


def _fits_one(value: Any, hint: Any, knob: Knob) -> bool:
    origin = get_origin(hint) or hint
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    if origin in (None, types.NoneType):
        return value is None
    if origin is float:
        return is_number and knob.contains(value)
    if origin is int:
        return is_number and isinstance(value, int) and knob.contains(value)
    if origin in (bool, str):
        return isinstance(value, origin)
    if origin in (list, tuple, Sequence):
        item = next(iter(get_args(hint)), Any)
        return isinstance(value, list | tuple) and all(fits(v, item, knob) for v in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    return True


def wanted(hint: Any, knob: Knob) -> str:
    """What a type and a range admit, in words.

    >>> wanted(float | Literal["measured"], Knob("", ge=0, le=1))
    "a number from 0 to 1 or 'measured'"
    >>> wanted(Sequence[int] | None, Knob("", ge=1))
    'a list of whole numbers of at least 1 or none'
    """
    words = [word for option in options_of(hint) for word in _wanted_one(option, knob)]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


_PLAIN = {bool: "true or false", str: "a name", types.NoneType: "none", None: "none"}


def _wanted_one(hint: Any, knob: Knob) -> list[str]:
    origin = get_origin(hint) or hint
    if origin is Literal:
        return [repr(choice) for choice in get_args(hint)]
    if origin in (int, float):
        return [f"a {'whole ' if origin is int else ''}number{knob.range}"]
    if origin in (list, tuple, Sequence):
        item = next(iter(get_args(hint)), Any)
        if item in (int, float):
            return [f"a list of {'whole ' if item is int else ''}numbers{knob.range}"]
        if get_origin(item) in (list, tuple, Sequence):
            return ["a list of lists"]
        return ["a list"]
    if origin in (dict, Mapping):
        return ["a table like {name = …}"]
    return [_PLAIN.get(origin, "something else")]
