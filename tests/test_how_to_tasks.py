"""The page about tasks does what it says, block by block."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedskew.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "tasks.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def test_every_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    blocks = BLOCK.findall(PAGE.read_text())
    assert {kind for kind, _ in blocks} == {"python", "toml", "console"}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), known)
        elif kind == "toml":
            Path(text.splitlines()[0].removeprefix("# ")).write_text(text)
        else:
            for line in text.splitlines():
                done = CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False)
                assert done.exit_code == 0, done.output
                assert "accuracy" not in done.output
                assert "rmse" in done.output
