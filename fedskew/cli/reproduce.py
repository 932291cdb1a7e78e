"""``fedskew reproduce``: the experiments of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedskew.cli.options import AllowCode, DataDir, Jobs, Workers
from fedskew.cli.watching import console, watching
from fedskew.errors import ConfigError

if TYPE_CHECKING:
    from fedskew.papers.estimate import Forecast

Tables = Annotated[
    str,
    typer.Option(
        help="Only what these tables or figures of the source need, by their number there: "
        "5.1,5.3 (fedskew list suites SUITE names them).",
        metavar="A,B",
        show_default=False,
    ),
]
Settings = Annotated[
    str,
    typer.Option(
        help="Only these settings; one * in a name stands for anything: rotation-*.",
        metavar="A,B",
        show_default=False,
    ),
]
Arms = Annotated[
    str, typer.Option(help="Only these arms, likewise.", metavar="A,B", show_default=False)
]
Outcomes = Annotated[
    Path | None,
    typer.Option(
        help="A file that gets a line for every finished run, from which the page can be made "
        "without the runs' folders; a run whose line it has already is not run.",
        metavar="FILE",
        show_default=False,
    ),
]


def reproduce(
    suite: Annotated[
        str, typer.Argument(help="The suite's name (fedskew list suites).", metavar="SUITE")
    ],
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (a minute), desk (under an hour), tables (the source's own arms and "
            "settings at its size) or paper (all arms at its size)."
        ),
    ] = "smoke",
    tables: Tables = "",
    settings: Settings = "",
    arms: Arms = "",
    seeds: Annotated[
        int | None,
        typer.Option(help="How many seeds, instead of the scale's.", show_default=False),
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Say how long it will take, by finished runs or else by a probe, and stop there.",
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for the runs and the page of results.", metavar="DIR")
    ] = Path("results"),
    outcomes: Outcomes = None,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
    jobs: Jobs = 1,
    workers: Workers = None,
) -> None:
    """Run a source's experiments again and check its claims against our numbers.

    Repeat the command to resume after an interruption.
    """
    from fedskew.papers import suite as papers
    from fedskew.papers.excerpt import Excerpt

    excerpt = Excerpt(
        _listed("--settings", settings), _listed("--arms", arms), _listed("--tables", tables), seeds
    )
    with watching() as watch:
        if estimate:
            found = papers.estimate(
                suite, scale, out, data_dir, watch.tell, allow_code, excerpt, outcomes
            )
        else:
            done = papers.reproduce(
                suite, scale, out, data_dir, watch, watch.tell, allow_code, excerpt, outcomes,
                jobs, workers,
            )  # fmt: skip
    if estimate:
        _print_forecast(found)
        return
    for verdict in done.verdicts:
        typer.echo(f"{verdict.claim.name}: {verdict.text}")
    typer.echo(f"The whole page is {done.page}.")


def _print_forecast(found: Forecast) -> None:
    from fedskew.views.terminal import table

    if found.left:
        heads = ["setting", "arm", "runs left", "each", "by"]
        console().print(table(heads, found.rows))
    typer.echo(f"{found.finished} run(s) finished, {found.sentence}.")


def _listed(option: str, text: str) -> tuple[str, ...]:
    """Names divided by commas.

    >>> _listed("--arms", "fedavg, lw-*")
    ('fedavg', 'lw-*')
    """
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if not all(names):
        raise ConfigError(f"{option} has an empty name in {text!r}: divide names by one comma.")
    return names
