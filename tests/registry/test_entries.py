"""Registries: built-in entries, users' own functions, installed plug-ins; one wording of errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest

from fedskew.errors import ConfigError
from fedskew.registry.entries import Entry, Registry
from fedskew.registry.knobs import Knob


def registry() -> Registry[Entry]:
    made = Registry("spice", "spices", Entry, leading=1)

    @made.register("pepper")
    def pepper(dish: str, heat: Annotated[int, Knob("how hot", ge=0)] = 2) -> str:
        """Makes it hot.

        And black.
        """
        return f"{dish} {heat}"

    @made.register("salt")
    def salt(dish: str) -> str:
        """Makes it salty."""
        return dish

    return made


def test_entries_are_found_and_called_with_checked_knobs() -> None:
    spices = registry()
    found = spices.find("pepper")
    assert (found.summary, found.details) == ("Makes it hot.", "And black.")
    assert found.defaults == {"heat": 2}
    assert found.make("soup") == "soup 2"
    assert found.make("soup", heat=3) == "soup 3"
    assert list(spices) == ["pepper", "salt"]


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("peper", {}, "unknown spice 'peper': did you mean 'pepper'?"),
        ("pepper", {"heta": 1}, "unknown knob 'heta' of spice 'pepper': did you mean 'heat'?"),
        ("salt", {"heat": 1}, "unknown knob 'heat' of spice 'salt', which has none: remove it."),
        (
            "pepper",
            {"heat": -1},
            "heat of spice 'pepper' must be a whole number of at least 0, not -1.",
        ),
    ],
)
def test_there_is_one_wording_for_what_is_wrong(
    name: str, knobs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        registry().find(name).make("soup", **knobs)
    assert str(raised.value) == message


def test_a_users_own_function_declares_its_knobs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_spices.py").write_text(
        "from typing import Annotated\n"
        "from fedskew import Knob\n\n"
        "def mint(dish, leaves: Annotated[int, Knob('how many', ge=1)], fresh: bool = True):\n"
        '    """Cools."""\n'
        "    return f'{dish} {leaves} {fresh}'\n"
    )
    monkeypatch.chdir(tmp_path)
    mint = registry().find("own_spices:mint")
    assert mint.make("tea", leaves=2) == "tea 2 True"
    with pytest.raises(ConfigError, match="leaves of spice 'own_spices:mint' must be a whole"):
        mint.make("tea", leaves=0)
    with pytest.raises(ConfigError, match="needs its knob 'leaves'"):
        mint.make("tea")


def test_two_functions_cannot_have_one_name() -> None:
    spices = registry()
    with pytest.raises(ConfigError, match=r"spice 'salt' is taken by .*salt: rename the one of"):

        @spices.register("salt")
        def other(dish: str) -> str:
            return dish


PLUGIN = """
from typing import Annotated
from fedskew import Card, Knob, Recipe, method
from fedskew.methods import find

@method("trimmed", Card(summary="From a plug-in.", paper="none", update="w <- w"))
def trimmed(share: Annotated[float, Knob("share cut off", ge=0, lt=0.5)] = 0.1) -> Recipe:
    return find("fedavg").recipe()

def thirds(labels, owners, clients, rng):
    return []
"""
POINTS = """
[fedskew.methods]
trimmed = trimming_rules:trimmed
broken = no_such_module:anything
fedavg = trimming_rules:trimmed
"""
ASK = """
import warnings
warnings.simplefilter("ignore")
from fedskew.errors import ConfigError
from fedskew.methods import METHODS
entry = METHODS.find("trimmed")
print(entry.card.summary, entry.defaults, "trimmed" in list(METHODS), "broken" in list(METHODS))
print(METHODS.find("fedavg").function.__module__)
for name, knobs in (("trimmed", {"share": 0.5}), ("broken", {})):
    try:
        METHODS.find(name).recipe(**knobs)
    except ConfigError as error:
        print(error)
"""


def test_installed_plug_ins_are_found_and_broken_ones_named(tmp_path: Path) -> None:
    """A real installed distribution, as far as Python can tell, in a fresh interpreter."""
    (tmp_path / "trimming_rules.py").write_text(PLUGIN)
    info = tmp_path / "trimming-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trimming\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ASK}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, home, knob, broken = done.stdout.splitlines()
    assert first == "From a plug-in. {'share': 0.1} True False"
    assert home == "fedskew.methods.baselines"
    assert knob == (
        "share of method 'trimmed' must be a number of at least 0 and below 0.5, not 0.5."
    )
    assert broken.startswith("method 'broken' of package 'trimming' cannot be loaded (ModuleNot")
