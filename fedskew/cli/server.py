"""``fedskew server``: the machine in the middle, which keeps no data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.options import AllowCode, DataDir, Overrides, ServerFolder, config_file

server = typer.Typer(
    help="Real sites: set up the machine in the middle, invite sites, keep it running.",
    no_args_is_help=True,
)


@server.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to make.", metavar="FOLDER")],
    address: Annotated[
        str,
        typer.Option(
            help="Where sites reach this machine, for example fl.example.org:443.",
            metavar="HOST:PORT",
        ),
    ],
    port: Annotated[
        int, typer.Option(help="The SuperLink's own port, which only this machine can reach.")
    ] = 9092,
    proxy: Annotated[
        str,
        typer.Option(
            help="nginx, or none if a program of yours stands between sites and SuperLink.",
            metavar="nginx|none",
        ),
    ] = "nginx",
) -> None:
    """Make a server's folder: keys, certificate, settings, and a study to begin with."""
    from fedskew.sites.lab import Lab

    lab = Lab.create(folder, folder.resolve().name, address, port=port, proxy=proxy)
    typer.echo(
        f"The server's folder is {folder}; keep its keys/ to yourself, and back it up.\n"
        f"certificate: {lab.fingerprint}\n\n"
        f"next:  fedskew server add LINE   with the line of each site"
    )


@server.command()
def add(
    line: Annotated[str, typer.Argument(help="What 'fedskew site init' printed.", metavar="LINE")],
    folder: ServerFolder = None,
) -> None:
    """Let a site in, and print the invitation to send back to it."""
    from fedskew.errors import RunError
    from fedskew.sites.keys import fingerprint
    from fedskew.sites.lab import SERVER, Lab, find_folder, known_to
    from fedskew.sites.lines import Application

    lab = Lab.open(find_folder(folder, SERVER, "server"))
    application = Application.read(line)
    invitation = lab.add(application)
    try:
        known_to(lab)
        when = "now"
    except RunError:
        when = "when the server is started"
    typer.echo(
        f"site {application.name!r} is let in {when}\n"
        f"its key:      {fingerprint(application.key)}   (ask them to read theirs out)\n"
        f"certificate:  {lab.fingerprint}   (they see this one)\n\n"
        f"send back this line:\n{invitation}"
    )


@server.command()
def remove(
    name: Annotated[str, typer.Argument(help="The site's name.", metavar="NAME")],
    folder: ServerFolder = None,
) -> None:
    """Let a site in no longer."""
    from contextlib import suppress

    from fedskew.errors import RunError
    from fedskew.sites.lab import SERVER, Lab, find_folder, known_to

    lab = Lab.open(find_folder(folder, SERVER, "server"))
    lab.remove(name)
    with suppress(RunError):
        known_to(lab)
    typer.echo(f"site {name!r} is let in no longer; what it sent stays in the runs it took part in")


@server.command()
def start(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The server's folder; by default this one, or the only one in it.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the SuperLink and the proxy until Ctrl-C, and start again whichever ends."""
    import threading

    from fedskew.cli.watching import stoppable
    from fedskew.sites.lab import SERVER, Lab, find_folder, known_to
    from fedskew.sites.programs import Supervisor

    lab = Lab.open(find_folder(folder, SERVER, "server"))
    programs = lab.programs()
    with stoppable(lambda: "stopped"), Supervisor(programs, typer.echo) as supervisor:
        lab.wait_until_up(programs)
        sites = known_to(lab)
        where = lab.settings.address if len(programs) > 1 else lab.link_address
        typer.echo(
            f"server {lab.settings.name!r} is ready at {where} for {len(sites)} sites; logs are in "
            f"{lab.folder / 'link'}; Ctrl-C ends it"
        )
        supervisor.keep(threading.Event())


@server.command(name="try")
def try_(
    config: Annotated[
        str,
        typer.Argument(
            help="A TOML file, or the name of a shipped example (fedskew list examples).",
            metavar="CONFIG",
        ),
    ] = "digits",
    sites: Annotated[int, typer.Option(help="How many sites.", min=1, max=20)] = 3,
    overrides: Overrides = None,
    out: Annotated[
        Path, typer.Option(help="Folder for server, sites and runs; it must be new.", metavar="DIR")
    ] = Path("trial"),
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Show all of it on this machine: a server, sites with a part of the clients each, and a run.

    Every step is printed as it would be typed on real machines. At the end the same study runs
    on one machine, and the two are compared. Everything that was started is ended.
    """
    from fedskew.cli.watching import watching
    from fedskew.config import load_config
    from fedskew.errors import ConfigError
    from fedskew.runs.experiment import make_federation
    from fedskew.runs.identity import resolve
    from fedskew.sites.audit import read_audit
    from fedskew.sites.run import run_on_lab
    from fedskew.sites.trial import (
        at_home,
        divide,
        largest_difference,
        small_lab,
        study_of,
        write_study,
    )
    from fedskew.views.terminal import run_summary

    if out.exists():
        raise ConfigError(f"{out} exists already: choose another folder with --out.")
    given = resolve(load_config(config_file(config), overrides or (), allow_code=allow_code))
    data = divide(make_federation(given, data_dir), out / "data", sites)
    study = study_of(given)
    with watching(study) as watch, small_lab(out, data, typer.echo) as (lab, _):
        write_study(study, out / "study.toml")
        typer.echo(f"$ fedskew run {out / 'study.toml'} --sites {lab.folder} --out {out / 'runs'}")
        done = run_on_lab(lab, study, out / "runs", watch, watch.tell)
    typer.echo(f"\n{run_summary(done)}\n")
    for name in data:
        lines = read_audit(out / name)
        left = sum(line["bytes"] for line in lines)
        typer.echo(f"{name}: {len(lines)} replies, {left:,} bytes left it (fedskew site log)")
    home = resolve(at_home(study, list(data.values()), out / "all.npz"))
    with watching(home) as watch:
        from fedskew.comparisons.runner import Runner

        runner = Runner(out / "one-machine", None, watch, watch.tell)
        runner.total = 1
        alone = runner.run(home, name="on one machine")
    weights, scores = largest_difference(alone, done)
    typer.echo(
        f"\nThe same study on one machine: global models differ by {weights:g}, scores by "
        f"{scores:.1g} at most."
    )
