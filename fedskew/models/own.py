"""Models that users bring: what their factories must return, and where the head is.

The contract stands in docs/how-to/python.md, which every error names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedskew.engine.torch_private import is_convolution
from fedskew.errors import ConfigError
from fedskew.models.classifier import FoundHead, OnePiece

Shape = tuple[int, ...]
CONTRACT = (
    "The contract of a model's factory, (sample_shape, classes, **knobs) -> torch.nn.Module, "
    "stands in docs/how-to/python.md."
)
PROBED = 2
"""Samples of noise by which a model's answers are looked at."""


def checked(title: str, made: object, shape: Shape, classes: int) -> nn.Module:
    """What a user's factory returned as a model whose parts methods find, or why it is none."""
    if isinstance(made, type) and issubclass(made, nn.Module):
        raise _refused(title, f"returned the class {made.__name__}: return an instance of it.")
    if not isinstance(made, nn.Module):
        raise _refused(title, f"must return a torch.nn.Module, not {type(made).__name__}.")
    for held, tensor in (*made.named_parameters(), *made.named_buffers()):
        if is_lazy(tensor):
            layer = held.rpartition(".")[0]
            raise _refused(
                title,
                f"has the lazy layer {layer!r}, whose size its first batch would tell: give the "
                "layer its size.",
            )
    _check_names(title, made)
    children = dict(made.named_children())
    if {"encoder", "decoder"} <= children.keys():
        return _checked_vae(title, made, children)
    if next(made.parameters(), None) is None:
        raise _refused(title, "has no parameters to train.")
    return _in_parts(title, made, shape, classes)


def check_steady(title: str, first: nn.Module, second: nn.Module) -> None:
    """Refuse a factory whose second model, of the same random state, is another than its first."""
    before, after = first.state_dict(), second.state_dict()
    same = before.keys() == after.keys()
    if not same or not all(torch.equal(t, after[name]) for name, t in before.items()):
        raise _refused(
            title,
            "returned two models for the same seed: let it draw weights with torch alone, not with "
            "numpy, random or a clock.",
        )


def _refused(title: str, why: str) -> ConfigError:
    return ConfigError(f"{title} {why} {CONTRACT}")


def _check_names(title: str, model: nn.Module) -> None:
    """Refuse tied weights: parameters are trained, sent and kept by name."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        if first != name:
            raise _refused(
                title,
                f"has one weight under two names, {first!r} and {name!r}: give each layer its own.",
            )


def _checked_vae(title: str, model: nn.Module, children: dict[str, nn.Module]) -> nn.Module:
    """Every parameter of an autoencoder is in one of its parts."""
    parts = ("encoder", "decoder", *(("classifier",) if "classifier" in children else ()))
    for parameter, _ in model.named_parameters():
        if parameter.split(".")[0] not in parts:
            raise _refused(
                title,
                f"has the parameter {parameter!r} outside {' and '.join(map(repr, parts))}: move "
                "it into one of them.",
            )
    if not isinstance(getattr(model, "latent", None), int):
        raise _refused(
            title,
            "has an encoder and a decoder, so it needs a whole number 'latent': how many means the "
            "encoder gives, before as many log-variances.",
        )
    return model


def _in_parts(title: str, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
    """The model as it is if it is a head on a body, else taken apart, else in one piece."""
    with _only_looked_at(model):
        x = noise(shape)
        try:
            answers = model(x)
        except Exception as first:
            x = torch.zeros(x.shape, dtype=torch.int64)  # tokens
            try:
                answers = model(x)
            except Exception:
                raise _refused(
                    title,
                    f"cannot take a batch of samples of shape {shape}: it raised "
                    f"{type(first).__name__}: {first}.",
                ) from first
        _check_answers(title, answers, classes)
        if _is_split(model, x, answers):
            return model
        return _at_last_layer(model, x, answers) or _cut(model, x, answers) or OnePiece(model)


def noise(shape: Shape) -> Tensor:
    """A batch from 0 to 1 that is always the same."""
    return torch.rand((PROBED, *shape), generator=torch.Generator().manual_seed(0))


@contextmanager
def _only_looked_at(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode, has no gradients, and nobody's noise is used up."""
    trains = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, mode in trains.items():
            module.training = mode


def _check_answers(title: str, answers: Any, classes: int) -> None:
    """Refuse what is no row of logits for each sample."""
    if not isinstance(answers, Tensor):
        raise _refused(
            title, f"answers with {type(answers).__name__}: it must be one tensor of logits."
        )
    if not answers.is_floating_point():
        raise _refused(title, f"answers with {answers.dtype}: logits must be float32.")
    if tuple(answers.shape) != (PROBED, classes):
        raise _refused(
            title,
            f"answers {PROBED} samples with a tensor of shape {list(answers.shape)}: it must be "
            f"[{PROBED}, {classes}], {classes} output{'s' if classes > 1 else ''} a sample.",
        )
    sums = answers.sum(dim=1)
    if classes > 1 and bool((answers >= 0).all()) and torch.allclose(sums, torch.ones_like(sums)):
        raise _refused(title, "answers with probabilities: leave its softmax out, for logits.")


def _is_split(model: nn.Module, x: Tensor, answers: Tensor) -> bool:
    """Whether it has a body and a head, nothing outside them, and is the one on the other."""
    children = dict(model.named_children())
    if not {"body", "head"} <= children.keys():
        return False
    named = (*model.named_parameters(), *model.named_buffers())
    if any(name.split(".")[0] not in ("body", "head") for name, _ in named):
        return False
    return _gives(children["body"], children["head"], x, answers)


def _gives(body: nn.Module, head: nn.Module, x: Tensor, answers: Tensor) -> bool:
    """Whether the head on the body gives these answers, to the bit."""
    try:
        return torch.equal(head(body(x)), answers)
    except Exception:  # a user's forward may look at the layer that was taken out
        return False


def _at_last_layer(model: nn.Module, x: Tensor, answers: Tensor) -> FoundHead | None:
    """The model taken apart at the linear layer whose output is its own, called once."""
    linear: dict[nn.Module, str] = {
        layer: name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)
    }
    called: list[tuple[nn.Module, Any]] = []
    hooks = [
        module.register_forward_hook(lambda layer, _, output: called.append((layer, output)))
        for module in linear
    ]
    try:
        given = model(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not called or called[-1][1] is not given or not torch.equal(given, answers):
        return None
    head = called[-1][0]
    if sum(layer is head for layer, _ in called) > 1:
        return None
    place = linear[head]
    if not place:
        return FoundHead(nn.Identity(), head, place)
    model.set_submodule(place, nn.Identity())
    if _gives(model, head, x, answers):
        return FoundHead(model, head, place)
    model.set_submodule(place, head)
    return None


def _cut(model: nn.Module, x: Tensor, answers: Tensor) -> FoundHead | None:
    """A sequence cut before its last layer with parameters, if that is linear or a convolution."""
    if type(model) is not nn.Sequential:
        return None
    held = [next(layer.parameters(), None) is not None for layer in model]
    last = max(number for number, has in enumerate(held) if has)
    layer = model[last]
    if not isinstance(layer, nn.Linear) and not is_convolution(layer):
        return None
    body, head = model[:last], model[last:]
    return FoundHead(body, head, None) if _gives(body, head, x, answers) else None
