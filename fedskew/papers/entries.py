"""What a suite file is made of: settings, arms, scales, printed numbers, series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from fedskew.comparisons.costs import Exchange, cost
from fedskew.config import Choice
from fedskew.errors import unknown
from fedskew.papers.scores import At, ScoreName, client_score

Fragment = dict[str, Any]
"""Part of a config, as nested tables."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_listed)]


def merged(*fragments: Mapping[str, Any]) -> Fragment:
    """Fragments laid over each other, later ones winning.

    A table with a name of its own (a method, a model, a partition) replaces the one below, since
    the knobs of one are not those of another.

    >>> merged({"a": {"name": "x", "k": 1}, "b": {"c": 1}}, {"a": {"name": "y"}, "b": {"d": 2}})
    {'a': {'name': 'y'}, 'b': {'c': 1, 'd': 2}}
    """
    result: Fragment = {}
    for fragment in fragments:
        for key, value in fragment.items():
            below = result.get(key)
            joins = isinstance(value, Mapping) and isinstance(below, Mapping)
            if joins and "name" not in value:
                result[key] = merged(below or {}, value)
            else:
                result[key] = value
    return result


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any, info: ValidationInfo) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(str(unknown("key", key, cls.model_fields)).removesuffix("."))
        return values


class Setting(Part):
    """One way the data are divided; ``arms`` limits which arms run on it."""

    name: str
    label: str
    config: Fragment = {}
    arms: list[str] | None = None


class Arm(Part):
    """One contender: a method with its knobs, and whatever else differs for it."""

    name: str
    label: str
    method: Choice
    role: Literal["method", "control", "reference"] = "method"
    config: Fragment = {}
    on: dict[str, Fragment] = Field(
        {}, description="more of its config, by dataset or by setting, which has the last word"
    )


class Fallback(Part):
    """What a scale runs where the datasets are not there; the page says that it did."""

    config: Fragment
    settings: list[str] | None = None
    arms: list[str] | None = None


Folds = Annotated[int, Field(ge=0)] | Literal["all"]
"""How many of a run's clients are left out, one after the other."""


class Selection(Part):
    """Runs again without one client each, for choosing rounds by the client left out.

    They come after all others; ``arms`` and ``settings`` limit what is run again, by default
    everything but references.
    """

    folds: Folds = 0
    arms: list[str] | None = None
    settings: list[str] | None = None


class Scale(Part):
    """How large the suite is run; ``by_setting`` and ``by_arm`` have the last word."""

    seeds: Annotated[int, Field(ge=1)]
    seeds_on: dict[str, Annotated[int, Field(ge=1)]] = Field(
        {}, description="other numbers, by setting"
    )
    note: str = ""
    reading: list[str] = Field([], description="what its results say, written after they were seen")
    config: Fragment = {}
    settings: list[str] | None = None
    arms: list[str] | None = None
    by_setting: dict[str, Fragment] = {}
    by_arm: dict[str, Fragment] = {}
    folds: Folds | None = Field(None, description="instead of the suite's [selection]")
    unjudged: dict[str, str] = Field(
        {}, description="claims its runs are too short or too few for, each with why"
    )
    fallback: Fallback | None = None


class SourceTable(Part):
    """A table or figure of the source: what has to be run for it."""

    settings: Annotated[Names, Field(min_length=1)]
    arms: Annotated[Names, Field(min_length=1)]


class Number(Part):
    """A number the source printed, or a word in its place, of which score, and where."""

    setting: str
    arm: str
    value: float | None = None
    word: str = Field("", description="instead of a number; see the suite's bands")
    spread: float | None = None
    score: ScoreName | None = Field(None, description="none: the suite's headline")
    at: At = Field("last", description="of which round ours stands beside it")
    client: str = Field("", description="of this client alone, by its name in the federation")
    where: str

    @model_validator(mode="after")
    def _check(self) -> Number:
        if (self.value is None) != bool(self.word):
            raise ValueError("a number of the source is either a value or a word")
        if self.client and client_score(self.score or "clients") is None:
            raise ValueError(f"score {self.score!r} is not one of a single client")
        return self


class ClientNumbers(Part):
    """Numbers the source printed of single clients, each named by the class it has most of.

    With ``same = false`` its clients are others than ours, whatever their names: then only their
    mean, least and most stand beside ours.
    """

    setting: str
    arm: str
    where: str
    values: Annotated[dict[str, float], Field(min_length=1)]
    same: bool = True


class PrintedEffort(Part):
    """What the source printed of an arm's effective rounds and of what it sends in each."""

    setting: str
    arm: str
    preparation: Annotated[int, Field(ge=0)] = Field(0, description="rounds before the main stage")
    rounds: Annotated[int, Field(ge=0)] = Field(description="of the main stage")
    preparation_parameters: Annotated[int, Field(ge=0)] = Field(
        0, description="numbers a client sends in each round before the main stage"
    )
    parameters: Annotated[int, Field(ge=0)] = Field(description="and in each of the main stage")
    cost: float | None = Field(None, description="numbers sent and received; none: not printed")
    where: str

    @model_validator(mode="after")
    def _check(self) -> PrintedEffort:
        if bool(self.preparation) != bool(self.preparation_parameters):
            raise ValueError("preparation and preparation_parameters go together")
        return self

    @property
    def computed(self) -> float:
        """The cost that follows from its rounds and parameters."""
        before = Exchange(self.preparation, self.preparation_parameters)
        return cost([before, Exchange(self.rounds, self.parameters)])

    @property
    def numbers(self) -> float:
        return self.computed if self.cost is None else self.cost


class EffortPlan(Part):
    """Who has to get how far before effective rounds are counted.

    A baseline has to reach its own best score, a contender the best any baseline ever had.
    """

    baselines: Annotated[list[str], Field(min_length=1)]
    contenders: Annotated[list[str], Field(min_length=1)]
    printed: list[PrintedEffort] = []

    @model_validator(mode="after")
    def _check(self) -> EffortPlan:
        for name in self.contenders:
            if name in self.baselines:
                raise ValueError(f"{name!r} is a baseline and a contender: take it out of one")
        return self

    @property
    def arms(self) -> list[str]:
        return [*self.contenders, *self.baselines]


class Series(Part):
    """Settings that differ in one number, ``at``: arms are drawn against it."""

    name: str
    label: str
    axis: str
    settings: Annotated[list[str], Field(min_length=2)]
    at: list[float]
    arms: Annotated[list[str], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Series:
        if len(self.at) != len(self.settings):
            raise ValueError(f"{len(self.settings)} settings and {len(self.at)} numbers in at")
        return self


class Trade(Part):
    """Arms of one setting placed by one score, ``along``: the others are drawn against it.

    An arm without that score (nothing was paid) is a level line.
    """

    name: str
    label: str
    setting: str
    along: ScoreName
    axis: str
    scores: Annotated[list[ScoreName], Field(min_length=1)]
    arms: Annotated[list[str], Field(min_length=2)]
