"""The wheel carries everything: installed elsewhere it runs the demo without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), source],
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


def test_suites_examples_and_types_travel_in_the_wheel(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    assert {
        "fedskew/papers/baselines.toml",
        "fedskew/examples/digits.toml",
        "fedskew/py.typed",
    } <= names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def test_the_wheel_runs_the_demo_in_another_environment(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    with ZipFile(wheel) as archive:
        archive.extractall(packages)
    # The dependencies are the test environment's own; fedskew itself comes from the wheel.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    demo = [
        home / "bin" / "python", "-m", "fedskew", "compare", "fedavg", "--config", "digits",
        "--set", "train.rounds=2", "--out", "results",
    ]  # fmt: skip
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        demo, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "central" in done.stdout
    assert (tmp_path / "results" / "leaderboard.md").is_file()
    where = [home / "bin" / "python", "-c", "import fedskew; print(fedskew.__file__)"]
    found = subprocess.run(
        where, cwd=tmp_path, env=alone, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(str(home))
