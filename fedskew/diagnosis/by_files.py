"""The diagnosis by files: what a site writes, and what the coordinator makes of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedskew.diagnosis.basis import CELL, Opening, agreed, opening
from fedskew.diagnosis.files import (
    BASIS,
    OPENING,
    SUMMARY,
    read_all,
    read_basis,
    write_basis,
    write_opening,
    write_summary,
)
from fedskew.diagnosis.own_files import in_classes_of, site_federation
from fedskew.diagnosis.privacy import noise_for
from fedskew.diagnosis.report import Diagnosis, diagnosed
from fedskew.diagnosis.summary import Summary, summarise
from fedskew.engine.arithmetic import one_order
from fedskew.errors import ConfigError, DataError
from fedskew.store import make_folder


def summarise_file(
    source: Path,
    basis: Path | None,
    out: Path,
    *,
    client: str | None = None,
    epsilon: float | None = None,
    key: str = "",
) -> tuple[Path, Opening | Summary]:
    """Without a basis a site's opening; with one its summary. Where it was written, and what."""
    noise = noise_for(epsilon)
    if basis is None and not noise.is_none:
        raise ConfigError(
            "--epsilon counts all that is sent, so there is no opening: give --basis of 'fedskew "
            "diagnose --epsilon', which looks at no row."
        )
    agreed_on = None if basis is None else read_basis(basis)
    federation = site_federation(source, client)
    name = federation.clients[0].name
    if "/" in name:
        raise ConfigError(f"--client names a file, too: leave '/' out of {name!r}.")
    if agreed_on is None:
        with one_order():
            told = opening(federation, name)
        return write_opening(make_folder(out), told), told
    (summary,) = summarise(in_classes_of(federation, agreed_on), agreed_on, noise, key)
    return write_summary(make_folder(out), summary), summary


def sent_files(given: Sequence[Path]) -> list[Path]:
    """The files of sites that are meant: themselves, or all in a folder."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            sent = sorted(p for p in path.iterdir() if p.name.endswith((OPENING, SUMMARY)))
            if not sent:
                raise DataError(
                    f"{path} holds no file of 'fedskew summarise'; a folder of data is given alone."
                )
            found += sent
        elif path.exists():
            found.append(path)
        else:
            raise DataError(f"{path} does not exist.")
    return found


def diagnose_files(
    paths: Sequence[Path], basis: Path | None, out: Path | None, seed: int = 0, cell: int = CELL
) -> Diagnosis | Path:
    """Of openings the basis that they make, written to ``out``; of summaries the diagnosis."""
    openings, summaries = read_all(paths)
    if summaries:
        # Openings may lie beside summaries: their part is done.
        known = basis or _beside([path for path, _ in summaries], out)
        return diagnosed([summary for _, summary in summaries], read_basis(known))
    if out is None:
        raise ConfigError("openings make a basis: say with --out where to write it.")
    place = make_folder(out) / BASIS
    write_basis(place, agreed(openings, seed, cell))
    return place


def _beside(paths: Sequence[Path], out: Path | None) -> Path:
    folders = [path.parent for path in paths] + ([] if out is None else [out])
    for folder in dict.fromkeys(folders):
        if (folder / BASIS).is_file():
            return folder / BASIS
    raise ConfigError(
        f"summaries are read with the basis they were made under: give --basis {BASIS}."
    )
