"""A user's own model, named ``module:factory``."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fedskew.errors import ConfigError, FedskewError
from fedskew.models.registry import CLASSIFIER, VAE, Shape
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
    """Hold a user's model to the same split as ours: every parameter is in one of its parts."""
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model {name!r} must return a torch.nn.Module, not {type(model).__name__}."
        )
    children = dict(model.named_children())
    parts: tuple[str, ...] = VAE if "encoder" in children else CLASSIFIER
    for part in parts:
        if part not in children:
            raise ConfigError(
                f"model {name!r} must return a module with children {parts[0]!r} and {parts[1]!r}, "
                f"and {part!r} is missing."
            )
    if "encoder" in children and "classifier" in children:
        parts = (*parts, "classifier")
    for parameter, _ in model.named_parameters():
        if parameter.split(".")[0] not in parts:
            raise ConfigError(
                f"model {name!r} has the parameter {parameter!r} outside "
                f"{' and '.join(repr(part) for part in parts)}: move it into one of them."
            )
    if "encoder" in children and not isinstance(getattr(model, "latent", None), int):
        raise ConfigError(
            f"model {name!r} has an encoder, so it needs a whole number 'latent': how many means "
            "the encoder gives, before as many log-variances."
        )
    return model
