"""A user's own code is part of what names a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import toy_federation

import fedskew
from fedskew.config import make_config
from fedskew.data.fingerprint import fingerprint
from fedskew.federate.holdings import roster_of
from fedskew.federate.recipe import Recipe
from fedskew.methods import METHODS, Card, find, method
from fedskew.runs.identity import Identity, identify, resolve

QUICK: dict[str, Any] = {"model": "logistic", "train": {"rounds": 1}}
TOY = toy_federation()


def identified(**settings: Any) -> Identity:
    return identify(
        resolve(make_config({**QUICK, **settings})), lambda: roster_of(TOY), fingerprint(TOY)
    )


def name(**settings: Any) -> str:
    return identified(**settings).name


RULES = """
from dataclasses import dataclass, replace

from fedskew.parts.aggregate import Mean
from fedskew.federate.recipe import Recipe
from my_helpers import share

@dataclass(frozen=True)
class Part(Mean):
    def aggregate(self, state, updates, clients):
        made = super().aggregate(state, updates, clients)
        return replace(made, shared={n: share(t, SCALE) for n, t in made.shared.items()})

SCALE = 1.0

def rule(strength: float = 1.0):
    return Recipe(aggregates=Part())
"""
HELPERS = """
def share(tensor, scale):
    from my_lazy import FACTOR
    return tensor * scale * FACTOR
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a method that uses a second file, which uses a third."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_rules.py").write_text(RULES)
    (tmp_path / "my_helpers.py").write_text(HELPERS)
    (tmp_path / "my_lazy.py").write_text("FACTOR = 1.0\n")
    (tmp_path / "my_other.py").write_text("UNUSED = 1\n")
    yield tmp_path
    forget()


def forget() -> None:
    """As a new process would find it."""
    for module in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[module]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_own_code_is_recorded_with_all_files_it_is_made_of(own: Path) -> None:
    code = identified(method="my_rules:rule").code
    assert {module: about["file"] for module, about in code.items()} == {
        "my_helpers": "my_helpers.py", "my_lazy": "my_lazy.py", "my_rules": "my_rules.py",
    }  # fmt: skip
    assert identified().code == {}


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("my_rules.py", "SCALE = 1.0", "SCALE = 0.9", True),
        ("my_helpers.py", "tensor * scale", "tensor / scale", True),
        ("my_lazy.py", "FACTOR = 1.0", "FACTOR = 0.9", True),
        ("my_other.py", "UNUSED = 1", "UNUSED = 2", False),
    ],
)
def test_changed_code_is_another_run_where_it_is_used(
    file: str, old: str, new: str, changes: bool, own: Path
) -> None:
    base = {"name": "erm", "base": "my_rules:rule"}
    before = [name(method="my_rules:rule"), name(method=base), name()]
    edit(own / file, old, new)
    forget()
    after = [name(method="my_rules:rule"), name(method=base), name()]
    assert [a != b for a, b in zip(after, before, strict=True)] == [changes, changes, False]


def test_a_method_named_by_any_knob_of_an_own_wrapper_counts(own: Path) -> None:
    (own / "my_wrapper.py").write_text(
        "from fedskew.methods import find\n\n"
        "def wrap(inner='my_rules:rule'):\n    return find(inner).recipe()\n"
    )
    before = name(method="my_wrapper:wrap")
    assert identified(method="my_wrapper:wrap").code.keys() > {"my_rules", "my_wrapper"}
    edit(own / "my_rules.py", "strength: float = 1.0", "strength: float = 2.0")
    forget()
    assert name(method="my_wrapper:wrap") != before


def test_own_models_and_datasets_count(own: Path) -> None:
    (own / "my_model.py").write_text(
        "from fedskew.models.registry import Classifier\nfrom torch import nn\n\n"
        "def net(shape, classes):\n"
        "    return Classifier(nn.Flatten(), nn.Linear(6, classes))\n"
    )
    (own / "my_data.py").write_text("def toy():\n    from helpers import toy_federation\n")
    for settings in ({"model": "my_model:net"}, {"federation": {"dataset": "my_data:toy"}}):
        before = name(**settings)
        for file in ("my_model.py", "my_data.py"):
            (own / file).write_text((own / file).read_text() + "\n# changed\n")
        forget()
        assert name(**settings) != before


def test_a_method_a_user_registered_counts_by_the_file_it_stands_in() -> None:
    method("mine", Card("mine", "none", "none"))(own_rule)
    try:
        assert identified(method="mine").code.keys() >= {own_rule.__module__}
    finally:
        del METHODS.entries["mine"]


def own_rule() -> Recipe:
    return Recipe()


def test_code_edited_after_its_import_runs_as_imported_and_a_user_is_told(own: Path) -> None:
    settings = {**QUICK, "method": "my_rules:rule"}
    first = fedskew.run(settings, out="runs", federation=TOY, draw=False)
    edit(own / "my_rules.py", "SCALE = 1.0", "SCALE = 0.9")
    with pytest.warns(UserWarning, match=r"^my_rules.py changed on disk since Python imported it"):
        assert fedskew.run(settings, out="runs", federation=TOY, draw=False) == first


def test_reloaded_code_runs_anew_and_a_user_is_told_why(own: Path) -> None:
    import importlib

    settings = {**QUICK, "method": "my_rules:rule"}
    first = fedskew.run(settings, out="runs", federation=TOY, draw=False)
    edit(own / "my_rules.py", "SCALE = 1.0", "SCALE = 0.9")
    importlib.reload(sys.modules["my_rules"])
    with pytest.warns(UserWarning, match="my_rules") as told:
        second = fedskew.run(settings, out="runs", federation=TOY, draw=False)
    (sentence,) = {str(warning.message) for warning in told}
    assert sentence == (
        f"my_rules.py changed since {first.path.name}; running again in {second.path}"
    )
    one, two = (run.model().state_dict()["head.weight"] for run in (first, second))
    assert torch.allclose(two, one * 0.9)
    assert not torch.equal(two, one)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedskew", *arguments],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_a_command_repeated_with_changed_code_runs_anew_and_says_why(own: Path) -> None:
    (own / "mine.toml").write_text(
        'method = "my_rules:rule"\nmodel = "logistic"\n[train]\nrounds = 1\n'
    )
    assert command("run", "mine.toml", "--allow-code").returncode == 0
    (first,) = (own / "runs").iterdir()
    edit(own / "my_helpers.py", "tensor * scale", "tensor * 0.5")
    again = command("run", "mine.toml", "--allow-code")
    assert again.returncode == 0, again.stderr
    (second,) = set((own / "runs").iterdir()) - {first}
    told = f"my_helpers.py changed since {first.name}; running again in {second.relative_to(own)}"
    assert told in again.stdout.splitlines()


def test_a_package_counts_with_its_own_modules_and_no_library(own: Path) -> None:
    package = own / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("import numpy\n")
    (package / "rules.py").write_text(
        "import torch\nfrom fedskew.federate.recipe import Recipe\nfrom . import inner\n"
        "from .deeper.one import TWO\n\ndef rule():\n    return Recipe()\n"
    )
    (package / "inner.py").write_text("import scipy, json\n")
    (package / "unused.py").write_text("")
    (package / "deeper").mkdir()
    (package / "deeper" / "one.py").write_text("TWO = 2\nfrom ..inner import json\n")
    code = identified(method="my_package.rules:rule").code
    assert set(code) == {
        "my_package", "my_package.rules", "my_package.inner", "my_package.deeper.one",
    }  # fmt: skip


def test_a_stage_made_by_changed_code_is_not_taken_over(own: Path) -> None:
    (own / "my_wrapper.py").write_text(
        "from dataclasses import replace\nfrom fedskew.federate.recipe import Stage\n"
        "import my_rules\n\n"
        "def two(strength=1.0):\n"
        "    first = my_rules.rule()\n"
        "    return replace(first, prepares=(Stage('first', first, rounds=1),))\n"
    )

    def made_by(**knobs: Any) -> str:
        method = {"name": "my_wrapper:two", **knobs}
        return identified(method=method).of_stage(find("my_wrapper:two").recipe().prepares)

    before = made_by()
    assert made_by(strength=2.0) == before
    edit(own / "my_rules.py", "SCALE = 1.0", "SCALE = 0.9")
    forget()
    assert made_by() != before
