"""docs/how-to/images.md: its blocks run, and say what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedskew.cli import main
from fedskew.parts.augment import AUGMENTATIONS

PAGE = (Path(__file__).parents[1] / "docs/how-to/images.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.\w+)\n")


def test_the_blocks_of_the_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, Any] = {}
    for language, text in BLOCKS:
        if written := FILE.match(text):
            (tmp_path / written[1]).write_text(text)
        elif language == "python":
            exec(compile(text, "images.md", "exec"), names)
        elif language == "sh":
            for line in text.splitlines():
                assert main(shlex.split(line)[1:]) == 0, line
                told = " ".join("".join(capfd.readouterr()).split())
                assert "left out 1 of the 1798 image files in photos" in told
        else:
            shown = text.strip()
            config = (tmp_path / "photos.toml").read_text()
            (tmp_path / "plain.toml").write_text(re.sub("image = .*", "", config))
            assert main(["run", "plain.toml"]) == 2
            assert shown in " ".join("".join(capfd.readouterr()).split())
    skipped = {path.read_text() for path in tmp_path.glob("runs/*/skipped.txt")}
    assert skipped == {"scanner/0/cut.png cannot be read as an image\n"}
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 2


def test_the_table_of_augmentations_is_that_of_the_code() -> None:
    named = dict(re.findall(r"^\| `(\w+)` \|.*\| `(\w+ = [\d.]+)` \|$", PAGE, flags=re.MULTILINE))
    assert named == {
        name: ", ".join(f"{knob} = {value}" for knob, value in entry.defaults.items())
        for name, entry in AUGMENTATIONS.items()
    }
