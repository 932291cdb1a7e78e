"""Autoencoders of finished runs: their reconstructions, codes and samples."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from fedskew.data.federation import Federation
from fedskew.federate.own_models import own_models
from fedskew.parts.generative import decode, describe_codes, in_parts, latent_of
from fedskew.parts.objective import Bound
from fedskew.rng import stream
from fedskew.types import Indices

if TYPE_CHECKING:
    from fedskew.runs.experiment import Run

GLOBAL = "the global model"
"""Its name in tables; a client's model has the client's name."""

PORTION = 500
"""How many samples are encoded at once; the last bits of a code may depend on it."""


@dataclass(frozen=True)
class Vaes:
    """The autoencoders of a finished run at its selected round: the global one and the clients'.

    Either all clients have their own models or none; a client with its own encodes with it.
    """

    run: Run
    has_global: bool
    owners: tuple[str, ...]

    def model(self, name: str) -> nn.Module:
        """A client's own model, or the global one."""
        return self.run.model(None if name == GLOBAL else name)


def find_vaes(run: Run, federation: Federation) -> Vaes | None:
    """The run's autoencoders, or None if its models are of another kind."""
    folder = run.path / "models" / "selected"
    files = own_models(folder)
    owners = [client.name for client in federation.clients if client.name in files]
    has_global = (folder / "global.safetensors").is_file()
    if not owners and not has_global:
        return None
    file = folder / "global.safetensors" if has_global else files[owners[0]]
    # The names of its entries show what kind a model is, without building and loading it.
    with safe_open(file, framework="pt") as saved:
        parts = {name.partition(".")[0] for name in saved.keys()}  # noqa: SIM118
    return Vaes(run, has_global, tuple(owners)) if {"encoder", "decoder"} <= parts else None


def bound(model: nn.Module) -> Bound:
    """A copy of the model in evaluation mode; the model itself does not change."""
    return Bound(deepcopy(model).eval(), model.state_dict())


def prior_codes(latent: int, count: int, seed: int) -> Tensor:
    """Draws from N(0, I), one per row; a larger ``count`` starts with the same draws."""
    drawn = stream(seed, "prior codes").standard_normal((count, latent))
    return torch.from_numpy(drawn).to(torch.float32)


def prior_samples(model: nn.Module, count: int, seed: int) -> Tensor:
    """Samples of a model, decoded from draws from N(0, I): ``[count, *sample_shape]``."""
    return decode(bound(model), prior_codes(latent_of(model), count, seed))


def described(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The means and standard deviations of the samples' codes."""
    coder = bound(model)
    portions = [describe_codes(coder, part) for part in in_parts(x, PORTION)]
    means, deviations = zip(*portions, strict=True)
    return torch.cat(means), torch.cat(deviations)


def most_varied(codes: Tensor, most: int) -> list[int]:
    """At most ``most`` dimensions: those with the largest variance, in their own order.

    >>> most_varied(torch.tensor([[0.0, 5.0, 1.0], [9.0, 5.0, 3.0]]), 2)
    [0, 2]
    """
    order = codes.var(dim=0, correction=0).argsort(descending=True, stable=True)
    return sorted(order[:most].tolist())


def test_rows(federation: Federation) -> Indices:
    """The central test set or, if there is none, all clients' test samples."""
    if len(federation.central_test):
        return federation.central_test
    return np.unique(np.concatenate([client.test for client in federation.clients]))
