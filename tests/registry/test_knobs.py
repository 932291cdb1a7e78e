"""Knobs: declared once beside a type, checked and described from that declaration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from fedskew.errors import ConfigError
from fedskew.registry.knobs import (
    Knob,
    arguments_of,
    check_fields,
    declared_knobs,
    fits,
    values_of,
    wanted,
)

Rate = Annotated[float, Knob("the rate", gt=0, tries=(0.1, 1.0))]


@dataclass(frozen=True)
class Server:
    rate: Rate = 1.0
    kind: Annotated[Literal["mean", "median"], Knob("what the server takes")] = "mean"
    inner: int = 3
    """No knob: nobody said what it does."""

    def __post_init__(self) -> None:
        check_fields(self)


HALF = Server(rate=0.5)


def averaging(
    rounds: Annotated[int, Knob("how many", ge=1)], server: Server = HALF, *, note: str = ""
) -> tuple[int, Server, str]:
    return rounds, server, note


def test_a_function_declares_its_parameters_and_the_fields_of_its_groups() -> None:
    knobs = declared_knobs(averaging)
    assert list(knobs) == ["rounds", "rate", "kind", "note"]
    assert knobs["rate"].default == 0.5
    assert knobs["rate"].knob.tries == (0.1, 1.0)
    assert knobs["kind"].group == "server"


def test_leading_parameters_are_no_knobs() -> None:
    assert list(declared_knobs(averaging, leading=1)) == ["rate", "kind", "note"]


def test_values_of_a_group_reach_the_function_as_one_object() -> None:
    knobs = declared_knobs(averaging)
    given = arguments_of(averaging, knobs, {"rounds": 2, "kind": "median"})
    assert averaging(**given) == (2, Server(0.5, "median"), "")


def test_a_part_checks_itself_by_the_same_declaration() -> None:
    with pytest.raises(ConfigError, match=r"^rate must be a number above 0, not -1\.$"):
        Server(rate=-1)
    assert values_of(HALF) == {"rate": 0.5, "kind": "mean"}


@pytest.mark.parametrize(
    ("value", "hint", "knob", "fit"),
    [
        (1, float, Knob(""), True),
        (True, float, Knob(""), False),
        (1.0, int, Knob(""), False),
        (True, int, Knob(""), False),
        (1, bool, Knob(""), False),
        (math.nan, float, Knob(""), False),
        (math.inf, float, Knob("", gt=0), False),
        (0, float, Knob("", gt=0), False),
        (0, float, Knob("", ge=0), True),
        (1, float, Knob("", lt=1), False),
        (1, float, Knob("", le=1), True),
        (None, float | None, Knob("", ge=0), True),
        (None, float, Knob(""), False),
        ("a", Literal["a", "b"], Knob(""), True),
        ("c", Literal["a", "b"], Knob(""), False),
        (1, Literal[True], Knob(""), False),
        ([1, 2], Sequence[int], Knob("", ge=1), True),
        ([1, 0], Sequence[int], Knob("", ge=1), False),
        ("12", Sequence[int], Knob(""), False),
        ([["a", 1]], Sequence[Sequence[str | int]], Knob(""), True),
        (["a"], Sequence[Sequence[str | int]], Knob(""), False),
        ({"name": "x"}, str | Mapping[str, Any], Knob(""), True),
        (3, str | Mapping[str, Any], Knob(""), False),
        (object(), Any, Knob(""), True),
    ],
)
def test_values_fit_types_and_ranges(value: Any, hint: Any, knob: Knob, fit: bool) -> None:
    assert fits(value, hint, knob) is fit


@pytest.mark.parametrize(
    ("hint", "knob", "words"),
    [
        (float, Knob("", gt=0, le=1), "a number above 0 and of at most 1"),
        (int | None, Knob("", ge=1), "a whole number of at least 1 or none"),
        (bool, Knob(""), "true or false"),
        (Literal["a", "b", "c"], Knob(""), "'a', 'b' or 'c'"),
        (Sequence[Sequence[int]], Knob(""), "a list of lists"),
        (str | Mapping[str, Any], Knob(""), "a name or a table like {name = …}"),
    ],
)
def test_what_is_wanted_is_said_in_words(hint: Any, knob: Knob, words: str) -> None:
    assert wanted(hint, knob) == words
