"""Turns a step, written for one client, into a flat graph of operations that runs for a stack.

Differentiating and batching by ``torch.func`` cost more than the arithmetic of a small model, and
are not safe in several threads. So each step is traced once per shape into plain tensor
operations; the graph then runs without autograd, and as TorchScript (where it can be expressed)
without Python, so worker threads do not wait for each other.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from fedskew.engine.descend import descend
from fedskew.engine.layers import OwnFunctions
from fedskew.engine.rewrite import rewrite, sums_products
from fedskew.engine.torch_private import (
    Compiled,
    Tree,
    flatten,
    leaves,
    map_leaves,
    scripted,
    traced,
    unflatten,
)
from fedskew.errors import ConfigError

Step = Callable[..., list[Tensor]]
Graphs = dict[Hashable, tuple[Compiled, frozenset[int]]]

Differentiated = Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]

_tracing = threading.Lock()
_plainly: ContextVar[bool] = ContextVar("differentiate plainly", default=False)


class TracedStep:
    """A function of trees of tensors, traced once for every shape it meets.

    With ``descends`` the first tree holds weights, the second a learning rate, and the function
    returns gradients first: the graph then updates what weights it can itself (see ``descend``).
    Steps that are known to compute the same may share their ``graphs``.
    """

    def __init__(
        self, function: Step, descends: bool = False, graphs: Graphs | None = None
    ) -> None:
        self._function = function
        self._descends = descends
        self._graphs = {} if graphs is None else graphs

    def ready(
        self, key: Hashable, trees: Callable[[], tuple[Tree, ...]]
    ) -> tuple[Compiled, frozenset[int]]:
        """The graph for trees of these shapes, and which weights it updates itself.

        The graph takes the trees' leaves, in order. ``key`` identifies all their shapes, so that a
        loop need not look at them again; ``trees`` gives an example to trace.
        """
        if key not in self._graphs:
            with _tracing:
                if key not in self._graphs:
                    self._graphs[key] = self._trace(trees())
        return self._graphs[key]

    def _trace(self, trees: tuple[Tree, ...]) -> tuple[Compiled, frozenset[int]]:
        inputs, structure = flatten(trees)

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(self._function(*unflatten(list(tensors), structure)))

        with _no_hidden_randomness(), OwnFunctions():
            graph = traced(flat, inputs)
            _refuse_hidden_randomness(graph)
        graph = rewrite(graph)
        moved = descend(graph, len(leaves(trees[0]))) if self._descends else frozenset()
        # Weights are written in place; expanded tensors are only read.
        examples = [t if 0 in t.stride() else t.clone() for t in inputs]
        return scripted(graph, examples, as_written=sums_products(graph)), moved


class PlainStep:
    """The same function, called directly on the tensors of every batch: nothing is traced."""

    def __init__(self, function: Step) -> None:
        self._function = function

    def ready(
        self, key: Hashable, trees: Callable[[], tuple[Tree, ...]]
    ) -> tuple[Compiled, frozenset[int]]:
        """The function that replaces a graph; it updates no weights itself."""
        _, structure = flatten(trees())

        def run(*tensors: Tensor) -> list[Tensor]:
            token = _plainly.set(True)
            try:
                with _no_hidden_randomness(), OwnFunctions():
                    return self._function(*unflatten(list(tensors), structure))
            finally:
                _plainly.reset(token)

        return run, frozenset()


def differentiate(
    function: Differentiated, at: dict[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """The gradients, the value, and whatever else a function returns beside its value.

    Uses ``torch.func``, which can be batched and traced; a plain step uses autograd, so that the
    function sees ordinary tensors and not the wrappers of ``torch.func``.
    """
    if not _plainly.get() or any(torch.func.debug_unwrap(t) is not t for t in at.values()):
        gradients, (value, rest) = torch.func.grad_and_value(function, has_aux=True)(at)
        return gradients, value, rest
    leaf = {name: t.detach().requires_grad_() for name, t in at.items()}
    with torch.enable_grad():
        value, rest = function(leaf)
    if value.requires_grad:
        found = torch.autograd.grad(value, list(leaf.values()), materialize_grads=True)
    else:
        found = tuple(torch.zeros_like(t) for t in at.values())
    rest = {name: t.detach() for name, t in rest.items()}
    return dict(zip(leaf, found, strict=True)), value.detach(), rest


def for_each_client(function: Step) -> Step:
    """Let a function written for one client work on stacks of clients.

    A stack of one runs the function as it is; larger ones run it under vmap.
    """

    def stacked(*trees: Tree) -> list[Tensor]:
        if len(leaves(*trees)[0]) > 1:
            many: list[Tensor] = torch.func.vmap(function)(*trees)
            return many
        single = function(*map_leaves(lambda t: t[0], trees))
        return [t.unsqueeze(0) for t in single]

    return stacked


@contextmanager
def _no_hidden_randomness() -> Iterator[None]:
    """Refuse code that draws from a generator that all code shares.

    A graph would repeat for ever what numpy or Python drew while it was traced.
    """
    before = _shared_generators()
    yield
    for library, state in _shared_generators().items():
        if state != before[library]:
            raise _hidden_randomness(f"from {library}'s global generator")


def _shared_generators() -> dict[str, Any]:
    _, words, place, *_ = np.random.get_state()  # noqa: NPY002 (a user's code may draw from it)
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (np.asarray(words).tobytes(), place),
        "Python": random.getstate(),
    }


def _refuse_hidden_randomness(graph: fx.GraphModule) -> None:
    """Draws from torch's global generator would depend on the number of threads."""
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise _hidden_randomness(node.target)


def _hidden_randomness(source: object) -> ConfigError:
    return ConfigError(
        f"the model or objective draws random numbers by itself ({source}); "
        "ask for them through Objective.noise, so that runs can be repeated"
    )
