"""Maps of the latent space that clients share: codes of test samples, by class and by client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedskew.canvas import PALE, Table, blank_figure, grid, marker_styles, numbers, short
from fedskew.data.federation import Client, Federation
from fedskew.rng import thinned
from fedskew.views.generative import GLOBAL, Vaes, described, most_varied, test_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Codes = NDArray[np.float64]

SHOWN_SAMPLES = 2000
"""The most points in a map of mean codes."""
SPACE_SAMPLES = 1000
"""The most samples that t-SNE can arrange within two seconds."""
COLOURED, GREYED = 10, 30
"""The most clients with their own colour, and the most shown behind them in grey."""
FEWEST = 6
"""The fewest samples that have neighbourhoods to draw."""
SAME_PLACE = 1e-6
"""Codes whose relative distance is below this differ only by rounding."""
VIEWS = (("t-SNE 1", "t-SNE 2"), ("PCA 1", "PCA 2"), ("z1", "z2"))


def latent_table(vaes: Vaes, federation: Federation, seed: int) -> Table:
    """The mean codes of test samples, in the two dimensions that vary most."""
    if vaes.owners:
        owned = [(client.name, client.test) for client in federation.clients]
    else:
        owned = [(GLOBAL, test_rows(federation))]
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
            "coder": owned[coder][0],
            "sample": sample,
            "label": int(federation.strata[sample]),
            "class": federation.strata_names[int(federation.strata[sample])],
            **{f"z{d + 1}": value for d, value in zip(dimensions, code, strict=True)},
        }
        for coder, sample, code in zip(
            coders.tolist(), samples.tolist(), codes[:, dimensions].tolist(), strict=True
        )
    ]


def latent_figure(table: Table, title: str) -> Figure:
    """Test samples at their mean codes, coloured by class."""
    names = [name for name in table[0] if name.startswith("z")]
    classes = [name for _, name in sorted({(line["label"], str(line["class"])) for line in table})]
    figure = blank_figure(7, 5)
    axes = figure.subplots()
    for number, (each, (colour, marker)) in enumerate(zip(classes, marker_styles(), strict=False)):
        own = [line for line in table if line["class"] == each]
        x = numbers(own, names[0])
        # A code of one number leaves the other axis to the classes.
        y = numbers(own, names[1]) if len(names) > 1 else np.full(len(own), float(number))
        axes.scatter(x, y, s=9, color=colour, marker=marker, alpha=0.6, lw=0, label=short(each))
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1] if len(names) > 1 else "class")
    columns = 1 + (len(classes) - 1) // 22
    axes.legend(
        fontsize=8,
        frameon=False,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        title="class",
        ncols=columns,
        markerscale=1.6,
    )
    grid(axes)
    axes.set_title(f"{title}:\nmean codes of {len(table)} test samples", fontsize=10)
    return figure


def space_table(vaes: Vaes, federation: Federation, seed: int) -> Table:
    """Mean codes of clients' test samples, each client's by its own encoder where it has one.

    Codes of two numbers are shown as they are; longer ones are arranged in a plane by t-SNE and by
    their principal components. ``class_silhouette`` says how well classes separate in the codes
    themselves, from -1 over 0 (not at all) to 1; ``client_silhouette`` says the same of clients.
    If it is near 0 or below, clients use the space in the same way. Every client gives the same
    number of samples, if it has as many.
    """
    holders = [client for client in federation.clients if len(client.test)]
    odd = [client for client in holders if client.name in federation.odd]
    # Clients that were made odd on purpose are the ones to look for.
    coloured = _evenly(odd, COLOURED)
    coloured += _evenly([c for c in holders if c not in odd], COLOURED - len(coloured))
    grey = _evenly([client for client in holders if client not in coloured], GREYED)
    common = None if vaes.owners else vaes.model(GLOBAL)
    most = SPACE_SAMPLES // max(1, len(coloured) + len(grey))
    table: Table = []
    found: list[Codes] = []
    for client in (*coloured, *grey):
        rows = thinned(client.test, most, seed, "space", client.name)
        means, _ = described(common or vaes.model(client.name), federation.x[rows])
        found.append(means.double().numpy())
        table += [
            {
                "client": client.name,
                "coloured": client in coloured,
                "coder": GLOBAL if common else client.name,
                "sample": sample,
                "label": label,
                "class": federation.strata_names[label],
            }
            for sample, label in zip(rows.tolist(), federation.strata[rows].tolist(), strict=True)
        ]
    return _placed(table, np.concatenate(found), seed) if found else []


def space_figure(table: Table, title: str) -> Figure:
    """Clients' test samples at their mean codes: coloured by class, and by client."""
    views = [(a, b) for a, b in VIEWS if a in table[0]]
    figure = blank_figure(11, 0.9 + 4.2 * len(views))
    panels = figure.subplots(len(views), 2, squeeze=False)
    classes = [name for _, name in sorted({(line["label"], str(line["class"])) for line in table})]
    clients = list(dict.fromkeys(str(line["client"]) for line in table if line["coloured"]))
    grey = [line for line in table if not line["coloured"]]
    behind = len({line["client"] for line in grey})
    for row, (a, b) in zip(panels, views, strict=True):
        for axes, kind, names in zip(row, ("class", "client"), (classes, clients), strict=True):
            if kind == "client" and grey:
                label = f"{behind} other{'s' if behind > 1 else ''}"
                _dots(axes, grey, a, b, PALE, "o", label)
            for name, (colour, marker) in zip(names, marker_styles(), strict=False):
                own = [r for r in table if r[kind] == name and (kind == "class" or r["coloured"])]
                _dots(axes, own, a, b, colour, marker, short(name))
            axes.set(xlabel=a, ylabel=b if b in table[0] else "class")
            axes.set_title(f"by {kind}", fontsize=9)
            grid(axes)
    for axes, kind, names in zip(panels[0], ("class", "client"), (classes, clients), strict=True):
        axes.legend(
            fontsize=7,
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            title=kind,
            ncols=1 + (len(names) - 1) // 22,
            markerscale=1.6,
            title_fontsize=8,
        )
    found = {"classes": table[0]["class_silhouette"], "clients": table[0]["client_silhouette"]}
    known = [f"{kind} {value:.2f}" for kind, value in found.items() if value is not None]
    separation = f"\nsilhouette of the codes: {', '.join(known)}" if known else ""
    figure.suptitle(f"{title}: mean codes of {len(table)} test samples{separation}", fontsize=10)
    return figure


def _dots(axes: Axes, table: Table, a: str, b: str, colour: str, marker: str, label: str) -> None:
    # A code of one number leaves the other axis to the classes.
    x, y = numbers(table, a), numbers(table, b if b in table[0] else "label")
    axes.scatter(x, y, s=14, color=colour, marker=marker, alpha=0.7, lw=0, label=label)


def _placed(table: Table, codes: Codes, seed: int) -> Table:
    """The lines with the positions of their codes, and how well the codes separate."""
    usable = np.flatnonzero(np.isfinite(codes).all(axis=1))
    codes, table = codes[usable], [table[i] for i in usable]
    # If all codes are equal, as from an encoder that learned nothing, there is nothing to show.
    if len(codes) < FEWEST or np.ptp(codes, axis=0).max() <= SAME_PLACE * (1 + np.abs(codes).max()):
        return []
    named = np.array([line["client"] for line in table])
    shown = np.array([line["coloured"] for line in table])
    separation = {
        "class_silhouette": silhouette(codes, [line["label"] for line in table]),
        "client_silhouette": silhouette(codes[shown], named[shown].tolist()),
    }
    names, places = _places(codes, seed)
    return [
        {**line, **dict(zip(names, place, strict=True)), **separation}
        for line, place in zip(table, places.tolist(), strict=True)
    ]


def _places(codes: Codes, seed: int) -> tuple[list[str], Codes]:
    """Where each code is drawn in every view, and the names of these columns."""
    if codes.shape[1] <= 2:
        return [f"z{d}" for d in range(1, codes.shape[1] + 1)], codes
    both = np.hstack([arranged(codes, seed), principal(codes)])
    return ["t-SNE 1", "t-SNE 2", "PCA 1", "PCA 2"], both


def arranged(codes: Codes, seed: int) -> Codes:
    """The codes in a plane, neighbours close to each other (t-SNE); the same every time."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(codes) - 1) / 3)
    method = TSNE(perplexity=perplexity, init="pca", max_iter=500, angle=0.8, random_state=seed)
    # The order in which several threads add up varies, so the last bits would change.
    with threadpool_limits(1, user_api="openmp"):
        return np.asarray(method.fit_transform(codes.astype(np.float32)), dtype=np.float64)


def principal(codes: Codes) -> Codes:
    """The codes along the two directions of largest variance."""
    from sklearn.decomposition import PCA

    return np.asarray(PCA(2, svd_solver="full").fit_transform(codes), dtype=np.float64)


def silhouette(codes: Codes, groups: Sequence[object]) -> float | None:
    """How much closer a code is to its own group than to the next one, on average; -1..1."""
    if not 1 < len(set(groups)) < len(groups):
        return None
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(codes, groups))


def _evenly(clients: Sequence[Client], most: int) -> list[Client]:
    if len(clients) <= most:
        return list(clients)
    return [clients[i] for i in np.linspace(0, len(clients) - 1, most).round().astype(int)]
