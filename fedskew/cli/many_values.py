"""Options that take several values: ``--objectives erm irm vrex``, up to the next option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click
from typer.core import TyperCommand

from fedskew.errors import ConfigError

MANY = ("--objectives", "--aggregators", "--tune", "--methods")
BARE = {"--tune": "all"}
"""What such an option stands for that has no value."""


class ManyValues(TyperCommand):
    """A command in which all words after such an option are its values."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, gathered(args))


def gathered(arguments: Sequence[str], options: Sequence[str] = MANY) -> list[str]:
    """The arguments, with all words after such an option joined into one.

    >>> gathered(["a", "--of", "b", "c:d=1", "--to", "e"], ["--of"])
    ['a', '--of', 'b c:d=1', '--to', 'e']
    >>> gathered(["a", "--tune", "--seeds", "3"])
    ['a', '--tune', 'all', '--seeds', '3']
    """
    found: list[str] = []
    taking = False
    for argument in [*arguments, "-"]:
        if argument.startswith("-"):
            if taking and found[-1] in BARE:
                found.append(BARE[found[-1]])
            taking = argument.partition("=")[0] in options
        elif taking and found[-1] not in options:
            found[-1] += f" {argument}"
            continue
        found.append(argument)
    return found[:-1]


def count(option: str, text: str) -> int | Literal["all"]:
    """A number of things, or all of them."""
    if text == "all":
        return "all"
    if not text.isdecimal():
        raise ConfigError(f"{option} must be 'all' or a whole number, not {text!r}.")
    return int(text)
