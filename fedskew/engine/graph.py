"""Turns one training step, written for one client, into a flat graph that runs for a stack.

Differentiating and batching by ``torch.func`` cost more than the arithmetic of a small model, and
are not safe in several threads. So each step is traced once per shape into plain tensor
operations; the graph then runs without autograd, and as TorchScript (where it can be expressed)
without Python, so worker threads do not wait for each other.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fedskew.engine.rewrite import rewrite
from fedskew.errors import ConfigError

Tree = Any
Step = Callable[..., list[Tensor]]
Run = Callable[..., Sequence[Tensor]]

_tracing = threading.Lock()


class CompiledStep:
    """A function of trees of tensors, traced once for every shape it meets.

    ``function`` is written for a single client and returns a list of tensors; a stack of one runs
    it as it is and larger stacks run it under vmap, so its author never sees the client axis.
    """

    def __init__(self, function: Step) -> None:
        self._function = function
        self._graphs: dict[Any, Run] = {}

    def ready(self, *trees: Tree) -> Run:
        """The graph for stacked trees of these shapes.

        It takes the trees' leaves in order: a loop that calls it often need not walk the trees
        again and again.
        """
        inputs, spec = pytree.tree_flatten(trees)
        key = (spec, tuple((t.shape, t.dtype) for t in inputs))
        if key not in self._graphs:
            with _tracing:
                if key not in self._graphs:
                    self._graphs[key] = self._trace(inputs, spec)
        return self._graphs[key]

    def __call__(self, *trees: Tree) -> Sequence[Tensor]:
        return self.ready(*trees)(*leaves(*trees))

    def _trace(self, inputs: list[Tensor], spec: Any) -> Run:
        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            stacked = pytree.tree_unflatten(list(tensors), spec)
            if len(tensors[0]) > 1:
                return tuple(torch.func.vmap(self._function)(*stacked))
            single = self._function(*pytree.tree_map(lambda t: t[0], stacked))
            return tuple(t.unsqueeze(0) for t in single)

        # Tracing on copies: an in-place buffer update must not touch the caller's tensors.
        examples = [t.clone() for t in inputs]
        graph = make_fx(flat)(*examples)
        _refuse_hidden_randomness(graph)
        return _scripted(rewrite(graph), examples)


def leaves(*trees: Tree) -> list[Tensor]:
    """All tensors of some trees, in the order a ready graph takes them."""
    return pytree.tree_leaves(trees)


def _refuse_hidden_randomness(graph: fx.GraphModule) -> None:
    """Draws from torch's global generator would depend on the number of threads."""
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise ConfigError(
                f"the model or objective draws random numbers by itself ({node.target}); "
                "ask for them through Objective.noise, so that runs can be repeated"
            )


def _scripted(graph: nn.Module, examples: list[Tensor]) -> Run:
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
