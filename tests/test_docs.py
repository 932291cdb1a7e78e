"""What the documents say of the code is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"`(?:fedskew/)?([a-z_0-9/]+\.py)(?::([A-Za-z_][\w.]*))?`")
"""A module, and what is found in it: ``runs/identity.py:resolve``."""


def places(document: str) -> list[tuple[str, str]]:
    return PLACE.findall((ROOT / document).read_text())


def names_in(module: Path) -> set[str]:
    """Functions, classes and constants of a module, and the members of its classes."""
    found: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    found.add(f"{node.name}.{inner.name}")
                elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                    found.add(f"{node.name}.{inner.target.id}")
    return found


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_place_a_document_names_is_there(document: str) -> None:
    named = places(document)
    assert named
    for path, name in named:
        module = next((p for p in (ROOT / "fedskew" / path, ROOT / path) if p.is_file()), None)
        assert module is not None, path
        if name:
            assert name in names_in(module), f"{path}:{name}"


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_every_relative_link_leads_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert links
    for link in links:
        assert (ROOT / document).parent.joinpath(link).exists(), link


def test_examples_of_bridges_are_short() -> None:
    text = (ROOT / "docs" / "how-to" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    examples = [block for block in blocks if not block.startswith("# ")]
    assert len(examples) == 6
    for example in examples:
        assert "federation_from" in example
        assert len([line for line in example.splitlines() if line.strip()]) <= 15, example
