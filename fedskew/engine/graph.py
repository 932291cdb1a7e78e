"""Turns a step, written for one client, into a flat graph of operations that runs for a stack.

Differentiating and batching by ``torch.func`` cost more than the arithmetic of a small model, and
are not safe in several threads. So each step is traced once per shape into plain tensor
operations; the graph then runs without autograd, and as TorchScript (where it can be expressed)
without Python, so worker threads do not wait for each other.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fedskew.engine.descend import descend
from fedskew.engine.rewrite import rewrite
from fedskew.errors import ConfigError

Tree = Any
Step = Callable[..., list[Tensor]]
Run = Callable[..., Any]
Graphs = dict[Hashable, tuple[Run, frozenset[int]]]

Differentiated = Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]

_tracing = threading.Lock()
_plainly: ContextVar[bool] = ContextVar("differentiate plainly", default=False)


class TracedStep:
    """A function of trees of tensors, traced once for every shape it meets.

    With ``descends`` the first tree holds weights, the second a learning rate, and the function
    returns gradients first: a graph then moves by itself what it can (see ``descend``). Steps
    that are known to compute the same may share their ``graphs``.
    """

    def __init__(
        self, function: Step, descends: bool = False, graphs: Graphs | None = None
    ) -> None:
        self._function = function
        self._descends = descends
        self._graphs = {} if graphs is None else graphs

    def ready(
        self, key: Hashable, trees: Callable[[], tuple[Tree, ...]]
    ) -> tuple[Run, frozenset[int]]:
        """The graph for trees of these shapes, and which weights it moves by itself.

        The graph takes the trees' leaves, in order. ``key`` stands for all shapes there are, so
        that a loop need not look at them again; ``trees`` gives an example to trace.
        """
        if key not in self._graphs:
            with _tracing:
                if key not in self._graphs:
                    self._graphs[key] = self._trace(trees())
        return self._graphs[key]

    def _trace(self, trees: tuple[Tree, ...]) -> tuple[Run, frozenset[int]]:
        inputs, structure = pytree.tree_flatten(trees)

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(self._function(*pytree.tree_unflatten(list(tensors), structure)))

        graph = make_fx(flat)(*inputs)
        _refuse_hidden_randomness(graph)
        graph = rewrite(graph)
        moved = descend(graph, len(leaves(trees[0]))) if self._descends else frozenset()
        # Weights are written on; what repeats itself in memory is only read.
        return _scripted(graph, [t if 0 in t.stride() else t.clone() for t in inputs]), moved


class PlainStep:
    """The same function, called at every batch on the tensors themselves: nothing is traced."""

    def __init__(self, function: Step) -> None:
        self._function = function

    def ready(
        self, key: Hashable, trees: Callable[[], tuple[Tree, ...]]
    ) -> tuple[Run, frozenset[int]]:
        """What runs in a graph's place; it moves no weight by itself."""
        structure = pytree.tree_structure(trees())

        def run(*tensors: Tensor) -> list[Tensor]:
            before = torch.get_rng_state()
            token = _plainly.set(True)
            try:
                outputs = self._function(*pytree.tree_unflatten(list(tensors), structure))
            finally:
                _plainly.reset(token)
            if not torch.equal(before, torch.get_rng_state()):
                raise _hidden_randomness("from torch's global generator")
            return outputs

        return run, frozenset()


def differentiate(
    function: Differentiated, at: dict[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """The gradients, the value, and what else a function returns beside its value.

    By ``torch.func``, which can be batched and traced; in a plain step by autograd, so that the
    function meets tensors like any other and not the wrappers of ``torch.func``.
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
        single = function(*pytree.tree_map(lambda t: t[0], trees))
        return [t.unsqueeze(0) for t in single]

    return stacked


def leaves(*trees: Tree) -> list[Tensor]:
    """All tensors of some trees, in the order a ready graph takes them."""
    return pytree.tree_leaves(trees)


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


def _scripted(graph: nn.Module, examples: Sequence[Tensor]) -> Run:
    """The graph as TorchScript, or as it is where an operation has no TorchScript form."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trace: Any = torch.jit.trace
            scripted = trace(graph, tuple(examples), check_trace=False)
        except RuntimeError:
            return graph
    # The method itself: going through Module.__call__ costs as much as a few operations.
    run: Run = scripted._c._get_method("forward")
    return run
