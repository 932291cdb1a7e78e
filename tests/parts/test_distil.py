"""What a client says of its codes, and samples drawn from decoders whose outputs are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import just_trained, toy_federation, toy_vae, unknown_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedskew.data.federation import Client
from fedskew.models import Vae
from fedskew.parts.distil import FromDecoders, SendDecoder, components_of
from fedskew.parts.report import Finished
from fedskew.types import Groups

FEDERATION = toy_federation()


def by_place(found: dict[str, Tensor]) -> dict[str, list[Any]]:
    """Components from left to right; which cluster comes first is up to chance."""
    order = found["centre"][:, 0].argsort()
    return {name: values[order].tolist() for name, values in found.items()}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_separated_clusters_are_described_one_by_one(seed: int) -> None:
    """Means -10 ± 1 (twice) and 20 (once, three times as wide); own variances 0.25, 0.25, 9."""
    mean = torch.tensor([[-11.0, 5.0], [20.0, 0.0], [-9.0, 5.0]])
    deviation = torch.tensor([[0.5, 1.0], [3.0, 2.0], [0.5, 2.0]])
    found = by_place(components_of(mean, deviation, 2, seed))
    assert found["share"] == pytest.approx([2 / 3, 1 / 3])
    assert found["centre"] == [[-10.0, 5.0], [20.0, 0.0]]
    assert found["variance"][0] == pytest.approx([1.0 + 0.25, 0.0 + 2.5], abs=1e-5)
    assert found["variance"][1] == pytest.approx([9.0, 4.0], abs=1e-5)


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 1000))
def test_components_have_the_moments_of_the_codes_they_stand_for(
    count: int, samples: int, seed: int
) -> None:
    """By the law of total variance: the spread of means plus the mean of the codes' own."""
    generator = torch.Generator().manual_seed(seed)
    mean = 3 * torch.randn(samples, 2, generator=generator, dtype=torch.float64)
    deviation = torch.rand(samples, 2, generator=generator, dtype=torch.float64)
    found = components_of(mean, deviation, count, seed)
    share = found["share"][:, None]
    assert len(share) == min(count, samples)
    assert float(share.sum()) == pytest.approx(1.0)
    centre = (share * found["centre"]).sum(dim=0)
    second = (share * (found["variance"] + found["centre"].square())).sum(dim=0)
    torch.testing.assert_close(centre, mean.mean(dim=0))
    expected = mean.var(dim=0, correction=0) + deviation.square().mean(dim=0)
    torch.testing.assert_close(second - centre.square(), expected, rtol=1e-6, atol=2e-6)


def test_codes_that_are_all_the_same_make_one_component_with_a_spread() -> None:
    found = components_of(torch.full((5, 2), 3.0), torch.zeros(5, 2), 4, 0)
    assert found["share"].tolist() == [1.0]
    assert found["centre"].tolist() == [[3.0, 3.0]]
    assert found["variance"].tolist() == [[pytest.approx(1e-6)] * 2]


def finished(module: nn.Module, **changes: Any) -> Finished:
    """The model it received must not be looked at."""
    given = {"client": FEDERATION.clients[2], "received": unknown_tensors(module), **changes}
    return just_trained(module, FEDERATION, **given)


def test_a_client_sends_its_decoder_and_nothing_of_its_encoder() -> None:
    module = toy_vae()
    reported = SendDecoder().report(finished(module))
    assert reported.keeps == {}
    assert reported.sends.keys() == {"decoder", "codes"}
    torch.testing.assert_close(
        reported.sends["decoder"], dict(module.decoder.state_dict()), rtol=0, atol=0
    )
    assert reported.sends["codes"] == {"n": torch.tensor(40.0, dtype=torch.float64)}


def test_with_components_it_says_where_the_codes_of_its_training_data_lie() -> None:
    module = toy_vae()
    own = FEDERATION.x[torch.from_numpy(FEDERATION.clients[2].train)]
    with torch.no_grad():
        mean, log_variance = module.encoder(own).chunk(2, dim=1)
    said = SendDecoder(3).report(finished(module)).sends["codes"]
    assert said.keys() == {"n", "share", "centre", "variance"}
    assert said["share"].shape == (3,)
    torch.testing.assert_close(
        (said["share"][:, None] * said["centre"]).sum(dim=0), mean.mean(dim=0).double()
    )
    one = SendDecoder(1).report(finished(module)).sends["codes"]
    expected = mean.var(dim=0, correction=0) + log_variance.exp().mean(dim=0)
    torch.testing.assert_close(one["variance"][0], expected, rtol=1e-4, atol=1e-5)


def test_a_client_with_one_sample_still_has_a_cloud() -> None:
    module = toy_vae()
    alone = Client("alone", np.arange(1))
    said = SendDecoder(10).report(finished(module, client=alone)).sends["codes"]
    assert said["share"].tolist() == [1.0]
    assert bool((said["variance"] > 0).all())


LINEAR = Vae(nn.Linear(3, 4), nn.Sequential(nn.Linear(2, 3)), 2)


def drawing(constant: float, weight: float = 0.0) -> dict[str, Tensor]:
    """A decoder that draws a constant, plus ``weight`` times the first two numbers of a code."""
    return {"0.weight": weight * torch.eye(3, 2), "0.bias": torch.full((3,), constant)}


def server(**clients: tuple[float, dict[str, Tensor], dict[str, Tensor]]) -> Groups:
    """The memory, from every client's size, decoder and components."""
    memory: Groups = {"decoder": {}, "codes": {}}
    for client, (n, decoder, components) in clients.items():
        memory["decoder"] |= {f"{client}/{name}": t for name, t in decoder.items()}
        said = {"n": torch.tensor(n, dtype=torch.float64), **components}
        memory["codes"] |= {f"{client}/{name}": t for name, t in said.items()}
    return memory


def test_every_decoder_draws_in_proportion_to_what_its_client_holds() -> None:
    """Names that begin alike are told apart; four standard deviations of a binomial are allowed."""
    memory = server(
        c1=(100.0, drawing(1.0), {}), c10=(300.0, drawing(2.0), {}), c2=(600.0, drawing(3.0), {})
    )
    x = FromDecoders(20_000).samples(LINEAR, memory, np.random.default_rng(0))
    assert x.shape == (20_000, 3)
    assert bool((x == x[:, :1]).all())
    for constant, share in ((1.0, 0.1), (2.0, 0.3), (3.0, 0.6)):
        found = int((x[:, 0] == constant).sum())
        slack = 4 * np.sqrt(20_000 * share * (1 - share))
        assert abs(found - 20_000 * share) < slack


def test_without_a_count_there_are_as_many_samples_as_clients_hold() -> None:
    memory = server(a=(7.0, drawing(1.0), {}), b=(5.0, drawing(2.0), {}))
    assert len(FromDecoders().samples(LINEAR, memory, np.random.default_rng(0))) == 12
    one = FromDecoders(1).samples(LINEAR, memory, np.random.default_rng(0))
    assert one.shape == (1, 3)


def test_the_same_generator_draws_the_same_and_another_others() -> None:
    memory = server(a=(7.0, drawing(1.0, 1.0), {}), b=(5.0, drawing(2.0, 1.0), {}))
    first, again, other = (
        FromDecoders(50).samples(LINEAR, memory, np.random.default_rng(s)) for s in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_codes_come_from_the_prior_or_from_the_clients_components() -> None:
    """a has none: N(0, 1). b has a quarter at (-50, 0) with variance 4 and the rest at (50, 9)."""
    components = {
        "share": torch.tensor([0.25, 0.75], dtype=torch.float64),
        "centre": torch.tensor([[-50.0, 0.0], [50.0, 9.0]]),
        "variance": torch.tensor([[4.0, 0.01], [1.0, 25.0]]),
    }
    memory = server(a=(500.0, drawing(1000.0, 1.0), {}), b=(500.0, drawing(0.0, 1.0), components))
    x = FromDecoders(40_000).samples(LINEAR, memory, np.random.default_rng(1))
    prior = x[x[:, 2] == 1000.0][:, :2] - 1000.0
    left = x[(x[:, 2] == 0.0) & (x[:, 0] < 0)][:, :2]
    right = x[(x[:, 2] == 0.0) & (x[:, 0] > 0)][:, :2]
    assert len(left) / (len(left) + len(right)) == pytest.approx(0.25, abs=0.02)
    for cloud, mean, spread in (
        (prior, [0.0, 0.0], [1.0, 1.0]),
        (left, [-50.0, 0.0], [2.0, 0.1]),
        (right, [50.0, 9.0], [1.0, 5.0]),
    ):
        assert cloud.mean(dim=0).tolist() == pytest.approx(mean, abs=0.2)
        assert cloud.std(dim=0).tolist() == pytest.approx(spread, rel=0.05)


def test_what_a_client_sends_is_what_the_server_draws_from() -> None:
    """Drawn from many components without noise of their own, decoded samples are reconstructions:
    their means are those of the client's own decoded codes."""
    module = toy_vae()
    with torch.no_grad():
        module.get_parameter("encoder.2.bias")[2:] = -30.0
        module.get_parameter("encoder.2.weight")[2:] = 0.0
    sends = SendDecoder(40).report(finished(module)).sends
    memory = {
        group: {f"c2/{name}": t for name, t in tensors.items()} for group, tensors in sends.items()
    }
    x = FromDecoders(4_000).samples(module, memory, np.random.default_rng(0))
    own = FEDERATION.x[torch.from_numpy(FEDERATION.clients[2].train)]
    with torch.no_grad():
        drawn = module(own)
    nearest = torch.cdist(x, drawn).min(dim=1)
    assert float(nearest.values.max()) < 0.02
    assert len(set(nearest.indices.tolist())) == 40
