"""Files that answer by themselves: loaded with the lines that export prints, without fedskew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import clinics
import numpy as np
import pytest
import torch
from quick_digits import Stored

import fedskew
from fedskew.api import run
from fedskew.data.tables.kinds import column_of
from fedskew.data.tables.reading import read_table
from fedskew.deploy.export import export
from fedskew.deploy.loading import OneFile
from fedskew.deploy.model import open_model
from fedskew.deploy.samples import prepared, read_samples
from fedskew.deploy.standalone import Standalone
from fedskew.errors import ConfigError, RunError
from fedskew.runs.experiment import Run
from fedskew.runs.preparation import SamplePreparation

Array = np.ndarray[Any, Any]
ALONE = """
import importlib.util, json, pathlib, sys
sys.path = [p for p in sys.path if not (pathlib.Path(p or ".") / "fedskew").is_dir()]
sys.meta_path = [f for f in sys.meta_path if "editable" not in getattr(f, "__name__", "").lower()]
assert importlib.util.find_spec("fedskew") is None
import numpy
for name, values in json.load(open("given.json")).items():
    has_words = any(isinstance(v, str) for v in numpy.array(values, dtype=object).flat)
    if name != "rows" or not has_words:
        values = numpy.array(values, dtype=None if has_words else "float32")
    globals()[name] = values
{lines}
numpy.save("answers.npy", numpy.asarray({result}))
"""


def alone(folder: Path, file: OneFile, given: Any, result: str = "answers") -> Array:
    """What a file answers in a process that has no fedskew, by the lines that were printed."""
    given = {"rows": given.tolist()} if isinstance(given, np.ndarray) else given
    (folder / "given.json").write_text(json.dumps(given))
    script = ALONE.format(lines="\n".join(file.lines), result=result)
    done = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", "-c", script], cwd=folder, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return np.load(folder / "answers.npy")


def cells(path: Path, told: list[dict[str, Any]]) -> list[list[Any]]:
    """The columns that metadata name, words as they are written in the file."""
    table = read_table(path)
    columns = [column_of(table, each["name"], each["kind"]) for each in told]
    return [
        table.columns[c.name].tolist() if c.kind in ("category", "hash") else c.values.tolist()
        for c in columns
    ]


def given_to(file: OneFile, path: Path) -> dict[str, Any]:
    """What the lines that load a file are to be given of a table."""
    told = metadata(file)
    names = {"inputs": "inputs", "words": "words"} if file.form == "onnx of words" else {
        "inputs": "rows"}  # fmt: skip
    return {
        called: [list(row) for row in zip(*cells(path, told[name]["columns"]), strict=True)]
        for name, called in names.items()
        if name in told
    }


def coded(path: Path, preparation: SamplePreparation) -> Array:
    """A table in numbers, as a model with its preparation takes it."""
    assert preparation.encoder is not None
    columns = []
    table = read_table(path)
    for told in preparation.encoder.columns:
        column = column_of(table, told.name, told.kind)
        values = column.values
        if told.levels:
            place = {level: number for number, level in enumerate(told.levels)}
            codes = np.array([*(place.get(word, -1) for word in column.words), np.nan])
            values = codes[np.where(np.isnan(values), -1, values).astype(int)]
        columns.append(values)
    return np.stack(columns, axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run on words, dates and numbers, some missing; and new rows, one of a ward unheard of."""
    folder = tmp_path_factory.mktemp("clinic")
    data = clinics.write(folder / "all.csv", clinics.rows(400, seed=0))
    new = clinics.write(folder / "new.csv", clinics.rows(50, seed=1, wards="ABCZ"))
    return run(clinics.settings(data), out=folder / "runs", draw=False), new


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_a_table_is_answered_alike_to_five_digits(
    clinic: tuple[Run, Path], tmp_path: Path, form: str
) -> None:
    if form == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    done, new = clinic
    file = export(done, tmp_path, form=form).files[0]
    names = [column["name"] for column in metadata(file)["inputs"]["columns"]]
    assert names == [n for n in clinics.FEATURES if n != "ward" or form == "torch"]
    given = given_to(file, new)
    found = alone(tmp_path, file, given)
    known = fedskew.predict(done, new, threshold=0.5).answers
    assert "NaN" in json.dumps(given)
    assert '"Z"' in json.dumps(given)
    np.testing.assert_allclose(found, known, atol=1e-5)


def test_a_graph_takes_words_of_any_column_as_they_are(tmp_path: Path) -> None:
    """Few words, many words, and none in a cell; the hash is that of the preparation."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    towns = np.array([f"Köln {number}" for number in range(40)])
    table = {
        "town": rng.choice(towns, 300), "blood": rng.choice(["A", "B", "0", ""], 300),
        "label": rng.choice(["ill", "well"], 300),
    }  # fmt: skip
    lines = [",".join(row) for row in zip(*table.values(), strict=True)]
    for name, kept in (("all.csv", lines), ("new.csv", ["NA,n/a,ill", "Bonn,AB,ill", *lines[:9]])):
        (tmp_path / name).write_text("\n".join([",".join(table), *kept]), encoding="utf-8")
    settings = {
        "model": "logistic", "train": {"rounds": 2, "lr": 0.5},
        "federation": {"dataset": str(tmp_path / "all.csv"), "clients": 2, "partition": "iid"},
    }  # fmt: skip
    done = run(settings, out=tmp_path / "runs", draw=False)
    exact, small = export(done, tmp_path / "out", form="onnx").files
    encoder = open_model(done).preparation.encoder
    assert [len(column.levels) for column in encoder.columns] == [0, 3]  # type: ignore[union-attr]
    assert "inputs" not in metadata(exact)
    given = given_to(exact, tmp_path / "new.csv")
    given["words"][0] = ["NA", "n/a"]
    known = fedskew.predict(done, tmp_path / "new.csv", threshold=0.5).answers
    np.testing.assert_allclose(alone(tmp_path, exact, given), known, atol=1e-5)
    assert np.abs(alone(tmp_path, small, given) - known).max() < 0.02


def metadata(file: OneFile) -> dict[str, Any]:
    """What a file says of itself."""
    if file.form.startswith("onnx"):
        import onnx

        props = {p.key: p.value for p in onnx.load(file.path).metadata_props}
        found: dict[str, Any] = json.loads(props["fedskew"])
        return found
    import torch

    extra = {"fedskew.json": ""}
    torch.jit.load(file.path, _extra_files=extra)  # type: ignore[no-untyped-call]
    told: dict[str, Any] = json.loads(extra["fedskew.json"])
    return told


def test_a_file_names_its_classes_its_columns_and_its_makers(
    clinic: tuple[Run, Path], tmp_path: Path
) -> None:
    pytest.importorskip("onnx")
    done, _ = clinic
    for form in ("onnx", "torch"):
        told = metadata(export(done, tmp_path, form=form, int8=False).files[0])
        assert told["outputs"]["classes"] == ["sick", "well"]
        if form == "torch":
            words = {"words": {"A": 0, "B": 1, "C": 2}, "another_word": -1}
            assert told["inputs"]["columns"][1] == {"name": "ward", "kind": "category", **words}
        else:
            assert told["words"]["columns"] == [{"name": "ward", "kind": "category"}]
        assert told["fedskew"] == fedskew.__version__
        assert told["torch"]
        assert told["metric"] == "accuracy"


IMAGES: dict[str, Any] = {"image": {"side": 16}, "clients": 3, "samples": 300}


@pytest.mark.parametrize("form", ["onnx", "torch"])
@pytest.mark.parametrize(
    ("model", "federation"),
    [
        ({"name": "mlp", "hidden": [8]}, {"clients": 3, "samples": 300}),
        ("cnn", IMAGES),
        ("cnn-groupnorm", {**IMAGES, "image": {"side": 16, "channels": 3}}),
    ],
)
def test_images_are_answered_alike(
    tmp_path: Path, stored: Stored, form: str, model: Any, federation: dict[str, Any]
) -> None:
    if form == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    settings = {"model": model, "federation": federation, "train": {"rounds": 1, "lr": 0.1}}
    done = run(settings, out=tmp_path / "runs", draw=False)
    file = export(done, tmp_path / "out", form=form, int8=False).files[0]
    x = stored[0][:20]
    made = open_model(done)
    assert metadata(file)["inputs"]["shape"][1:] == list(made.preparation.taken)
    from fedskew.data.prepare import as_floats

    raw = as_floats("x", x, made.preparation.image)
    found = alone(tmp_path, file, raw)
    known = fedskew.predict(done, x, threshold=0.5).answers
    np.testing.assert_allclose(found, known, atol=1e-5)


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_numbers_are_answered_alike_in_their_units(tmp_path: Path, form: str) -> None:
    if form == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    np.savez(tmp_path / "all.npz", x=x, y=1000 + 50 * x[:, 0])
    settings = {
        "model": {"name": "mlp", "hidden": [8]},
        "federation": {"dataset": str(tmp_path / "all.npz"), "clients": 2, "partition": "iid"},
        "train": {"rounds": 3, "lr": 0.05},
    }
    done = run(settings, out=tmp_path / "runs", draw=False)
    file = export(done, tmp_path / "out", form=form, int8=False).files[0]
    found = alone(tmp_path, file, x[:30])
    known = fedskew.predict(done, x[:30]).answers
    assert 900 < float(known.mean()) < 1100
    np.testing.assert_allclose(found, known, rtol=1e-5)


@pytest.mark.parametrize(
    "federation",
    [
        {"normalise": "client"},
        {"features": {"top": 2, "scale": "feature"}},
        {"normalise": "unit", "features": {"scale": "client"}},
    ],
)
def test_what_clients_do_with_features_is_inside(
    tmp_path: Path, federation: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(5, 3, size=(200, 4)).astype(np.float32)
    np.savez(tmp_path / "all.npz", x=x, y=(x[:, 0] > x[:, 1]).astype(int))
    settings = {
        "model": "logistic", "train": {"rounds": 2},
        "federation": {"dataset": str(tmp_path / "all.npz"), "clients": 2, "partition": "iid",
                       **federation},
    }  # fmt: skip
    done = run(settings, out=tmp_path / "runs", draw=False)
    # A file answers on one scale, and each of these clients has its own.
    client = "client-001"
    with pytest.raises(RunError, match="name whose with --client, like 'client-000'"):
        export(done, tmp_path / "out", form="torch")
    with pytest.raises(ConfigError, match="unknown client 'client-009'"):
        export(done, tmp_path / "out", client="client-009")
    assert not (tmp_path / "out").exists()
    file = export(done, tmp_path / "out", form="torch", int8=False, client=client).files[0]
    made = open_model(done)
    preparation = made.preparation.of_client(client)
    with torch.no_grad():
        known = made.module(preparation.samples(x[:30])).softmax(dim=1)
    np.testing.assert_allclose(alone(tmp_path, file, x[:30]), known, atol=1e-5)


def test_a_table_scaled_by_each_client_is_scaled_inside(tmp_path: Path) -> None:
    data = clinics.write(tmp_path / "all.csv", clinics.rows(300, seed=0))
    new = clinics.write(tmp_path / "new.csv", clinics.rows(40, seed=1))
    settings = clinics.settings(data)
    settings["federation"]["normalise"] = "client"
    done = run(settings, out=tmp_path / "runs", draw=False)
    name = "client-001"
    made = open_model(done)
    own = made.preparation.of_client(name)
    assert own.scale_by != made.preparation.scale_by
    stored_rows = read_samples(new, None, own)

    for preparation in (own, made.preparation):
        raw = coded(new, preparation)
        whole = Standalone(made.module, preparation).eval()
        with torch.no_grad():
            known = made.module(preparation.samples(stored_rows.x)).softmax(dim=1)
            np.testing.assert_allclose(whole(torch.from_numpy(raw)), known, atol=1e-5)


def test_the_numbers_alone_are_enough_for_whoever_knows_the_layers(
    clinic: tuple[Run, Path], tmp_path: Path
) -> None:
    """A network of one hidden layer by hand, from the file's weights and figures."""
    done, new = clinic
    made = open_model(done)
    x = prepared(read_samples(new, None, made.preparation), made.preparation).x.numpy()
    known = fedskew.predict(done, new, threshold=0.5).answers
    whole, small = export(done, tmp_path).files
    by_hand = (
        'softmax(numpy.maximum(rows @ weights["body.1.weight"].T + weights["body.1.bias"], 0)'
        ' @ weights["head.weight"].T + weights["head.bias"])'
    )
    by_hand = by_hand.replace("softmax(", "(lambda z: (e := numpy.exp(z)) / e.sum(1)[:, None])(", 1)
    np.testing.assert_allclose(alone(tmp_path, whole, x, by_hand), known, atol=1e-5)
    # Eight bits a weight: a few thousandths of the probability.
    rough = alone(tmp_path, small, x, by_hand)
    assert 0 < np.abs(rough - known).max() < 0.02


def test_int8_programs_answer_nearly_alike(clinic: tuple[Run, Path], tmp_path: Path) -> None:
    done, new = clinic
    exact, small = export(done, tmp_path, form="torch").files
    assert (exact.path.name, small.path.name) == ("model.pt", "model-int8.pt")
    known = fedskew.predict(done, new, threshold=0.5).answers
    found = alone(tmp_path, small, given_to(small, new))
    assert 0 < np.abs(found - known).max() < 0.05


def test_an_unknown_format_and_a_lacking_package_get_one_sentence(
    clinic: tuple[Run, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = clinic
    with pytest.raises(ConfigError, match="unknown format 'onxx': did you mean 'onnx'"):
        export(done, tmp_path, form="onxx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedskew\[onnx\]'"):
        export(done, tmp_path, form="onnx")
    assert not list(tmp_path.glob("*.onnx"))


def test_a_model_that_looks_at_its_numbers_is_not_written_wrongly(tmp_path: Path) -> None:
    """Tracing would keep one way of two; the file is tried before it is written."""
    from torch import Tensor, nn

    from fedskew.deploy.files import write_torch
    from fedskew.runs.preparation import SamplePreparation

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(x)
            return logits if len(x) > 5 else 2 * logits

    preparation = SamplePreparation("unit", ("a", "b"), (0, 1), (3,), (3,))
    with pytest.raises(RunError, match="would answer otherwise than the model"):
        write_torch(tmp_path / "model.pt", Branching(), preparation, {})
    assert not list(tmp_path.iterdir())
