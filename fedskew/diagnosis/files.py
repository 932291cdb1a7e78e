"""Openings, bases and summaries as files: what sites and a coordinator send each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedskew.data.moments import Moments
from fedskew.diagnosis.basis import VERSION, WIDTH, Basis, Opening
from fedskew.diagnosis.privacy import Noise
from fedskew.diagnosis.summary import Summary
from fedskew.errors import DataError, RunError
from fedskew.store import read_arrays, read_table, save_arrays, write_json
from fedskew.trust.names import check_names

OPENING, SUMMARY, BASIS = ".opening.npz", ".summary.npz", "basis.json"
Arrays = dict[str, NDArray[Any]]
Told = dict[str, Any]
Read = TypeVar("Read")


def write_opening(folder: Path, opening: Opening) -> Path:
    """What a client tells first."""
    told: Told = {"client": opening.client, "kind": opening.kind, "shape": opening.shape}
    told |= {"classes": opening.class_names, "rows": opening.rows, "tenths": opening.tenths}
    arrays = _moments("inputs", opening.inputs)
    if opening.edges is not None:
        arrays |= _moments("edges", opening.edges)
    return _written(folder / f"{opening.client}{OPENING}", "opening", told, arrays)


def write_summary(folder: Path, summary: Summary) -> Path:
    """What a client tells under a basis; only sums of cells that are sent are in it."""
    shown = np.flatnonzero(summary.counts > 0)
    told: Told = {
        "client": summary.client,
        "rows": summary.rows,
        "hidden": summary.hidden,
        "spread": summary.spread,
    }
    told |= {"basis": summary.basis, "noise": vars(summary.noise)}
    arrays: Arrays = {
        "counts": summary.counts, "sums": summary.sums[shown], "products": summary.products,
        "hashes": summary.hashes,
    }  # fmt: skip
    return _written(folder / f"{summary.client}{SUMMARY}", "summary", told, arrays)


def read_opening(path: Path) -> Opening:
    return _read(path, "opening", _opening)


def read_summary(path: Path) -> Summary:
    return _read(path, "summary", _summary)


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


def _moments(name: str, moments: Moments) -> Arrays:
    return {
        f"{name}.count": np.array(moments.count),
        f"{name}.total": moments.total,
        f"{name}.squares": moments.squares,
    }


def _written(path: Path, what: str, told: Told, arrays: Arrays) -> Path:
    text = json.dumps({**told, "what": what, "version": VERSION})
    save_arrays(path, {"told": np.array(text), **arrays})
    return path


def _read(path: Path, what: str, make: Callable[[Told, Arrays], Read]) -> Read:
    try:
        arrays = read_arrays(path)
    except RunError as error:
        raise DataError(str(error)) from error
    try:
        told = json.loads(str(arrays.pop("told")))
        if told["version"] != VERSION:
            raise DataError(
                f"{path} is of version {told['version']}, but this fedskew reads version "
                f"{VERSION}: make it anew with the same fedskew as the others."
            )
        if told["what"] != what:
            raise DataError(f"{path} is a {told['what']}, not a {what}.")
        check_names(str(path), [told["client"]])
        for name, array in arrays.items():
            if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
                raise DataError(f"{path} is damaged: {name!r} holds what is no number.")
        return make(told, arrays)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise DataError(f"{path} is no {what} of 'fedskew summarise': {error!r}.") from error


def _opening(told: Told, arrays: Arrays) -> Opening:
    def moments(name: str) -> Moments:
        count, total, squares = (arrays[f"{name}.{part}"] for part in ("count", "total", "squares"))
        return Moments(int(count), total.astype(np.float64), squares.astype(np.float64))

    return Opening(
        told["client"], told["kind"], tuple(told["classes"]), tuple(told["shape"]),
        int(told["rows"]), moments("inputs"),
        moments("edges") if "edges.count" in arrays else None, tuple(told["tenths"]),
    )  # fmt: skip


def _summary(told: Told, arrays: Arrays) -> Summary:
    counts = arrays["counts"].astype(np.float64)
    sums = np.zeros((len(counts), WIDTH), np.float32)
    sums[np.flatnonzero(counts > 0)] = arrays["sums"]
    products = arrays["products"].astype(np.float32)
    if products.shape != (WIDTH * (WIDTH + 1) // 2,) or (counts < 0).any():
        raise ValueError("its sums are of another shape")
    return Summary(
        told["client"], int(told["rows"]), counts, sums, products,
        arrays["hashes"].astype(np.uint64), int(told["hidden"]), float(told["spread"]),
        told["basis"], Noise(**told["noise"]),
    )  # fmt: skip
