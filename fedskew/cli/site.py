"""``fedskew site``: where data are, and stay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.options import SiteFolder, config_file

site = typer.Typer(
    help="Real sites: take part with data that stay here, and see what left.", no_args_is_help=True
)


@site.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to make.", metavar="FOLDER")],
    data: Annotated[
        Path,
        typer.Option(
            help="An npz, CSV or Parquet file, or a folder with a file per client, or folders "
            "client/class/image.",
        ),
    ],
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="The column of labels in CSV and Parquet files (else 'label'); several times for "
            "labels of which a sample may have many.",
            metavar="COLUMN",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The site's name, if not that of the folder.", show_default=False),
    ] = None,
    min_rows: Annotated[
        int, typer.Option(help="A client with fewer training samples takes no part.", metavar="N")
    ] = 1,
) -> None:
    """Make a site's folder: its key, and where its data are. Prints a line for the server."""
    from fedskew.sites.keys import fingerprint
    from fedskew.sites.site import SITE, Site

    (column, *more) = label or ["label"]
    columns = [column, *more] if more else column
    made = Site.create(folder, name or folder.resolve().name, data, columns, min_rows=min_rows)
    rows = made.rows()
    of = f" of {len(rows)} clients" if len(rows) > 1 else ""
    typer.echo(
        f"site {made.name!r}: {sum(rows.values())} samples{of}; what may leave is said in "
        f"{folder / SITE}\n"
        f"its key: {fingerprint(made.application.key)}\n\n"
        f"send this line to the server's owner:\n{made.application}"
    )


@site.command()
def join(
    invitation: Annotated[
        str, typer.Argument(help="What 'fedskew server add' printed.", metavar="INVITATION")
    ],
    folder: SiteFolder = None,
) -> None:
    """Take up an invitation: connect once, and say what is wrong if anything is."""
    from fedskew.errors import ConfigError
    from fedskew.sites.joining import check_connection
    from fedskew.sites.keys import KeyPair, authority_fingerprint
    from fedskew.sites.lab import find_folder
    from fedskew.sites.lines import Invitation
    from fedskew.sites.site import SITE, Site

    here = Site.open(find_folder(folder, SITE, "site"))
    invited = Invitation.read(invitation)
    if invited.site != here.name:
        raise ConfigError(f"this invitation is for site {invited.site!r}, not for {here.name!r}.")
    typer.echo(
        f"certificate: {authority_fingerprint(invited.authority.encode())}   (ask the server's "
        "owner to read theirs out)"
    )
    here.join(invited)
    check_connection(invited, KeyPair.load(here.key_file), typer.echo)
    typer.echo(f"site {here.name!r} has joined {invited.server!r}\n\nnext:  fedskew site start")


@site.command()
def start(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The site's folder; by default this one, or the only one in it.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Do not start again what ends, for systemd and the like, which do."
        ),
    ] = False,
) -> None:
    """Answer the server until Ctrl-C; what ends is started again."""
    import threading

    from fedskew.cli.watching import stoppable
    from fedskew.sites.lab import find_folder
    from fedskew.sites.node import alone, answer
    from fedskew.sites.programs import Supervisor, site_program
    from fedskew.sites.site import SITE, Site

    here = Site.open(find_folder(folder, SITE, "site"))
    assert here.invitation  # a site that has joined nobody is refused before anything starts
    with stoppable(lambda: f"site {here.name!r} stopped"):
        if once:
            with alone(here):
                return answer(here, threading.Event())
        with Supervisor([site_program(here.folder)], typer.echo) as supervisor:
            supervisor.keep(threading.Event())
    return None


@site.command()
def check(
    method: Annotated[
        str,
        typer.Argument(
            help="A method, like scaffold or ditto:lam=0.1; or diagnose.", metavar="METHOD"
        ),
    ],
    config: Annotated[
        str | None,
        typer.Option(
            help="The study's TOML file, for its model; by default a small network.",
            metavar="CONFIG",
            show_default=False,
        ),
    ] = None,
    folder: SiteFolder = None,
) -> None:
    """Say what a method, or a diagnosis, would ask of this site, and whether that may leave."""
    from fedskew.config import Config, load_config
    from fedskew.sites.checking import diagnosis_would_leave, what_would_leave
    from fedskew.sites.lab import find_folder
    from fedskew.sites.site import SITE, Site

    here = Site.open(find_folder(folder, SITE, "site"))
    study = Config() if config is None else load_config(config_file(config))
    if method == "diagnose":
        lines, allowed = diagnosis_would_leave(here, study)
    else:
        lines, allowed = what_would_leave(here, method, study)
    typer.echo("\n".join(lines))
    if not allowed:
        raise typer.Exit(2)


@site.command()
def log(
    folder: SiteFolder = None,
    last: Annotated[int, typer.Option(help="So many lines, the newest.", metavar="N")] = 20,
) -> None:
    """Say what has left this site: when, for which round, which fields, how many bytes."""
    from fedskew.cli.watching import console
    from fedskew.sites.checking import audit_table
    from fedskew.sites.lab import find_folder
    from fedskew.sites.site import SITE, Site

    here = Site.open(find_folder(folder, SITE, "site"))
    console().print(audit_table(here, last))


@site.command()
def predict(
    samples: Annotated[
        Path,
        typer.Argument(
            help="An npz, a CSV or Parquet file, or a folder of images, as the site's data.",
            metavar="SAMPLES",
        ),
    ],
    folder: SiteFolder = None,
    client: Annotated[
        str | None,
        typer.Option(help="Whose model, if the site has several clients.", show_default=False),
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Of which study, if not the newest.", show_default=False)
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Ask for a label below this probability; by default chosen on this site's "
            "validation data.",
            metavar="T",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A CSV file for all answers.", metavar="FILE")
    ] = None,
) -> None:
    """Label samples with the model that the last study left at this site."""
    from fedskew.deploy.predict import predict as label_samples
    from fedskew.sites.lab import find_folder
    from fedskew.sites.serving import model_in_use
    from fedskew.sites.site import SITE, Site

    here = Site.open(find_folder(folder, SITE, "site"))
    column = here.settings.data.label
    found = label_samples(
        model_in_use(here, client, study), samples, threshold=threshold,
        label=column if isinstance(column, str) else None,
    )  # fmt: skip
    if out is not None:
        found.save(out)
    typer.echo(str(found))
