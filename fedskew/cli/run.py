"""``fedskew run`` and ``fedskew show``: one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.options import (
    AllowCode,
    ConfigFile,
    DataDir,
    Deadline,
    Label,
    MinSites,
    Overrides,
    Presum,
    Sites,
    Wait,
    Workers,
    given_config,
)
from fedskew.cli.watching import watching


def run(
    config: ConfigFile,
    overrides: Overrides = None,
    label: Label = None,
    out: Annotated[Path, typer.Option(help="Folder of run folders.", metavar="DIR")] = Path("runs"),
    data_dir: DataDir = None,
    sites: Sites = None,
    wait: Wait = 120.0,
    deadline: Deadline = 3600.0,
    min_sites: MinSites = None,
    allow_code: AllowCode = False,
    workers: Workers = None,
    presum: Presum = False,
) -> None:
    """Run one experiment; repeat the command to resume after an interruption.

    The run's folder is named by its settings, data and code, so a finished run is not run again;
    asked for more rounds, it continues from those it has.
    """
    from fedskew.comparisons.runner import Runner
    from fedskew.diagnosis.keep import alone_config, keep_after
    from fedskew.errors import ConfigError
    from fedskew.runs.identity import resolve
    from fedskew.runs.workers import carried_by
    from fedskew.views.figures import draw_run
    from fedskew.views.terminal import run_summary

    given = given_config(config, overrides, label, allow_code)
    if sites is not None:
        if workers is not None or presum:
            raise ConfigError("--workers are for data of this machine, not of --sites: choose one.")
        from fedskew.sites.lab import Lab
        from fedskew.sites.run import run_on_lab

        with watching(given) as watch:
            done = run_on_lab(
                Lab.open(sites), given, out, watch, watch.tell, wait, deadline, min_sites
            )
        return typer.echo(run_summary(done))
    settings = resolve(given)
    with watching(settings) as watch, carried_by(workers, watch.tell, presum) as backend:
        runner = Runner(out, data_dir, watch, watch.tell, draw_run, backend)
        runner.total = 1 if alone_config(settings) is None else 2
        done = runner.run(settings)
        keep_after(done, settings, runner.run, watch.tell)
    return typer.echo(run_summary(done))


def show(
    run_folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN_FOLDER")],
    allow_code: AllowCode = False,
) -> None:
    """Sum up a run: its progress, its scores, what it sent, and what went wrong."""
    from fedskew.runs.experiment import load_run
    from fedskew.views.terminal import run_summary

    typer.echo(run_summary(load_run(run_folder, allow_code=allow_code)))
