"""Swaps two slow CPU kernels in a traced step for faster ones that compute the same numbers.

Both are slow in the memory layout that convolutions give them, and together take a third of a small
CNN's step: max pooling of contiguous images (vectorised only when channels
come last), and the gradient of a first layer's few filter weights (better as one product).
"""

from typing import Any

import torch
from torch import fx

from fedskew.engine.torch_private import VIEWS, aten, convolution_backward, layer_norm_backward

MOST_PATCH_VALUES = 128
"""Input channels × kernel area up to which unrolling the patches beats the library's kernel."""


def rewrite(graph: fx.GraphModule) -> fx.GraphModule:
    for node in list(graph.graph.nodes):
        if node.target is aten.max_pool2d_with_indices.default:
            _pool_channels_last(graph.graph, node)
        elif node.target is aten.convolution_backward.default:
            if not _few_weights_by_product(graph.graph, node):
                node.target = convolution_backward
        elif node.target is aten.native_layer_norm_backward.default:
            node.target = layer_norm_backward
        elif node.target in VIEWS:
            # Traced for the old layout; a reshape also accepts tensors whose channels come last.
            node.target = aten.reshape.default
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def sums_products(graph: fx.GraphModule) -> bool:
    """Whether a weight is used several times, so that its gradient is a sum of products."""
    return any(
        node.target is aten.add.Tensor and all(map(_is_product, node.args[:2]))
        for node in graph.graph.nodes
    )


def _is_product(node: Any) -> bool:
    """Whether a term is a product of matrices, turned or not."""
    while isinstance(node, fx.Node) and node.target is aten.t.default:
        node = node.args[0]
    return isinstance(node, fx.Node) and node.target is aten.mm.default


def _pool_channels_last(graph: fx.Graph, node: fx.Node) -> None:
    images = node.args[0]
    assert isinstance(images, fx.Node)
    shape = shape_of(images)
    if shape is None or len(shape) != 4:
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
            if backward:
                _back_in_order(graph, user)


def _back_in_order(graph: fx.Graph, gradient: fx.Node) -> None:
    """Give a pooling gradient the layout of its other operands: mixed layouts are the slowest.

    A convolution accepts channels last as they are, so only its input keeps that layout.
    """
    others = [u for u in gradient.users if u.target is not aten.convolution_backward.default]
    if not others:
        return
    with graph.inserting_after(gradient):
        ordered = graph.call_function(
            aten.clone.default, (gradient,), {"memory_format": torch.contiguous_format}
        )
    ordered.meta.update(gradient.meta)
    for user in others:
        user.replace_input_with(gradient, ordered)


def _uses_indices_of(backward: fx.Node, pool: fx.Node) -> bool:
    indices = backward.args[-1]
    return isinstance(indices, fx.Node) and indices.args[0] is pool


def _few_weights_by_product(graph: fx.Graph, node: fx.Node) -> bool:
    """∂w of a plain convolution whose ∂x is not needed: one product of gradient and patches.

    Returns whether it applied.
    """
    args: Any = node.args
    gradient, images, weight, _, stride, padding, dilation, transposed, _, groups, wanted = args
    shapes = [shape_of(gradient), shape_of(images), shape_of(weight)]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return False
    gradient_shape, image_shape, weight_shape = shapes
    filters, channels, high, wide = weight_shape
    plain = [*stride, *dilation, *padding, groups] == [1, 1, 1, 1, 0, 0, 1] and not transposed
    if not plain or wanted[0] or channels * high * wide > MOST_PATCH_VALUES:
        return False
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
    return True


def shape_of(node: Any) -> Any:
    """The traced shape of a node's tensor, or None if it has none."""
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    return None if value is None else [int(size) for size in value.shape]
