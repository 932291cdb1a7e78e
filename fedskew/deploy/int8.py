"""Models in eight bits, by torch's own quantisation, as plain tensors that need no pickle.

Weights are stored as int8 with one scale per output channel. Where torch can follow the model,
convolutions and linear layers compute in int8 too, with ranges of activations read off
calibration samples ("static"); else linear layers alone do, which find their ranges as they go
("dynamic").
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedskew.engine.torch_private import PACKED_LINEAR, quantisation
from fedskew.errors import ConfigError
from fedskew.types import Tensors

Int8 = Literal["static", "dynamic"]
SCALE = "_scale"


@contextmanager
def _quantisation() -> Iterator[tuple[Any, Any]]:
    """torch's two modules for it, without their warnings (deprecation, every observer)."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            found = quantisation()
        except ImportError as error:
            raise ConfigError(
                f"torch {torch.__version__} has no torch.ao.quantization: export without int8."
            ) from error
        yield found


def in_int8(module: nn.Module, samples: Tensor | None) -> tuple[nn.Module, Int8, str | None]:
    """The model in int8, calibrated on samples; which kind it is; why it is not static, if so."""
    if samples is None:
        nothing = torch.zeros(0)
        return quantised(module, "dynamic", nothing), "dynamic", "there are no samples to calibrate"
    try:
        return quantised(module, "static", samples), "static", None
    except ConfigError:
        raise
    except Exception as error:
        # Tracing fails in as many ways as there are models; linear layers need no tracing.
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        return quantised(module, "dynamic", samples), "dynamic", why


def quantised(module: nn.Module, kind: Int8, samples: Tensor) -> nn.Module:
    """A copy of the model in int8 of one kind."""
    module = copy.deepcopy(module).eval()
    with _quantisation() as (quantization, quantize_fx):
        if kind == "dynamic":
            how = {nn.Linear: quantization.per_channel_dynamic_qconfig}
            linear: nn.Module = quantization.quantize_dynamic(module, how)
            return linear
        # Activations in seven of the eight bits: two products then always fit in sixteen.
        config = quantization.QConfig(
            activation=quantization.MinMaxObserver.with_args(
                dtype=torch.quint8, quant_min=0, quant_max=127
            ),
            weight=quantization.default_per_channel_weight_observer,
        )
        mapping = quantization.QConfigMapping().set_global(config)
        watched = quantize_fx.prepare_fx(module, mapping, (samples[:1],))
        watched(samples)
        converted: nn.Module = quantize_fx.convert_fx(watched)
        converted(samples[:1])
        return converted


def plain_tensors(module: nn.Module) -> Tensors:
    """A model's entries, int8 or not, as ordinary tensors by name.

    An int8 weight ``w`` becomes the whole numbers ``w`` and their scales ``w_scale``, one per
    output channel: the weight is their product.
    """
    plain: Tensors = {}
    for name, entry in module.state_dict().items():
        for part, tensor in _parts(name, entry):
            if tensor.is_quantized:
                plain[part] = tensor.int_repr()
                plain[part + SCALE] = _scales(tensor)
            else:
                plain[part] = tensor.detach()
    return plain


def load_plain(module: nn.Module, plain: Tensors) -> None:
    """Load plain tensors into a model of the same structure."""
    state: dict[str, Any] = module.state_dict()
    for name, entry in state.items():
        found = [_restored(part, tensor, plain) for part, tensor in _parts(name, entry)]
        if isinstance(entry, tuple):
            state[name] = (found[0], found[1] if len(found) > 1 else None)
        elif found:
            state[name] = found[0]
    module.load_state_dict(state)


def weights(module: nn.Module) -> list[Tensor]:
    """All weights and biases, as numbers of any kind that are zero where the model's are."""
    others = ("scale", "scale_0", "zero_point", "zero_point_0", "running_mean", "running_var",
              "num_batches_tracked")  # fmt: skip
    return [t for n, t in plain_tensors(module).items() if not n.endswith(others)]


def _parts(name: str, entry: Any) -> list[tuple[str, Tensor]]:
    """The tensors in an entry of a state: a linear layer in int8 packs its weight and bias."""
    if isinstance(entry, tuple):
        layer = name.removesuffix(PACKED_LINEAR)
        named = zip((f"{layer}.weight", f"{layer}.bias"), entry, strict=True)
        return [(part, tensor) for part, tensor in named if tensor is not None]
    return [(name, entry)] if isinstance(entry, Tensor) else []


def _scales(tensor: Tensor) -> Tensor:
    # Weights are quantised around zero, so there is no zero point to keep.
    if tensor.qscheme() == torch.per_tensor_affine:
        return torch.tensor(tensor.q_scale())
    return tensor.q_per_channel_scales().float()


def _restored(name: str, like: Tensor, plain: Tensors) -> Tensor:
    if not like.is_quantized:
        return plain[name]
    scale = plain[name + SCALE]
    if not scale.ndim:
        return torch.quantize_per_tensor(plain[name] * scale, float(scale), 0, torch.qint8)
    numbers = plain[name] * scale.reshape(-1, *(1,) * (plain[name].ndim - 1))
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    return torch.quantize_per_channel(numbers, scale, zeros, 0, torch.qint8)
