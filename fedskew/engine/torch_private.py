"""Everything we use of torch that is not public API, in one place.

A new torch may change any of these without notice, so ``pyproject.toml`` bounds torch from above,
and no other module of the package uses a private name of torch (a test checks both).

``aten``, ``VIEWS``
    The operators a traced graph consists of, to recognise and insert. Nothing replaces them.
``convolution_backward``, ``layer_norm_backward``
    A layer's gradient in a form TorchScript can trace. Public instead: ``torch.nn.grad`` with one
    kernel for each gradient of a convolution, and plain operations.
``fused_sgd``, ``fused_adam``
    One optimiser step of a stack in a single kernel. Instead: plain tensor operations, several
    passes over memory.
``traced``
    A differentiated and batched function as plain operations. Instead: ``torch.export``, where it
    can follow ``torch.func``.
``scripted``
    A graph that runs without Python, so that worker threads do not wait for each other. Instead:
    ``torch.compile``, which takes seconds for each shape.
``attention_layer``
    The function behind ``nn.MultiheadAttention``, with other functions inside. Instead: a page of
    our own code for its many arguments.
``redraw_attention``
    Attention's own initial values. Instead: to write them down, and follow torch's.
``flatten``, ``unflatten``, ``leaves``, ``map_leaves``
    Nested dictionaries of tensors as flat lists and back. Instead: about a page of our own code.
``is_convolution``, ``is_batch_norm``, ``is_batch_or_instance_norm``, ``is_dropout``
    Layers by their common base class. Instead: lists of all public classes.
``quantisation``, ``PACKED_LINEAR``
    Models in int8. Instead: the package ``torchao``.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree

Tree = Any
Structure = _pytree.TreeSpec
Compiled = Callable[..., Any]

aten: Any = torch.ops.aten

VIEWS = (aten.view.default, aten._unsafe_view.default)
"""The operations that give a tensor another shape and rely on its layout in memory."""

PACKED_LINEAR = "._packed_params._packed_params"
"""The suffix of the state entry that holds an int8 linear layer's weight and bias."""


def fused_sgd(
    parameters: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    lr: Tensor,
    *,
    momentum: float,
    weight_decay: float,
) -> None:
    """One SGD step in place; momenta start at zero, or there are none."""
    # Momentum that starts at zero needs no special first step.
    aten._fused_sgd_.tensor_lr(
        parameters,
        gradients,
        momenta,
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def fused_adam(
    parameters: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    lr: Tensor,
    *,
    weight_decay: float,
) -> None:
    """One Adam step in place, from first and second moments; ``steps`` already count this one."""
    aten._fused_adam_.tensor_lr(
        parameters,
        gradients,
        first,
        second,
        [],
        steps,
        lr=lr,
        beta1=0.9,
        beta2=0.999,
        weight_decay=weight_decay,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def traced(function: Callable[..., Any], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """A function of tensors as a graph of plain operations, without ``torch.func`` and autograd."""
    # One set of shapes for the whole trace: by itself torch makes one for every operation, which
    # takes as long as all the rest.
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        return make_fx(function)(*inputs)


def scripted(graph: nn.Module, examples: Sequence[Tensor], as_written: bool = False) -> Compiled:
    """A graph as TorchScript, or as it is where an operation has no TorchScript form.

    TorchScript rewrites a graph after its first runs, and how many these are depends on the threads
    that begin at once. It joins products with what they are added to, so a recurrent layer, whose
    gradient is a sum of products, would be rounded otherwise from then on; ``as_written`` forbids
    it.
    """
    names = [f"input_{number}" for number in range(len(examples))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            recorded, _ = torch._C._create_graph_by_tracing(
                graph, tuple(examples), lambda tensor: "", True, False, None, names
            )
        except RuntimeError:
            return graph
    # A function of its own: what torch.jit.trace makes is kept by torch for as long as it lives.
    run: Compiled = torch._C._create_function_from_graph("forward", recorded)
    if not as_written:
        return run

    def run_as_written(*tensors: Tensor) -> Any:
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return run(*tensors)

    return run_as_written


def _backward(
    gradient: torch.Tensor,
    images: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    wanted: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    by_image, by_weight, by_bias = torch.ops.aten.convolution_backward(
        gradient,
        images,
        weight,
        bias_sizes,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        wanted,
    )
    # A gradient that is not wanted is None, which the tracer cannot represent.
    if not wanted[0]:
        by_image = gradient
    if not wanted[1]:
        by_weight = weight
    if not wanted[2]:
        by_bias = gradient
    # The optimiser's fused kernel reads memory in order: the layout must be the parameter's.
    return by_image, by_weight.contiguous(), by_bias


def _norm_backward(
    gradient: torch.Tensor,
    values: torch.Tensor,
    shape: list[int],
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    wanted: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    by_values, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
        gradient, values, shape, mean, scale, weight, bias, wanted
    )
    if not wanted[0]:
        by_values = gradient
    if not wanted[1]:
        by_weight = gradient
    if not wanted[2]:
        by_bias = gradient
    return by_values, by_weight, by_bias


@cache
def _scripted(function: Compiled) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(function)


def convolution_backward(*arguments: Any) -> Any:
    """A convolution's gradient by the library's kernel, in a form TorchScript can trace.

    The arguments are those of ``aten.convolution_backward``. Gradients that are not wanted are
    returned as an arbitrary other tensor.
    """
    return _scripted(_backward)(*arguments)


def layer_norm_backward(*arguments: Any) -> Any:
    """The same for ``aten.native_layer_norm_backward``."""
    return _scripted(_norm_backward)(*arguments)


def attention_layer(dropout: Compiled, attention: Compiled) -> Compiled:
    """``F.multi_head_attention_forward`` that calls these two functions in place of torch's."""
    original: Any = F.multi_head_attention_forward
    names = {
        **vars(F),
        "dropout": dropout,
        "scaled_dot_product_attention": attention,
        "has_torch_function": lambda _: False,  # it has been asked already
    }
    made = FunctionType(original.__code__, names, original.__name__, original.__defaults__)
    made.__kwdefaults__ = original.__kwdefaults__
    return made


def flatten(tree: Tree) -> tuple[list[Tensor], Structure]:
    """The tensors of a tree, and what ``unflatten`` needs to build it again."""
    return _pytree.tree_flatten(tree)


def unflatten(tensors: Sequence[Tensor], structure: Structure) -> Tree:
    return _pytree.tree_unflatten(tensors, structure)


def leaves(*trees: Tree) -> list[Tensor]:
    """All tensors of some trees, in the order a traced graph takes them."""
    return _pytree.tree_leaves(trees)


def map_leaves(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The tree with every tensor replaced by the function's value."""
    return _pytree.tree_map(function, tree)


def redraw_attention(layer: nn.MultiheadAttention) -> None:
    """Initialise an attention layer again, after the layer inside it."""
    layer._reset_parameters()


def is_convolution(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd)


def is_batch_norm(layer: nn.Module) -> TypeGuard[_BatchNorm]:
    return isinstance(layer, _BatchNorm)


def is_batch_or_instance_norm(layer: nn.Module) -> TypeGuard[_NormBase]:
    """Whether a layer normalises by means and variances it may keep running averages of."""
    return isinstance(layer, _NormBase)


def is_dropout(layer: nn.Module) -> TypeGuard[_DropoutNd]:
    """Whether a layer is one of torch's dropout layers, of single values or whole channels."""
    return isinstance(layer, _DropoutNd)


def traced_program(module: nn.Module, example: Tensor) -> Any:
    """What a module does with an example, as a program that needs none of its code."""
    return torch.jit.trace(module, (example,), check_trace=False)  # type: ignore[no-untyped-call]


def saved_program(program: Any, extra: dict[str, str]) -> bytes:
    """The bytes of a traced program, with texts of other files inside."""
    buffer = io.BytesIO()
    torch.jit.save(program, buffer, _extra_files=extra)
    return buffer.getvalue()


def loaded_program(content: bytes) -> Any:
    return torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]


def quantisation() -> tuple[Any, Any]:
    """``torch.ao.quantization`` and its ``quantize_fx``; an ``ImportError`` if there is none."""
    return (
        import_module("torch.ao.quantization"),
        import_module("torch.ao.quantization.quantize_fx"),
    )
