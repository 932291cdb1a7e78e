"""Run folders and adapted models as a stranger may hand them over: damaged, or made to do harm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import EXAMPLES, attempt, refused, survived
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import fedskew

QUICK: dict[str, Any] = {
    "method": "ditto", "model": "logistic", "train": {"rounds": 1},
    "federation": {"clients": 2, "samples": 500, "partition": "iid"},
}  # fmt: skip
MODEL = "models/selected/global.safetensors"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with a model adapted from it and samples beside it."""
    home = tmp_path_factory.mktemp("finished")
    run = fedskew.run(QUICK, out=home / "runs", draw=False)
    x, y = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 3
    np.savez(home / "few.npz", x=x, y=y)
    fedskew.predict(run, x)
    fedskew.adapt(run, x, y, out=home / "adapted", epochs=1)
    run.path.rename(home / "run")
    return home


@pytest.fixture
def home(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "home")
    return tmp_path / "home"


def commands(home: Path) -> dict[str, tuple[str, ...]]:
    run, few, out = str(home / "run"), str(home / "few.npz"), str(home / "out")
    return {
        "show": ("show", run),
        "predict": ("predict", run, few),
        "adapt": ("adapt", run, few, "--out", out),
        "export": ("export", run, "--out", out, "--no-int8"),
        "predict with its own": ("predict", str(home / "adapted"), few),
    }


def changed(path: Path, **changes: Any) -> None:
    known = json.loads(path.read_text())
    path.write_text(json.dumps({**known, **changes}))


JUNK = {
    "empty": "", "{}": "{}", "[]": "[]", "null": "null", "3": "3", "text": '"a"', "half": '{"a": ',
    "deep": "[" * 100_000, "nested": '{"config": {"config": {}}}', "not UTF-8": b"\xff\xfe",
    "wide": "[" + "1," * 1000 + "1]", "NaN": '{"config": NaN}',
}  # fmt: skip
FILES = {
    "config.json": ("show", "predict", "adapt", "export"),
    "result.json": ("show", "predict", "adapt", "export"),
    "../adapted/about.json": ("predict with its own",),
    "../adapted/preparation.json": ("predict with its own",),
    "preparation.json": ("predict", "adapt"),
    "models/selected/personal/names.json": ("adapt --client",),
}


def put(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def words_of(home: Path, command: str) -> tuple[str, ...]:
    if command.endswith("--client"):
        return (*commands(home)[command.split()[0]], "--client", "client-000")
    return commands(home)[command]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(
    ("file", "command"), [(f, c) for f, used in FILES.items() for c in used]
)  # fmt: skip
def test_junk_in_place_of_a_file_is_refused(home: Path, file: str, command: str, junk: str) -> None:
    path = (home / "run" / file).resolve()
    assert path.is_file(), sorted(p.name for p in path.parent.iterdir())
    put(path, JUNK[junk])
    assert refused(home, *words_of(home, command))


CONFIGS: dict[str, dict[str, Any]] = {
    "shell as data": {
        "federation": {"dataset": "os:system", "options": {"command": "touch pwned"}}
    },
    "code as data": {"federation": {"dataset": "somebody:runs"}},
    "code as method": {"method": {"name": "somebody:runs"}},
    "code as base": {"method": {"name": "erm", "base": "somebody:runs"}},
    "unknown method": {"method": {"name": "nosuch"}},
    "unknown knob": {"method": {"name": "fedprox", "nu": 1}},
    "unknown setting": {"trian": {}},
    "number as method": {"method": 3},
    "nan": {"train": {"lr": float("nan")}},
    "text as rounds": {"train": {"rounds": "many"}},
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("command", ["predict", "adapt", "export"])
def test_settings_of_a_run_that_cannot_be_are_refused(home: Path, name: str, command: str) -> None:
    (home / "run" / "preparation.json").unlink()
    known = json.loads((home / "run" / "config.json").read_text())
    changed(home / "run" / "config.json", config={**known["config"], **CONFIGS[name]})
    assert refused(home, *words_of(home, command))
    assert not (home / "pwned").exists()


RESULTS: dict[str, Any] = {
    "model": [{"name": "os:system", "knobs": {}}, {"name": "mlp", "knobs": 3}, {"name": "nosuch",
              "knobs": {}}, {"name": "mlp", "knobs": {"hidden": [10**9]}}, "mlp", None, {}],
    "sample_shape": [[], [0], [-1], [10**9], [1, 10**6, 10**6], ["a"], 3, [1, 8, 9]],
    "classes": [0, -1, 10**9, "ten", None, 3.5, True],
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"), [(f, v) for f, values in RESULTS.items() for v in values], ids=repr
)
def test_a_summary_no_model_fits_is_refused(home: Path, field: str, value: Any) -> None:
    changed(home / "run" / "result.json", **{field: value})
    assert refused(home, *words_of(home, "predict"))


@pytest.mark.parametrize(
    "field",
    ["scores", "bytes", "warnings", "plan", "rounds", "notes", "unscored", "metrics"],
)
@pytest.mark.parametrize("value", [3.5, "a", [3], {"a": "b"}], ids=repr)
def test_a_summary_nobody_can_show_is_refused(home: Path, field: str, value: Any) -> None:
    if field == "notes" and value == "a":
        value = ["a", 1]
    changed(home / "run" / "result.json", **{field: value})
    assert refused(home, *words_of(home, "show"))


METRICS = ["", "{}", "[]", "3", '{"stage": 3}', '{"stage": "main"', "\xff", '{"a": NaN}', "null"]


@pytest.mark.parametrize("line", METRICS[1:])
@pytest.mark.parametrize("log", ["metrics.jsonl", "rounds.jsonl", "timing.jsonl"])
def test_junk_in_a_log_is_refused(home: Path, log: str, line: str) -> None:
    with open(home / "run" / log, "a", encoding="latin1") as file:
        file.write(line + "\n")
    assert refused(home, *words_of(home, "show"))


Tensors = dict[str, torch.Tensor]
TENSORS: dict[str, Callable[[Tensors], Tensors]] = {
    "nothing": lambda t: {},
    "one missing": lambda t: dict(list(t.items())[1:]),
    "one more": lambda t: {**t, "more": torch.zeros(1)},
    "other names": lambda t: {f"x.{name}": tensor for name, tensor in t.items()},
    "other shapes": lambda t: {name: torch.zeros(3) for name in t},
    "other types": lambda t: {name: tensor.to(torch.int64) for name, tensor in t.items()},
    "doubles": lambda t: {name: tensor.double() for name, tensor in t.items()},
    "NaN": lambda t: {name: tensor * float("nan") for name, tensor in t.items()},
    "infinity": lambda t: {name: tensor + float("inf") for name, tensor in t.items()},
}
RAW = {
    "empty": b"", "text": b"no tensors", "long header": b"\xff" * 8 + b"{}",
    "short header": b"\2\0\0\0\0\0\0\0{", "list": b"\2\0\0\0\0\0\0\0[]", "cut": None,
    "beyond": b'\x3c\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[9999999],"data_offsets":[0,4]}}  ',
}  # fmt: skip
MODELS = {"predict": f"run/{MODEL}", "predict with its own": "adapted/model.safetensors"}


@pytest.mark.parametrize("change", [*TENSORS, *RAW])
@pytest.mark.parametrize("command", MODELS)
def test_tensors_that_are_no_such_model_are_refused(home: Path, command: str, change: str) -> None:
    path = home / MODELS[command]
    if change in TENSORS:
        tensors = {name: t.clone() for name, t in load_file(path).items()}
        save_file(TENSORS[change](tensors), path)
    else:
        path.write_bytes(RAW[change] or path.read_bytes()[:-5])
    assert refused(home, *words_of(home, command))


@pytest.mark.parametrize("lost", ["config.json", "result.json", MODEL, "models"])
@pytest.mark.parametrize("command", ["predict", "adapt"])
def test_a_folder_that_lacks_something_is_refused(home: Path, command: str, lost: str) -> None:
    path = home / "run" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if "models" not in lost or command == "predict":
        assert refused(home, *words_of(home, command))
    else:
        survived(home, *words_of(home, command))


@pytest.mark.parametrize("name", ["../../../few", "/etc/passwd", "nobody", "", "a\x1fb"])
def test_a_client_that_is_a_path_is_refused(home: Path, name: str) -> None:
    assert refused(home, *words_of(home, "predict"), "--client", name)


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(
    place=st.integers(0, 10**6), change=st.binary(min_size=1, max_size=6),
    file=st.sampled_from(["config.json", "result.json", "metrics.jsonl", "rounds.jsonl", MODEL,
                          "preparation.json", "predictions.npz"]),
    command=st.sampled_from(["show", "predict"]),
)  # fmt: skip
def test_random_damage_never_breaks_anything(
    finished: Path, tmp_path_factory: pytest.TempPathFactory, place: int, change: bytes, file: str,
    command: str,
) -> None:  # fmt: skip
    home = tmp_path_factory.mktemp("random") / "home"
    shutil.copytree(finished, home)
    path = home / "run" / file
    whole = path.read_bytes()
    at = place % len(whole)
    path.write_bytes(whole[:at] + change + whole[at + len(change) :])
    code, _, err = attempt(*words_of(home, command))
    assert code in (0, 2), err
    assert len(err.splitlines()) <= 1


def test_the_folders_without_damage_are_accepted(home: Path) -> None:
    for words in commands(home).values():
        assert attempt(*words)[0] == 0
