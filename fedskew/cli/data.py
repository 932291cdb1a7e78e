"""``fedskew data``: fetch the official files of known datasets, and see what is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedskew.cli.watching import console, stoppable
from fedskew.errors import DataError

if TYPE_CHECKING:
    from fedskew.cli.downloads import PlainDownloads
    from fedskew.data.known import Known
    from fedskew.data.offers import Offer

data = typer.Typer(
    help="Known datasets: fetch their official files, see what is there.",
    no_args_is_help=True,
)


@data.command()
def get(
    names: Annotated[
        list[str],
        typer.Argument(help="Datasets, as 'fedskew data list' shows them.", metavar="NAME..."),
    ],
    into: Annotated[
        Path | None,
        typer.Option(
            help="The data folder to fill. By default FEDSKEW_DATA, else a cache folder of yours "
            "where datasets are found without further settings.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Fetch datasets from where they are published, verify and unpack them.

    Whatever was interrupted goes on; what is there already is not fetched again. Without a network,
    bring the files that 'fedskew data list NAME' shows.
    """
    from fedskew.cli.downloads import downloads_on
    from fedskew.data.fetch import NotFetched, target_folder
    from fedskew.data.known import offer_named

    offers = [offer_named(name) for name in dict.fromkeys(names)]
    folder = target_folder(into)
    sentence = f"stopped; what has come stays in {folder}: repeat the command to go on"
    try:
        with stoppable(lambda: sentence), downloads_on(console()) as watch:
            for offer in offers:
                _get(offer, folder, watch)
    except NotFetched as error:
        typer.echo(_in_full(error.offer, error.folder))
        raise


def _get(offer: Offer, folder: Path, watch: PlainDownloads) -> None:
    from fedskew.cli.downloads import megabytes
    from fedskew.data.fetch import fetch

    watch.tell(f"{offer.name}: {offer.summary}, {megabytes(offer.size)} to fetch")
    watch.tell(f"licence  {offer.licence_in_full}")
    watch.tell(f"cite     {offer.cite}; {offer.home}")
    fetched = fetch(offer, folder, watch)
    watch.tell(
        f"{offer.name} is {'now' if fetched.new else 'already'} in {fetched.place}"
        + ("" if fetched.new else "; remove it to fetch it again")
    )
    if note := _is_not_read(offer, folder):
        watch.tell(note)


def _is_not_read(offer: Offer, folder: Path) -> str:
    """Why a dataset would not be read from the folder it is in now, if it would not."""
    from fedskew.data.datasets import DATASETS
    from fedskew.data.known import found_at
    from fedskew.data.locate import data_folders

    here = f"to read it, pass --data-dir {folder} or set FEDSKEW_DATA={folder}"
    try:
        folders = {path.resolve() for path in data_folders(None)}
    except DataError as error:  # FEDSKEW_DATA names no folder, and --into another one
        return f"{here}; {error}"
    if folder.resolve() not in folders:
        return here
    found = found_at(DATASETS[offer.name]) if offer.name in DATASETS else None
    if found is None or found[1].resolve() == (folder / offer.place).resolve():
        return ""
    return f"note: {found[1]} is searched first; {here}"


@data.command(name="list")
def list_(
    name: Annotated[
        str | None,
        typer.Argument(help="One of them, to see its files, sizes and sums.", metavar="[NAME]"),
    ] = None,
) -> None:
    """Show known datasets: which are there and where, how large they are, under which licence."""
    from fedskew.data.fetch import target_folder
    from fedskew.data.known import all_known, offer_named
    from fedskew.views.terminal import table

    if name is not None:
        typer.echo(_in_full(offer_named(name), target_folder(None)))
        return
    header = ["name", "where", "size", "licence", "what it is"]
    console().print(table(header, [_row(known) for known in all_known()]))
    typer.echo("\nfetch:   fedskew data get NAME\nby hand: fedskew list datasets NAME")


@data.command()
def example(
    name: Annotated[
        str | None, typer.Argument(help="One of them; none: say what there is.", metavar="[NAME]")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Argument(help="Where to; by default a folder of its name.", metavar="[FOLDER]"),
    ] = None,
) -> None:
    """Write small real data the way people have them: unlike tables, images, texts.

    What is in them is real, from libraries that are installed here; that clients store it each in
    another way is made up.
    """
    from fedskew.data.example_data import EXAMPLE_DATA, write_example
    from fedskew.views.terminal import table

    if name is None:
        rows = [[each.name, each.text, each.config] for each in EXAMPLE_DATA.values()]
        console().print(table(["name", "what it is", "fedskew run"], rows))
        return
    place = write_example(name, folder or Path(name))
    files = sum(path.is_file() for path in place.rglob("*"))
    typer.echo(f"{files} files in {place}\nnow: fedskew run {EXAMPLE_DATA[name].config}")


def _row(known: Known) -> list[str]:
    from fedskew.cli.downloads import megabytes

    if not known.needs_files:
        where = "needs no files"
    elif known.place is not None:
        where = str(known.place)
    else:
        where = "not here" if known.offer is not None else "not here, by hand only"
    size = "" if known.size is None else megabytes(known.size)
    licence = known.offer.licence if known.offer is not None else ""
    return [known.name, where, size, licence, known.summary]


def _in_full(offer: Offer, folder: Path) -> str:
    """The files of a dataset, for those who bring them by hand."""
    from fedskew.data.fetch import DOWNLOADS

    lines = [f"{offer.name}: {offer.summary}", ""]
    for file in offer.files:
        kind, value = file.sum
        lines += [f"{file.name}", f"    {file.size} bytes, {kind} {value}"]
        lines += [f"    {address}" for address in file.addresses]
    lines += [
        "",
        f"licence  {offer.licence_in_full}",
        f"cite     {offer.cite}",
        f"page     {offer.home}",
        f"by hand  put these files into {folder / DOWNLOADS} and run 'fedskew data get "
        f"{offer.name}', which checks them and puts them in their place",
    ]
    return "\n".join(lines)
