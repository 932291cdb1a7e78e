"""Methods as users name them: one by one, or every client objective with every aggregator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedskew.config import Named, apply_overrides
from fedskew.errors import ConfigError, unknown
from fedskew.methods import METHODS, find

ALL = "all"
TIMES = "×"
Given = str | Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """What clients minimise, and the method that does everything else."""

    objective: Named
    aggregator: Named

    @property
    def method(self) -> Named:
        """
        >>> Pair(Named(name="irm", lam=1.0), Named(name="scaffold")).method.knobs
        {'lam': 1.0, 'base': 'scaffold'}
        """
        knobs = self.aggregator.knobs
        base = {"name": self.aggregator.name, **knobs} if knobs else self.aggregator.name
        return Named(name=self.objective.name, **self.objective.knobs, base=base)


def pairs(objectives: Iterable[Given] | str, aggregators: Iterable[Given] | str) -> list[Pair]:
    """Every objective with every aggregator, each pair once and checked.

    Names may have knobs, may be listed in one text, or be ``all``. Without aggregators, each
    objective has its own default.

    >>> [label(pair.method) for pair in pairs("erm, irm:lam=10", ["scaffold"])]
    ['erm × scaffold', 'irm (lam=10) × scaffold']
    """
    rows = _listed("objective", objectives, list(known_objectives()))
    columns = _listed("aggregator", aggregators, known_aggregators())
    if columns and not rows:
        raise ConfigError(
            f"aggregators need objectives to go with: name some of {', '.join(known_objectives())}."
        )
    for objective in rows:
        _check_objective(objective)
    for aggregator in columns:
        _check_aggregator(aggregator)
    found: dict[str, Pair] = {}
    for row in rows:
        for column in columns or [base_of(row)]:
            pair = Pair(row, column)
            _check_together(pair)
            found.setdefault(label(pair.method), pair)
    return list(found.values())


def known_objectives() -> tuple[str, ...]:
    """The methods that only say what clients minimise, and leave everything else to a base."""
    return tuple(name for name, known in METHODS.items() if known.card.side == "objective")


def known_aggregators() -> tuple[str, ...]:
    """The aggregators that ``all`` stands for; other methods with a shared model may be named."""
    return tuple(name for name, known in METHODS.items() if known.card.side == "aggregator")


def is_objective(name: str) -> bool:
    return find(name).card.side == "objective"


def parse_method(text: str) -> Named:
    """A method as the command line names it.

    >>> parse_method("fedprox:mu=0.1,weights=uniform").knobs
    {'mu': 0.1, 'weights': 'uniform'}
    >>> parse_method("my_rules:median:trim=2").name
    'my_rules:median'
    """
    name, colon, knobs = text.partition(":")
    if colon and name not in METHODS and "=" not in knobs.partition(":")[0]:
        function, colon, knobs = knobs.partition(":")
        name = f"{name}:{function}"
    # A comma inside a list is not followed by another knob's name and an equals sign.
    assignments = re.split(r",(?=\s*\w+\s*=)", knobs) if knobs else []
    if colon and not assignments:
        raise ConfigError(f"method {text!r} needs knobs after the colon, like 'fedprox:mu=0.1'.")
    for assignment in assignments:
        if "=" not in assignment:
            raise ConfigError(f"method {text!r} needs name=value, not {assignment!r}.")
    return Named(**{**apply_overrides({}, assignments), "name": name.strip()})


def label(method: Named) -> str:
    """A method with those of its knobs that are not the default; an objective with its base.

    >>> label(Named(name="fedprox", mu=0.1, weights="size"))
    'fedprox (mu=0.1)'
    >>> label(Named(name="irm", base={"name": "fedprox", "mu": 0.1}))
    'irm × fedprox (mu=0.1)'
    """
    if not is_objective(method.name):
        return own_label(method)
    return f"{own_label(method, but='base')} {TIMES} {own_label(base_of(method))}"


def base_of(objective: Named) -> Named:
    """The method that does everything else for an objective."""
    base = objective.knobs.get("base", find(objective.name).defaults["base"])
    return Named(**base) if isinstance(base, Mapping) else Named(name=str(base))


def own_label(method: Named, but: str = "") -> str:
    """A method with those of its own knobs that are not the default, except ``but``."""
    changed = [f"{k}={v}" for k, v in sorted(_changed(method).items()) if k != but]
    return f"{method.name} ({', '.join(changed)})" if changed else method.name


def _changed(method: Named) -> dict[str, Any]:
    """The knobs that are not the default; a base is written as briefly as a user would."""
    defaults, knobs = find(method.name).defaults, method.knobs
    if isinstance(base := knobs.get("base"), Mapping) and "name" in base:
        changed = _changed(Named(**base))
        knobs["base"] = {"name": base["name"], **changed} if changed else base["name"]
    return {knob: value for knob, value in knobs.items() if defaults.get(knob) != value}


def split_names(text: str) -> list[str]:
    """Names separated by commas or spaces; a comma before another knob of a name separates nothing.

    >>> split_names("erm, irm:lam=10,anneal=5 vrex")
    ['erm', 'irm:lam=10,anneal=5', 'vrex']
    """
    # Inside brackets a list or table continues; a word and an equals sign are a further knob.
    found = re.split(r"(?:\s*,\s*|\s+)(?![^\[{]*[\]}])(?!\w+\s*=)", text.strip(" \t,"))
    return [name for name in found if name]


def _listed(kind: str, given: Iterable[Given] | str, everything: Sequence[str]) -> list[Named]:
    chosen: list[Named] = []
    for entry in [given] if isinstance(given, str) else given:
        if not isinstance(entry, str):
            chosen.append(Named(**entry))
            continue
        names = split_names(entry)
        if not names:
            raise ConfigError(f"{entry!r} names no {kind}: choose from {', '.join(everything)}.")
        for name in names:
            chosen += map(parse_method, everything if name == ALL else [name])
    return chosen


def _check_objective(objective: Named) -> None:
    if ":" not in objective.name and objective.name not in known_objectives():
        raise unknown("objective", objective.name, known_objectives())
    if not is_objective(objective.name):
        raise ConfigError(
            f"{objective.name!r} is not an objective: its function must take base and environments."
        )
    if "base" in objective.knobs:
        raise ConfigError(
            f"objective {objective.name!r} must not have base: the aggregators are its bases."
        )
    find(objective.name).recipe(**objective.knobs)


def _check_aggregator(aggregator: Named) -> None:
    if ":" not in aggregator.name and aggregator.name not in METHODS:
        raise unknown("aggregator", aggregator.name, known_aggregators())
    find(aggregator.name).recipe(**aggregator.knobs)


def _check_together(pair: Pair) -> None:
    try:
        find(pair.method.name).recipe(**pair.method.knobs)
    except ConfigError as error:
        raise ConfigError(f"{label(pair.method)} cannot run: {error}") from None
