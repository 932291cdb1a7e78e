"""Pictures of runs that trained variational autoencoders: codes, reconstructions and samples.

As for every figure, a table comes first and the picture is drawn from it. The tables of images
name the samples, or hold the codes, that the run's models turn into those images again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn

from fedskew.data.federation import Client, Federation, Indices
from fedskew.engine.streams import stream
from fedskew.parts.generative import latent_of, w1_to_normal
from fedskew.store import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = list[dict[str, Any]]
Shade = tuple[float, float]
"""The values that black and white stand for."""
GLOBAL = "the global model"
"""Its name in tables, where clients' models have their owners'."""

SHOWN_SAMPLES = 2000
"""So many samples a client, or points in a scatter, show a distribution."""
SHOWN_CLIENTS, SHOWN_DIMENSIONS = 8, 4
"""The most histograms that fit on a page."""
ROWS, COLUMNS = 10, 10
"""The most clients with images of their own, and the most images beside each other."""
SIDE = 8
"""Samples of the global model are a square of so many; a client's are one row of it."""
CHUNK = 500
"""So many images are decoded at once."""


class Images(NamedTuple):
    """A grid of images, as one, and what stands beside its rows and above its columns."""

    title: str
    grid: NDArray[np.float64]
    rows: Sequence[str]
    columns: Sequence[str]


class Picture(NamedTuple):
    """A figure to be: its name, its numbers, and what draws them."""

    name: str
    table: Table
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Vaes:
    """The autoencoders of a finished run at its selected round: the global one, the clients'."""

    run: Path
    has_global: bool
    owners: tuple[str, ...]

    def model(self, name: str) -> nn.Module:
        """A client's own model, or the global one."""
        from fedskew.experiment import Run

        return Run(self.run).model(None if name == GLOBAL else name)


def find_vaes(run: Path, federation: Federation) -> Vaes | None:
    """The run's autoencoders, or None where its models are something else."""
    folder = run / "models" / "selected"
    owners = [c.name for c in federation.clients if (folder / _own_file(c.name)).is_file()]
    has_global = (folder / "global.safetensors").is_file()
    if not owners and not has_global:
        return None
    file = "global.safetensors" if has_global else _own_file(owners[0])
    # The names of its entries tell what a model is, without building and loading it.
    with safe_open(folder / file, framework="pt") as saved:
        parts = {name.partition(".")[0] for name in saved.keys()}  # noqa: SIM118
    return Vaes(run, has_global, tuple(owners)) if {"encoder", "decoder"} <= parts else None


def _own_file(client: str) -> str:
    return f"personal/{client}.safetensors"


def pictures(run: Path, federation: Federation, weights: Table) -> Iterator[Picture]:
    """The figures of a run of autoencoders, one after the other; none of other runs.

    ``weights`` is the run's table of aggregation weights and discrepancies.
    """
    vaes = find_vaes(run, federation)
    if vaes is None:
        return
    from fedskew.report import plots

    result = read_json(run / "result.json")
    seed, title = int(result["seed"]), str(result["method"])
    recorded = {
        str(line["client"]): float(line["discrepancy"])
        for line in weights
        if line["stage"] == "main" and line["round"] <= result["selected_round"]
        if line["discrepancy"] is not None
    }
    codes = encoding_table(vaes, federation, recorded, seed)
    coder = "the global encoder" if vaes.has_global else "each client's own encoder"
    shown, all_clients = len({line["client"] for line in codes}), len(federation.clients)
    part = f", {shown} of {all_clients} clients" if shown < all_clients else ""
    yield Picture("encodings", codes, lambda: plots.encodings(codes, f"{title}, {coder}{part}"))
    points = latent_table(vaes, federation, seed)
    yield Picture("latent", points, lambda: plots.latent(points, f"{title}, {coder}"))
    if len(federation.sample_shape) != 3 or federation.sample_shape[0] not in (1, 3):
        return
    shade = display_range(federation.x[thinned(_test_rows(federation), 500, seed, "range")])
    pairs = reconstruction_table(vaes, federation)
    yield Picture("reconstructions", pairs, lambda: plots.images(
        reconstructed_images(pairs, vaes, federation, shade),
        f"{title}: test images and what the models make of them", stacked=True,
    ))  # fmt: skip
    draws = sample_table(vaes, federation, seed)
    yield Picture("samples", draws, lambda: plots.images(
        sampled_images(draws, vaes, shade), f"{title}: samples drawn by the models", stacked=False,
    ))  # fmt: skip


def prior_codes(latent: int, count: int, seed: int) -> Tensor:
    """Draws from N(0, I), one a row; more of them begin with the same ones."""
    drawn = stream(seed, "prior codes").standard_normal((count, latent))
    return torch.from_numpy(drawn).to(torch.float32)


def prior_samples(model: nn.Module, count: int, seed: int) -> Tensor:
    """What a model makes of draws from N(0, I): its own samples, ``[count, *sample_shape]``."""
    return decoded(model, prior_codes(latent_of(model), count, seed))


def decoded(model: nn.Module, codes: Tensor) -> Tensor:
    """The samples that codes stand for."""
    return _chunked(model, "decoder", codes)


def described(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The means and standard deviations of the samples' codes."""
    mean, log_variance = _chunked(model, "encoder", x).chunk(2, dim=1)
    return mean, (0.5 * log_variance).exp()


def reconstructed(model: nn.Module, x: Tensor) -> Tensor:
    """The samples that the means of the samples' codes stand for."""
    return decoded(model, described(model, x)[0])


def _chunked(model: nn.Module, part: str, inputs: Tensor) -> Tensor:
    """A part's output in evaluation mode, a chunk at a time; the model's own mode comes back."""
    place = next((tensor.device for tensor in model.parameters()), inputs.device)
    was_training, function = model.training, model.get_submodule(part)
    model.eval()
    try:
        with torch.no_grad():
            outputs = [function(chunk.to(place)) for chunk in torch.split(inputs, CHUNK)]
    finally:
        model.train(was_training)
    return torch.cat(outputs)


def encoding_table(
    vaes: Vaes, federation: Federation, recorded: Mapping[str, float], seed: int
) -> Table:
    """Histograms of clients' codes, one draw a training sample, and their distance from N(0, 1).

    ``discrepancy`` is the mean of ``w1`` over all latent dimensions; ``recorded`` is what weights
    were made of, which another encoder may have found. Of many clients the least and the most
    discrepant are in, of many dimensions those whose means vary most.
    """

    common = vaes.model(GLOBAL) if vaes.has_global else None

    def codes_of(client: Client) -> tuple[Tensor, Tensor]:
        rows = thinned(client.train, SHOWN_SAMPLES, seed, "encodings", client.name)
        mean, deviation = described(common or vaes.model(client.name), federation.x[rows])
        noise = stream(seed, "codes", client.name).standard_normal(mean.shape)
        return mean, mean + deviation * torch.from_numpy(noise).to(mean)

    clients = list(federation.clients)
    if len(clients) > SHOWN_CLIENTS:
        clients.sort(key=lambda client: float(w1_to_normal(codes_of(client)[1]).mean()))
        clients = clients[: SHOWN_CLIENTS // 2] + clients[-SHOWN_CLIENTS // 2 :]
    means, codes = zip(*(codes_of(client) for client in clients), strict=True)
    dimensions = most_varied(torch.cat(means), SHOWN_DIMENSIONS)
    edges = _edges(torch.cat(codes)[:, dimensions].numpy())
    table: Table = []
    for client, values in zip(clients, codes, strict=True):
        distances = w1_to_normal(values).tolist()
        for dimension in dimensions:
            # What lies beyond the last edge counts in the last bin.
            inside = values[:, dimension].numpy().clip(edges[0], edges[-1])
            density = np.histogram(inside, edges)[0] / (len(values) * np.diff(edges))
            bins = zip(edges[:-1].tolist(), edges[1:].tolist(), density.tolist(), strict=True)
            table += [
                {
                    "client": client.name, "discrepancy": float(np.mean(distances)),
                    "recorded": recorded.get(client.name), "samples": len(values),
                    "dimension": dimension + 1,
                    "w1": distances[dimension], "from": low, "to": high, "density": height,
                }
                for low, high, height in bins
            ]  # fmt: skip
    return table


def latent_table(vaes: Vaes, federation: Federation, seed: int) -> Table:
    """The mean codes of test samples, in the two dimensions that vary most."""
    if vaes.has_global:
        owned = [(GLOBAL, _test_rows(federation))]
    else:
        owned = [(client.name, client.test) for client in federation.clients]
    coders = np.repeat(np.arange(len(owned)), [len(rows) for _, rows in owned])
    samples = np.concatenate([rows for _, rows in owned])
    kept = thinned(np.arange(len(samples)), SHOWN_SAMPLES, seed, "latent")
    if not len(kept):
        return []
    samples, coders = samples[kept], coders[kept]
    codes = torch.cat(
        [
            described(vaes.model(owned[i][0]), federation.x[samples[coders == i]])[0]
            for i in np.unique(coders)
        ]
    )
    dimensions = most_varied(codes, 2)
    return [
        {
            "coder": owned[coder][0], "sample": sample, "label": int(federation.y[sample]),
            "class": federation.class_names[int(federation.y[sample])],
            **{f"z{d + 1}": value for d, value in zip(dimensions, code, strict=True)},
        }
        for coder, sample, code in zip(
            coders.tolist(), samples.tolist(), codes[:, dimensions].tolist(), strict=True
        )
    ]  # fmt: skip


def reconstruction_table(vaes: Vaes, federation: Federation) -> Table:
    """Which test samples each model is shown on, and the squared error of its reconstructions."""
    shown = [(GLOBAL, _test_rows(federation))] if vaes.has_global else []
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
    return [
        {
            "model": name,
            "majority": "" if name == GLOBAL else _majority(federation, name),
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
        made = decoded(vaes.model(name), codes)
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


def _by_model(table: Table) -> Iterator[tuple[str, Table]]:
    for name in dict.fromkeys(str(line["model"]) for line in table):
        yield name, [line for line in table if line["model"] == name]


def _majority(federation: Federation, client: str) -> str:
    counts = np.bincount(federation.y.numpy()[federation.by_name[client].train])
    return federation.class_names[int(counts.argmax())]


def most_varied(codes: Tensor, most: int) -> list[int]:
    """At most so many dimensions: those of the largest variance, in their own order.

    >>> most_varied(torch.tensor([[0.0, 5.0, 1.0], [9.0, 5.0, 3.0]]), 2)
    [0, 2]
    """
    order = codes.var(dim=0, correction=0).argsort(descending=True, stable=True)
    return sorted(order[:most].tolist())


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


def thinned(rows: Indices, most: int, seed: int, *purpose: str) -> Indices:
    """At most so many of the rows, drawn at random but the same every time."""
    if len(rows) <= most:
        return rows
    return np.sort(stream(seed, "thinned", *purpose).choice(rows, most, replace=False))


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


def _edges(codes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Bins of 0.2 that hold all codes, from ±4 at least to ±8 at most."""
    finite = np.abs(codes[np.isfinite(codes)])
    reach = int(np.clip(np.ceil(finite.max(initial=0.0)), 4, 8))
    return np.linspace(-reach, reach, 10 * reach + 1)


def _test_rows(federation: Federation) -> Indices:
    """The central test set, or all that clients are tested on where there is none."""
    if len(federation.central_test):
        return federation.central_test
    return np.unique(np.concatenate([client.test for client in federation.clients]))
