"""What clients describe their rows by: the same random features everywhere, from a seed and sums.

A first exchange tells sums of inputs (an :class:`Opening`); what is agreed on from all of them is
the :class:`Basis`. Under it a row becomes φ(x): inputs standardised, of images also their edges
(the mean absolute step between neighbours in each quarter), each projected to 64 dimensions, then
cosines and sines of 64 random directions. Every ‖φ(x)‖ is 1, which later makes sums unbiased
without sending more, and bounds what one row can change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.data.federation import Federation
from fedskew.data.label_cells import number_first
from fedskew.data.moments import Moments, figures, overall
from fedskew.errors import DataError, at_least
from fedskew.problem import Problem
from fedskew.rng import stream
from fedskew.types import Indices

VERSION = 2
"""Of what is sent: summaries of different versions do not mean the same."""
PROJECTED, DIRECTIONS = 64, 64
WIDTH = 2 * DIRECTIONS
CELL = 10
"""Cells of fewer rows are not sent, unless another size is asked for."""
ROOMY = 1.5
"""Groups that small classes are joined into have about so many cells' worth of rows each."""
BINS = 5
"""A target that is a number is looked at by fifths of all targets."""
SMALLEST_SIDE = 8
"""Images from this side on have edges to speak of."""
ROWS_AT_ONCE = 2048
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Opening:
    """The first thing a client tells: its classes or tenths of its targets, and sums of inputs."""

    client: str
    kind: str
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    rows: int
    inputs: Moments
    edges: Moments | None
    tenths: tuple[float, ...]
    """Of a target that is a number: its rounded deciles, none of which is a row's value."""


@dataclass(frozen=True, eq=False)
class Basis:
    """How rows are described. ``public`` says that no row was looked at to make it."""

    seed: int
    kind: str
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    mean: Singles
    deviation: Singles
    edge_mean: Singles
    edge_deviation: Singles
    cuts: tuple[float, ...] = ()
    cell: int = CELL
    groups: tuple[int, ...] = ()
    """Where classes have few rows each, the group that each is joined into to be counted."""
    public: bool = False
    version: int = VERSION

    def __post_init__(self) -> None:
        at_least("cell", self.cell, 2)
        at_least("seed", self.seed, 0)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @cached_property
    def seal(self) -> str:
        """Tells this basis from any other."""
        told = json.dumps(self.to_plain(), sort_keys=True)
        return blake2b(told.encode(), digest_size=16).hexdigest()

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it; a float32 keeps its bits."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        arrays = {n: v.tolist() for n, v in plain.items() if isinstance(v, np.ndarray)}
        lists = {n: list(v) for n, v in plain.items() if isinstance(v, tuple)}
        return plain | arrays | lists

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Basis:
        names = cls.__dataclass_fields__
        if "version" not in plain:
            raise ValueError("it has no version.")
        if plain["version"] != VERSION or set(plain) != set(names):
            raise DataError(
                f"this basis is of version {plain['version']}, but this fedskew makes version "
                f"{VERSION}: make it anew."
            )
        given: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in plain.items()
        }
        for name in ("mean", "deviation", "edge_mean", "edge_deviation"):
            given[name] = np.array(plain[name], np.float32)
        return cls(**given)

    @cached_property
    def _projections(self) -> tuple[Singles, Singles, Floats]:
        """Of inputs, of edges, and the directions of all that is projected."""
        rng = stream(self.seed, "diagnosis", "basis")
        wide = prod(self.shape)
        inputs = rng.standard_normal((wide, PROJECTED)) / np.sqrt(wide)
        count = max(1, self.edge_mean.size)
        edges = rng.standard_normal((count, PROJECTED)) / np.sqrt(count)
        both = PROJECTED * (2 if self.edge_mean.size else 1)
        directions = rng.standard_normal((both, DIRECTIONS)) / np.sqrt(both)
        return inputs.astype(np.float32), edges.astype(np.float32), directions

    def describe(self, x: Singles) -> Floats:
        """φ of each row: [N, 128], each of length 1."""
        parts = [x[i : i + ROWS_AT_ONCE] for i in range(0, len(x), ROWS_AT_ONCE)]
        return np.concatenate([self._described(part) for part in parts])

    def _described(self, x: Singles) -> Floats:
        inputs, edges, directions = self._projections
        flat = ((x - self.mean) / self.deviation).reshape(len(x), -1)
        told = [flat @ inputs]
        if self.edge_mean.size:
            steps = (steps_of(x) - self.edge_mean) / self.edge_deviation
            told.append(steps @ edges)
        angle = np.concatenate(told, axis=1).astype(np.float64) @ directions
        waves = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        return np.asarray(waves / np.sqrt(DIRECTIONS))

    def labels(self, y: NDArray[Any]) -> Indices:
        """The class of each target: itself, or the fifth of all targets it lies in."""
        if self.kind == "numbers":
            return np.searchsorted(np.array(self.cuts), y, side="right").astype(np.int64)
        return np.asarray(y, dtype=np.int64)


def steps_of(x: Singles) -> Singles:
    """The mean absolute step between neighbours, down and across, in each quarter of images.

    >>> steps_of(np.tile(np.arange(8.0, dtype=np.float32), (1, 1, 8, 1)))[0].tolist()
    [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    """
    down = np.abs(np.diff(x, axis=2))[:, :, :, :-1]
    across = np.abs(np.diff(x, axis=3))[:, :, :-1]
    height, width = down.shape[2] // 2, down.shape[3] // 2
    told = [
        steps[:, :, a : a + height, b : b + width].mean(axis=(2, 3))
        for steps in (down, across)
        for a in (0, height)
        for b in (0, width)
    ]
    return np.concatenate(told, axis=1)


def has_edges(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and min(shape[1:]) >= SMALLEST_SIDE


def opening(federation: Federation, name: str) -> Opening:
    """What a client tells first, of its training rows."""
    kind = kind_of(federation.name, federation.problem)
    rows = federation.by_name[name].train
    x = federation.x.numpy()
    shape = federation.sample_shape
    edges = None
    if has_edges(shape):
        steps = [steps_of(x[rows[i : i + ROWS_AT_ONCE]]) for i in range(0, len(rows), ROWS_AT_ONCE)]
        edges = Moments.of(np.concatenate(steps), np.arange(len(rows)))
    tenths: tuple[float, ...] = ()
    if kind == "numbers":
        found = np.quantile(federation.y.numpy()[rows].astype(np.float64), np.arange(1, 10) / 10)
        # Two digits of the range: what is told is no row's target.
        unit = 10.0 ** (np.floor(np.log10(max(float(np.ptp(found)), 1e-9))) - 1)
        tenths = tuple(float(f"{round(value / unit) * unit:.12g}") for value in found)
    names = () if kind == "numbers" else federation.class_names
    return Opening(name, kind, names, shape, len(rows), Moments.of(x, rows), edges, tenths)


def kind_of(name: str, problem: Problem) -> str:
    """Whether targets are classes or numbers; ``name`` is the federation's."""
    if problem.classifies:
        return "classes"
    if problem.kind == "regression":
        return "numbers"
    raise DataError(f"{name} has several labels a sample: diagnose needs one class or one number.")


def agreed(openings: Sequence[Opening], seed: int = 0, cell: int = CELL) -> Basis:
    """The basis that these clients' sums make."""
    at_least("cell", cell, 2)
    if len(openings) < 2:
        raise DataError(
            f"diagnose compares clients, but there is {'one' if openings else 'none'}: bring two."
        )
    ordered = sorted(openings, key=lambda each: each.client)
    first = ordered[0]
    for other in ordered[1:]:
        if (other.kind, other.shape) != (first.kind, first.shape):
            raise DataError(
                f"clients {first.client!r} and {other.client!r} hold different things: "
                f"{first.kind} of samples {list(first.shape)}, {other.kind} of "
                f"{list(other.shape)}."
            )
    mean, deviation = figures([each.inputs for each in ordered])
    if not overall([each.inputs for each in ordered])[1].any():
        raise DataError("every input is constant over all clients: there is nothing to compare.")
    told = [each.edges for each in ordered if each.edges is not None]
    edge_mean, edge_deviation = figures(told) if told else (np.zeros(0), np.zeros(0))
    cuts = _cuts(ordered) if first.kind == "numbers" else ()
    names = tuple(f"fifth {i + 1}" for i in range(len(cuts) + 1)) if cuts else _names(ordered)
    check_names(first.kind, names)
    groups = _groups(ordered, len(names), seed, cell) if first.kind == "classes" else ()
    return Basis(
        seed, first.kind, names, first.shape,
        mean[0].astype(np.float32), deviation[0].astype(np.float32),
        edge_mean.reshape(-1).astype(np.float32), edge_deviation.reshape(-1).astype(np.float32),
        cuts, cell, groups,
    )  # fmt: skip


def _groups(openings: Sequence[Opening], classes: int, seed: int, cell: int) -> tuple[int, ...]:
    """Classes joined at random, if the median client has fewer rows of one than a cell."""
    rows = float(np.median([each.rows for each in openings]))
    groups = int(rows / (ROOMY * cell))
    if rows >= cell * classes or groups < 2:
        return ()
    order = stream(seed, "diagnosis", "groups").permutation(classes)
    return tuple(int(place) % groups for place in np.argsort(order))


def check_names(kind: str, names: Sequence[str]) -> None:
    if len(names) < 2:
        what = "one class in all" if kind == "classes" else "targets that do not differ"
        raise DataError(f"the clients have {what}: labels cannot be compared, nor learned.")


def _names(openings: Sequence[Opening]) -> tuple[str, ...]:
    lists = {each.class_names for each in openings}
    if len(lists) == 1:
        return openings[0].class_names
    return tuple(sorted({name for names in lists for name in names}, key=number_first))


def _cuts(openings: Sequence[Opening]) -> tuple[float, ...]:
    """Fifths of all targets, from each client's tenths: medians of what lies between are enough."""
    values = np.concatenate([each.tenths for each in openings])
    weights = np.concatenate([np.full(9, each.rows / 9) for each in openings])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    places = [int(np.searchsorted(reached, i / BINS)) for i in range(1, BINS)]
    return tuple(sorted({float(values[order][place]) for place in places}))


def public_basis(federation: Federation, seed: int = 0, cell: int = CELL) -> Basis:
    """A basis that looks at no row: inputs are taken as they come, to be of about unit scale."""
    kind = kind_of(federation.name, federation.problem)
    return basis_of_no_row(kind, federation.class_names, federation.sample_shape, seed, cell)


def basis_of_no_row(
    kind: str, class_names: tuple[str, ...], shape: tuple[int, ...], seed: int, cell: int
) -> Basis:
    """The same of a federation whose rows are elsewhere."""
    if kind == "numbers":
        raise DataError(
            "targets that are numbers are cut where rows say: --epsilon needs classes instead."
        )
    check_names("classes", class_names)
    like = (shape[0], 1, 1) if len(shape) == 3 else shape
    edges = 8 * shape[0] if has_edges(shape) else 0
    return Basis(
        seed, "classes", class_names, shape,
        np.zeros(like, np.float32), np.ones(like, np.float32),
        np.full(edges, 0.5, np.float32), np.full(edges, 0.5, np.float32),
        cell=cell, public=True,
    )  # fmt: skip
