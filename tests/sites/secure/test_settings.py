"""The section ``secure`` of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from here import make_site
from summing import write_files

import fedskew
from fedskew.config import apply_overrides, make_config
from fedskew.errors import ConfigError

FULL = {"threshold": 2 / 3, "clip": 8.0, "bits": 24}


@pytest.mark.parametrize("given", [True, {}, {"bits": 24}, FULL])
def test_true_stands_for_every_default(given: Any) -> None:
    assert make_config({"secure": given}).resolved()["secure"] == FULL


@pytest.mark.parametrize("settings", [{}, {"secure": False}])
def test_what_is_not_asked_for_is_not_written_down(settings: dict[str, Any]) -> None:
    assert "secure" not in make_config(settings).resolved()


def test_a_line_on_the_command_switches_it_on() -> None:
    assert make_config(apply_overrides({}, ["secure=true"])).secure is not None
    found = make_config(apply_overrides({}, ["secure.bits=20"])).secure
    assert found is not None
    assert found.bits == 20


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"threshold": 0.5}, r"secure\.threshold: .*greater than 0\.5"),
        ({"bits": 31}, r"secure\.bits: .*less than or equal to 30"),
        ({"clip": True}, r"secure\.clip: must not be true or false"),
        ({"bit": 3}, r"unknown setting 'secure\.bit': did you mean 'secure\.bits'"),
        (3, r"secure: "),
    ],
)
def test_what_is_wrong_is_named(given: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_config({"secure": given})


def test_a_run_on_one_machine_has_nobody_to_hide_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="real sites, but here all data are in one place"):
        fedskew.run({"secure": True}, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_sums_of_one_site_are_no_sums(tmp_path: Path) -> None:
    files = list(write_files(tmp_path / "files", ["ann"]).values())
    assert make_site(tmp_path / "a", "ann", files).settings.min_sites == 3
    with pytest.raises(ConfigError, match=r"min_sites: .*greater than or equal to 2"):
        make_site(tmp_path / "b", "ann", files, "min_sites = 1\n")
