"""``fedskew reproduce``: the experiments of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.options import AllowCode, DataDir
from fedskew.cli.watching import watching


def reproduce(
    suite: Annotated[
        str, typer.Argument(help="The suite's name (fedskew list suites).", metavar="SUITE")
    ],
    scale: Annotated[
        str,
        typer.Option(help="smoke (a minute), desk (under an hour) or paper (the source's own)."),
    ] = "smoke",
    out: Annotated[
        Path, typer.Option(help="Folder for the runs and the page of results.", metavar="DIR")
    ] = Path("results"),
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Run a source's experiments again and check its claims against our numbers.

    Repeat the command to resume after an interruption.
    """
    from fedskew.papers.suite import reproduce as reproduce_suite

    with watching() as watch:
        done = reproduce_suite(
            suite,
            scale=scale,
            out=out,
            data_dir=data_dir,
            watch=watch,
            tell=watch.tell,
            allow_code=allow_code,
        )
    for verdict in done.verdicts:
        typer.echo(f"{verdict.claim.name}: {verdict.text}")
    typer.echo(f"The whole page is {done.page}.")
