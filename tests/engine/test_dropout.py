"""Dropout masks belong to a client and a step, not to a thread or a stack."""

from __future__ import annotations

import pytest
import torch
from helpers import Tensors, assert_close, assert_same_bits, make_holdings, run, toy_federation
from torch import Tensor, nn

from fedskew.engine.cohort import train
from fedskew.engine.dropout import (
    StreamDropout,
    dropout_key,
    hashed_uniform,
    with_stream_dropout,
)
from fedskew.engine.optim import Optimiser
from fedskew.engine.training import Trained, Work
from fedskew.federate.plan import Settings
from fedskew.federate.recipe import Phase, Recipe
from fedskew.methods import find
from fedskew.models.registry import Classifier


def dropping(p: float = 0.5) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        body = nn.Sequential(nn.Linear(6, 8), nn.Dropout(p), nn.Linear(8, 8), nn.Dropout(p))
        return with_stream_dropout(Classifier(body, nn.Linear(8, 3)))


def trained(chunk: int, key: str = "a", p: float = 0.5) -> list[Tensors]:
    settings = Settings(Optimiser("sgd", 0.1), epochs=2, batch_size=8)
    holdings = make_holdings(
        Recipe(), toy_federation((16, 20, 7)), dropping(p), settings, chunk=chunk
    )
    works = [
        Work(c.name, c.train, holdings.plan.initial, key=(key, c.name))
        for c in holdings.federation.clients
    ]
    results = train(works, holdings.training(Phase(), 1.0))
    assert all(isinstance(result, Trained) for result in results), results
    return [result.tensors for result in results if isinstance(result, Trained)]


def test_hashed_numbers_are_uniform_and_fixed_by_the_key() -> None:
    """Mean 1/2 and variance 1/12, each within five deviations for 10,000 draws."""
    places = torch.arange(10_000)
    first, second = (hashed_uniform(places, torch.tensor(key)) for key in (1, 2))
    for draws in (first, second):
        assert abs(float(draws.mean()) - 1 / 2) < 5 * (1 / 12 / 10_000) ** 0.5
        assert abs(float(draws.var()) - 1 / 12) < 5 * (1 / 180 / 10_000) ** 0.5
        assert float(draws.min()) >= 0.0
        assert float(draws.max()) < 1.0
    together = torch.stack([first, second])
    assert abs(float(torch.corrcoef(together)[0, 1])) < 5 / 100
    assert torch.equal(first, hashed_uniform(places, torch.tensor(1)))


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_dropout_zeroes_a_share_p_and_scales_the_rest(p: float) -> None:
    layer = StreamDropout(p, 0, whole_channels=False).train()
    with dropout_key(torch.tensor(7)):
        out = layer(torch.ones(100, 100))
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    assert abs(float((out == 0).float().mean()) - p) < 5 * (p * (1 - p) / 10_000) ** 0.5


def test_layers_drop_apart_and_channels_drop_whole() -> None:
    ones = torch.ones(8, 16, 3, 3)
    with dropout_key(torch.tensor(7)):
        first, second, whole = (
            StreamDropout(0.5, number, channels).train()(ones)
            for number, channels in ((0, False), (1, False), (2, True))
        )
    assert not torch.equal(first, second)
    assert set(whole.mean(dim=(2, 3)).unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
@pytest.mark.parametrize("p", [0.2, 0.5])
def test_alpha_dropout_gives_the_values_of_torchs(kind: type[nn.AlphaDropout], p: float) -> None:
    """Of a constant there are two: what is kept and what is dropped."""
    ones = torch.ones(50, 40, 3)
    (ours,) = with_stream_dropout(nn.Sequential(kind(p))).train()
    with dropout_key(torch.tensor(7)):
        found = ours(ones)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        values = kind(p).train()(ones).unique()
    torch.testing.assert_close(found.unique(), values)
    dropped = found == found.min()
    places = 2000 if kind is nn.FeatureAlphaDropout else 6000
    assert abs(float(dropped.float().mean()) - p) < 5 * (p * (1 - p) / places) ** 0.5
    whole = (dropped == dropped[:, :, :1]).all()
    assert bool(whole) == (kind is nn.FeatureAlphaDropout)


def test_alpha_dropout_keeps_mean_0_and_variance_1() -> None:
    """Each within five deviations for 40,000 normal draws."""
    x = torch.randn(200, 200, generator=torch.Generator().manual_seed(0))
    layer = StreamDropout(0.4, 0, whole_channels=False, keeps_moments=True).train()
    with dropout_key(torch.tensor(7)):
        out = layer(x)
    assert abs(float(out.mean())) < 5 / 200
    assert abs(float(out.var()) - 1) < 5 * (2 / 40_000) ** 0.5


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.AlphaDropout])
def test_dropping_everything_leaves_zeros_as_in_torch(kind: type[nn.Dropout]) -> None:
    x = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    (ours,) = with_stream_dropout(nn.Sequential(kind(1.0))).train()
    with dropout_key(torch.tensor(7)):
        assert not ours(x).any()
    assert not kind(1.0).train()(x).any()


def test_clients_that_drop_everything_train_what_comes_after() -> None:
    for tensors in trained(2, p=1.0):
        start = dropping(1.0).state_dict()
        assert torch.equal(tensors["head.weight"], start["head.weight"])
        assert not torch.equal(tensors["head.bias"], start["head.bias"])


def test_a_layer_of_a_users_own_is_not_taken_for_the_one_it_is_made_from() -> None:
    class Doubling(nn.Dropout):
        def forward(self, input: Tensor) -> Tensor:
            return input * 2

    class Renamed(nn.Dropout):
        """Works as its base does."""

    doubling, renamed = with_stream_dropout(nn.Sequential(Doubling(0.5), Renamed(0.5)))
    assert isinstance(doubling, Doubling)
    assert isinstance(renamed, StreamDropout)


def test_nothing_is_dropped_in_evaluation() -> None:
    layer = StreamDropout(0.5, 0, whole_channels=False).eval()
    with dropout_key(torch.tensor(7)):
        assert torch.equal(layer(torch.ones(5, 5)), torch.ones(5, 5))


def test_masks_do_not_depend_on_how_clients_are_stacked() -> None:
    alone = trained(chunk=1)
    for chunk in (2, 3):
        for ours, theirs in zip(trained(chunk), alone, strict=True):
            assert_close(ours, theirs, 1e-5)


def test_masks_follow_the_key_of_the_client() -> None:
    first, again, other, none = trained(2), trained(2), trained(2, "b"), trained(2, p=0.0)
    for k in range(3):
        assert_same_bits(first[k], again[k])
        assert not torch.equal(first[k]["head.weight"], other[k]["head.weight"])
        assert not torch.equal(first[k]["head.weight"], none[k]["head.weight"])


def test_a_method_with_dropout_repeats_and_scores_without_it() -> None:
    first, again = (run(make_holdings(find("fedavg").recipe(), module=dropping()), 2) for _ in "ab")
    assert_same_bits(first.everything(), again.everything())
    plain = Classifier(nn.Sequential(nn.Linear(6, 8), nn.Identity(), nn.Linear(8, 8)),
                       nn.Linear(8, 3))  # fmt: skip
    plain.load_state_dict(first.shared)
    federation = first.holdings.federation
    rows = federation.central_test
    right = (plain(federation.x[rows]).argmax(dim=1) == federation.y[rows]).float().mean()
    key = (2, "global", "central", "", "none", "test", "accuracy")
    assert first.scores[key] == pytest.approx(float(right), abs=1e-6)
