"""The figures of a run that trained variational autoencoders: codes, reconstructions, samples.

As for every figure, a table comes first and the picture is drawn from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedskew.data.federation import Federation
from fedskew.federate.metrics import MAIN
from fedskew.views.generative import (
    encoding_table,
    find_vaes,
    latent_table,
    test_rows,
    thinned,
)
from fedskew.views.images import (
    display_range,
    reconstructed_images,
    reconstruction_table,
    sample_table,
    sampled_images,
)
from fedskew.views.latent import space_table
from fedskew.views.picture import Picture, Table

if TYPE_CHECKING:
    from fedskew.runs.experiment import Run


def pictures(run: Run, federation: Federation, weights: Table) -> Iterator[Picture]:
    """The figures of a run of autoencoders, one after the other; none of other runs.

    ``weights`` is the run's table of aggregation weights and discrepancies.
    """
    vaes = find_vaes(run, federation)
    if vaes is None:
        return
    from fedskew.views import generative_plots as plots

    result = run.result
    seed, title = int(result["seed"]), str(result["method"])
    recorded = {
        str(line["client"]): float(line["discrepancy"])
        for line in weights
        if line["stage"] == MAIN and line["round"] <= result["selected_round"]
        if line["discrepancy"] is not None
    }
    codes = encoding_table(vaes, federation, recorded, seed)
    coder = "each client's own encoder" if vaes.owners else "the global encoder"
    shown, all_clients = len({line["client"] for line in codes}), len(federation.clients)
    part = f", {shown} of {all_clients} clients" if shown < all_clients else ""
    yield Picture("encodings", codes, lambda: plots.encodings(codes, f"{title}, {coder}{part}"))
    points = latent_table(vaes, federation, seed)
    yield Picture("latent", points, lambda: plots.latent(points, f"{title}, {coder}"))
    space = space_table(vaes, federation, seed)
    yield Picture("latent-space", space, lambda: plots.latent_space(space, f"{title}, {coder}"))
    if len(federation.sample_shape) != 3 or federation.sample_shape[0] not in (1, 3):
        return
    shade = display_range(federation.x[thinned(test_rows(federation), 500, seed, "range")])
    pairs = reconstruction_table(vaes, federation)
    yield Picture("reconstructions", pairs, lambda: plots.images(
        reconstructed_images(pairs, vaes, federation, shade),
        f"{title}: test images and what the models make of them", stacked=True,
    ))  # fmt: skip
    draws = sample_table(vaes, federation, seed)
    yield Picture("samples", draws, lambda: plots.images(
        sampled_images(draws, vaes, shade), f"{title}: samples drawn by the models", stacked=False,
    ))  # fmt: skip
