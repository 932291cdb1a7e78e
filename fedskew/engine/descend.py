"""Moves weights inside a traced step where a plain SGD step is one more matrix product.

A linear layer's gradient is a product of two thin matrices, as long as the batch is small. Writing
it to memory, reading it again and subtracting it costs three passes over a matrix as large as the
weights; adding the product to the weights costs one, and the weights stay in the core's cache.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from fedskew.engine.rewrite import shape_of
from fedskew.engine.torch_private import aten


def descend(graph: fx.GraphModule, parameters: int) -> frozenset[int]:
    """Let the graph take w ← w - lr·A·B itself for every gradient that is a product A·B.

    The first ``parameters`` inputs are the weights, the next one is the learning rate, and the
    first outputs are the gradients in the same order. Returns which weights the graph now
    updates itself; their output is the updated weight.
    """
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.graph.nodes if node.op == "output")
    results = list(output.args[0])
    moved = set()
    with graph.graph.inserting_before(output):
        minus = graph.graph.call_function(aten.neg.default, (inputs[parameters],))
        for i in range(parameters):
            product = _product(results[i])
            if product is None or len(shape_of(inputs[i])) != 3:
                continue
            left, right, stacked = product
            step = graph.graph.call_function(aten.mul.Tensor, (left, minus))
            if stacked:
                add, weight = aten.baddbmm_.default, inputs[i]
            else:
                add = aten.addmm_.default
                weight = graph.graph.call_function(aten.select.int, (inputs[i], 0, 0))
            results[i] = graph.graph.call_function(add, (weight, step, right))
            moved.add(i)
    output.args = (tuple(results),)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return frozenset(moved)


def _product(node: Any) -> tuple[fx.Node, fx.Node, bool] | None:
    """The two factors behind a gradient, seen through transposes that cancel out.

    The flag says whether they are stacks of matrices (one per client) or single ones.
    """
    flips = 0
    while True:
        rank = len(shape_of(node) or ())
        if node.target in (aten.t.default, aten.transpose.int):
            flipped = {dimension % rank for dimension in node.args[1:]} or {0, 1}
            if flipped != {rank - 2, rank - 1}:
                return None
            flips += 1
        elif node.target is aten.reshape.default:
            if shape_of(node) != shape_of(node.args[0]):
                return None
        elif node.target is not aten.unsqueeze.default or node.args[1] != 0:
            break
        node = node.args[0]
    if flips % 2 or node.target not in (aten.mm.default, aten.bmm.default):
        return None
    left, right = node.args
    return left, right, node.target is aten.bmm.default
