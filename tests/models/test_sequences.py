"""Models of sequences: what they compute, that padding changes nothing, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedskew.errors import ConfigError
from fedskew.models import MODELS, redrawn, seeded
from fedskew.models.registry import for_samples
from fedskew.models.sequences import positions

TOKENS = {"vocabulary": 20}
READERS = ["embedding", "lstm", "gru", "transformer"]
SIGNAL_MODELS = ["lstm", "gru", "transformer", "conv1d"]
TEXTS = torch.tensor([[3, 7, 7, 0, 0, 0], [19, 1, 2, 3, 4, 5], [8, 0, 0, 0, 0, 0]])
LENGTHS = [3, 6, 1]


@pytest.mark.parametrize("name", READERS)
def test_padding_changes_nothing(name: str) -> None:
    """The same text, alone and uncut, gives the same logits as filled up beside longer ones."""
    model = seeded(name, (6,), 3, seed=1, **TOKENS).eval()
    together = model(TEXTS)
    for row, length in enumerate(LENGTHS):
        alone = model(TEXTS[row : row + 1, :length])
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-6, rtol=1e-5)


def test_an_embedding_is_the_mean_of_its_words() -> None:
    model = seeded("embedding", (6,), 3, seed=1, units=4, hidden=[5], **TOKENS)
    weights = dict(model.named_parameters())
    table = weights["body.0.steps.made.weight"]
    assert not table[0].any()
    mean = torch.stack(
        [table[text[:n]].mean(dim=0) for text, n in zip(TEXTS, LENGTHS, strict=True)]
    )
    hidden = (mean @ weights["body.1.weight"].T + weights["body.1.bias"]).relu()
    torch.testing.assert_close(
        model(TEXTS), hidden @ weights["head.weight"].T + weights["head.bias"]
    )


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_recurrent_model_is_torchs_on_packed_sequences(name: str) -> None:
    model = seeded(name, (6,), 3, seed=1, layers=2, **TOKENS).eval()
    body = model.get_submodule("body")
    packed = pack_padded_sequence(
        body.steps.made(TEXTS), torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False
    )
    read, _ = pad_packed_sequence(body.layers(packed)[0], batch_first=True)
    mean = torch.stack([row[:n].mean(dim=0) for row, n in zip(read, LENGTHS, strict=True)])
    torch.testing.assert_close(model(TEXTS), model.get_submodule("head")(mean))


def test_a_transformer_is_torchs_encoder() -> None:
    model = seeded("transformer", (6,), 3, seed=1, units=8, heads=2, **TOKENS).eval()
    body = model.get_submodule("body")
    encoder = nn.TransformerEncoder(
        body.layers[0], 2, norm=body.last, enable_nested_tensor=False
    ).eval()
    encoder.layers = body.layers
    place = torch.arange(6).unsqueeze(1)
    angles = torch.cat([place * 10_000 ** (-2 * i / 8) for i in range(4)], dim=1)
    assert torch.allclose(positions(6, 8)[:, ::2], angles.sin(), atol=1e-6)
    assert torch.allclose(positions(6, 8)[:, 1::2], angles.cos(), atol=1e-6)
    made = encoder(body.steps.made(TEXTS) + positions(6, 8), src_key_padding_mask=TEXTS == 0)
    mean = torch.stack([row[:n].mean(dim=0) for row, n in zip(made, LENGTHS, strict=True)])
    torch.testing.assert_close(model(TEXTS), model.get_submodule("head")(mean))


def test_a_conv1d_is_three_convolutions_with_group_norm() -> None:
    model = seeded("conv1d", (2, 9), 3, seed=1, channels=4)
    x = torch.randn(5, 2, 9, generator=torch.Generator().manual_seed(0))
    weights = dict(model.named_parameters())
    made = x
    for number, place in enumerate((0, 4, 8)):
        made = F.conv1d(
            made, weights[f"body.{place}.weight"], weights[f"body.{place}.bias"], padding=2
        )
        groups = made.reshape(5, 2, -1)
        mean = groups.mean(dim=2, keepdim=True)
        deviation = (groups.var(dim=2, keepdim=True, unbiased=False) + 1e-5).sqrt()
        made = ((groups - mean) / deviation).reshape(made.shape).relu()
        if number < 2:
            made = made.unfold(2, 2, 2).amax(dim=3)
    logits = made.mean(dim=2) @ weights["head.weight"].T + weights["head.bias"]
    torch.testing.assert_close(model(x), logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SIGNAL_MODELS)
def test_signals_are_taken_as_they_are(name: str) -> None:
    model = seeded(name, (3, 12), 4, seed=1).eval()
    assert model(torch.randn(2, 3, 12)).shape == (2, 4)


@pytest.mark.parametrize("name", READERS)
def test_all_parameters_are_in_body_and_head_and_there_are_no_buffers(name: str) -> None:
    model = seeded(name, (6,), 3, seed=1, **TOKENS)
    assert {n.partition(".")[0] for n in model.state_dict()} == {"body", "head"}
    assert not list(model.buffers())


@pytest.mark.parametrize("name", READERS)
def test_a_model_can_be_drawn_again(name: str) -> None:
    model = seeded(name, (6,), 3, seed=1, **TOKENS)
    first, again = redrawn(model, 2), redrawn(model, 2)
    for parameter, tensor in model.state_dict().items():
        drawn = first[parameter]
        assert torch.equal(drawn, again[parameter])
        # Biases of attention and scales of norms begin at fixed values, drawn again or not.
        fixed = bool((tensor == tensor.reshape(-1)[0]).all())
        assert torch.equal(drawn, tensor) == fixed, parameter
        if tensor.numel() >= 100:
            assert 0.7 < float(drawn.std() / tensor.std()) < 1.4, parameter


@pytest.mark.parametrize(
    ("name", "knobs", "shape", "sentence"),
    [
        ("lstm", {}, (1, 8, 8), "model 'lstm' needs token ids (whole numbers with a vocabulary) or "
         "signals of shape (channels, time), but the samples have shape (1, 8, 8): choose from "
         "cnn-groupnorm, har-mlp, logistic, mlp, resnet18."),
        ("embedding", {}, (6,), "model 'embedding' needs token ids (whole numbers with a "
         "vocabulary), but the samples have shape (6,): choose from har-mlp, logistic, mlp."),
        ("conv1d", {}, (6,), "model 'conv1d' needs signals of shape (channels, time), but the "
         "samples have shape (6,): choose from har-mlp, logistic, mlp."),
        ("conv1d", {"layers": 5}, (2, 9), "a conv1d of 5 layers needs 16 steps of time, but a "
         "signal has 9: lower layers."),
        ("transformer", {"heads": 5}, (2, 9), "units of a transformer must be a multiple of heads "
         "= 5: 32."),
        ("gru", {"dropout": 0.5}, (2, 9), "dropout is between recurrent layers: set layers to 2, "
         "or leave it out."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_models_that_do(
    name: str, knobs: dict[str, object], shape: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        seeded(name, shape, 3, seed=0, **knobs)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("name", ["mlp", "cnn", "conv1d"])
def test_token_ids_are_no_numbers(name: str) -> None:
    with pytest.raises(ConfigError, match="choose from embedding, gru, lstm, transformer"):
        for_samples(name, {}, (6,), 20)


def test_a_model_is_told_the_vocabulary_and_may_have_a_larger_one() -> None:
    assert for_samples("gru", {}, (6,), 20) == {"vocabulary": 20}
    assert for_samples("gru", {"vocabulary": 50}, (6,), 20) == {"vocabulary": 50}
    assert for_samples("gru", {"units": 8}, (2, 9), 0) == {"units": 8}
    with pytest.raises(ConfigError, match=r"model\.vocabulary is 10, but the token ids"):
        for_samples("gru", {"vocabulary": 10}, (6,), 20)


def test_large_vocabularies_are_counted_and_not_squared() -> None:
    model = seeded("embedding", (6,), 3, seed=0, vocabulary=300_000, units=2)
    assert sum(p.numel() for p in model.parameters()) > 600_000
    with pytest.raises(ConfigError, match="more than this machine can train"):
        seeded("embedding", (6,), 3, seed=0, vocabulary=2**24, units=512)


def test_every_model_of_sequences_is_listed_with_a_line() -> None:
    assert all(MODELS[name].summary for name in {*READERS, *SIGNAL_MODELS})
