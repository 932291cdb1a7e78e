"""What a suite file is made of: settings, arms, scales, printed numbers, series."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from fedskew.config import Choice
from fedskew.errors import unknown

Fragment = dict[str, Any]
"""Part of a config, as nested tables."""

ScoreName = Literal[
    "clients", "worst", "fine-tuned", "validation", "central", "rounds", "swing", "self-weight",
    "entropy", "first", "own-central", "own-reconstruction", "ensemble", "reconstruction",
    "legacy", "cas", "frechet", "precision", "recall", "divergence", "follows", "weight-entropy",
    "kept",
]  # fmt: skip
Headline = Literal["clients", "central"]
"""The scores that have a curve over the rounds, of which a suite shows one."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_listed)]


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


class Fallback(Part):
    """What a scale runs where the datasets are not there; the page says that it did."""

    config: Fragment
    arms: list[str] | None = None


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
    fallback: Fallback | None = None


class Number(Part):
    """A number the source printed, and where."""

    setting: str
    arm: str
    value: float
    spread: float | None = None
    where: str


class ClientNumbers(Part):
    """Numbers the source printed of single clients, each named by the class it has most of."""

    setting: str
    arm: str
    where: str
    values: Annotated[dict[str, float], Field(min_length=1)]


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
