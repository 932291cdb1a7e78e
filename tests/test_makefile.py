"""``make test`` and ``make test-sites`` leave no test out between them."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_all_tests_of_real_processes_are_where_make_looks_for_them() -> None:
    makefile = (TESTS.parent / "Makefile").read_text()
    (folders,) = re.findall(r"-m sites (.*)$", makefile, re.MULTILINE)
    looked_in = [TESTS.parent / folder for folder in folders.split()]
    marked = [
        path for path in TESTS.rglob("test_*.py")
        if re.search(r"mark\.sites\b", path.read_text()) and path != Path(__file__)
    ]  # fmt: skip
    assert marked
    assert all(any(path.is_relative_to(each) for each in looked_in) for path in marked), marked
    assert '-m "not sites"' in makefile
