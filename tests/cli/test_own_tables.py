"""Tables of one's own on the command line: what is asked for, told and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedskew.cli import main
from fedskew.data.example_data import write_example

QUICK = ["--set", "model=logistic", "--set", "train.rounds=1"]
Said = pytest.CaptureFixture[str]


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_example("hospitals", Path("hospitals"))


def test_a_folder_of_tables_is_run_and_its_columns_are_told_first(
    hospitals: Path, capsys: Said
) -> None:
    """Five hospitals write their tables in three ways; north's scanner is shifted."""
    assert main(["run", str(hospitals), "--label", "diagnosis", *QUICK]) == 0
    said = capsys.readouterr()
    told = said.out + said.err
    assert told.index("30 columns become 58 features; label: diagnosis") < told.index("round 1/1")
    assert "patient" in told
    assert "another word in every row" in told
    (config,) = Path("runs").glob("*/config.json")
    section = json.loads(config.read_text())["config"]["federation"]
    assert section["options"]["label"] == "diagnosis"
    assert section["partition"]["name"] == "owner"


def test_compare_tells_columns_once_for_all_methods_and_seeds(
    hospitals: Path, capsys: Said
) -> None:
    words = ["compare", "fedavg", "--config", str(hospitals), "--label", "diagnosis", *QUICK]
    assert main([*words, "--seeds", "2", "--set", "federation.normalise=client"]) == 0
    said = capsys.readouterr()
    assert (said.out + said.err).count("columns become") == 1
    assert "scaled by each client's own median and quartiles" in said.out + said.err


def test_one_file_is_divided_among_clients(hospitals: Path, capsys: Said) -> None:
    words = ["run", str(hospitals / "north.csv"), "--label", "diagnosis", *QUICK]
    assert main([*words, "--set", "federation.clients=2"]) == 0
    assert "31 columns" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "centre.csv has no label column 'label'; its columns: patient, mean_radius, "),
        ([], "worst_fractal_dimension, diagnosis. Name one with --label or federation.label."),
        (["--label", "diagnose"], "Did you mean 'diagnosis'?"),
        (
            ["--label", "diagnosis", "--set", "federation.columns={pation='ignore'}"],
            "unknown column in federation.columns 'pation': did you mean 'patient'?",
        ),
        (
            ["--label", "diagnosis", "--set", "federation.columns={patient='ignored'}"],
            "federation.columns.patient: input should be 'number', 'category', 'hash', 'boolean', "
            "'date', 'text', 'client' or 'ignore' (given: 'ignored').",
        ),
        (
            ["--label", "diagnosis", "--set", "federation.columns={patient='number'}"],
            "column 'patient' holds 'C1000', which is not a number",
        ),
        (
            ["--label", "diagnosis", "--set", "federation.columns={patient='client'}"],
            "in a folder each file is a client",
        ),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str], sentence: str, hospitals: Path, capsys: Said
) -> None:
    assert main(["run", str(hospitals), *words, *QUICK]) == 2
    assert sentence in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_row_without_a_label_is_named(hospitals: Path, capsys: Said) -> None:
    file = hospitals / "west.csv"
    lines = file.read_text().splitlines()
    lines[3] = lines[3].rpartition(",")[0] + ","
    file.write_text("\n".join(lines))
    assert main(["run", str(hospitals), "--label", "diagnosis", *QUICK]) == 2
    assert "west.csv: row 3 has no label in column 'diagnosis'" in capsys.readouterr().err


def test_features_left_as_stored_are_said_to_be(hospitals: Path, capsys: Said) -> None:
    words = ["run", str(hospitals), "--label", "diagnosis", *QUICK]
    assert main([*words, "--set", "federation.normalise=unit", "--set", "train.lr=1e-9"]) == 0
    said = capsys.readouterr()
    assert (
        "normalise = 'unit' scales images, but leaves features as they are" in said.out + said.err
    )
