"""The latent space that clients share: codes of their test samples, and maps of them in a plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedskew.data.federation import Client, Federation
from fedskew.views.generative import GLOBAL, Table, Vaes, described, thinned

Codes = NDArray[np.float64]

SPACE_SAMPLES = 1000
"""So many samples t-SNE arranges within two seconds."""
COLOURED, GREY = 10, 30
"""The most clients with a colour of their own, and the most that stand behind them in grey."""
FEWEST = 6
"""Fewer samples than that have no neighbourhoods to draw."""
SAME_PLACE = 1e-6
"""Codes no farther apart than that, for their size, differ by rounding only."""


def space_table(vaes: Vaes, federation: Federation, seed: int) -> Table:
    """Mean codes of clients' test samples, each client's by its own encoder where it has one.

    Codes of two numbers stay what they are; longer ones are arranged in a plane by t-SNE and by
    their principal components. ``class_silhouette`` tells how well classes separate in the codes
    themselves, from -1 over 0 (not at all) to 1; ``client_silhouette`` the same of clients. Where
    it is near 0, or below, clients use one space alike. Every client gives equally many samples
    where it has them.
    """
    holders = [client for client in federation.clients if len(client.test)]
    odd = [client for client in holders if client.name in federation.odd]
    # Who was made odd on purpose is who one looks for.
    coloured = _evenly(odd, COLOURED)
    coloured += _evenly([c for c in holders if c not in odd], COLOURED - len(coloured))
    grey = _evenly([client for client in holders if client not in coloured], GREY)
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
                "client": client.name, "coloured": client in coloured,
                "coder": GLOBAL if common else client.name,
                "sample": sample, "label": label, "class": federation.class_names[label],
            }
            for sample, label in zip(rows.tolist(), federation.y[rows].tolist(), strict=True)
        ]  # fmt: skip
    return _placed(table, np.concatenate(found), seed) if found else []


def _placed(table: Table, codes: Codes, seed: int) -> Table:
    """The lines with the places of their codes, and how well the codes separate."""
    usable = np.flatnonzero(np.isfinite(codes).all(axis=1))
    codes, table = codes[usable], [table[i] for i in usable]
    # Codes that all sit in one place, as an encoder that learned nothing makes them, show nothing.
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
    """Where each code is drawn, in every view there is, and the names of these columns."""
    if codes.shape[1] <= 2:
        return [f"z{d}" for d in range(1, codes.shape[1] + 1)], codes
    both = np.hstack([arranged(codes, seed), principal(codes)])
    return ["t-SNE 1", "t-SNE 2", "PCA 1", "PCA 2"], both


def arranged(codes: Codes, seed: int) -> Codes:
    """The codes in a plane, neighbours close to each other (t-SNE); the same every time."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(30.0, (len(codes) - 1) / 3)
    method = TSNE(perplexity=perplexity, init="pca", max_iter=500, angle=0.8, random_state=seed)
    # Several threads add up in an order of their own, so the last bits would change.
    with threadpool_limits(1, user_api="openmp"):
        return np.asarray(method.fit_transform(codes.astype(np.float32)), dtype=np.float64)


def principal(codes: Codes) -> Codes:
    """The codes in the two directions they vary most in."""
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
