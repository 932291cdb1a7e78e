"""``fedskew run`` and ``fedskew show``: one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.options import AllowCode, DataDir, Overrides, config_file
from fedskew.cli.watching import watching


def run(
    config: Annotated[
        str,
        typer.Argument(
            help="A TOML file, or the name of a shipped example (fedskew list examples).",
            metavar="CONFIG",
        ),
    ],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder of run folders.", metavar="DIR")] = Path("runs"),
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Run one experiment; repeat the command to resume after an interruption.

    The run's folder is named by its settings, data and code, so a finished run is not run again;
    asked for more rounds, it continues from those it has.
    """
    from fedskew.comparisons.runner import Runner
    from fedskew.config import load_config
    from fedskew.runs.identity import resolve
    from fedskew.views.figures import draw_run
    from fedskew.views.terminal import run_summary

    given = load_config(config_file(config), overrides or (), allow_code=allow_code)
    settings = resolve(given)
    with watching(settings) as watch:
        runner = Runner(out, data_dir, watch, watch.tell, draw_run)
        runner.total = 1
        done = runner.run(settings)
    typer.echo(run_summary(done))


def show(
    run_folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN_FOLDER")],
    allow_code: AllowCode = False,
) -> None:
    """Sum up a run: its progress, its scores, what it sent, and what went wrong."""
    from fedskew.runs.experiment import load_run
    from fedskew.views.terminal import run_summary

    typer.echo(run_summary(load_run(run_folder, allow_code=allow_code)))
