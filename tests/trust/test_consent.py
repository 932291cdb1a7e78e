"""Code that a file names runs with the user's consent only, and not whatever Python can import."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedskew
from fedskew.cli import main
from fedskew.deploy.export import export, load_export
from fedskew.methods import find
from fedskew.store import read_sealed, write_sealed
from fedskew.trust.consent import TRUSTED, forget

MODULE = """
import os
import pathlib
from functools import partial
from os import system
import fedskew.store
from fedskew import Recipe
from fedskew.store import write_json

pathlib.Path("imported").touch()
shell = partial(os.system, "touch ran")


def plain():
    return Recipe()
"""
QUICK = {"model": "logistic", "train": {"rounds": 1}, "federation": {"clients": 3}}
TOML = 'method = "their_code:plain"\nmodel = "logistic"\n[train]\nrounds = 1\n'
NEEDS = "is code that"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as somebody may hand it over: a config, and a module beside it."""
    (tmp_path / "their_code.py").write_text(MODULE)
    (tmp_path / "theirs.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TRUSTED, raising=False)
    monkeypatch.delitem(sys.modules, "their_code", raising=False)
    return tmp_path


@pytest.fixture
def run_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of the module's method, opened as by another process."""
    config = {**QUICK, "method": "their_code:plain"}
    path = fedskew.run(config, out=folder / "runs", draw=False).path
    fedskew.predict(path, np.zeros((1, 8, 8), np.uint8))
    forget()
    monkeypatch.delitem(sys.modules, "their_code")
    (folder / "imported").unlink()
    return path


def sentence(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_config_file_that_names_code_is_refused_before_it_is_imported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(capsys, "run", "theirs.toml")
    assert f"method 'their_code:plain' {NEEDS} theirs.toml names" in said
    assert not (folder / "imported").exists()
    assert sorted(p.name for p in folder.iterdir()) == ["their_code.py", "theirs.toml"]


def test_the_flag_lets_it_run(folder: Path) -> None:
    assert main(["run", "theirs.toml", "--allow-code"]) == 0
    assert (folder / "imported").exists()


def test_a_trusted_folder_lets_it_run_but_not_through_a_link(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trusted = folder / "trusted"
    trusted.mkdir()
    (trusted / "link.toml").symlink_to(folder / "theirs.toml")
    monkeypatch.setenv(TRUSTED, f"/nowhere:{trusted}")
    assert NEEDS in sentence(capsys, "run", "trusted/link.toml")
    (trusted / "mine.toml").write_text(TOML)
    assert main(["run", "trusted/mine.toml"]) == 0


def test_what_is_typed_needs_no_flag_even_where_a_file_names_it_too(folder: Path) -> None:
    assert main(["run", "theirs.toml", "--set", "method=their_code:plain"]) == 0


def test_a_setting_that_replaces_the_code_needs_no_flag(folder: Path) -> None:
    assert main(["run", "theirs.toml", "--set", "method=fedavg"]) == 0
    assert not (folder / "imported").exists()


@pytest.mark.parametrize(
    "values",
    [
        'dataset = "their_code:plain"',
        'partition = "their_code:plain"',
        'environments = {name = "their_code:plain"}',
        'skew = [{name = "their_code:plain"}]',
    ],
)
def test_every_section_is_guarded(
    folder: Path, capsys: pytest.CaptureFixture[str], values: str
) -> None:
    (folder / "theirs.toml").write_text(f"[federation]\n{values}\n")
    assert NEEDS in sentence(capsys, "run", "theirs.toml")
    assert not (folder / "imported").exists()


@pytest.mark.parametrize(
    "settings",
    [
        'model = "their_code:plain"',
        'method = {name = "erm", base = "their_code:plain"}',
        'method = {name = "erm", base = {name = "private", base = "their_code:plain"}}',
    ],
)
def test_models_and_bases_are_guarded(
    folder: Path, capsys: pytest.CaptureFixture[str], settings: str
) -> None:
    (folder / "theirs.toml").write_text(settings)
    assert NEEDS in sentence(capsys, "run", "theirs.toml")
    assert not (folder / "imported").exists()


def test_a_config_object_read_from_a_file_stays_guarded_in_python(folder: Path) -> None:
    config = fedskew.load_config(folder / "theirs.toml")
    with pytest.raises(fedskew.ConfigError, match=NEEDS):
        fedskew.run(config, out=folder / "runs")
    allowed = fedskew.load_config(folder / "theirs.toml", allow_code=True)
    assert fedskew.run(allowed, out=folder / "runs", draw=False).result["rounds"] == 1


def test_run_folders_run_no_code(
    run_folder: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "x.npz", x=np.zeros((10, 8, 8), np.uint8), y=np.arange(10))
    run, out = str(run_folder), str(folder / "out")
    for words in (
        ["predict", run, "x.npz"],
        ["adapt", run, "x.npz", "--out", out],
        ["export", run, "--out", out],
        ["drift", run, "--out", out, "--client", "client-000"],
        ["generate", run, "--count", "4", "--out", out],
    ):
        assert NEEDS in sentence(capsys, *words)
    assert main(["show", run]) == 0
    assert "finished after round 1" in capsys.readouterr().out
    for use in (fedskew.predict, fedskew.adapt):
        with pytest.raises(fedskew.ConfigError, match=NEEDS):
            use(run, np.zeros((1, 8, 8), np.uint8), [0])
    with pytest.raises(fedskew.ConfigError, match=NEEDS):
        fedskew.run(fedskew.load_run(run).config, out=folder / "again")
    assert not (folder / "imported").exists()
    assert not (folder / "out").exists()
    assert main(["predict", run, "x.npz", "--allow-code"]) == 0


def test_an_exported_model_runs_no_code(run_folder: Path, folder: Path) -> None:
    export(run_folder, folder / "out", int8=False, allow_code=True)
    forget()
    (file,) = (folder / "out").glob("*.safetensors")
    with pytest.raises(fedskew.ConfigError, match=NEEDS):
        load_export(file)
    assert load_export(file, allow_code=True) is not None


def test_a_run_folder_beside_cannot_bring_code_into_a_run(
    run_folder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of old format with equal settings is resolved, to see whether it is the same."""
    known = json.loads((run_folder / "config.json").read_text())
    config = {**known["config"], "method": {"name": "their_code:plain"}}
    old = folder / "runs" / "fedavg-0123456789ab"
    old.mkdir()
    (old / "config.json").write_text(json.dumps({"config": config, "data": known["data"]}))
    fedskew.run(QUICK, out=folder / "runs", draw=False)
    assert not (folder / "imported").exists()


@pytest.mark.parametrize(
    "target",
    [
        "os:system",
        "posix:system",
        "builtins:exec",
        "subprocess:run",
        "antigravity:geohash",
        "numpy:load",
        "torch:load",
        "torch.hub:load",
        "yaml.anything:load",
        "fedskew.store:write_json",
        "their_code:system",
        "their_code:shell",
        "their_code:write_json",
    ],
)
@pytest.mark.parametrize("kind", ["method", "model", "federation.dataset"])
def test_not_everything_that_can_be_imported_is_run_not_even_with_consent(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str, target: str
) -> None:
    before = set(sys.modules)
    said = sentence(capsys, "run", "digits", "--set", f"{kind}={target}", "--allow-code")
    if target.startswith("yaml"):
        assert "cannot be imported" in said or "neither" in said
    else:
        assert "neither a function of a module of your own nor registered" in said
    assert "antigravity" not in set(sys.modules) - before
    assert not (folder / "ran").exists()


def test_registered_functions_may_be_named_by_their_module(folder: Path) -> None:
    assert find("fedskew.methods.baselines:fedavg").name == "fedskew.methods.baselines:fedavg"


@pytest.mark.parametrize(
    "target", [":f", "m:", "m:f:g", "m f:g", "m-n:f", "../m:f", "m:f.g", " m:f"]
)
def test_a_target_is_two_identifiers(target: str) -> None:
    with pytest.raises(fedskew.ConfigError, match="must read 'module:function'"):
        find(target)


def test_a_module_that_leaves_python_is_a_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "leaving.py").write_text("raise SystemExit(0)\n")
    assert "SystemExit" in sentence(capsys, "run", "digits", "--set", "method=leaving:f")


def damaged(path: Path, **changes: Any) -> None:
    write_sealed(path, {**read_sealed(path), **changes})


def test_a_models_name_in_the_summary_is_guarded_too(run_folder: Path, folder: Path) -> None:
    forget()
    damaged(run_folder / "result.json", model={"name": "their_code:plain", "knobs": {}})
    config = json.loads((run_folder / "config.json").read_text())["config"]
    config["method"] = {"name": "fedavg"}
    damaged(run_folder / "config.json", config=config)
    with pytest.raises(fedskew.ConfigError, match=NEEDS):
        fedskew.load_run(run_folder).model()
    assert not (folder / "imported").exists()
