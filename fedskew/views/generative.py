"""Autoencoders of finished runs: what they make of samples and of noise, and tables of codes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn

from fedskew.data.federation import Client, Federation
from fedskew.engine.streams import stream
from fedskew.parts.generative import decode, describe_codes, in_parts, latent_of, w1_to_normal
from fedskew.parts.objective import Bound
from fedskew.types import Indices

if TYPE_CHECKING:
    from fedskew.runs.experiment import Run

Table = list[dict[str, Any]]
GLOBAL = "the global model"
"""Its name in tables, where clients' models have their owners'."""

SHOWN_SAMPLES = 2000
"""So many samples a client, or points in a scatter, show a distribution."""
SHOWN_CLIENTS, SHOWN_DIMENSIONS = 8, 4
"""The most histograms that fit on a page."""
PORTION = 500
"""So many samples are encoded at once; the last bits of a code may depend on it."""


@dataclass(frozen=True)
class Vaes:
    """The autoencoders of a finished run at its selected round: the global one, the clients'.

    Either all clients have models of their own or none; who has one encodes its samples with it.
    """

    run: Run
    has_global: bool
    owners: tuple[str, ...]

    def model(self, name: str) -> nn.Module:
        """A client's own model, or the global one."""
        return self.run.model(None if name == GLOBAL else name)


def find_vaes(run: Run, federation: Federation) -> Vaes | None:
    """The run's autoencoders, or None where its models are something else."""
    folder = run.path / "models" / "selected"
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


def bound(model: nn.Module) -> Bound:
    """A copy of the model in evaluation mode; the model's own mode stays what it is."""
    return Bound(deepcopy(model).eval(), model.state_dict())


def prior_codes(latent: int, count: int, seed: int) -> Tensor:
    """Draws from N(0, I), one a row; more of them begin with the same ones."""
    drawn = stream(seed, "prior codes").standard_normal((count, latent))
    return torch.from_numpy(drawn).to(torch.float32)


def prior_samples(model: nn.Module, count: int, seed: int) -> Tensor:
    """What a model makes of draws from N(0, I): its own samples, ``[count, *sample_shape]``."""
    return decode(bound(model), prior_codes(latent_of(model), count, seed))


def described(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The means and standard deviations of the samples' codes."""
    coder = bound(model)
    portions = [describe_codes(coder, part) for part in in_parts(x, PORTION)]
    means, deviations = zip(*portions, strict=True)
    return torch.cat(means), torch.cat(deviations)


def encoding_table(
    vaes: Vaes, federation: Federation, recorded: Mapping[str, float], seed: int
) -> Table:
    """Histograms of clients' codes, one draw a training sample, and their distance from N(0, 1).

    ``discrepancy`` is the mean of ``w1`` over all latent dimensions; ``recorded`` is what weights
    were made of, which another encoder may have found. Of many clients the least and the most
    discrepant are in, of many dimensions those whose means vary most.
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
            "coder": owned[coder][0], "sample": sample, "label": int(federation.y[sample]),
            "class": federation.class_names[int(federation.y[sample])],
            **{f"z{d + 1}": value for d, value in zip(dimensions, code, strict=True)},
        }
        for coder, sample, code in zip(
            coders.tolist(), samples.tolist(), codes[:, dimensions].tolist(), strict=True
        )
    ]  # fmt: skip


def most_varied(codes: Tensor, most: int) -> list[int]:
    """At most so many dimensions: those of the largest variance, in their own order.

    >>> most_varied(torch.tensor([[0.0, 5.0, 1.0], [9.0, 5.0, 3.0]]), 2)
    [0, 2]
    """
    order = codes.var(dim=0, correction=0).argsort(descending=True, stable=True)
    return sorted(order[:most].tolist())


def thinned(rows: Indices, most: int, seed: int, *purpose: str) -> Indices:
    """At most so many of the rows, drawn at random but the same every time."""
    if len(rows) <= most:
        return rows
    return np.sort(stream(seed, "thinned", *purpose).choice(rows, most, replace=False))


def test_rows(federation: Federation) -> Indices:
    """The central test set, or all that clients are tested on where there is none."""
    if len(federation.central_test):
        return federation.central_test
    return np.unique(np.concatenate([client.test for client in federation.clients]))


def _edges(codes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Bins of 0.2 that hold all codes, from ±4 at least to ±8 at most."""
    finite = np.abs(codes[np.isfinite(codes)])
    reach = int(np.clip(np.ceil(finite.max(initial=0.0)), 4, 8))
    return np.linspace(-reach, reach, 10 * reach + 1)
