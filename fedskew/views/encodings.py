"""Codes of clients' training samples as histograms: how far they are from N(0, 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.canvas import BLUE, ORANGE, Table, blank_figure, clean, numbers, short
from fedskew.data.federation import Client, Federation
from fedskew.parts.generative import w1_to_normal
from fedskew.rng import stream, thinned
from fedskew.views.generative import GLOBAL, Vaes, described, most_varied

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_SAMPLES = 2000
"""The most samples of a client in its histograms."""
SHOWN_CLIENTS, SHOWN_DIMENSIONS = 8, 4
"""The most histograms that fit on a page."""


def encoding_table(
    vaes: Vaes, federation: Federation, recorded: Mapping[str, float], seed: int
) -> Table:
    """Histograms of clients' codes, one draw per training sample, and their distance from N(0, 1).

    ``discrepancy`` is the mean of ``w1`` over all latent dimensions; ``recorded`` is the value the
    weights were made from, which may be that of another encoder. If there are many clients, the
    least and the most discrepant are shown; if there are many dimensions, those whose means vary
    most.
    """

    common = None if vaes.owners else vaes.model(GLOBAL)

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
            # Values beyond the last edge count in the last bin.
            inside = values[:, dimension].numpy().clip(edges[0], edges[-1])
            density = np.histogram(inside, edges)[0] / (len(values) * np.diff(edges))
            bins = zip(edges[:-1].tolist(), edges[1:].tolist(), density.tolist(), strict=True)
            table += [
                {
                    "client": client.name,
                    "discrepancy": float(np.mean(distances)),
                    "recorded": recorded.get(client.name),
                    "samples": len(values),
                    "dimension": dimension + 1,
                    "w1": distances[dimension],
                    "from": low,
                    "to": high,
                    "density": height,
                }
                for low, high, height in bins
            ]
    return table


def encoding_figure(table: Table, title: str) -> Figure:
    """One row of histograms per client, one per latent dimension, and the density of N(0, 1)."""
    names = list(dict.fromkeys(str(line["client"]) for line in table))
    dimensions = sorted({int(line["dimension"]) for line in table})
    figure = blank_figure(1.2 + 2.6 * max(2, len(dimensions)), 1.0 + 1.15 * len(names))
    panels = figure.subplots(len(names), len(dimensions), sharex=True, sharey=True, squeeze=False)
    axis = np.linspace(table[0]["from"], -table[0]["from"], 201)
    normal = np.exp(-0.5 * axis**2) / np.sqrt(2 * np.pi)
    for i, name in enumerate(names):
        for axes, dimension in zip(panels[i], dimensions, strict=True):
            own = [r for r in table if r["client"] == name and r["dimension"] == dimension]
            edges = [*numbers(own, "from"), own[-1]["to"]]
            axes.stairs(numbers(own, "density"), edges, fill=True, color=BLUE, alpha=0.55)
            axes.plot(axis, normal, color=ORANGE, lw=1.2)
            axes.set_title(f"W1 = {own[0]['w1']:.3f}", fontsize=7, loc="right", pad=2)
            axes.tick_params(labelsize=7)
            clean(axes)
        recorded = "" if own[0]["recorded"] is None else f"\nrecorded {own[0]['recorded']:.3f}"
        found = f"{short(name)}\nd = {own[0]['discrepancy']:.3f}{recorded}"
        panels[i, 0].set_ylabel(found, fontsize=7)
    for axes, dimension in zip(panels[-1], dimensions, strict=True):
        axes.set_xlabel(f"z{dimension}", fontsize=9)
    # A client whose codes are all equal must not flatten the others.
    panels[0, 0].set_ylim(0, min(1.5, max(0.45, 1.05 * float(numbers(table, "density").max()))))
    figure.suptitle(f"{title}:\ncodes of training samples, and N(0, 1) as a line", fontsize=10)
    return figure


def _edges(codes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Bins of 0.2 that hold all codes, from ±4 at least to ±8 at most."""
    finite = np.abs(codes[np.isfinite(codes)])
    reach = int(np.clip(np.ceil(finite.max(initial=0.0)), 4, 8))
    return np.linspace(-reach, reach, 10 * reach + 1)
