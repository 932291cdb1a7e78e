"""How a run's data were prepared, so that new samples can be prepared in the same way.

New samples come in the shape and scale in which the dataset is stored. What a run's models take
are numbers shifted and scaled by figures of the run's own training data: a few new samples could
not tell what these were.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.config import Config
from fedskew.data.dataset import Dataset
from fedskew.data.datasets import REGISTRY, load
from fedskew.data.features import Range
from fedskew.data.federation import Federation
from fedskew.data.fingerprint import fingerprint, sampled_fingerprint
from fedskew.data.formats import Array
from fedskew.data.own import load_own
from fedskew.data.prepare import as_floats, moments
from fedskew.data.raw import check_values
from fedskew.errors import DataError, RunError
from fedskew.runs.experiment import Run, make_federation
from fedskew.store import read_json, write_json
from fedskew.types import Indices

FILE = "preparation.json"
SLACK = 0.5
"""Pixels may leave the range of the run's own by this share of it before they are refused."""


@dataclass(frozen=True)
class SamplePreparation:
    """From samples as stored to samples as a run's models take them.

    ``taken`` is the shape after ``image`` was applied (see ``federation.image``), ``shape`` that
    of the run's samples. Of every channel or feature ``shift`` is subtracted, and what is left
    divided by ``spread``. ``numbers`` are the numbers the files have for the classes, ``span`` the
    smallest and largest value of the run's images before scaling (None for features).

    Where a run chose or scaled features (``federation.features``), ``kept`` are their places and
    ``low`` and ``high`` the range that becomes 0..1: of all seen clients together, unless the
    samples are those of one of the ``clients``, or of a new one (see ``of_client``, ``of_new``).
    """

    scale: str
    class_names: tuple[str, ...]
    numbers: tuple[int, ...]
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
        # Grey images of a run whose clients were given colours are grey in three channels.
        return torch.from_numpy(made).expand(-1, *self.shape).contiguous()

    def of_client(self, client: str) -> SamplePreparation:
        """The same for the samples of a client that took part."""
        if self.scaled_by is None:
            return self
        low, high = self.clients[client]
        return replace(self, low=tuple(low), high=tuple(high), clients={})

    def of_new(self, x: Array, origin: Path | str = "the samples") -> SamplePreparation:
        """The same for a client that has no more than these samples: they make its range."""
        if self.scaled_by is None:
            return self
        found = Range.of(self._before_ranges(x, origin), self.scaled_by)
        return replace(self, low=_listed(found.low), high=_listed(found.high), clients={})

    def _check_span(self, origin: Path | str, made: Array) -> None:
        """Pixels of 0..255 where 0..1 are meant would be answered, and wrongly."""
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
        place = {label: number for number, label in enumerate(known)}
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
    found: dict[str, Any] = read_json(folder / FILE)
    lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    return SamplePreparation(**{**found, **lists})


def preparation_of(run: Run, data_dir: Path | None = None) -> SamplePreparation:
    """How the samples of a run were prepared.

    Found in the run's folder, or else from its data; then it is kept there, so that from then on
    the folder is enough, unless nobody may write to it.
    """
    if (run.path / FILE).is_file():
        return load_preparation(run.path)
    found = described(run.config, run_federation(run, data_dir), data_dir)
    with suppress(RunError):
        found.save(run.path)
    return found


def run_federation(run: Run, data_dir: Path | None = None) -> Federation:
    """The very data a run was made with."""
    federation = make_federation(run.config, data_dir)
    recorded = run.results.settings
    hashed = fingerprint if "format" in recorded else sampled_fingerprint
    if hashed(federation) != recorded["data"]:
        raise RunError(
            f"{run.path} was made with other data than are here now: bring the first data back, "
            "or name their folder with --data-dir."
        )
    return federation


def described(
    config: Config, federation: Federation, data_dir: Path | None = None
) -> SamplePreparation:
    """The preparation that made a federation's samples, from its dataset as stored."""
    section = config.federation
    names, shape = federation.class_names, federation.sample_shape
    if ":" in section.dataset:
        numbers = tuple(range(len(names)))
        return SamplePreparation("own", names, numbers, shape, taken=shape)
    stored = _stored(config, data_dir)
    x = as_floats(stored.name, stored.x.numpy(), section.image)
    shift, spread = _figures(config, stored, x)
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
        **_ranges(config, data_dir),
    )


def _ranges(config: Config, data_dir: Path | None) -> dict[str, Any]:
    """The range of features that becomes 0..1: of all seen clients, and of each client."""
    features = config.federation.features or {}
    scaled_by = features.get("scale")
    if scaled_by is None:
        return {}
    others = {name: value for name, value in features.items() if name != "scale"}
    section = config.federation.model_copy(update={"features": others or None})
    before = make_federation(config.model_copy(update={"federation": section}), data_dir)
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


def _listed(values: Tensor) -> tuple[float, ...]:
    return tuple(values.reshape(-1).tolist())


def _stored(config: Config, data_dir: Path | None) -> Dataset:
    """The run's dataset as it was before images were converted and scaled."""
    section = config.federation
    if section.dataset in REGISTRY:
        return load(
            section.dataset, data_dir, normalise="unit", classes=section.classes, **section.options
        )
    return load_own(section.dataset, normalise="unit", classes=section.classes, **section.options)


def _figures(
    config: Config, stored: Dataset, x: Array
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What is subtracted and what divides, a channel or feature each: as ``prepare.scale`` has it.

    Half a unit off and divided by a half is what "signed" does: twice, less one.
    """
    normalise = config.federation.normalise
    if normalise == "unit":
        return (0.0,), (1.0,)
    if normalise == "signed":
        return (0.5,), (0.5,)
    entry = REGISTRY.get(config.federation.dataset)
    if entry and entry.published and x.shape[2:] == stored.x.shape[2:]:
        mean, deviation = entry.published
        return (mean,), (deviation,)
    mean, deviation = moments(x, stored.train_rows)
    return tuple(mean.reshape(-1).tolist()), tuple(deviation.reshape(-1).tolist())
