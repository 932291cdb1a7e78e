"""Swaps two slow CPU kernels in a traced step for faster ones that compute the same numbers.

Both are far from the machine's speed in the layout that convolutions give them, and together cost
a third of a small CNN's step: max pooling of contiguous images (vectorised only when channels
come last), and the gradient of a first layer's few filter weights (better as one product).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

MOST_PATCH_VALUES = 128
"""Input channels × kernel area up to which unrolling the patches beats the library's kernel."""


def rewrite(graph: fx.GraphModule) -> fx.GraphModule:
    for node in list(graph.graph.nodes):
        if node.target is aten.max_pool2d_with_indices.default:
            _pool_channels_last(graph.graph, node)
        elif node.target is aten.convolution_backward.default:
            _few_weights_by_product(graph.graph, node)
        elif node.target in (aten.view.default, aten._unsafe_view.default):
            # Traced for the old layout; a reshape also takes tensors whose channels come last.
            node.target = aten.reshape.default
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _pool_channels_last(graph: fx.Graph, node: fx.Node) -> None:
    images = node.args[0]
    assert isinstance(images, fx.Node)
    if _shape(images) is None or len(_shape(images)) != 4:
        return
    with graph.inserting_before(node):
        last = graph.call_function(
            aten.clone.default, (images,), {"memory_format": torch.channels_last}
        )
    last.meta.update(images.meta)
    for user in list(images.users):
        backward = user.target is aten.max_pool2d_with_indices_backward.default
        if user is node or (backward and _uses_indices_of(user, node)):
            user.replace_input_with(images, last)


def _uses_indices_of(backward: fx.Node, pool: fx.Node) -> bool:
    indices = backward.args[-1]
    return isinstance(indices, fx.Node) and indices.args[0] is pool


def _few_weights_by_product(graph: fx.Graph, node: fx.Node) -> None:
    """∂w of a plain convolution, where ∂x is not wanted: one product of gradient and patches."""
    gradient, images, weight, _, stride, padding, dilation, transposed, _, groups, wanted = (
        node.args
    )
    gradient_shape, image_shape, weight_shape = map(_shape, (gradient, images, weight))
    if gradient_shape is None or image_shape is None or weight_shape is None:
        return
    plain = list(_ints(stride)) == [1, 1] and list(_ints(dilation)) == [1, 1] and groups == 1
    unpadded = list(_ints(padding)) == [0, 0] and not transposed and len(weight_shape) == 4
    filters, channels, high, wide = weight_shape if len(weight_shape) == 4 else (0, 0, 0, 0)
    if not (plain and unpadded) or _bools(wanted)[0]:
        return
    if channels * high * wide > MOST_PATCH_VALUES:
        return
    batch, _, rows, columns = gradient_shape
    image_columns = image_shape[3]
    plane = image_shape[2] * image_columns
    with graph.inserting_before(node):
        held = graph.call_function(aten.contiguous.default, (images,))
        patches = graph.call_function(
            aten.as_strided.default,
            (
                held,
                [batch, channels, high, wide, rows, columns],
                [channels * plane, plane, image_columns, 1, image_columns, 1],
            ),
        )
        flat = graph.call_function(
            aten.reshape.default, (patches, [batch, channels * high * wide, rows * columns])
        )
        turned = graph.call_function(aten.transpose.int, (flat, 1, 2))
        outer = graph.call_function(
            aten.reshape.default, (gradient, [batch, filters, rows * columns])
        )
        products = graph.call_function(aten.bmm.default, (outer, turned))
        summed = graph.call_function(aten.sum.dim_IntList, (products, [0]))
        by_weight = graph.call_function(aten.reshape.default, (summed, list(weight_shape)))
        by_bias = graph.call_function(aten.sum.dim_IntList, (outer, [0, 2]))
    for user in list(node.users):
        place = user.args[1]
        if place in (1, 2):
            user.replace_all_uses_with(by_weight if place == 1 else by_bias)


def _shape(node: Any) -> list[int]:
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    return None if value is None else [int(size) for size in value.shape]  # type: ignore[return-value]


def _ints(value: Any) -> list[int]:
    return [int(v) for v in value]


def _bools(value: Any) -> list[bool]:
    return [bool(v) for v in value]
