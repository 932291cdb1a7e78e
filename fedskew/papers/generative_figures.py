"""Figures of generative suites: what models draw, and whether losses follow divergence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedskew.canvas import (
    BLACK,
    blank_figure,
    draw_line,
    grid,
    legend_beside,
    line_styles,
    rounds_axis,
    save_figure,
)
from fedskew.papers.clients import Data
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell
from fedskew.papers.measure import Measured
from fedskew.papers.verdict import Results
from fedskew.parts.generative import latent_of
from fedskew.runs.experiment import make_federation
from fedskew.store import write_atomically, write_csv
from fedskew.views.figures import draw_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
"""The seed whose runs are shown, and that of the draws."""
Drawn = tuple[Tensor, tuple[str, ...]]
"""Images of a model, and a caption for each or none at all."""


def draw_samples(
    suite: Suite, results: Results, data: Mapping[str, Data], folder: Path
) -> dict[str, Path]:
    """By setting: what each arm's global model makes of noise, an arm a row.

    Real images only set the range of grey: a page may be published, the data are their owners'.
    """
    pictures = {}
    for setting, seen in data.items():
        if not len(seen.images) or seen.images.ndim != 4 or seen.images.shape[1] not in (1, 3):
            continue
        rows: dict[str, Drawn] = {}
        for arm in suite.pictures:
            run = results.get((setting, arm, SEED))
            drawn = None if run is None else prior_draws(run, len(seen.images), seen.classes)
            if drawn is not None:
                rows[suite.arm(arm).label] = drawn
        if rows:
            title = f"{suite.setting(setting).label}, seed {SEED}: samples from the prior"
            pictures[setting] = folder / f"{setting}-samples.png"
            save_figure(_image_rows(rows, seen.images, title), pictures[setting])
    return pictures


def prior_draws(measured: Measured, count: int, classes: Sequence[str] = ()) -> Drawn | None:
    """Decoded draws from N(0, I) by the global model of the last round, if that is a VAE.

    A model that reads classes off its codes says of each draw which it is, and how surely.
    """
    from fedskew.views.generative import prior_codes, prior_samples

    run = measured.folder
    if run is None or not (run.path / "models" / "last" / "global.safetensors").is_file():
        return None
    model = run.model(round="last")
    parts = dict(model.named_children())
    if "decoder" not in parts:
        return None
    images = prior_samples(model, count, SEED)
    if "classifier" not in parts:
        return images, ()
    codes = prior_codes(latent_of(model), count, SEED)
    with torch.no_grad():
        sure, label = parts["classifier"](codes).softmax(1).max(1)
    named = [classes[i] if i < len(classes) else str(i) for i in label.tolist()]
    return images, tuple(f"{n}, {p:.2f}" for n, p in zip(named, sure.tolist(), strict=True))


def shown_as(images: Tensor, real: Tensor) -> Tensor:
    """Images as ``[n, height, width, channels]`` from 0 to 1, the range of the real ones."""
    low, high = real.min(), real.max()
    scaled = (images - low) / (high - low).clamp(min=torch.finfo(images.dtype).tiny)
    return scaled.clamp(0.0, 1.0).movedim(1, -1)


def _image_rows(rows: Mapping[str, Drawn], real: Tensor, title: str) -> Figure:
    count = len(real)
    figure = blank_figure(2.6 + 0.8 * count, 0.6 + 0.95 * len(rows))
    panels = figure.subplots(len(rows), count, squeeze=False)
    for line, (label, (images, captions)) in zip(panels, rows.items(), strict=True):
        for axes, caption in zip(line, captions, strict=False):
            axes.set_title(caption, fontsize=7, pad=2)
        for axes, image in zip(line, shown_as(images, real), strict=True):
            axes.imshow(image.squeeze(-1).numpy(), cmap="gray", vmin=0.0, vmax=1.0)
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9)
    figure.suptitle(title, fontsize=11)
    return figure


def draw_portraits(
    suite: Suite, plan: Sequence[Cell], results: Results, data_dir: Path | None, folder: Path
) -> dict[str, list[Path]]:
    """By setting: figures of single runs; what a run does not have is left out.

    Runs of a suite are not drawn otherwise, and drawing needs the data again.
    """
    pictures: dict[str, list[Path]] = {}
    shown = [cell for cell in plan if cell.seed == SEED and cell.arm in suite.portraits]
    for cell in shown:
        run = results[cell.setting, cell.arm, SEED].folder
        if run is None:
            continue
        path = run.path
        draw_run(run, partial(make_federation, cell.config, data_dir))
        for figure in suite.portraits[cell.arm]:
            drawn = path / "figures" / f"{figure}.png"
            if drawn.is_file():
                place = folder / f"{cell.setting}-{cell.arm}-{figure}.png"
                write_atomically(place, drawn.read_bytes())
                pictures.setdefault(cell.setting, []).append(place)
    return pictures


def draw_divergence(suite: Suite, results: Results, folder: Path) -> dict[str, Path]:
    """By setting: how far one arm's clients are apart in each round, over its central loss."""
    pictures = {}
    for setting in suite.settings:
        run = results.get((setting.name, suite.follows, SEED)) if suite.follows else None
        if run is None or not run.divergences or not run.central_curve:
            continue
        lines = divergence_lines(run)
        score = str(run.result["primary_metric"])
        rows = [(entry, n, v) for entry, line in lines.items() for n, v in line.items()]
        rows += [(f"central {score}", n, v) for n, v in run.central_curve.items()]
        path = folder / f"{setting.name}-divergence"
        write_csv(path.with_name(f"{path.name}.csv"), [("what", "round", "value"), *rows])
        title = f"{setting.label}, seed {SEED}, {suite.arm(suite.follows).label}"
        pictures[setting.name] = path.with_name(f"{path.name}.png")
        figure = _over_each_other(lines, run.central_curve, score, title)
        save_figure(figure, pictures[setting.name])
    return pictures


def divergence_lines(run: Measured) -> dict[str, dict[int, float]]:
    """By entry of the model, biases left out: the clients' mean divergence in each round."""
    lines: dict[str, dict[int, float]] = {}
    for number, entries in run.divergences.items():
        for entry, value in entries.items():
            if entry.rpartition(".")[2] != "bias":
                lines.setdefault(entry, {})[number] = value
    return lines


def _over_each_other(
    lines: Mapping[str, dict[int, float]], curve: dict[int, float], score: str, title: str
) -> Figure:
    """One panel over the other, on the same rounds: spikes that go together stand together."""
    figure = blank_figure(10, 5.6)
    above, below = figure.subplots(2, 1, sharex=True)
    styles = line_styles(["method"] * len(lines))
    for (entry, line), (colour, dashes) in zip(lines.items(), styles, strict=True):
        draw_line(above, list(line), list(line.values()), colour, entry, dashes)
    above.set_ylabel("divergence, mean over clients")
    draw_line(below, list(curve), list(curve.values()), BLACK)
    below.set_ylabel(f"{score} of the global model,\ncentral test set")
    grid(above)
    rounds_axis(below)
    legend_beside(figure)
    figure.suptitle(title, fontsize=11)
    return figure
