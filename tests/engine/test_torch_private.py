"""Private names of torch stand in one module, do what it says, and torch lies in its range."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version
from torch import Tensor, nn

import fedskew
from fedskew.engine import torch_private
from fedskew.engine.torch_private import (
    PACKED_LINEAR,
    VIEWS,
    aten,
    convolution_backward,
    flatten,
    fused_adam,
    fused_sgd,
    is_batch_norm,
    is_batch_or_instance_norm,
    is_convolution,
    is_dropout,
    leaves,
    map_leaves,
    quantisation,
    scripted,
    traced,
    unflatten,
)

PACKAGE = Path(fedskew.__file__).parent
CHECKOUT = Path(__file__).parents[2]
HOME = Path(torch_private.__file__)
UNSTABLE = ("torch.ao", "torch.fx.experimental", "torch.jit", "torch.ops", "torch.quantization")
"""Parts of torch that look public and carry no promise, or are on their way out."""
HANDLES = {"_c", "_get_method", "_packed_params"}
"""Private attributes of torch's objects, wherever the object comes from."""


def private_names(code: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines that use a private or unstable name of torch, and the name."""
    known: dict[str, str] = {}
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                yield from _refused(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # What the one module lends is torch's own, with private names of its own.
            source = "torch" if node.module == "fedskew.engine.torch_private" else node.module
            for alias in node.names:
                known[alias.asname or alias.name] = f"{source}.{alias.name}"
                yield from _refused(node.lineno, f"{source}.{alias.name}")
    for node in ast.walk(code):
        if isinstance(node, ast.Attribute):
            if node.attr in HANDLES:
                yield node.lineno, node.attr
            root, _, rest = ast.unparse(node).partition(".")
            yield from _refused(node.lineno, f"{known.get(root, '')}.{rest}")
        elif isinstance(node, ast.Constant) and str(node.value).replace(".", "").isidentifier():
            yield from _refused(node.lineno, str(node.value))


def _refused(line: int, name: str) -> Iterator[tuple[int, str]]:
    parts = name.split(".")
    if parts[0] != "torch":
        return
    private = any(part.startswith("_") and not part.endswith("__") for part in parts)
    if private or any(f"{name}.".startswith(f"{unstable}.") for unstable in UNSTABLE):
        yield line, name


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_other_module_uses_private_names_of_torch(path: Path) -> None:
    found = sorted(set(private_names(ast.parse(path.read_text()))))
    assert bool(found) == (path == HOME), f"move {found} to {HOME.relative_to(CHECKOUT)}"


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch._C",
        "import torch\ntorch.ops.aten.add",
        "import torch.jit",
        "import torch as t\nt._foreach_add([], 1)",
        "from torch.utils import _pytree",
        "from torch.utils._pytree import tree_map",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "from torch import nn\nnn.modules.conv._ConvNd",
        "from torch import jit",
        "from fedskew.engine.torch_private import aten\naten._fused_sgd_",
        "import_module('torch.ao.quantization')",
        "module._c",
    ],
)
def test_the_search_finds_private_names(code: str) -> None:
    assert list(private_names(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.__version__",
        "import torch\ntorch.func.vmap(f)",
        "from torch import fx, nn\nnn.modules.conv.Conv2d",
        "self._c_of_mine",
        "from fedskew.engine.torch_private import aten\naten.mm.default",
    ],
)
def test_the_search_lets_public_names_be(code: str) -> None:
    assert list(private_names(ast.parse(code))) == []


def test_torch_lies_in_the_declared_range() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    needs = [Requirement(line) for line in project["dependencies"]]
    (allowed,) = [need.specifier for need in needs if need.name == "torch"]
    pins = (CHECKOUT / "constraints.txt").read_text().splitlines()
    (pinned,) = [line for line in pins if line.startswith("torch==")]
    assert {clause.operator for clause in allowed} == {">=", "<"}
    assert pinned.removeprefix("torch==") in allowed
    installed = Version(torch.__version__).public
    assert installed in allowed, (
        f"torch {installed} is outside {allowed}, where the private names the engine uses are "
        f"known to work: install {pinned}, or run this file against {installed} and move the bound"
    )


def test_sgd_adds_decay_to_the_gradient_and_gradients_to_the_momentum() -> None:
    """g = 1 + 0.5·2 = 2, m = 0.9·10 + 2 = 11, w = 2 - 0.1·11 = 0.9."""
    weight, momentum = torch.tensor([2.0]), torch.tensor([10.0])
    lr = torch.tensor(0.1, dtype=torch.float64)
    fused_sgd([weight], [torch.tensor([1.0])], [momentum], lr, momentum=0.9, weight_decay=0.5)
    assert momentum.item() == pytest.approx(11)
    assert weight.item() == pytest.approx(0.9)


def test_sgd_without_momentum_subtracts_the_gradient() -> None:
    weight = torch.tensor([2.0, 3.0])
    lr = torch.tensor(0.5, dtype=torch.float64)
    fused_sgd([weight], [torch.tensor([1.0, -4.0])], [], lr, momentum=0.0, weight_decay=0.0)
    assert weight.tolist() == [1.5, 5.0]


def test_the_first_step_of_adam_is_as_long_as_the_learning_rate() -> None:
    """m̂ = g and v̂ = g² after one step, so w moves by lr·g/|g|; m = 0.1·g, v = 0.001·g²."""
    weight, first, second = torch.tensor([1.0]), torch.zeros(1), torch.zeros(1)
    lr = torch.tensor(0.01, dtype=torch.float64)
    gradient, steps = torch.tensor([-4.0]), torch.tensor(1.0)
    fused_adam([weight], [gradient], [first], [second], [steps], lr, weight_decay=0.0)
    assert weight.item() == pytest.approx(1.01)
    assert first.item() == pytest.approx(-0.4)
    assert second.item() == pytest.approx(0.016)


def test_a_traced_derivative_is_a_graph_of_plain_operations() -> None:
    cube = torch.func.vmap(torch.func.grad(lambda x: x**3))
    graph = traced(cube, [torch.tensor([1.0, 2.0])])
    assert graph(torch.tensor([2.0, 3.0])).tolist() == [12.0, 27.0]
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert called
    assert all(str(target).startswith("aten.") for target in called)


def test_operators_are_found_in_traced_graphs_by_name() -> None:
    graph = traced(lambda a, b: (a @ b).view(4), [torch.ones(2, 2), torch.ones(2, 2)])
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets[0] is aten.mm.default
    assert targets[1] in VIEWS


def test_a_scripted_graph_runs_outside_of_python_modules() -> None:
    run = scripted(traced(lambda x: x * 2 + 1, [torch.ones(3)]), [torch.ones(3)])
    assert run(torch.tensor([1.0, 2.0, 3.0])).tolist() == [3.0, 5.0, 7.0]
    assert not isinstance(run, nn.Module)


def test_what_cannot_be_scripted_is_left_as_it_is() -> None:
    class Stubborn(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.jit.is_tracing():
                raise RuntimeError("not in TorchScript")
            return x + 1

    module = Stubborn()
    assert scripted(module, [torch.ones(1)]) is module


def test_gradients_of_a_convolution_agree_with_autograd_and_unwanted_ones_are_some_tensor() -> None:
    images = torch.arange(16.0).reshape(1, 1, 4, 4).requires_grad_()
    weight = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    out = nn.functional.conv2d(images, weight, bias)
    ones = torch.ones_like(out)
    expected = torch.autograd.grad(out, (images, weight, bias), ones)
    rest = ([1], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    data = (images.detach(), weight.detach())
    found = convolution_backward(ones, *data, *rest, [True, True, True])
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    # Every bias gradient counts the nine places of the output.
    assert found[2].item() == 9
    some = convolution_backward(ones, *data, *rest, [False, True, False])
    assert torch.equal(some[1], expected[1])
    assert all(isinstance(tensor, Tensor) for tensor in some)


def test_trees_are_taken_apart_and_built_again() -> None:
    one, two, three = (torch.tensor(float(i)) for i in (1, 2, 3))
    tree = {"b": (one, two), "a": {"c": three}}
    flat, structure = flatten(tree)
    assert [id(t) for t in flat] == [id(t) for t in leaves(tree)]
    assert unflatten(flat, structure) == tree
    assert {t.item() for t in leaves(tree, one)} == {1.0, 2.0, 3.0}
    assert len(leaves(tree, one)) == 4
    doubled = map_leaves(lambda t: 2 * t, tree)
    assert [t.item() for t in leaves(doubled)] == [2 * t.item() for t in flat]


@pytest.mark.parametrize(
    ("layer", "kinds"),
    [
        (nn.Conv1d(1, 1, 1), {is_convolution}),
        (nn.ConvTranspose2d(1, 1, 1), {is_convolution}),
        (nn.BatchNorm2d(1), {is_batch_norm, is_batch_or_instance_norm}),
        (nn.SyncBatchNorm(1), {is_batch_norm, is_batch_or_instance_norm}),
        (nn.InstanceNorm1d(1), {is_batch_or_instance_norm}),
        (nn.Dropout(), {is_dropout}),
        (nn.Dropout2d(), {is_dropout}),
        (nn.GroupNorm(1, 1), set()),
        (nn.Linear(1, 1), set()),
    ],
)
def test_layers_are_told_apart(layer: nn.Module, kinds: set[object]) -> None:
    tests = (is_convolution, is_batch_norm, is_batch_or_instance_norm, is_dropout)
    assert {test for test in tests if test(layer)} == kinds


@pytest.mark.filterwarnings("ignore")
def test_a_linear_layer_in_int8_packs_weight_and_bias() -> None:
    quantization, quantize_fx = quantisation()
    assert callable(quantize_fx.prepare_fx)
    assert callable(quantize_fx.convert_fx)
    model = nn.Sequential(nn.Linear(2, 1))
    small = quantization.quantize_dynamic(model, {nn.Linear})
    weight, bias = small.state_dict()[f"0{PACKED_LINEAR}"]
    assert torch.allclose(weight.dequantize(), model[0].weight, atol=0.01)
    assert torch.equal(bias, model[0].bias)
