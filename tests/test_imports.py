"""Who imports whom: arrows point one way, and nobody imports in a circle, lazily or not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fedskew

ROOT = Path(fedskew.__file__).parent
LAYERS = (
    ("errors", "types", "trust", "store", "config", "rng", "canvas", "problem"),
    ("registry",),
    ("data", "models", "engine"),
    ("parts",),
    ("federate",),
    ("methods",),
    ("runs",),
    ("comparisons",),
    ("diagnosis",),
    ("views",),
    ("deploy",),
    ("sites",),
    ("papers",),
    ("api",),
    ("cli",),
)
"""From the ground up: a module imports from its own layer and from those before it."""


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__").removesuffix("__init__")] = path
    return found


@cache
def imports(name: str) -> frozenset[str]:
    """The modules of the package that a module imports, those for type checkers left out."""
    return frozenset(_imports(modules()[name])) - {name}


def _imports(path: Path) -> Iterator[str]:
    known = modules()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names = [alias.name.removeprefix("fedskew.") for alias in node.names]
            yield from (name for name in names if name in known)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedskew"):
            inside = (node.module or "").removeprefix("fedskew").removeprefix(".")
            for alias in node.names:
                whole = f"{inside}.{alias.name}".removeprefix(".")
                yield whole if whole in known else inside


def layer(name: str) -> int | None:
    folder = name.partition(".")[0]
    return next((i for i, names in enumerate(LAYERS) if folder in names), None)


def test_every_module_has_a_layer() -> None:
    homeless = {name for name in modules() if layer(name) is None}
    assert homeless == {"", "__main__"}


def test_arrows_point_one_way() -> None:
    against = set()
    for name in modules():
        here = layer(name)
        for other in imports(name):
            there = layer(other)
            if here is not None and there is not None and there > here:
                against.add((name, other.partition(".")[0]))
    assert against == set()


def test_nobody_imports_in_a_circle() -> None:
    """Modules that reach each other, found by walking from each as far as imports go."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for other in imports(waiting.pop()):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return seen

    assert {name for name in modules() if name in reached(name)} == set()


def test_few_modules_stand_at_the_root() -> None:
    """``__main__`` has no choice."""
    at_root = {name for name in modules() if "." not in name and not (ROOT / name).is_dir()}
    at_root -= {"__main__"}
    assert len(at_root) <= 8
