"""How a run's data were prepared, so that new samples can be prepared in the same way.

New samples come in the shape and scale in which the dataset is stored. A run's models take
numbers that were shifted and scaled by statistics of the run's own training data, which cannot be
estimated from a few new samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from fedskew.config import Config, Named
from fedskew.data.dataset import Dataset, check_values
from fedskew.data.datasets import DATASETS, load
from fedskew.data.features import Range
from fedskew.data.federation import Federation, training_rows
from fedskew.data.fingerprint import fingerprint, sampled_fingerprint
from fedskew.data.formats import Array
from fedskew.data.moments import Moments, figures
from fedskew.data.own import load_own
from fedskew.data.prepare import as_floats
from fedskew.errors import DataError, RunError
from fedskew.runs.experiment import Run, make_federation
from fedskew.runs.identity import FORMAT, SCALED_BY_CLIENTS
from fedskew.runs.summary import checked
from fedskew.store import read_json, write_json
from fedskew.types import Indices

FILE = "preparation.json"
SLACK = 0.5
"""Pixels may lie outside the run's range by this share of it before they are refused."""


@dataclass(frozen=True)
class SamplePreparation:
    """From samples as stored to samples as a run's models take them.

    ``taken`` is the shape after ``image`` was applied (see ``federation.image``), ``shape`` that
    of the run's samples. Of every channel or feature ``shift`` is subtracted, and what is left
    divided by ``spread``. ``numbers`` are the numbers the files have for the classes (a list for
    several that are one here), ``span`` the smallest and largest value of the run's images before
    scaling (None for features).

    Where a run chose or scaled features (``federation.features``), ``kept`` are their places and
    ``low`` and ``high`` the range that becomes 0..1: of all seen clients together, unless the
    samples are those of one of the ``clients``, or of a new one (see ``of_client``, ``of_new``).
    """

    scale: str
    class_names: tuple[str, ...]
    numbers: tuple[int | list[int], ...]
    shape: tuple[int, ...]
    taken: tuple[int, ...]
    image: dict[str, int] | None = None
    shift: tuple[float, ...] = (0.0,)
    spread: tuple[float, ...] = (1.0,)
    span: tuple[float, float] | None = None
    kept: tuple[int, ...] = ()
    scaled_by: str | None = None
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    clients: dict[str, Any] = field(default_factory=dict)

    def samples(self, x: Array, origin: Path | str = "the samples") -> Tensor:
        """Samples as the run's models take them: float32, channels first, scaled."""
        made = self._before_ranges(x, origin)
        if self.scaled_by is None:
            return made
        return Range(torch.tensor(self.low), torch.tensor(self.high)).scaled(made)

    def _before_ranges(self, x: Array, origin: Path | str) -> Tensor:
        check_values(origin, x)
        made = as_floats(origin, x, self.image if x.ndim > 2 else None)
        fitting = {self.taken, self.shape} if len(self.shape) == 3 else {self.taken}
        if tuple(made.shape[1:]) not in fitting:
            raise DataError(
                f"{origin}: a sample has shape {list(made.shape[1:])}, but the run takes "
                f"{list(self.taken)}."
            )
        self._check_span(origin, made)
        places = (-1,) + (1,) * (made.ndim - 2)
        # Not in place: it may be the caller's own array.
        made = made - np.array(self.shift, np.float32).reshape(places)
        made /= np.array(self.spread, np.float32).reshape(places)
        if self.kept:
            made = made[:, list(self.kept)]
        # In a run whose clients have coloured images, grey images are grey in three channels.
        return torch.from_numpy(made).expand(-1, *self.shape).contiguous()

    def of_client(self, client: str) -> SamplePreparation:
        """The same preparation for the samples of a client that took part."""
        if self.scaled_by is None:
            return self
        low, high = self.clients[client]
        return replace(self, low=tuple(low), high=tuple(high), clients={})

    def of_new(self, x: Array, origin: Path | str = "the samples") -> SamplePreparation:
        """The same preparation for a client that has only these samples: they set its range."""
        if self.scaled_by is None:
            return self
        found = Range.of(self._before_ranges(x, origin), self.scaled_by)
        return replace(self, low=_listed(found.low), high=_listed(found.high), clients={})

    def _check_span(self, origin: Path | str, made: Array) -> None:
        """Refuse pixels of 0..255 where 0..1 are expected: they would be answered wrongly."""
        if self.span is None:
            return
        low, high = self.span
        slack = SLACK * (high - low)
        least, most = float(made.min()), float(made.max())
        if least < low - slack or most > high + slack:
            raise DataError(
                f"{origin}: pixels span {least:g} to {most:g}, but those of the run {low:g} to "
                f"{high:g}: store bytes of 0..255, or numbers on that scale."
            )

    def labels(self, y: Sequence[Any] | Array, origin: Path | str = "the samples") -> Indices:
        """The run's number of each class, given its name, or its number in the dataset's files."""
        given = np.asarray(y)
        if given.ndim != 1:
            raise DataError(f"{origin}: labels must be a list, not of shape {list(given.shape)}.")
        if given.dtype.kind in "UO":
            return self._placed(origin, [str(label) for label in given], self.class_names)
        if given.dtype.kind not in "bui":
            raise DataError(f"{origin}: labels must be whole numbers or names, not {given.dtype}.")
        return self._placed(origin, [int(label) for label in given], self.numbers)

    def _placed(self, origin: Path | str, given: Sequence[Any], known: Sequence[Any]) -> Indices:
        groups = [one if isinstance(one, list) else [one] for one in known]
        place = {label: number for number, group in enumerate(groups) for label in group}
        for row, label in enumerate(given):
            if label not in place:
                listed = ", ".join(str(each) for each in known)
                raise DataError(
                    f"{origin}: label {label!r} of sample {row} is none of the run's classes: "
                    f"{listed}."
                )
        return np.array([place[label] for label in given], dtype=np.int64)

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))


def load_preparation(folder: Path) -> SamplePreparation:
    """The preparation that was saved in a folder."""
    path = folder / FILE
    made = checked(path, read_json(path), TypeAdapter(SamplePreparation), "how to prepare samples")
    figures = (*made.shift, *made.spread, *made.low, *made.high, *(made.span or ()))
    fits = {len(made.shift), len(made.spread)} <= {1, made.taken[0] if made.taken else 1}
    if not fits or not np.isfinite(figures).all() or 0 in made.spread:
        raise RunError(f"{path} is damaged: its figures do not fit the samples.")
    return made


def preparation_of(run: Run, data_dir: Path | None = None) -> SamplePreparation:
    """How the samples of a run were prepared.

    It is read from the run's folder, or else found from its data; then it is saved there, so that
    the folder is enough from then on, unless the folder is read-only.
    """
    if (run.path / FILE).is_file():
        return load_preparation(run.path)
    found = described(run.config, run_federation(run, data_dir), data_dir, _version(run))
    with suppress(RunError):
        found.save(run.path)
    return found


def run_federation(run: Run, data_dir: Path | None = None) -> Federation:
    """The same data a run was made with."""
    federation = make_federation(run.config, data_dir, _version(run))
    hashed = fingerprint if _version(run) else sampled_fingerprint
    if hashed(federation) != run.results.settings["data"]:
        raise RunError(
            f"{run.path} was made with other data than are here now: restore the original data, "
            "or name their folder with --data-dir."
        )
    return federation


def _version(run: Run) -> int:
    """The version of a run's folder, 0 before folders told theirs."""
    return int(run.results.settings.get("format", 0))


def described(
    config: Config,
    federation: Federation,
    data_dir: Path | None = None,
    version: int = FORMAT,
) -> SamplePreparation:
    """The preparation that made a federation's samples, from its dataset as stored.

    ``version`` is that of the run's folder: the first ones scaled by other rows.
    """
    section = config.federation
    names, shape = federation.class_names, federation.sample_shape
    if ":" in section.dataset:
        numbers = tuple(range(len(names)))
        return SamplePreparation("own", names, numbers, shape, taken=shape)
    stored = _stored(config, data_dir)
    x = as_floats(stored.name, stored.x.numpy(), section.image)
    shift, spread = _figures(config, stored, x, data_dir, version)
    return SamplePreparation(
        scale=section.normalise,
        class_names=names,
        numbers=tuple(section.classes or range(len(names))),
        shape=shape,
        taken=tuple(x.shape[1:]),
        image=section.image,
        shift=shift,
        spread=spread,
        span=(float(x.min()), float(x.max())) if x.ndim == 4 else None,
        kept=federation.features,
        **_ranges(config, data_dir, version),
    )


def _ranges(config: Config, data_dir: Path | None, version: int) -> dict[str, Any]:
    """The range of features that becomes 0..1: of all seen clients, and of each client."""
    features = config.federation.features or {}
    scaled_by = features.get("scale")
    if scaled_by is None:
        return {}
    others = {name: value for name, value in features.items() if name != "scale"}
    before = _made_with(config, data_dir, version, features=others or None)
    own = {
        client.name: Range.of(before.x[client.train], scaled_by)
        for client in before.by_name.values()
        if len(client.train)
    }
    seen = Range.around([own[client.name] for client in before.clients])
    return {
        "scaled_by": scaled_by,
        "low": _listed(seen.low),
        "high": _listed(seen.high),
        "clients": {name: (_listed(r.low), _listed(r.high)) for name, r in own.items()},
    }


def _made_with(config: Config, data_dir: Path | None, version: int, **changes: Any) -> Federation:
    """The federation that a run would have with some settings of it changed."""
    section = config.federation.model_copy(update=changes)
    return make_federation(config.model_copy(update={"federation": section}), data_dir, version)


def _listed(values: Tensor) -> tuple[float, ...]:
    return tuple(values.reshape(-1).tolist())


def _stored(config: Config, data_dir: Path | None) -> Dataset:
    """The run's dataset as it was before images were converted and scaled."""
    section = config.federation
    if section.dataset in DATASETS:
        return load(
            section.dataset, data_dir, normalise="unit", classes=section.classes, **section.options
        )
    return load_own(section.dataset, normalise="unit", classes=section.classes, **section.options)


def _figures(
    config: Config, stored: Dataset, x: Array, data_dir: Path | None, version: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Shift and divisor of each channel or feature, as they were applied to the run's data.

    "signed" subtracts a half and divides by a half: 2·x - 1.
    """
    normalise = config.federation.normalise
    if normalise == "unit":
        return (0.0,), (1.0,)
    if normalise == "signed":
        return (0.5,), (0.5,)
    entry = DATASETS.get(config.federation.dataset)
    if entry and entry.published and x.shape[2:] == stored.x.shape[2:]:
        mean, deviation = entry.published
        return (mean,), (deviation,)
    holders = [stored.train_rows]
    if version >= SCALED_BY_CLIENTS:
        # Skews and features come after scaling, and may give rows other places.
        bare: dict[str, Any] = {"skew": [], "features": None, "environments": Named(name="none")}
        holders = training_rows(_made_with(config, data_dir, version, **bare).clients)
    found = figures([Moments.of(x, rows) for rows in holders])
    return tuple(found[0].reshape(-1).tolist()), tuple(found[1].reshape(-1).tolist())
