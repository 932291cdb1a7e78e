"""Images of autoencoders: which test samples they are shown on, what they draw, and grids of them.

The tables name the samples, or hold the codes, that the run's models turn into images again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.data.federation import Federation
from fedskew.parts.generative import decode, describe_codes, latent_of
from fedskew.types import Indices
from fedskew.views.generative import GLOBAL, Table, Vaes, bound, prior_codes, test_rows

Shade = tuple[float, float]
"""The values that black and white stand for."""

ROWS, COLUMNS = 10, 10
"""The most clients with images of their own, and the most images beside each other."""
SIDE = 8
"""Samples of the global model are a square of so many; a client's are one row of it."""


class Images(NamedTuple):
    """A grid of images, as one, and what stands beside its rows and above its columns."""

    title: str
    grid: NDArray[np.float64]
    rows: Sequence[str]
    columns: Sequence[str]


def reconstruction_table(vaes: Vaes, federation: Federation) -> Table:
    """Which test samples each model is shown on, and the squared error of its reconstructions."""
    shown = [(GLOBAL, test_rows(federation))] if vaes.has_global else []
    shown += [(name, federation.by_name[name].test) for name in vaes.owners[:ROWS]]
    table: Table = []
    for name, rows in shown:
        chosen = rows[examples(federation.y.numpy()[rows], COLUMNS)]
        if not len(chosen):
            continue
        x = federation.x[chosen]
        errors = (reconstructed(vaes.model(name), x) - x).square().flatten(1).sum(dim=1).tolist()
        table += [
            {
                "model": name, "column": column, "sample": int(sample),
                "class": federation.class_names[int(federation.y[sample])], "squared_error": error,
            }
            for column, (sample, error) in enumerate(zip(chosen, errors, strict=True), 1)
        ]  # fmt: skip
    return table


def sample_table(vaes: Vaes, federation: Federation, seed: int) -> Table:
    """The codes drawn for each model, and the class a model's owner has most of."""
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


def reconstructed_images(
    table: Table, vaes: Vaes, federation: Federation, shade: Shade
) -> list[Images]:
    """A grid a model: test images, and below them what it makes of them."""
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


def reconstructed(model: nn.Module, x: Tensor) -> Tensor:
    """The samples that the means of the samples' codes stand for."""
    coder = bound(model)
    return decode(coder, describe_codes(coder, x)[0])


def examples(labels: NDArray[np.int64], most: int) -> Indices:
    """Positions of at most so many samples, by class: each class's first, then its second, ...

    Of more classes than that, evenly chosen ones are shown.

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
    """The values shown as black and as white: all but the outermost of the real ones lie between.

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
