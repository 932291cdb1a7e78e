"""The public names: exactly these, each importable, none paid for before it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

import fedskew

PUBLIC = {
    "Adapt", "Aggregator", "Augmentation", "Begin", "Begun", "Card", "Client", "Comparison",
    "Config", "ConfigError", "Correction", "DataError", "Erm", "Federation", "FedskewError",
    "Finding", "Knob", "Loss", "Objective", "Packing", "Phase", "Problem", "Recipe",
    "Recommendation", "ReducesTo",
    "Report", "Reported", "Run", "RunError", "Step", "Weighting", "adapt", "but", "compare",
    "diagnose", "federation_from", "generate", "keep", "load_config", "load_run", "make_config",
    "make_federation", "method", "only", "predict", "recommend", "run",
}  # fmt: skip


def test_the_public_names_are_exactly_these() -> None:
    assert set(fedskew.__all__) == PUBLIC
    assert len(fedskew.__all__) == len(PUBLIC)


def test_the_version_is_that_of_the_installed_package() -> None:
    assert fedskew.__version__ == version("fedskew")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", fedskew.__version__)


def test_every_public_name_is_there_and_lives_where_it_is_said_to() -> None:
    for name in fedskew.__all__:
        thing = getattr(fedskew, name)
        assert thing.__name__ == name
        assert thing.__module__ == fedskew._HOME[name]
        assert thing.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(fedskew, "fedavg")


def test_importing_the_package_imports_no_torch() -> None:
    script = "import sys, fedskew; print(sorted({'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "[]"
