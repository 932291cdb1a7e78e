"""A run goes on from what was written, and from nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import toy_federation

import fedskew
from fedskew.errors import RunError
from fedskew.federate.own_models import own_models
from fedskew.store import read_json, read_sealed, sha256_of, write_json

ROUNDS = 4
STAGED = {"name": "feddisk", "density_rounds": 2, "local_epochs": 1}


def run(out: Path, method: Any = "fedrep", watch: Any = None, **train: Any) -> fedskew.Run:
    settings = {
        "method": method, "model": {"name": "mlp", "hidden": [4]},
        "train": {"rounds": ROUNDS, "batch_size": 8, **train}, "federation": {"validation": 0.2},
    }  # fmt: skip
    return fedskew.run(settings, out=out, federation=toy_federation(), watch=watch, draw=False)


class Killed(Exception):
    """What stops a run on its way."""


def stopped(out: Path, method: Any = "fedrep") -> Path:
    """The folder of a run with two rounds of its main stage."""

    def watch(progress: Any, *_: object) -> None:
        if (progress.stage, progress.round) == ("main", 2):
            raise Killed

    with pytest.raises(Killed):
        run(out, method, watch)
    (path,) = out.iterdir()
    return path


def results(path: Path) -> dict[str, bytes]:
    files = [path / "metrics.jsonl", path / "rounds.jsonl", *(path / "models").rglob("*.*")]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def edit(path: Path) -> None:
    """Another digit, in the same place."""
    text = path.read_text()
    place = text.index('"value": 0.') + len('"value": 0.')
    other = "1" if text[place] != "1" else "2"
    path.write_text(text[:place] + other + text[place + 1 :])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("file", "harm", "sentence"),
    [
        ("metrics.jsonl", cut, r"is damaged at its end: it has \d+ of \d+ bytes: restore it, or"),
        ("metrics.jsonl", edit, r"is damaged in its first \d+ bytes, which are not those that"),
        ("metrics.jsonl", remove, "is damaged at its end: it has 0 of"),
        ("rounds.jsonl", cut, "is damaged at its end"),
        ("timing.jsonl", cut, "is damaged at its end"),
        ("server-main-000002.safetensors", cut, "is damaged: restore it, or delete the run folder"),
        ("server-main-000002.safetensors", remove, "is missing: restore it, or delete the run"),
        ("private-main-000002.safetensors", cut, "is damaged: restore it"),
    ],
)
def test_a_damaged_file_is_named_and_left_as_it_is(
    file: str, harm: Callable[[Path], None], sentence: str, tmp_path: Path
) -> None:
    path = stopped(tmp_path)
    (damaged,) = path.rglob(file)
    harm(damaged)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(RunError, match=rf"{file} {sentence}"):
        run(tmp_path)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "entry", [("data",), ("identity",), ("config", "seed"), ("config", "train", "rounds")]
)
def test_an_edited_config_is_called_an_edited_config(
    entry: tuple[str, ...], tmp_path: Path
) -> None:
    path = run(tmp_path, "fedavg").path
    whole = read_json(path / "config.json")
    inner = whole
    for key in entry[:-1]:
        inner = inner[key]
    inner[entry[-1]] = 17
    write_json(path / "config.json", whole)
    sentence = r"config\.json was edited or damaged since it was written"
    with pytest.raises(RunError, match=sentence):
        run(tmp_path, "fedavg")
    with pytest.raises(RunError, match=sentence):
        fedskew.predict(path, [[0.0] * 6])


def test_what_was_written_after_the_last_complete_round_is_cut_as_before(tmp_path: Path) -> None:
    whole = results(run(tmp_path / "whole").path)
    path = stopped(tmp_path / "stopped")
    for name in ("metrics.jsonl", "rounds.jsonl", "timing.jsonl"):
        with open(path / name, "ab") as file:
            file.write(b'{"stage": "main", "rou')
    (path / ".checkpoint.json.999999999.part").write_text("{")
    assert results(run(tmp_path / "stopped").path) == whole
    assert list(path.rglob("*.part")) == []


def test_a_run_begun_before_there_were_hashes_goes_on(tmp_path: Path) -> None:
    whole = results(run(tmp_path / "whole").path)
    path = stopped(tmp_path / "stopped")
    book = read_sealed(path / "checkpoint.json")
    for key in ("hashes", "made_on"):
        del book[key]
    write_json(path / "checkpoint.json", book)
    write_json(path / "config.json", read_sealed(path / "config.json"))
    done = run(tmp_path / "stopped")
    assert results(done.path) == whole
    assert done.result["hashes"]["metrics.jsonl"] == sha256_of(path / "metrics.jsonl")


def test_a_run_finished_before_there_were_hashes_opens(tmp_path: Path) -> None:
    done = run(tmp_path)
    result = {k: v for k, v in done.result.items() if k not in ("hashes", "made_on")}
    write_json(done.path / "result.json", result)
    opened = fedskew.load_run(done.path)
    assert opened.rows() == done.rows()
    assert opened.model("c0") is not None


def test_a_damaged_model_is_not_loaded(tmp_path: Path) -> None:
    done = run(tmp_path)
    path = own_models(done.path / "models" / "selected")["c1"]
    content = bytearray(path.read_bytes())
    content[-2] ^= 4
    path.write_bytes(content)
    with pytest.raises(RunError, match=rf"{path.name} is damaged: restore it"):
        done.model("c1")
    assert done.model("c0") is not None


@pytest.mark.parametrize("file", ["metrics.jsonl", "server-density-*.safetensors"])
def test_a_stage_is_not_taken_over_from_damaged_files(file: str, tmp_path: Path) -> None:
    other = {**STAGED, "clip": 5.0}
    alone = results(run(tmp_path / "alone", other).path)
    first = run(tmp_path / "both", STAGED).path
    shutil.copytree(tmp_path / "both", tmp_path / "copy")
    assert results(run(tmp_path / "copy", other).path) == alone
    damaged, *_ = sorted(first.rglob(file))
    content = bytearray(damaged.read_bytes())
    content[-9] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(RunError, match=rf"{damaged.name} is damaged"):
        run(tmp_path / "both", other)


def test_the_book_names_every_file_a_run_goes_on_from_with_its_hash(tmp_path: Path) -> None:
    path = stopped(tmp_path, "fedshibu")
    hashes = read_sealed(path / "checkpoint.json")["hashes"]
    others = {"config.json", "checkpoint.json", ".lock"}
    others |= {"preparation.json", "profile.json"}  # written anew whenever a run goes on
    files = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()} - others
    assert hashes == {name: sha256_of(path / name) for name in files}
    assert any(name.startswith("matrices/similarity-") for name in files)


def test_an_edited_book_is_refused(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    book = read_json(path / "checkpoint.json")
    book["stages"]["main"]["last"]["round"] = 1
    write_json(path / "checkpoint.json", book)
    with pytest.raises(RunError, match=r"checkpoint\.json was edited or damaged"):
        run(tmp_path)
