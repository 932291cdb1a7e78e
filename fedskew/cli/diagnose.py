"""``fedskew diagnose`` and ``fedskew summarise``: how different clients are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedskew.cli.options import (
    AllowCode,
    DataDir,
    Deadline,
    Label,
    MinSites,
    Overrides,
    Sites,
    Wait,
    given_config,
)

if TYPE_CHECKING:
    from fedskew.config import Config

Epsilon = Annotated[
    float | None,
    typer.Option(
        metavar="E",
        help="Add noise to all that is sent, so that it is (E, 1e-5)-private for every row.",
        show_default=False,
    ),
]


def diagnose(
    given: Annotated[
        list[str],
        typer.Argument(
            help="A TOML file or the name of an example; or a folder with a file per client; or "
            "files that 'fedskew summarise' wrote.",
            metavar="CONFIG|FOLDER|FILES...",
        ),
    ],
    overrides: Overrides = None,
    label: Label = None,
    epsilon: Epsilon = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write JSON, a table and a figure there.", metavar="DIR"),
    ] = None,
    basis: Annotated[
        Path | None,
        typer.Option(help="With files: what summaries were made under.", metavar="FILE"),
    ] = None,
    cell: Annotated[int, typer.Option(help="Classes of fewer rows are not sent.", min=2)] = 10,
    seed: Annotated[int, typer.Option(help="Of the features rows are described by.", min=0)] = 0,
    data_dir: DataDir = None,
    sites: Sites = None,
    wait: Wait = 120.0,
    deadline: Deadline = 3600.0,
    min_sites: MinSites = None,
    allow_code: AllowCode = False,
) -> None:
    """How different clients are, who stands out and why, and what federating is worth.

    Only sums over training rows are looked at. Of sites' openings the basis is made, of their
    summaries the same diagnosis as in one process; with --sites a server asks its sites for both.
    """
    from fedskew.diagnosis.by_files import diagnose_files, sent_files
    from fedskew.diagnosis.carry_out import diagnosed_with_basis
    from fedskew.diagnosis.files import BASIS, write_basis
    from fedskew.diagnosis.outcome import said, write_diagnosis
    from fedskew.diagnosis.report import Diagnosis
    from fedskew.store import make_folder

    if sites is None and _are_sent(given):
        _refuse(epsilon, "--epsilon", "files hold what was sent, with noise or without")
        found = diagnose_files(sent_files(list(map(Path, given))), basis, out, seed, cell)
        if not isinstance(found, Diagnosis):
            return typer.echo(f"the basis is in {found}: 'fedskew summarise DATA --basis {found}'")
    else:
        _refuse(basis, "--basis", "it goes with files of 'fedskew summarise'")
        if sites is None:
            federation = _federation(given, overrides, label, data_dir, allow_code)
            found, made = diagnosed_with_basis(federation, epsilon, cell=cell, seed=seed)
        else:
            from fedskew.sites.diagnosing import diagnose_on_sites
            from fedskew.sites.lab import Lab
            from fedskew.sites.run import connected

            study = _study(given, overrides, label, allow_code)
            with connected(Lab.open(sites), study, wait, deadline, min_sites) as link:
                found, made = diagnose_on_sites(
                    study, link, epsilon=epsilon, cell=cell, seed=seed, tell=_tell
                )
        if out is not None:
            write_basis(make_folder(out) / BASIS, made)
    if out is not None:
        write_diagnosis(out, found)
    return typer.echo(said(found))


def summarise(
    data: Annotated[
        Path, typer.Argument(help="This site's file or folder of rows.", metavar="DATA")
    ],
    basis: Annotated[
        Path | None,
        typer.Option(
            help="What the coordinator made of all sites' openings; without it, the opening.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(help="Its name; else that of the file.", metavar="NAME", show_default=False),
    ] = None,
    epsilon: Epsilon = None,
    key: Annotated[
        str,
        typer.Option(
            help="A word that all sites know and the coordinator does not: rows are hashed with "
            "it, so that nobody else can look for a row.",
            show_default=False,
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder to write to.", metavar="DIR")] = Path(),
) -> None:
    """Sum up a site's rows for 'fedskew diagnose': first the opening, then, under a basis, all."""
    from fedskew.diagnosis.by_files import summarise_file
    from fedskew.diagnosis.outcome import declared
    from fedskew.diagnosis.summary import Summary

    path, told = summarise_file(data, basis, out, client=client, epsilon=epsilon, key=key)
    typer.echo(f"wrote {path}, {path.stat().st_size} bytes")
    if isinstance(told, Summary):
        typer.echo(f"it holds of {told.rows} rows ({told.hidden} small classes left out):")
        return typer.echo(declared(not told.noise.is_none))
    return typer.echo("it holds class names, the number of rows, and sums and squares of inputs")


def _are_sent(given: list[str]) -> bool:
    """Whether these are files of sites, or folders of them."""
    from fedskew.diagnosis.files import OPENING, SUMMARY

    def told(path: Path) -> bool:
        if path.is_dir():
            return any(p.name.endswith((OPENING, SUMMARY)) for p in path.iterdir())
        return path.suffix == ".npz"

    return len(given) > 1 or told(Path(given[0]))


def _study(
    given: list[str], overrides: list[str] | None, label: list[str] | None, allow_code: bool
) -> Config:
    from fedskew.errors import ConfigError

    if len(given) > 1:
        raise ConfigError(f"--sites goes with one CONFIG, but {len(given)} are given.")
    return given_config(given[0], overrides, label, allow_code)


def _tell(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _refuse(value: object, name: str, why: str) -> None:
    from fedskew.errors import ConfigError

    if value is not None:
        raise ConfigError(f"{name} cannot be given here: {why}.")


def _federation(  # type: ignore[no-untyped-def]
    given: list[str],
    overrides: list[str] | None,
    label: list[str] | None,
    data_dir: Path | None,
    allow_code: bool,
):
    from fedskew.diagnosis.own_files import folder_federation
    from fedskew.runs.experiment import make_federation
    from fedskew.runs.identity import resolve

    if Path(given[0]).is_dir() and not (overrides or label):
        return folder_federation(Path(given[0]))
    return make_federation(resolve(given_config(given[0], overrides, label, allow_code)), data_dir)
