"""Clients that scale by themselves: a new one's rows set its scale, if there are enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedskew
from fedskew.data.example_data import write_example
from fedskew.errors import DataError
from fedskew.runs.experiment import Run


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example("hospitals", tmp_path_factory.mktemp("data") / "hospitals")


@pytest.fixture(scope="module")
def run(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Without north, whose scanner is shifted."""
    section = {
        "dataset": str(hospitals), "label": "diagnosis", "partition": "owner", "clients": "all",
        "normalise": "client", "unseen": ["north"],
    }  # fmt: skip
    settings = {"federation": section, "train": {"rounds": 20, "lr": 0.05}}
    return fedskew.run(settings, out=tmp_path_factory.mktemp("runs"), draw=False)


def test_a_new_hospital_is_answered_on_its_own_scale(run: Run, hospitals: Path) -> None:
    """Measured: .95; on everybody's scale .74."""
    found = fedskew.predict(run, hospitals / "north.csv", label="diagnosis", threshold=0.5)
    assert found.accuracy is not None
    assert found.accuracy > 0.9


def test_a_table_that_is_larger_by_a_factor_is_answered_alike(
    run: Run, hospitals: Path, tmp_path: Path
) -> None:
    lines = (hospitals / "north.csv").read_text().splitlines()
    larger = [
        ",".join([c[0], *(f"{2 * float(v):.9g}" for v in c[1:-1]), c[-1]])
        for c in (line.split(",") for line in lines[1:])
    ]
    (tmp_path / "larger.csv").write_text("\n".join([lines[0], *larger]))
    one, other = (
        fedskew.predict(run, path, label="diagnosis", threshold=0.5)
        for path in (hospitals / "north.csv", tmp_path / "larger.csv")
    )
    np.testing.assert_allclose(one.probability, other.probability, atol=1e-4)


def test_few_rows_do_not_tell_a_scale_unless_it_is_known(
    run: Run, hospitals: Path, tmp_path: Path
) -> None:
    lines = (hospitals / "north.csv").read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join(lines[:4]))
    with pytest.raises(
        DataError, match=r"few\.csv has 3 rows, but clients of this run scale sampl"
    ):
        fedskew.predict(run, tmp_path / "few.csv", label="diagnosis", threshold=0.5)
    adapted = fedskew.adapt(run, hospitals / "north.csv", label="diagnosis", epochs=1)
    few = fedskew.predict(adapted, tmp_path / "few.csv", label="diagnosis", threshold=0.5)
    many = fedskew.predict(adapted, hospitals / "north.csv", label="diagnosis", threshold=0.5)
    np.testing.assert_allclose(few.probability, many.probability[:3], atol=1e-6)
