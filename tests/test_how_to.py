"""Every block of code on the how-to pages runs, in order, from an empty folder.

A page's ```python blocks share one namespace. Lines of its ```sh blocks that begin with ``fedskew``
or ``python`` are run as they stand; a block is a file if its first line is a comment with a name in
it (``# study.toml``). A block after the comment ``<!-- not run: why -->`` is not run.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedskew.cli import main

ELSEWHERE = {"datasets", "images", "tasks", "text-and-signals"}
"""Pages whose own tests run them, and look at what they print."""
PAGES = [
    page
    for page in sorted((Path(__file__).parents[1] / "docs" / "how-to").glob("*.md"))
    if page.stem not in ELSEWHERE
]
BLOCK = re.compile(r"(<!-- not run: [^>]+-->\n+)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w/-]+\.\w+)\s*$")


def commands(text: str) -> list[str]:
    """The commands of a shell block: a line each, unless it ends in a backslash."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith(("fedskew ", "python "))]


def carry_out(command: str) -> None:
    name, *arguments = shlex.split(command, comments=True)
    if name == "fedskew":
        assert main(arguments) == 0, command
    else:
        subprocess.run([sys.executable, *arguments], check=True, timeout=300)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_says_to_do_works(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    ran = 0
    for left_out, language, text in BLOCK.findall(page.read_text()):
        if left_out:
            continue
        first = text.splitlines()[0] if text else ""
        if written := FILE.match(first):
            place = tmp_path / written[1]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        elif language == "python":
            exec(compile(text, f"{page.name}: {first}", "exec"), names)
        elif language == "sh":
            for command in commands(text):
                carry_out(command)
        ran += 1
    assert ran


def test_commands_are_read_from_a_block_as_a_shell_would() -> None:
    block = "mkdir data\nfedskew run a.toml \\\n  --set seed=1   # once\npython make.py\n"
    assert commands(block) == ["fedskew run a.toml    --set seed=1   # once", "python make.py"]
