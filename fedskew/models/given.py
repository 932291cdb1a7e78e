"""Models that programs hand over as objects: a module, its class, or a function that makes one."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from fedskew.errors import ConfigError
from fedskew.models.own import CONTRACT
from fedskew.models.registry import MODELS, Shape
from fedskew.registry.own import is_foreign
from fedskew.registry.sources import code_of
from fedskew.trust.consent import typed

PLAIN = (bool, int, float, str, type(None))


def chosen(model: Any) -> Any:
    """What a config says of a model: its name, with knobs if there are any.

    A factory in a module of the user's own is named ``module:factory``, as in a file. Anything else
    that is handed over is known to this process only, by a name that its content decides.
    """
    if isinstance(model, str | Mapping):
        return model
    if isinstance(model, nn.Module):
        return _of_module(model)
    knobs: dict[str, Any] = {}
    while isinstance(model, functools.partial):
        if model.args:
            raise ConfigError(
                f"model {model.func!r} is called with its knobs by name, but functools.partial "
                f"gives it {len(model.args)} by place: name them. {CONTRACT}"
            )
        model, knobs = model.func, {**model.keywords, **knobs}
    if not callable(model):
        raise ConfigError(
            f"model must be a name, a torch.nn.Module or a factory, not {type(model).__name__}. "
            f"{CONTRACT}"
        )
    return {**knobs, "name": _of_factory(model)}


def _of_factory(factory: Callable[..., Any]) -> str:
    module, name = str(factory.__module__), str(getattr(factory, "__qualname__", factory))
    if module != "__main__" and is_foreign(factory):
        raise ConfigError(
            f"model {module}.{name} is a library's: wrap it into a function of your own. {CONTRACT}"
        )
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is factory:
        typed(f"{module}:{name}")
        return f"{module}:{name}"
    if getattr(factory, "__closure__", None):
        raise ConfigError(
            f"model {name!r} is a function inside another, whose variables no run could be known "
            f"by: make it a function of a module, with knobs. {CONTRACT}"
        )
    try:
        source = inspect.getsource(factory)
    except (OSError, TypeError):
        raise ConfigError(
            f"the source of model {name!r} cannot be read, so its runs could not be told from "
            f"those of other code: put it into a file. {CONTRACT}"
        ) from None
    return _registered(name, hashlib.sha256(source.encode()).hexdigest(), factory)


def _of_module(module: nn.Module) -> str:
    """A name for a module and its weights, under which copies of it are made in this process."""
    held = copy.deepcopy(module)

    def copies(shape: Shape, classes: int) -> nn.Module:
        return copy.deepcopy(held)

    digest = hashlib.sha256()
    for text in _content(held):
        digest.update(text)
    return _registered(type(module).__name__, digest.hexdigest(), copies)


def _content(module: nn.Module) -> Iterator[bytes]:
    """All of a module that may decide what it computes: code, layers, plain values and tensors."""
    classes = {type(layer) for layer in module.modules() if not is_foreign(type(layer))}
    code = code_of((cls.__qualname__, cls) for cls in classes)
    yield json.dumps({name: each["sha256"] for name, each in code.items()}, sort_keys=True).encode()
    for path, layer in module.named_modules():
        plain = {
            name: value
            for name, value in vars(layer).items()
            if isinstance(value, PLAIN) and name != "training"
        }
        yield f"{path} {type(layer).__module__}.{type(layer).__qualname__} {plain}".encode()
        yield layer.extra_repr().encode()
    tensors = (*module.named_parameters(), *module.named_buffers())
    for name, tensor in tensors:
        values = np.ascontiguousarray(tensor.detach().cpu().numpy())
        yield f"{name} {values.dtype} {values.shape}".encode() + values.tobytes()


def _registered(stem: str, digest: str, factory: Callable[..., Any]) -> str:
    letters = re.sub(r"\W", "", stem.rpartition(".")[2])
    name = f"{letters}-{digest[:12]}"
    MODELS.objects[name] = MODELS.entry_of(name, factory, handed_over=True)
    return name


def known_as(name: str, model: Any) -> None:
    """Let an object stand for the model that a run folder names, as it was handed over once."""
    made = chosen(model)
    own = str(made["name"]) if isinstance(made, Mapping) else str(made)
    stem = name.rpartition("-")[0]
    if name != own and (":" in name or own.rpartition("-")[0] != stem):
        raise ConfigError(f"the run's model is {name!r}, not {own!r}: hand over that one.")
    MODELS.objects.setdefault(name, replace(MODELS.find(own), name=name))
