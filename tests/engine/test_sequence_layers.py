"""Attention, transformer and recurrent layers: the same numbers in every executor, as in torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from helpers import Tensors, assert_close, assert_same_bits, copied, make_holdings
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.data.federation import Client, Federation
from fedskew.engine import workers
from fedskew.engine.batches import schedule
from fedskew.engine.cohort import train
from fedskew.engine.dropout import dropout_key, with_stream_dropout
from fedskew.engine.layers import OwnFunctions
from fedskew.engine.optim import Optimiser
from fedskew.engine.training import Trained, Work
from fedskew.errors import ConfigError
from fedskew.federate.holdings import Holdings
from fedskew.federate.plan import Settings
from fedskew.federate.recipe import Phase, Recipe
from fedskew.models.registry import Classifier

UNITS, STEPS, SIZES = 6, 4, (6, 10, 6)
EXECUTORS = [("vectorised", 2), ("threads", 1), ("one-by-one", 1)]
"""Of three clients two are stacked: the longest, of three batches, and one of two."""


class Attending(nn.Module):
    """nn.MultiheadAttention of every step to those that are there, or to those before it."""

    def __init__(self, p: float, causal: bool = False, weights: bool = False) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(UNITS, 2, dropout=p, batch_first=True)
        self.causal, self.weights = causal, weights

    def forward(self, x: Tensor) -> Tensor:
        if self.causal:
            ahead = torch.ones(STEPS, STEPS, dtype=torch.bool).triu(1)
            return self.layer(x, x, x, attn_mask=ahead, need_weights=self.weights)[0].mean(dim=1)
        gone = (x == 0).all(dim=2)
        read, _ = self.layer(x, x, x, key_padding_mask=gone, need_weights=self.weights)
        return read.mean(dim=1)


class Encoding(nn.Module):
    """Two of torch's transformer layers with a padding mask."""

    def __init__(self, p: float, norm_first: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(UNITS, 2, 8, p, batch_first=True, norm_first=norm_first)
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        gone = (x == 0).all(dim=2)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=gone)
        return x.mean(dim=1)


class Stacked(nn.Module):
    """torch's whole encoder, which calls its layers by itself."""

    def __init__(self, p: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(UNITS, 2, 8, p, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        read: Tensor = self.layers(x, src_key_padding_mask=(x == 0).all(dim=2))
        return read.mean(dim=1)


class Reading(nn.Module):
    """A recurrent layer; its last output forwards and all of them on average."""

    def __init__(self, kind: type[nn.RNNBase], p: float, layers: int, both_ways: bool) -> None:
        super().__init__()
        self.layer = kind(
            UNITS, UNITS, layers, dropout=p, bidirectional=both_ways, batch_first=True
        )
        self.joined = nn.Linear(UNITS * (2 if both_ways else 1), UNITS)

    def forward(self, x: Tensor) -> Tensor:
        read, _ = self.layer(x)
        joined: Tensor = self.joined(read[:, -1] + read.mean(dim=1))
        return joined


class Functional(nn.Module):
    """A user's own attention, with the function of torch's and a mask."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.made, self.p = nn.Linear(UNITS, 3 * UNITS), p

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.made(x).chunk(3, dim=-1)
        held = (x != 0).any(dim=2).unsqueeze(1)
        p = self.p if self.training else 0.0
        return F.scaled_dot_product_attention(query, key, value, held, dropout_p=p).mean(dim=1)


BODIES: dict[str, Callable[[float], nn.Module]] = {
    "attention": lambda p: Attending(p),
    "attention that tells its weights": lambda p: Attending(p, weights=True),
    "causal attention": lambda p: Attending(p, causal=True),
    "encoder layers": lambda p: Encoding(p, norm_first=False),
    "encoder layers, norm first": lambda p: Encoding(p, norm_first=True),
    "encoder": Stacked,
    "function": Functional,
    "lstm": lambda p: Reading(nn.LSTM, 0.0, 1, both_ways=False),
    "lstm of two layers": lambda p: Reading(nn.LSTM, p, 2, both_ways=False),
    "lstm both ways": lambda p: Reading(nn.LSTM, p, 2, both_ways=True),
    "gru": lambda p: Reading(nn.GRU, 0.0, 1, both_ways=False),
    "gru of two layers": lambda p: Reading(nn.GRU, p, 2, both_ways=False),
    "gru both ways": lambda p: Reading(nn.GRU, p, 2, both_ways=True),
    "rnn": lambda p: Reading(nn.RNN, p, 2, both_ways=False),
}  # fmt: skip
DROPPING = [name for name in BODIES if name not in ("lstm", "gru")]


def model(name: str, p: float) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Classifier(BODIES[name](p), nn.Linear(UNITS, 3))


def sequences() -> Federation:
    """Three clients with sequences of 1 to 4 steps, zeros behind them."""
    generator = torch.Generator().manual_seed(0)
    rows = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    x = torch.randn(sum(SIZES), STEPS, UNITS, generator=generator)
    x *= (torch.arange(STEPS) <= torch.arange(len(x)).unsqueeze(1) % STEPS).unsqueeze(2)
    clients = tuple(Client(name, part) for name, part in zip("abc", rows, strict=True))
    return Federation("sequences", x, torch.arange(len(x)) % 3, ("u", "v", "w"), clients)


def trained(
    name: str, p: float, executor: str, chunk: int, key: int = 0
) -> tuple[Holdings, list[Work], list[Tensors]]:
    settings = Settings(Optimiser("sgd", 0.1), epochs=1, batch_size=4)
    module = with_stream_dropout(model(name, p))
    holdings = make_holdings(
        Recipe(), sequences(), module, settings, chunk=chunk, executor=executor
    )
    works = [
        Work(c.name, c.train, holdings.plan.initial, key=(c.name, key))
        for c in holdings.federation.clients
    ]
    results = train(works, holdings.training(Phase(), 1.0))
    assert all(isinstance(result, Trained) for result in results), results
    return holdings, works, [r.tensors for r in results if isinstance(r, Trained)]


@pytest.mark.parametrize(("executor", "chunk"), EXECUTORS)
@pytest.mark.parametrize("name", BODIES)
def test_layers_train_as_in_a_plain_loop(name: str, executor: str, chunk: int) -> None:
    holdings, works, results = trained(name, 0.0, executor, chunk)
    federation = holdings.federation
    for work, ours in zip(works, results, strict=True):
        plain = model(name, 0.0).train()
        optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
        plan = schedule(work.rows, work.key, 4, 1, True)
        for places, mask in zip(plan.positions, plan.mask, strict=True):
            rows = torch.from_numpy(work.rows[places[mask > 0]])
            optimiser.zero_grad()
            loss = F.cross_entropy(plain(federation.x[rows]), federation.y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        assert_close(ours, copied(plain.state_dict()), 1e-6)
        moved = {n for n, t in ours.items() if not torch.equal(t, holdings.plan.initial[n])}
        assert moved == ours.keys()


@pytest.mark.parametrize("name", DROPPING)
def test_all_executors_drop_the_same_values(name: str) -> None:
    """A single other mask would show in the second digit."""
    stacked, alone, plain = (trained(name, 0.4, *each)[2] for each in EXECUTORS)
    for found in (stacked, plain):
        for ours, theirs in zip(found, alone, strict=True):
            assert_close(ours, theirs, 1e-6)
    for ours, without in zip(plain, trained(name, 0.0, "one-by-one", 1)[2], strict=True):
        assert max(float((t - without[n]).abs().max()) for n, t in ours.items()) > 1e-3


@pytest.mark.parametrize("name", ["encoder layers, norm first", "gru of two layers", "rnn"])
def test_dropped_values_follow_client_and_round_and_no_worker(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for count in (1, 3):
        with ThreadPoolExecutor(count) as pool, monkeypatch.context() as patched:
            patched.setattr(workers, "_pool", lambda pool=pool: pool)
            found.append(trained(name, 0.4, "threads", 1)[2])
    _, _, later = trained(name, 0.4, "threads", 1, key=1)
    for first, again, other in zip(*found, later, strict=True):
        assert_same_bits(first, again)
        assert not torch.equal(first["head.weight"], other["head.weight"])


def dropped_by(layer: Callable[[], Tensor]) -> Tensor:
    with dropout_key(torch.tensor(7)), OwnFunctions():
        return layer()


def check_share(values: Tensor, p: float) -> None:
    """Zeros, as many as p says within five deviations, and the rest scaled up."""
    assert values.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)], abs=1e-6)
    share = float((values == 0).float().mean())
    assert abs(share - p) < 5 * (p * (1 - p) / values.numel()) ** 0.5


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_attention_drops_a_share_p_of_its_weights(p: float) -> None:
    """Queries of 0 look at all 60 places alike; values of 60 at one place each show the weights."""
    nothing, ones = torch.zeros(4, 60, 8), 60 * torch.eye(60).expand(4, 60, 60)
    found = dropped_by(lambda: F.scaled_dot_product_attention(nothing, nothing, ones, dropout_p=p))
    check_share(found, p)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_recurrent_layers_drop_a_share_p_between_them(p: float) -> None:
    """The first layer puts out 1 and the second what it reads: what was dropped, in training."""
    layers = nn.RNN(2, 50, 2, nonlinearity="relu", dropout=p, batch_first=True)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.zero_()
        layers.bias_ih_l0.fill_(1.0)
        layers.weight_ih_l1.copy_(torch.eye(50))
        x = torch.zeros(30, 10, 2)
        check_share(dropped_by(lambda: layers(x)[0]), p)
        assert torch.equal(dropped_by(lambda: layers.eval()(x)[0]), torch.ones(30, 10, 50))


def test_every_call_in_a_step_has_a_mask_of_its_own() -> None:
    nothing, ones = torch.zeros(1, 20, 8), torch.eye(20).expand(1, 20, 20)

    def twice() -> Tensor:
        return torch.stack(
            [F.scaled_dot_product_attention(nothing, nothing, ones, dropout_p=0.5) for _ in "ab"]
        )

    first, second = dropped_by(twice)
    assert not torch.equal(first, second)
    assert torch.equal(dropped_by(twice)[0], first)


def test_a_sample_that_is_all_padding_spoils_no_other() -> None:
    """torch gives NaN for a query that may look at nothing; here it finds zeros."""
    federation = sequences()
    x = federation.x.clone()
    x[federation.clients[0].train[0]] = 0.0
    settings = Settings(Optimiser("sgd", 0.1), epochs=1, batch_size=4)
    for executor, chunk in EXECUTORS:
        module = with_stream_dropout(copy.deepcopy(model("function", 0.2)))
        holdings = make_holdings(
            Recipe(), federation.with_data(x=x), module, settings, chunk, executor=executor
        )
        work = Work("a", federation.clients[0].train, holdings.plan.initial)
        (result,) = train([work], holdings.training(Phase(), 1.0))
        assert isinstance(result, Trained)
        assert result.finite


def test_what_cannot_be_trained_is_refused_with_a_way_out() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(UNITS, UNITS, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            lengths = torch.full((len(x),), 3)
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.layer(packed)[1][0]

    with pytest.raises(ConfigError, match="give the layer the padded samples"), OwnFunctions():
        Packed()(torch.ones(2, STEPS, UNITS))
    with pytest.raises(ConfigError, match="leave proj_size out"), OwnFunctions():
        nn.LSTM(UNITS, UNITS, proj_size=2)(torch.ones(2, STEPS, UNITS))
