"""A user's own model, named ``module:factory``."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fedskew.errors import ConfigError, FedskewError
from fedskew.models.registry import Shape
from fedskew.plugins import call_function


def construct_own(name: str, shape: Shape, classes: int, knobs: Mapping[str, object]) -> nn.Module:
    """Import the factory, call it with (sample_shape, classes, **knobs) and check what it made."""
    try:
        model = call_function("model", name, shape, classes, **knobs)
    except FedskewError:
        raise
    except Exception as error:
        raise ConfigError(f"model {name!r} raised {type(error).__name__}: {error}") from error
    return _checked(name, model)


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
