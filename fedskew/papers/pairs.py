"""Pairs of a suite: every client objective with every aggregator, and patterns that name several.

The pair of objective "irm" and aggregator "scaffold" is the arm "irm+scaffold". In a pattern one
``*`` stands for anything: "irm+*" are all arms of that objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from fedskew.comparisons.crossing import TIMES, Pair
from fedskew.config import Choice
from fedskew.errors import unknown
from fedskew.methods import METHODS
from fedskew.papers.entries import Arm, Fragment, Names, Part, merged

JOINS, ANYTHING = "+", "*"


class Crossing(Part):
    """Objectives × aggregators, each pair an arm: the objective's method with the other as base."""

    objectives: Annotated[list[Choice], Field(min_length=1)]
    aggregators: Annotated[list[Choice], Field(min_length=1)]
    objective_config: dict[str, Fragment] = Field({}, description="laid over its arms, by name")
    aggregator_config: dict[str, Fragment] = Field({}, description="the same; it wins over the one")
    aggregator_on: dict[str, dict[str, Fragment]] = Field(
        {}, description="laid over an aggregator's arms on one dataset or setting, by both names"
    )
    curves: Names = Field([], description="which pairs are drawn; none: those of the mean")

    @model_validator(mode="after")
    def _check(self) -> Crossing:
        sides = {
            "objective": (self.objectives, self.objective_config),
            "aggregator": (self.aggregators, {**self.aggregator_config, **self.aggregator_on}),
        }
        for kind, (choices, configs) in sides.items():
            names = [choice.name for choice in choices]
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"two {kind}s are called {name!r}: make one an arm instead")
                if set(name) & {JOINS, ANYTHING, ":"}:
                    raise ValueError(f"{kind} {name!r} cannot be part of an arm's name")
            for name in configs:
                if name not in names:
                    raise ValueError(str(unknown(kind, name, names)).removesuffix("."))
        for choice in self.objectives:
            if "base" in choice.knobs:
                raise ValueError(f"objective {choice.name!r} has a base: the aggregators are that")
        return self

    @property
    def arms(self) -> list[Arm]:
        return [
            Arm(
                name=pair(objective.name, aggregator.name),
                label=f"{objective.name} {TIMES} {aggregator.name}",
                method=Pair(objective, aggregator).method,
                config=merged(
                    self.objective_config.get(objective.name, {}),
                    self.aggregator_config.get(aggregator.name, {}),
                ),
                on=self.aggregator_on.get(aggregator.name, {}),
            )
            for objective in self.objectives
            for aggregator in self.aggregators
        ]

    @property
    def rows(self) -> list[str]:
        return [choice.name for choice in self.objectives]

    @property
    def columns(self) -> list[str]:
        return [choice.name for choice in self.aggregators]

    @property
    def plain(self) -> str:
        """The objective the others are measured against."""
        return _plain(self.rows)

    @property
    def mean(self) -> str:
        """The aggregator the others are measured against."""
        return _plain(self.columns)

    @property
    def drawn(self) -> list[str]:
        """Patterns of the pairs that have curves: all of them would hide each other."""
        return self.curves or [pair(ANYTHING, self.mean)]

    def __contains__(self, arm: str) -> bool:
        objective, _, aggregator = arm.partition(JOINS)
        return objective in self.rows and aggregator in self.columns


def _plain(names: Sequence[str]) -> str:
    """The one whose card says that others are measured against it, or else the first."""
    known = METHODS
    return next((n for n in names if n in known and known[n].card.plain), names[0])


def pair(objective: str, aggregator: str) -> str:
    """The name of an arm of the matrix."""
    return f"{objective}{JOINS}{aggregator}"


def is_pattern(name: str) -> bool:
    return ANYTHING in name


def filled(pattern: str, names: Iterable[str]) -> dict[str, str]:
    """The names a pattern means, by what its ``*`` stands for; a name means itself.

    >>> filled("irm+*", ["erm+fedavg", "irm+fedavg", "irm+scaffold"])
    {'fedavg': 'irm+fedavg', 'scaffold': 'irm+scaffold'}
    """
    before, star, after = pattern.partition(ANYTHING)
    if not star:
        return {"": pattern} if pattern in names else {}
    least = len(before) + len(after)
    return {
        name[len(before) : len(name) - len(after)]: name
        for name in names
        if len(name) >= least and name.startswith(before) and name.endswith(after)
    }


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name, or what it is like, is among these."""
    return any(filled(pattern, [name]) for pattern in patterns)


def unmatched(patterns: Iterable[str], names: Sequence[str]) -> Iterator[str]:
    """What is wrong with names and patterns of arms, in words."""
    for pattern in patterns:
        if pattern.count(ANYTHING) > 1:
            yield f"pattern {pattern!r} has more than one {ANYTHING}"
        elif not filled(pattern, names):
            if is_pattern(pattern):
                yield f"no arm is like {pattern!r}"
            else:
                yield str(unknown("arm", pattern, names)).removesuffix(".")
