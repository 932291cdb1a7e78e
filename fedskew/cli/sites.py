"""``fedskew sites``: who is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sites(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The server's folder; by default this one, or the only one in it.",
            metavar="SERVER",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the sites of a server: who is connected, their rows, versions and what they allow."""
    from fedskew.cli.watching import console
    from fedskew.sites.lab import SERVER, Lab, find_folder
    from fedskew.sites.present import sites_table

    lab = Lab.open(find_folder(folder, SERVER, "server"))
    console().print(sites_table(lab))
