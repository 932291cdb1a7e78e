"""What files about runs and models must hold for anybody to make a table or a model of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedskew.errors import RunError

Count = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[int, Field(ge=1, le=10**7, strict=True)]
Shape = Annotated[list[Positive], Field(min_length=1, max_length=3)]


Made = TypeVar("Made")


class _Score(BaseModel):
    at: str = ""
    round: Count = 0
    model: str = ""
    on: str = ""
    adapted: str = ""
    split: str = ""
    metric: str = ""
    mean: float = 0.0
    std: float = 0.0
    worst: float = 0.0
    bottom_decile: float = 0.0


class _Final(BaseModel):
    model: str = ""
    on: str = ""
    adapted: str = ""
    metric: str = ""
    mean: float = 0.0
    worst: float = 0.0
    clients: Count = 0
    pooled: float | None = None


class Picked(BaseModel):
    """A method or a model by name."""

    name: str
    knobs: dict[str, Any]


class _Plan(BaseModel):
    executor: str = ""
    reason: str = ""


class _Summary(BaseModel):
    """What the fields must be that are there; one that is wanted and missing is told then."""

    model_config = ConfigDict(extra="allow")
    method: str = ""
    seed: int = 0
    primary_model: Literal["global", "personal"] = "global"
    primary_metric: str = ""
    higher_is_better: bool = True
    rounds: Count = 0
    selected_round: Count = 0
    scores: list[_Score] = []
    bytes: dict[str, Count] = {}
    failures: Count = 0
    warnings: list[str] = []
    notes: list[str] = []
    unscored: list[str] = []
    metrics: list[_Final] = []
    seconds: float = 0.0
    plan: _Plan = _Plan()
    model: Picked = Picked(name="", knobs={})
    sample_shape: Shape = [1]
    classes: Positive = 1


def checked_summary(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """The summary of a run as it was read, if it is one."""
    checked(path, found, TypeAdapter(_Summary), "the summary of a run")
    return found


def checked(path: Path, found: Any, wanted: TypeAdapter[Made], what: str) -> Made:
    """What a file holds as what it should be, or one sentence on what it lacks."""
    try:
        return wanted.validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = str(first["msg"])
        raise RunError(
            f"{path} is not {what}: {place}: {message[:1].lower()}{message[1:]}."
        ) from None
