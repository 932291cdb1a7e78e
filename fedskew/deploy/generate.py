"""Synthetic labelled samples from a run whose models have a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.data.federation import Federation
from fedskew.data.raw import numbered
from fedskew.deploy.model import finished_run, run_model
from fedskew.deploy.preparation import run_federation
from fedskew.deploy.realism import Realism, realism
from fedskew.errors import ConfigError, FedskewError, RunError
from fedskew.federate.confidence import check_share
from fedskew.federate.predictions import load_predictions
from fedskew.parts.generative import decode, latent_of
from fedskew.rng import stream
from fedskew.runs.experiment import Run
from fedskew.runs.preparation import FILE, load_preparation
from fedskew.store import make_folder, save_arrays, write_json
from fedskew.types import Indices
from fedskew.views.generative import bound

THRESHOLD = 0.9
AT_ONCE = 8192
"""How many codes are drawn and labelled at once; only those kept are decoded."""
TRIES, FEWEST_TRIES = 200, 100_000
"""The most codes drawn: this many per sample wanted, but at least this many in all."""
SCALES = {
    "standard": "standardised as the run's training data are (federation.normalise = 'standard')",
    "unit": "pixels in 0..1, or features as stored (federation.normalise = 'unit')",
    "signed": "pixels in -1..1 (federation.normalise = 'signed')",
    "own": "as the run's own dataset function returns them",
}


@dataclass(frozen=True, eq=False)
class Generated:
    """Samples in the scale the run trained on; without a classifier they have no labels.

    ``drawn`` codes were drawn for them, and ``missing`` says how many samples of each class could
    not be made. ``notes`` say what may be unexpected.
    """

    x: Tensor
    y: Indices | None
    probability: NDArray[np.float32] | None
    class_names: tuple[str, ...]
    normalise: str
    scale: str
    source: str
    drawn: int
    missing: dict[str, int]
    realism: Realism | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """How many samples of each class there are."""
        if self.y is None:
            return {}
        found = np.bincount(self.y, minlength=len(self.class_names)).tolist()
        return dict(zip(self.class_names, found, strict=True))

    def report(self) -> dict[str, Any]:
        """What the report file holds."""
        return {
            "source": self.source,
            "samples": len(self.x),
            "classes": self.counts,
            "missing": self.missing,
            "drawn": self.drawn,
            "scale": self.scale,
            "realism": None if self.realism is None else self.realism.as_dict(),
            "notes": self.notes,
        }

    def save(self, out: Path) -> None:
        """Write ``samples.npz``, ``report.json`` and, for images, ``samples.png``."""
        make_folder(out)
        arrays: dict[str, NDArray[Any]] = {"x": self.x.numpy()}
        if self.y is not None and self.probability is not None:
            names = np.array(self.class_names)
            arrays |= {"y": self.y, "probability": self.probability, "class_names": names}
        save_arrays(out / "samples.npz", arrays)
        write_json(out / "report.json", self.report())
        if self.is_picture and len(self.x):
            from fedskew.deploy.sample_sheet import draw_samples

            draw_samples(out / "samples.png", self)

    @property
    def is_picture(self) -> bool:
        return self.x.ndim == 4 and self.x.shape[1] in (1, 3)

    def __str__(self) -> str:
        lines = [f"{len(self.x)} samples from {self.source}, {self.drawn} codes drawn"]
        if self.y is not None:
            each = ", ".join(f"{name} {count}" for name, count in self.counts.items())
            lines.append(f"classes: {each}")
        lines.append(f"scale: {self.scale}")
        lines += [] if self.realism is None else [str(self.realism)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def generate(
    run: str | Path | Run,
    count: int,
    *,
    client: str | None = None,
    threshold: float | None = None,
    balanced: bool = True,
    spread: float = 1.0,
    check: bool = True,
    seed: int | None = None,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    allow_code: bool = False,
) -> Generated:
    """Samples that a run's decoder makes of codes drawn from N(0, I); saved in ``out``.

    The decoder is the global model's or that of ``client``. The classifier reads the codes and
    gives the labels; samples whose label is less probable than ``threshold`` are dropped. If none
    is given, they are as sure as the model is of half of the run's validation samples, or 0.9.
    ``balanced`` asks for the same number of every class; otherwise the classes are as drawn. A
    ``spread`` (the codes' standard deviation) above 1 reaches classes that lie far out. With
    ``check`` they are compared with the run's real data: see :mod:`fedskew.deploy.realism`.
    """
    _check_wishes(count, threshold, spread)
    finished = finished_run(run, allow_code=allow_code)
    model = run_model(finished, client)
    labels = _has_classifier(model, finished)
    least = _usual_confidence(finished) if threshold is None else threshold
    seed = finished.config.seed if seed is None else seed
    federation, notes = _real_data(finished, data_dir) if check else (None, [])
    names = federation.class_names if federation else _class_names(finished)
    rng = stream(seed, "generate", client or "")
    drawn = draw(model, count, len(names) if labels else 0, least, balanced, spread, rng)
    x = decode(bound(model), drawn.codes)
    missing = {names[label]: short for label, short in enumerate(drawn.missing) if short}
    if not labels:
        notes.append("the model has no classifier, so the samples have no labels.")
    if len(x) < count:
        notes.append(_too_few(len(x), drawn.tries, least, missing))
    if labels and threshold is None and least < THRESHOLD:
        notes.append(
            f"samples whose label has probability {least:.2f} or more were kept: the model is as "
            "sure of half of the run's validation samples (threshold)."
        )
    if len(finished.result["sample_shape"]) != 3:
        notes.append("the samples are no images, so there is no picture.")
    found = realism(x, drawn.y, federation, seed, client) if federation else None
    made = Generated(
        x,
        drawn.y,
        drawn.probability,
        names,
        normalise=finished.config.federation.normalise,
        scale=_scale(finished),
        source=f"{client or 'the global model'} of {finished.path.resolve().name}",
        drawn=drawn.tries,
        missing=missing,
        realism=found,
        notes=notes,
    )
    if out is not None:
        made.save(Path(out))
    return made


def _usual_confidence(run: Run) -> float:
    """How sure the model is of half of its validation samples, and at most 0.9: a young model is
    not as sure of anything.
    """
    try:
        found = load_predictions(run.path)
    except RunError:
        return THRESHOLD
    kept = (found["split"] == "validation") & (found["adapted"] == "none")
    if not kept.any():
        return THRESHOLD
    return min(THRESHOLD, float(np.median(found["confidence"][kept])))


def _check_wishes(count: int, threshold: float | None, spread: float) -> None:
    if threshold is not None:
        check_share("threshold", threshold)
    if count < 1:
        raise ConfigError(f"count must be at least 1 sample, not {count}.")
    if not 0 < spread < float("inf"):
        raise ConfigError(f"spread must be above 0, not {spread:g}.")


def _has_classifier(model: nn.Module, run: Run) -> bool:
    """Whether a run's autoencoder has a classifier; refuses models that are no autoencoders."""
    parts = dict(model.named_children()).keys()
    if not {"encoder", "decoder"} <= parts:
        raise RunError(
            f"{run.path} has no decoder to generate samples with: its model "
            f"{run.config.model.name!r} is not an autoencoder."
        )
    return "classifier" in parts


def _too_few(found: int, tries: int, threshold: float, missing: Mapping[str, int]) -> str:
    lacking = ", ".join(f"{short} of class {name}" for name, short in missing.items())
    return (
        f"{tries} codes gave only {found} samples of probability {threshold:g} or more"
        f"{f', missing are {lacking}' if lacking else ''}: lower the threshold or raise the spread."
    )


class Drawn(NamedTuple):
    """Codes that were kept, their labels and probabilities, and how many are missing by class."""

    codes: Tensor
    y: Indices | None
    probability: NDArray[np.float32] | None
    tries: int
    missing: list[int]


def draw(
    model: nn.Module,
    count: int,
    classes: int,
    threshold: float,
    balanced: bool,
    spread: float,
    rng: np.random.Generator,
) -> Drawn:
    """Random codes whose class is probable enough, by class; any codes if there are no classes.

    Drawing ends when every class has its share, or after 200 codes for each sample wanted (and no
    fewer than 100,000). Without balancing, the classes of the ``count`` samples are as drawn.
    """

    def normal(codes: int) -> Tensor:
        drawn = rng.standard_normal((codes, latent_of(model)), dtype=np.float32)
        return spread * torch.from_numpy(drawn)

    if not classes:
        return Drawn(normal(count), None, None, count, [])
    wanted = np.full(classes, count)
    if balanced:
        wanted = count // classes + (np.arange(classes) < count % classes)
    kept: list[tuple[Tensor, Indices, NDArray[np.float32]]] = []
    have, tries = np.zeros(classes, np.int64), 0
    while tries < max(TRIES * count, FEWEST_TRIES) and have.sum() < count:
        codes = normal(AT_ONCE)
        with torch.no_grad():
            logits: Tensor = model.get_submodule("classifier")(codes)
        best, label = (values.numpy() for values in logits.softmax(dim=1).max(dim=1))
        sure = np.flatnonzero(best.astype(np.float64) >= threshold)
        # For every class that still has room, the first codes in the order they were drawn.
        fitting = [sure[label[sure] == c][: wanted[c] - have[c]] for c in range(classes)]
        rows = np.sort(np.concatenate(fitting))[: count - have.sum()]
        kept.append((codes[rows], label[rows], best[rows]))
        have += np.bincount(label[rows], minlength=classes)
        tries += AT_ONCE if have.sum() < count else int(rows[-1]) + 1
    if not have.any():
        raise RunError(
            f"none of {tries} codes has a class of probability {threshold:g} or more: "
            "lower the threshold or raise the spread."
        )
    y, probability = (np.concatenate([part[i] for part in kept]) for i in (1, 2))
    order = np.argsort(y, kind="stable")
    codes = torch.cat([part[0] for part in kept])[torch.from_numpy(order)]
    missing = (wanted - have).tolist() if balanced else []
    return Drawn(codes, y[order], probability[order], tries, missing)


def _real_data(run: Run, data_dir: str | Path | None) -> tuple[Federation | None, list[str]]:
    """The run's data, or a note that the samples could not be compared with them."""
    try:
        return run_federation(run, None if data_dir is None else Path(data_dir)), []
    except FedskewError as error:
        return None, [f"not checked against real data: {error}"]


def _class_names(run: Run) -> tuple[str, ...]:
    """The names of the classes if the run's folder has them, else their numbers."""
    if (run.path / FILE).is_file():
        return load_preparation(run.path).class_names
    return numbered(int(run.result["classes"]))


def _scale(run: Run) -> str:
    section = run.config.federation
    text = SCALES["own" if ":" in section.dataset else section.normalise]
    scaled = (section.features or {}).get("scale")
    return f"{text}, then to 0..1 (federation.features.scale = {scaled!r})" if scaled else text
