"""The server's modules hold plans, rosters and answers: none of them can reach clients' data."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVER = (
    "fedskew.federate.server",
    "fedskew.runs.finish",
    "fedskew.runs.folder",
    "fedskew.federate.plan",
    "fedskew.federate.planning",
    "fedskew.federate.roster",
    "fedskew.federate.tasks",
    "fedskew.federate.backends",
    "fedskew.federate.backends.wire",
    "fedskew.methods",
)


@pytest.mark.parametrize("module", SERVER)
def test_a_module_of_the_server_imports_nothing_that_holds_data(module: str) -> None:
    """In a process of its own, with all it imports in turn."""
    code = (
        f"import sys, {module}\n"
        "holds = ('fedskew.data', 'fedskew.federate.holdings', 'fedskew.federate.client')\n"
        "print([name for name in sys.modules if name.startswith(holds)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
