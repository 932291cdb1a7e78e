"""Openings, bases and summaries as files: what sites and a coordinator send each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedskew.diagnosis.basis import Basis, Opening
from fedskew.diagnosis.parcels import (
    Parcel,
    packed_opening,
    packed_summary,
    unpacked_opening,
    unpacked_summary,
)
from fedskew.diagnosis.summary import Summary
from fedskew.errors import DataError, RunError
from fedskew.store import read_arrays, read_table, save_arrays, write_json

OPENING, SUMMARY, BASIS = ".opening.npz", ".summary.npz", "basis.json"


def write_opening(folder: Path, opening: Opening) -> Path:
    return _written(folder / f"{opening.client}{OPENING}", packed_opening(opening))


def write_summary(folder: Path, summary: Summary) -> Path:
    return _written(folder / f"{summary.client}{SUMMARY}", packed_summary(summary))


def read_opening(path: Path) -> Opening:
    return unpacked_opening(str(path), *_read(path, "opening"))


def read_summary(path: Path) -> Summary:
    return unpacked_summary(str(path), *_read(path, "summary"))


def read_all(
    paths: Sequence[Path],
) -> tuple[list[Opening], list[tuple[Path, Summary]]]:
    """Files of either sort, told apart by their names."""
    openings, summaries = [], []
    for path in paths:
        if path.name.endswith(OPENING):
            openings.append(read_opening(path))
        elif path.name.endswith(SUMMARY):
            summaries.append((path, read_summary(path)))
        else:
            raise DataError(
                f"{path} is neither an opening (*{OPENING}) nor a summary (*{SUMMARY}): 'fedskew "
                "summarise' makes them."
            )
    return openings, summaries


def write_basis(path: Path, basis: Basis) -> None:
    write_json(path, basis.to_plain())


def read_basis(path: Path) -> Basis:
    try:
        return Basis.from_plain(read_table(path))
    except (TypeError, ValueError, RunError) as error:
        raise DataError(f"{path} is no basis of 'fedskew diagnose': {error}") from error


def _written(path: Path, parcel: Parcel) -> Path:
    told, arrays = parcel
    save_arrays(path, {"told": np.array(json.dumps(told)), **arrays})
    return path


def _read(path: Path, what: str) -> Parcel:
    try:
        arrays = read_arrays(path)
    except RunError as error:
        raise DataError(str(error)) from error
    try:
        return json.loads(str(arrays.pop("told"))), arrays
    except (KeyError, ValueError) as error:
        raise DataError(f"{path} is no {what} of 'fedskew summarise': {error!r}.") from error
