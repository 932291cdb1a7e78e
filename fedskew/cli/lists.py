"""``fedskew list``: everything a user can choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from fedskew.cli.watching import console
from fedskew.errors import unknown


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="datasets, partitions, skews, models, augmentations, methods, examples or suites.",
            metavar="KIND",
        ),
    ],
    name: Annotated[
        str | None, typer.Argument(help="One of them, to show in full.", metavar="[NAME]")
    ] = None,
) -> None:
    """List what you can choose from, one line each, or show one of them in full."""
    from fedskew.cli.catalogue import CATALOGUES
    from fedskew.views.terminal import table

    if kind not in CATALOGUES:
        raise unknown("kind of thing to list", kind, CATALOGUES)
    if name is not None:
        typer.echo(CATALOGUES[kind].find(name).full())
        return
    rows = [[one.name, one.summary, one.knobs] for one in CATALOGUES[kind].everything().values()]
    console().print(table(["name", "what it is", "knobs"], rows))
