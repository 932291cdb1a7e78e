"""Outside methods/ and parts/ nobody knows a method by its name or a part by its type.

Whoever needs to know something about a method asks its recipe, its parts or its card. Where a word
that is also a method's name means something else, it stands in ``OTHER_MEANINGS`` with the reason.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import fedskew
from fedskew.methods import METHODS
from fedskew.parts.aggregate import Aggregator, Weighting
from fedskew.parts.augment import Augmentation
from fedskew.parts.begin import Begin
from fedskew.parts.correct import Correction
from fedskew.parts.distil import Invention
from fedskew.parts.finding import Finding
from fedskew.parts.objective import Objective
from fedskew.parts.packing import Packing
from fedskew.parts.report import Report
from fedskew.parts.step import Step

ROOT = Path(fedskew.__file__).parent
INSIDE = ("methods", "parts")
MODULES = sorted(
    str(path.relative_to(ROOT))
    for path in ROOT.rglob("*.py")
    if path.relative_to(ROOT).parts[0] not in INSIDE
)
PARTS = (
    Aggregator, Augmentation, Begin, Correction, Finding, Invention, Objective, Packing, Report,
    Step, Weighting,
)  # fmt: skip
FIELDS = {"objective", "aggregates", "begins", "steps", "reports", "corrects", "invents", "packs"}
"""Fields of recipes and phases that hold parts."""
BASES = {
    "aggregate", "augment", "begin", "correct", "distil", "finding", "losses", "measures",
    "metrics", "objective", "packing", "report", "scores", "select", "step",
}  # fmt: skip
"""Modules of parts that hold what every method is made of, not what some are."""

ON = "what a row was scored on"
STATE = "a client's own state in a run folder"
OTHER_MEANINGS = {
    ("config.py", "fedavg"): "the default method, the only name the package chooses for a user",
    ("models/made.py", "made"): "the name of a model",
    ("runs/finish.py", "central"): ON,
    ("runs/checkpoint.py", "private"): STATE,
    ("views/images.py", "compressed"): "pictures sent through a VAE",
    ("views/standings.py", "central"): ON,
    ("views/terminal.py", "central"): ON,
    ("comparisons/selection.py", "central"): ON,
    ("federate/rows.py", "central"): ON,
    ("trust/names.py", "central"): ON,
    ("sites/trial.py", "central"): ON,
    ("federate/backends/ray.py", "local"): "Ray's word for a cluster on this machine",
    ("papers/figure.py", "central"): "a score of a suite",
    ("papers/measure.py", "central"): ON,
    ("papers/reading.py", "central"): ON,
    ("papers/scores.py", "central"): "a score of a suite",
    ("papers/tables.py", "central"): "a score of a suite",
}
DECODERS = "draws from decoders, of whatever method"
IMPORTS = {
    ("diagnosis/privacy.py", "accounting"): "asks the accountant for an epsilon, of no method",
    ("federate/privacy.py", "accounting"): "counts what any method tells of a client",
    ("deploy/generate.py", "generative"): DECODERS,
    ("views/encodings.py", "generative"): "measures codes of encoders, of whatever method",
    ("views/generative.py", "generative"): DECODERS,
    ("views/images.py", "generative"): DECODERS,
    ("papers/generative_figures.py", "generative"): DECODERS,
    ("federate/together.py", "generative"): DECODERS,
}
"""Who imports a module of parts that only some methods are made of."""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text())


def words(code: ast.Module) -> Iterator[ast.Constant]:
    """String constants that are no docstrings."""
    said = {id(node.value) for node in ast.walk(code) if isinstance(node, ast.Expr)}
    for node in ast.walk(code):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node


def named(code: ast.Module) -> dict[str, int]:
    """Methods that a module names, and a line where it does."""
    known = METHODS
    return {str(node.value): node.lineno for node in words(code) if node.value in known}


def imported(code: ast.Module) -> Iterator[tuple[str, str, str]]:
    """The module of parts, what is taken from it, and what it is called here."""
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, part = node.module.rpartition(".")
            for name in node.names:
                if package == "fedskew.parts":
                    yield part, name.name, name.asname or name.name
                elif node.module == "fedskew.parts":
                    yield name.name, "", name.asname or name.name
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("fedskew.parts."):
                    yield name.name.removeprefix("fedskew.parts."), "", name.asname or name.name


def part_types(code: ast.Module) -> set[str]:
    """What classes of parts are called in a module."""
    found = set()
    for module, name, alias in imported(code):
        value = getattr(import_module(f"fedskew.parts.{module}"), name, None)
        if inspect.isclass(value) and issubclass(value, PARTS):
            found.add(alias)
    return found


def mentions(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression contains one of these names, or an attribute of that name."""
    return any(
        (isinstance(inner, ast.Name) and inner.id in names)
        or (isinstance(inner, ast.Attribute) and inner.attr in names)
        for inner in ast.walk(node)
    )


def called(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def type_tests(code: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines that test which class a part is of, or look at what it happens to have."""
    types = part_types(code)
    for node in ast.walk(code):
        here = ""
        if called(node, "isinstance", "issubclass") or isinstance(node, ast.MatchClass):
            here = "tests a part's type" if mentions(node, types) else ""
        elif called(node, "hasattr", "getattr", "type"):
            subject = node.args[0]
            here = "looks into a part" if mentions(subject, FIELDS) else ""
        elif isinstance(node, ast.Compare):
            here = "compares with a part's type" if mentions(node, types) else ""
        if here:
            yield node.lineno, here


@pytest.mark.parametrize("module", MODULES)
def test_no_module_names_a_method(module: str) -> None:
    found = {
        w: line for w, line in named(tree(module)).items() if (module, w) not in OTHER_MEANINGS
    }
    assert found == {}, "ask the recipe or the card, or say in OTHER_MEANINGS what the word means"


@pytest.mark.parametrize("module", MODULES)
def test_no_module_tests_the_type_of_a_part(module: str) -> None:
    assert list(type_tests(tree(module))) == []


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_the_bases_of_parts_only(module: str) -> None:
    found = {part for part, _, _ in imported(tree(module))} - BASES
    assert {part for part in found if (module, part) not in IMPORTS} == set()


def test_nothing_is_excused_that_needs_no_excuse() -> None:
    used = {(module, word) for module in MODULES for word in named(tree(module))}
    assert OTHER_MEANINGS.keys() - used == set()
    taken = {(module, part) for module in MODULES for part, _, _ in imported(tree(module))}
    assert IMPORTS.keys() - taken == set()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('"""fedavg"""\nx = "fedavg"', {"fedavg": 2}),
        ('def f():\n    "scaffold"\n    return f(name="vae")', {"vae": 3}),
        ('x = {"local": 1}["centre"]', {"local": 1}),
    ],
)
def test_the_search_finds_names_in_code_and_not_in_docstrings(
    code: str, found: dict[str, int]
) -> None:
    assert named(ast.parse(code)) == found


@pytest.mark.parametrize(
    "test",
    [
        "isinstance(x, VaeLoss)",
        "isinstance(x, (int, VaeLoss))",
        "type(x) is VaeLoss",
        "x == VaeLoss()",
        "type(recipe.objective).__name__",
        "hasattr(holdings.plan.recipe.aggregates, 'weighting')",
        "getattr(recipe.steps, 'lr', 1)",
    ],
)
def test_the_search_finds_tests_of_types(test: str) -> None:
    code = f"from fedskew.parts.generative import VaeLoss\nif {test}:\n    pass"
    assert {line for line, _ in type_tests(ast.parse(code))} == {2}


def test_the_search_lets_carriers_of_tensors_be() -> None:
    code = "from fedskew.parts.objective import Bound\nassert isinstance(x, Bound)"
    assert list(type_tests(ast.parse(code))) == []
