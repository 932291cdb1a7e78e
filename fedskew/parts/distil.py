"""Training a server's model on samples of the clients' decoders, instead of averaging."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.parts.generative import decode, describe_codes, latent_of
from fedskew.parts.objective import Bound
from fedskew.parts.report import Finished, Report, Reported
from fedskew.types import Groups

DECODER, CODES = "decoder", "codes"
SPREAD = 1e-6
"""Least variance of a component, for clients with one sample."""


class Invention:
    """Base of the parts that make up training data for the server."""

    def samples(self, module: nn.Module, memory: Groups, rng: np.random.Generator) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class SendDecoder(Report):
    """Sends the client's decoder, how many samples it holds, and where its codes lie.

    With ``components`` > 0 the codes of its training data are described by that many Gaussians
    with diagonal covariances; with 0 nothing is sent about them, and the prior is used.
    """

    components: int = 0

    @property
    def tells(self) -> str:
        codes = ", and where their codes lie" if self.components else ""
        return f"their decoder and number of samples{codes}"

    def report(self, finished: Finished) -> Reported:
        decoder = {
            n.removeprefix("decoder."): t
            for n, t in finished.trained.items()
            if n.startswith("decoder.")
        }
        x, _ = finished.samples()
        said: dict[str, Tensor] = {"n": torch.tensor(float(len(x)), dtype=torch.float64)}
        if self.components:
            mean, deviation = describe_codes(finished.model(), x)
            seed = int(finished.rng.integers(2**31))
            said |= components_of(mean, deviation, self.components, seed)
        return Reported(sends={DECODER: decoder, CODES: said})


def components_of(mean: Tensor, deviation: Tensor, count: int, seed: int) -> dict[str, Tensor]:
    """The codes of all samples as a few Gaussians: clusters of their means.

    A component's variance is that of its members' means plus the mean of their own variances.
    """
    from sklearn.cluster import KMeans

    points = mean.cpu().numpy()
    count = min(count, len(np.unique(points, axis=0)))
    member = torch.from_numpy(KMeans(count, n_init=1, random_state=seed).fit(points).labels_).long()
    shares, centres, variances = [], [], []
    for place in range(count):
        own, wide = mean[member == place], deviation[member == place]
        shares.append(len(own) / len(mean))
        centres.append(own.mean(dim=0))
        variances.append(own.var(dim=0, correction=0) + wide.square().mean(dim=0) + SPREAD)
    return {
        "share": torch.tensor(shares, dtype=torch.float64),
        "centre": torch.stack(centres),
        "variance": torch.stack(variances),
    }


@dataclass(frozen=True)
class FromDecoders(Invention):
    """Samples of every client's decoder, in proportion to the client's share of all data.

    There are ``count`` samples; None: as many as all clients hold.
    """

    count: int | None = None

    def samples(self, module: nn.Module, memory: Groups, rng: np.random.Generator) -> Tensor:
        clients = sorted(key.removesuffix("/n") for key in memory[CODES] if key.endswith("/n"))
        sizes = np.array([float(memory[CODES][f"{client}/n"]) for client in clients])
        count = int(sizes.sum()) if self.count is None else self.count
        shares = rng.multinomial(count, sizes / sizes.sum())
        sent = [(name.rpartition("/"), t) for name, t in memory[DECODER].items()]
        drawn = []
        for client, share in zip(clients, shares, strict=True):
            decoder = {f"decoder.{entry}": t for (sender, _, entry), t in sent if sender == client}
            codes = _codes(memory, client, int(share), latent_of(module), rng)
            drawn.append(decode(Bound(module, decoder), codes))
        return torch.cat(drawn)


def _codes(
    memory: Groups, client: str, count: int, latent: int, rng: np.random.Generator
) -> Tensor:
    """Codes from a client's components, or from the prior if it sent none."""
    noise = torch.from_numpy(rng.standard_normal((count, latent), dtype=np.float32))
    said = memory[CODES]
    if f"{client}/share" not in said:
        return noise
    share = said[f"{client}/share"].numpy()
    of = torch.from_numpy(rng.choice(len(share), count, p=share / share.sum()))
    return said[f"{client}/centre"][of] + said[f"{client}/variance"][of].sqrt() * noise
