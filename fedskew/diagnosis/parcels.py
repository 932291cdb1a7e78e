"""Openings and summaries as plain values and arrays, which files and messages hold alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedskew.data.moments import Moments
from fedskew.diagnosis.basis import VERSION, WIDTH, Opening
from fedskew.diagnosis.duplicates import HASHES
from fedskew.diagnosis.privacy import Noise
from fedskew.diagnosis.summary import UPPER, Summary
from fedskew.errors import DataError
from fedskew.trust.names import check_names

Arrays = dict[str, NDArray[Any]]
Told = dict[str, Any]
Parcel = tuple[Told, Arrays]
Read = TypeVar("Read")


def packed_opening(opening: Opening) -> Parcel:
    """What a client tells first."""
    told: Told = {"client": opening.client, "kind": opening.kind, "shape": opening.shape}
    told |= {"classes": opening.class_names, "rows": opening.rows, "tenths": opening.tenths}
    arrays = _moments("inputs", opening.inputs)
    if opening.edges is not None:
        arrays |= _moments("edges", opening.edges)
    return _marked("opening", told), arrays


def packed_summary(summary: Summary) -> Parcel:
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
        "hashes": summary.hashes, "joined": summary.joined,
    }  # fmt: skip
    return _marked("summary", told), arrays


def unpacked_opening(where: str, told: Told, arrays: Arrays) -> Opening:
    return _unpacked(where, "opening", _opening, told, arrays)


def unpacked_summary(where: str, told: Told, arrays: Arrays) -> Summary:
    return _unpacked(where, "summary", _summary, told, arrays)


def _marked(what: str, told: Told) -> Told:
    return {**told, "what": what, "version": VERSION}


def _moments(name: str, moments: Moments) -> Arrays:
    return {
        f"{name}.count": np.array(moments.count),
        f"{name}.total": moments.total,
        f"{name}.squares": moments.squares,
    }


def _unpacked(
    where: str, what: str, make: Callable[[Told, Arrays], Read], told: Told, arrays: Arrays
) -> Read:
    """``where`` it came from names it, if something is wrong with it."""
    try:
        if told["version"] != VERSION:
            raise DataError(
                f"{where} is of version {told['version']}, but this fedskew reads version "
                f"{VERSION}: make it anew with the same fedskew as the others."
            )
        if told["what"] != what:
            raise DataError(f"{where} is a {told['what']}, not a {what}.")
        check_names(where, [told["client"]])
        for name, array in arrays.items():
            if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
                raise DataError(f"{where} is damaged: {name!r} holds what is no number.")
        return make(told, arrays)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise DataError(f"{where} is no {what} of 'fedskew summarise': {error}.") from error


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
    shown = np.flatnonzero(counts > 0)
    noise, rows = Noise(**told["noise"]), int(told["rows"])
    shapes = {"sums": (len(shown), WIDTH), "products": (len(UPPER[0]),)}
    shapes["hashes"] = (HASHES if noise.is_none else 0,)
    joined = arrays["joined"].astype(np.float64)
    if (
        counts.ndim != 1
        or joined.ndim != 1
        or any(arrays[name].shape != shape for name, shape in shapes.items())
    ):
        raise ValueError("its sums are of another shape")
    most = max(counts.sum(), joined.sum()) if noise.is_none else 0
    if rows < most or min(counts.min(initial=0), joined.min(initial=0)) < 0:
        raise ValueError("its counts do not add up")
    sums = np.zeros((len(counts), WIDTH), np.float32)
    sums[shown] = arrays["sums"]
    return Summary(
        told["client"], rows, counts, sums, arrays["products"].astype(np.float32),
        arrays["hashes"].astype(np.uint64), int(told["hidden"]), float(told["spread"]),
        joined, told["basis"], noise,
    )  # fmt: skip
