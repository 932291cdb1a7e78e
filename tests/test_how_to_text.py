"""docs/how-to/text-and-signals.md: its blocks run, with fewer rounds, and do what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedskew.cli import main
from fedskew.models import MODELS

PAGE = (Path(__file__).parents[1] / "docs/how-to/text-and-signals.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.\w+)\n")


def test_the_blocks_of_the_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for language, text in BLOCKS:
        if written := FILE.match(text):
            (tmp_path / written[1]).write_text(text.replace("rounds = 40", "rounds = 2"))
        elif language == "python":
            exec(compile(text.replace('"rounds": 10', '"rounds": 3'), "text", "exec"), names)
        else:
            (line,) = text.replace("--seeds 3", "--seeds 1").splitlines()
            assert main(shlex.split(line)[1:]) == 0, line
            told = "".join(capfd.readouterr())
            assert all(method in told for method in ("central", "local", "ditto", "fedbabu"))
    told = capfd.readouterr().out.splitlines()
    answers = re.findall(r"True|False", told[0])
    assert len(answers) == 2
    for line, model in zip(told[1:], ("conv1d", "gru"), strict=True):
        name, accuracy = re.fullmatch(r"(\w+) \[([\d.]+)\]", line).groups()  # type: ignore[union-attr]
        assert name == model
        assert float(accuracy) > 0.2  # a tenth would be chance


def test_the_models_of_the_page_take_what_it_says() -> None:
    told = {
        name: kinds
        for names, kinds in re.findall(r"^\| (`.*`) \| ([\w, ]+) \| .* \|$", PAGE, re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", names)
    }
    words = {"texts": "tokens", "signals": "signals"}
    assert {n: tuple(words[k] for k in kinds.split(", ")) for n, kinds in told.items()} == {
        name: entry.kinds for name, entry in MODELS.items() if entry.kinds
    }
