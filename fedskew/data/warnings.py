"""What a user should know about a federation before believing its scores."""

from __future__ import annotations

from fedskew.data.federation import Federation


def warnings(federation: Federation) -> tuple[str, ...]:
    """A sentence for each thing about these clients that makes scores look better than they are.

    >>> import numpy as np, torch
    >>> from fedskew.data.federation import Client
    >>> rows = np.arange(4)
    >>> two = Federation("toy", torch.zeros(4, 3), torch.tensor([0, 0, 0, 1]), ("a", "b"),
    ...                  (Client("ann", rows[:2]), Client("bob", rows[2:])))
    >>> [sentence.partition(":")[0] for sentence in warnings(two)]
    ['1 of 2 clients hold one label only']
    """
    held = federation.class_counts() > 0
    single = int((held.sum(axis=1) == 1).sum())
    if 3 * single < len(held) or held.any(axis=0).sum() < 2:
        return ()
    return (
        f"{single} of {len(held)} clients hold one label only: a model can tell "
        "where a sample comes from instead of what it shows (the source instead of the "
        "illness), and scores per client flatter it.",
    )
