"""Groups of alike clients, if there are any: how many is decided, and one is a possible answer."""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fedskew.diagnosis.basis import Floats
from fedskew.diagnosis.together import Together
from fedskew.types import Indices

MOST_GROUPS = 12
CLEAR = 0.6
"""Groups are told of from this mean silhouette on."""
FEWEST_CLIENTS = 6


def distances(all_: Together) -> Floats:
    """How far the classes of each two clients lie apart, over the variance within a class.

    Squared distances of class means without bias, weighed by the rows both have of a class, on top
    of what chance makes of equal means; NaN where two share no class.
    """
    counts, sums = all_.counts, all_.sums
    noised = all_.noise.sums**2 * (counts > 0)
    clients, classes = counts.shape
    above, below = np.zeros((clients, clients)), np.zeros((clients, clients))
    for c in range(classes):
        n = counts[:, c]
        held = np.flatnonzero(n >= 2)
        if len(held) < 2:
            continue
        rows, total = n[held], sums[held, c]
        means = total / rows[:, None]
        width = sums.shape[2]
        own = ((total**2).sum(axis=1) - rows - width * noised[held, c]) / (rows * (rows - 1))
        apart = own[:, None] + own[None, :] - 2 * means @ means.T
        weight = rows[:, None] * rows[None, :] / (rows[:, None] + rows[None, :])
        above[np.ix_(held, held)] += weight * apart
        below[np.ix_(held, held)] += weight
    with np.errstate(invalid="ignore", divide="ignore"):
        found = above / below / all_.traces[0]
        # A pair's distance varies by about this much by chance: less than that is no distance.
        chance = np.sqrt(2 * classes * max(all_.traces[1], 1e-12)) / below / all_.traces[0]
        found = np.where(below > 0, np.maximum(found, 0.0) + chance, np.nan)
    np.fill_diagonal(found, 0.0)
    return (found + found.T) / 2


def groups_of(apart: Floats) -> tuple[Indices, float] | None:
    """The group of each client and how clear groups are; none where one group is as good.

    Average linkage, cut where the mean silhouette is largest. Clients that are alone in their
    group are no group: they stand out instead.
    """
    clients = len(apart)
    if clients < FEWEST_CLIENTS or np.isnan(apart).any():
        return None
    tree = linkage(squareform(apart, checks=False), "average")
    best: tuple[Indices, float] | None = None
    for count in range(2, min(MOST_GROUPS, clients // 2) + 1):
        cut = fcluster(tree, count, "maxclust").astype(np.int64) - 1
        clear = silhouette(apart, cut)
        if best is None or clear > best[1] + 1e-9:
            best = cut, clear
    if best is None or best[1] < CLEAR or (np.bincount(best[0]) >= 2).sum() < 2:
        return None
    return _in_order(best[0]), best[1]


def silhouette(apart: Floats, group: Indices) -> float:
    """The mean over clients of (to the next group - inside)/the larger; 0 for one alone.

    >>> apart = np.array([[0.0, 1, 4], [1, 0, 4], [4, 4, 0]])
    >>> silhouette(apart, np.array([0, 0, 1]))  # (3/4 + 3/4 + 0) / 3
    0.5
    """
    members = np.eye(int(group.max()) + 1)[group]
    sizes = members.sum(axis=0)
    mean = (apart @ members) / sizes
    own = sizes[group]
    inside = mean[np.arange(len(group)), group] * own / np.maximum(own - 1, 1)
    away = np.where(members > 0, np.inf, mean).min(axis=1)
    larger = np.maximum(np.maximum(inside, away), 1e-12)
    return float(np.where(own > 1, (away - inside) / larger, 0.0).mean())


def _in_order(group: Indices) -> Indices:
    """Numbered from 0 in the order of the first client of each."""
    seen: dict[int, int] = {}
    return np.array([seen.setdefault(int(each), len(seen)) for each in group], dtype=np.int64)
