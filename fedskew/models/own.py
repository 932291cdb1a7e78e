"""A user's own model, named ``module:factory``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module

from torch import nn

from fedskew.errors import ConfigError
from fedskew.models.registry import Shape


def construct_own(name: str, shape: Shape, classes: int, knobs: Mapping[str, object]) -> nn.Module:
    """Import the factory, call it with (sample_shape, classes, **knobs) and check what it made."""
    factory = _import_factory(name)
    try:
        inspect.signature(factory).bind(shape, classes, **knobs)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"model {name!r} cannot be called with (sample_shape, classes"
            f"{''.join(f', {knob}=...' for knob in knobs)}): {error}."
        ) from error
    try:
        model = factory(shape, classes, **knobs)
    except Exception as error:
        raise ConfigError(f"model {name!r} raised {type(error).__name__}: {error}") from error
    return _checked(name, model)


def _import_factory(name: str) -> Callable[..., object]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"model {name!r} must read 'module:factory', both parts given.")
    try:
        module = import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"model {name!r}: module {module_name!r} cannot be imported "
            f"({type(error).__name__}: {error}); check its name and that Python finds its folder."
        ) from error
    factory: object = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigError(f"model {name!r}: module {module_name!r} has no function {attribute!r}.")
    return factory


def _checked(name: str, model: object) -> nn.Module:
    """Hold a user's model to the same split as ours: every parameter is in the body or the head."""
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model {name!r} must return a torch.nn.Module, not {type(model).__name__}."
        )
    children = dict(model.named_children())
    for part in ("body", "head"):
        if part not in children:
            raise ConfigError(
                f"model {name!r} must return a module with children 'body' and 'head', "
                f"and {part!r} is missing."
            )
    for parameter, _ in model.named_parameters():
        if parameter.split(".")[0] not in ("body", "head"):
            raise ConfigError(
                f"model {name!r} has the parameter {parameter!r} outside 'body' and 'head': "
                f"move it into one of them."
            )
    return model
