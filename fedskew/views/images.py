"""Images of autoencoders: reconstructions of test samples, drawn samples, and grids of both.

The tables name the samples, or hold the codes, from which the run's models make the images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.canvas import Picture, Table, blank_figure, short
from fedskew.data.federation import Federation
from fedskew.parts.generative import decode, describe_codes, latent_of
from fedskew.types import Indices
from fedskew.views.generative import GLOBAL, Vaes, bound, prior_codes, test_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Shade = tuple[float, float]
"""The values shown as black and as white."""

ROWS, COLUMNS = 10, 10
"""The most clients with images, and the most images side by side."""
SIDE = 8
"""The global model's samples make a square of this side; a client's make one row."""


class Images(NamedTuple):
    """A grid of images as one image, and the labels of its rows and columns."""

    title: str
    grid: NDArray[np.float64]
    rows: Sequence[str]
    columns: Sequence[str]


def reconstruction_table(vaes: Vaes, federation: Federation) -> Table:
    """Which test samples each model reconstructs in the figure, and the squared errors."""
    shown = [(GLOBAL, test_rows(federation))] if vaes.has_global else []
    shown += [(name, federation.by_name[name].test) for name in vaes.owners[:ROWS]]
    table: Table = []
    for name, rows in shown:
        chosen = rows[examples(federation.strata[rows], COLUMNS)]
        if not len(chosen):
            continue
        x = federation.x[chosen]
        errors = (reconstructed(vaes.model(name), x) - x).square().flatten(1).sum(dim=1).tolist()
        table += [
            {
                "model": name,
                "column": column,
                "sample": int(sample),
                "class": federation.strata_names[int(federation.strata[sample])],
                "squared_error": error,
            }
            for column, (sample, error) in enumerate(zip(chosen, errors, strict=True), 1)
        ]
    return table


def sample_table(vaes: Vaes, federation: Federation, seed: int) -> Table:
    """The codes drawn for each model, and the most frequent class of the model's owner."""
    owners = vaes.owners[:ROWS]
    latent = latent_of(vaes.model(GLOBAL if vaes.has_global else owners[0]))
    shown = [(GLOBAL, SIDE**2)] if vaes.has_global else []
    shown += [(name, SIDE) for name in owners]
    majority = federation.majority_classes()
    return [
        {
            "model": name,
            "majority": majority.get(name, ""),
            "number": number,
            **{f"z{d}": value for d, value in enumerate(code, 1)},
        }
        for name, count in shown
        for number, code in enumerate(prior_codes(latent, count, seed).tolist(), 1)
    ]


def reconstruction_picture(
    vaes: Vaes, federation: Federation, shade: Shade, method: str
) -> Picture:
    """Test images and the models' reconstructions."""
    table = reconstruction_table(vaes, federation)
    title = f"{method}: test images and what the models make of them"

    def draw() -> Figure:
        panels = reconstructed_images(table, vaes, federation, shade)
        return image_figure(panels, title, stacked=True)

    return Picture("reconstructions", table, draw)


def sample_picture(
    vaes: Vaes, federation: Federation, shade: Shade, seed: int, method: str
) -> Picture:
    """Samples that the models decode from noise."""
    table, title = sample_table(vaes, federation, seed), f"{method}: samples drawn by the models"

    def draw() -> Figure:
        return image_figure(sampled_images(table, vaes, shade), title, stacked=False)

    return Picture("samples", table, draw)


def reconstructed_images(
    table: Table, vaes: Vaes, federation: Federation, shade: Shade
) -> list[Images]:
    """One grid per model: test images, and below them its reconstructions."""
    panels = []
    for name, lines in _by_model(table):
        x = federation.x[[line["sample"] for line in lines]]
        blank = torch.full((COLUMNS - len(x), *x.shape[1:]), shade[1])
        made = torch.cat([x, blank, reconstructed(vaes.model(name), x)])
        label = "test images" if name == GLOBAL else name
        columns = [str(line["class"]) for line in lines]
        columns += [""] * (COLUMNS - len(columns))
        panels.append(Images("", picture_grid(made, COLUMNS, shade), (label, "decoded"), columns))
    return panels


def sampled_images(table: Table, vaes: Vaes, shade: Shade) -> list[Images]:
    """The global model's samples as a square; beside it, a row for each client's model."""
    rows, labels, panels = [], [], []
    for name, lines in _by_model(table):
        codes = torch.tensor([[v for k, v in line.items() if k[0] == "z"] for line in lines])
        made = decode(bound(vaes.model(name)), codes)
        if name == GLOBAL:
            grid = picture_grid(made, SIDE, shade)
            panels.append(Images("global model", grid, ("",) * SIDE, ()))
        else:
            rows.append(made)
            labels.append(f"{name} (mostly {lines[0]['majority']})")
    if rows:
        grid = picture_grid(torch.cat(rows), SIDE, shade)
        panels.append(Images("clients' own models: a column has one code", grid, labels, ()))
    return panels


def image_figure(panels: Sequence[Images], title: str, stacked: bool) -> Figure:
    """Grids of images, below or beside each other."""
    highs, wides = zip(*(panel.grid.shape[:2] for panel in panels), strict=True)
    wide, high = (max(wides), sum(highs)) if stacked else (sum(wides), max(highs))
    width = 7.0 if 1 < len(panels) <= 3 else 5.5
    margin = 0.3 + 0.07 * min(30, max(len(row) for panel in panels for row in panel.rows))
    figure = blank_figure(width + margin, width * high / wide + 0.5 + 0.25 * len(panels) * stacked)
    figure.set_layout_engine("compressed")
    shape = (len(panels), 1) if stacked else (1, len(panels))
    for axes, panel in zip(figure.subplots(*shape, squeeze=False).flat, panels, strict=True):
        axes.imshow(panel.grid, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        if not stacked:
            # Side by side, images have the same size: the shorter grid leaves space empty.
            axes.set_ylim(max(highs) - 0.5, -0.5)
        axes.set_title(panel.title, fontsize=9)
        places = [
            (np.arange(len(labels)) + 0.5) * (size - 1) / max(1, len(labels))
            for labels, size in zip(panel[2:], panel.grid.shape, strict=False)
        ]
        axes.set_yticks(places[0], [short(row, 30) for row in panel.rows], fontsize=7)
        axes.set_xticks(places[1], [short(name, 10) for name in panel.columns], fontsize=6)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return figure


def reconstructed(model: nn.Module, x: Tensor) -> Tensor:
    """The reconstructions of samples, decoded from the means of their codes."""
    coder = bound(model)
    return decode(coder, describe_codes(coder, x)[0])


def examples(labels: NDArray[np.int64], most: int) -> Indices:
    """Positions of at most ``most`` samples, by class: each class's first, then its second, ...

    If there are more classes than that, evenly spaced ones are shown.

    >>> examples(np.array([2, 2, 0, 1, 2]), 4).tolist()
    [2, 3, 0, 1]
    """
    classes = np.unique(labels)
    if len(classes) > most:
        classes = classes[np.linspace(0, len(classes) - 1, most).round().astype(int)]
    of_class = [np.flatnonzero(labels == each) for each in classes]
    turns = sorted((turn, k) for k, at in enumerate(of_class) for turn in range(len(at)))
    return np.array([of_class[k][turn] for k, turn in sorted((k, t) for t, k in turns[:most])], int)


def display_range(images: Tensor) -> Shade:
    """The values shown as black and as white: all real values but the outermost lie between.

    >>> display_range(torch.tensor([-1.0] * 500 + [1.0] * 499 + [40.0]))
    (-1.0, 1.0)
    """
    if not images.numel():
        return 0.0, 1.0
    low, high = np.quantile(images.numpy(), (0.005, 0.995)).tolist()
    return (low, high) if high > low else (low, low + 1.0)


def picture_grid(images: Tensor, columns: int, shade: Shade) -> NDArray[np.float64]:
    """Images in rows, with thin white lines between: 0..1, ``[height, width]`` or with colours.

    >>> picture_grid(torch.zeros(3, 1, 2, 2), columns=2, shade=(0.0, 1.0)).shape
    (7, 7)
    """
    count, channels, height, width = images.shape
    rows, (low, high) = -(-count // columns), shade
    values = ((images.to(torch.float64) - low) / (high - low)).clamp(0.0, 1.0)
    grid = np.ones((rows * (height + 1) + 1, columns * (width + 1) + 1, channels))
    for i, image in enumerate(values.permute(0, 2, 3, 1).numpy()):
        top, left = (i // columns) * (height + 1) + 1, (i % columns) * (width + 1) + 1
        grid[top : top + height, left : left + width] = image
    return grid[..., 0] if channels == 1 else grid


def _by_model(table: Table) -> Iterator[tuple[str, Table]]:
    for name in dict.fromkeys(str(line["model"]) for line in table):
        yield name, [line for line in table if line["model"] == name]
