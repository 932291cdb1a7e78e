"""The partition whose clients differ in how many classes they hold."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.data.shares import Pool, Rng, class_sizes, cut, deal, number_of_clients, spread
from fedskew.errors import ConfigError, DataError
from fedskew.registry.knobs import Knob
from fedskew.types import Indices

_PASSES = 3


def graded(
    pool: Pool,
    clients: int | None,
    rng: Rng,
    *,
    fewest: Annotated[int, Knob("classes of the first client", ge=1)] = 2,
    share: Annotated[
        Literal["balanced", "even"],
        Knob("'balanced': clients of similar size; 'even': classes cut evenly"),
    ] = "balanced",
) -> list[Indices]:
    """Clients hold increasing numbers of classes, from the fewest to all, each drawn at random.

    Clients overlap; the last one (with many clients, the last ones) holds all classes. With
    ``share = "even"`` each class is cut into equal parts for its holders, and sizes grow with the
    number of classes: for ten clients and ten classes, from about .3 to 1.6 of the mean size.
    ``"balanced"`` gives clients of few classes more of each, so that sizes stay comparable: about
    .9 to 1.1 of the mean in that case, nearer to 1 with more clients. A client cannot hold more
    than all of its classes, so with few clients some difference stays: for five, .8 to 1.1; for
    two, .4 to 1.6.
    """
    number = number_of_clients("graded", clients)
    labels = pool.labels
    classes = np.unique(labels)
    if fewest > len(classes):
        raise ConfigError(
            f"fewest of partition 'graded' must lie in 1..{len(classes)}, the number of classes, "
            f"not {fewest}."
        )
    sizes = class_sizes(labels, classes)
    holders = _draw_holders(len(classes), held_classes(len(classes), number, fewest), rng)
    short = sizes < holders.sum(axis=1)
    if short.any():
        raise DataError(
            f"partition 'graded' cannot share the {sizes[short][0]} samples of class "
            f"{classes[short][0]} over {holders.sum(axis=1)[short][0]} clients: ask for fewer "
            "clients."
        )
    counts = spread(sizes, holders) if share == "even" else _balanced(sizes, holders)
    return deal(labels, classes, counts, rng)


def held_classes(classes: int, clients: int, fewest: int) -> Indices:
    """How many classes each client holds: evenly spaced from the fewest to all.

    >>> held_classes(10, 10, 2).tolist()
    [2, 3, 4, 5, 6, 7, 8, 9, 10, 10]
    """
    followers: Indices = np.arange(clients)[::-1]
    return classes - followers * (classes - fewest) // max(clients - 1, 1)


def _draw_holders(classes: int, held: Indices, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Who (columns) holds which class (rows)."""
    orders = [rng.permutation(classes) for _ in held]
    return np.stack([order < count for order, count in zip(orders, held, strict=True)], axis=1)


def _balanced(sizes: Indices, holders: NDArray[np.bool_]) -> Indices:
    """One sample of each class for each holder; the others make clients of similar size.

    Classes and clients are scaled in turn (iterative proportional fitting), but only a few times:
    if equal sizes are out of reach, more would take classes from the clients that hold most.
    """
    weights = holders.astype(np.float64)
    for _ in range(_PASSES):
        weights *= (sizes / weights.sum(axis=1))[:, None]
        weights /= weights.sum(axis=0)
    one_each = holders.astype(np.int64)
    rest = sizes - one_each.sum(axis=1)
    shares = [cut(int(size), row) for size, row in zip(rest, weights, strict=True)]
    return one_each + np.stack(shares)
