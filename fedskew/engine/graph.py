"""Turns one training step, written for one client, into a flat graph that runs for a stack.

Differentiating and batching by ``torch.func`` cost more than the arithmetic of a small model, and
are not safe in several threads. So each step is traced once per shape into plain tensor
operations; the graph then runs without autograd, and as TorchScript (where it can be expressed)
without Python, so worker threads do not wait for each other.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

Tree = Any
Step = Callable[..., Tree]

_tracing = threading.Lock()


class CompiledStep:
    """A function of stacked trees of tensors, traced once for every shape it meets.

    ``function`` is written for a single client; a stack of one runs it as it is and larger stacks
    run it under vmap, so its author never sees the leading client axis.
    """

    def __init__(self, function: Step) -> None:
        self._function = function
        self._graphs: dict[Any, tuple[Callable[..., Any], list[Any]]] = {}

    def __call__(self, *trees: Tree) -> Tree:
        inputs, spec = pytree.tree_flatten(trees)
        key = (spec, tuple((t.shape, t.dtype) for t in inputs))
        if key not in self._graphs:
            with _tracing:
                if key not in self._graphs:
                    self._graphs[key] = self._trace(inputs, spec)
        run, out_spec = self._graphs[key]
        return pytree.tree_unflatten(run(*inputs), out_spec[0])

    def _trace(self, inputs: list[Tensor], spec: Any) -> tuple[Callable[..., Any], list[Any]]:
        out_spec: list[Any] = []

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            stacked = pytree.tree_unflatten(list(tensors), spec)
            if len(tensors[0]) == 1:
                result = self._function(*pytree.tree_map(lambda t: t[0], stacked))
                result = pytree.tree_map(lambda t: t.unsqueeze(0), result)
            else:
                result = torch.func.vmap(self._function)(*stacked)
            outputs, found = pytree.tree_flatten(result)
            out_spec[:] = [found]
            return tuple(outputs)

        # Tracing on copies: an in-place buffer update must not touch the caller's tensors.
        examples = [t.clone() for t in inputs]
        graph = make_fx(flat)(*examples)
        return _scripted(graph, examples), out_spec


def _scripted(graph: nn.Module, examples: list[Tensor]) -> Callable[..., Any]:
    """The graph as TorchScript, or as it is where an operation has no TorchScript form."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trace: Any = torch.jit.trace
            scripted: Callable[..., Any] = trace(graph, tuple(examples), check_trace=False)
            return scripted
        except RuntimeError:
            return graph
