"""The diagnosis by files is that of one process, to the bit, and damaged files are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedskew.cli import main
from fedskew.diagnosis.basis import Basis, agreed, opening
from fedskew.diagnosis.files import read_basis, read_summary, write_basis, write_summary
from fedskew.diagnosis.summary import summarise
from fedskew.errors import DataError


def sites(folder: Path, kind: str = "classes") -> list[Path]:
    """Four files of rows, each lacking a class; in one, another feature."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    paths = []
    for k in range(4):
        y = rng.choice([c for c in range(4) if c != k], 120)
        x = rng.standard_normal((120, 6)) + y[:, None] + (k == 2)
        target = y + 0.1 * rng.standard_normal(120) if kind == "numbers" else y
        path = folder / f"site-{k}.csv"
        lines = [",".join([*(f"f{i}" for i in range(6)), "label"])]
        word = "{:.4f}".format if kind == "numbers" else "class {}".format
        lines += [
            ",".join([*(f"{v:.5f}" for v in row), word(t)])
            for row, t in zip(x, target, strict=True)
        ]
        path.write_text("\n".join(lines) + "\n")
        paths.append(path)
    return paths


def by_files(paths: list[Path], folder: Path) -> None:
    for path in paths:
        assert main(["summarise", str(path), "--out", str(folder)]) == 0
    assert main(["diagnose", str(folder), "--out", str(folder)]) == 0
    basis = ["--basis", str(folder / "basis.json")]
    for path in paths:
        assert main(["summarise", str(path), *basis, "--out", str(folder)]) == 0
    files = [str(path) for path in folder.glob("*.summary.npz")]
    assert main(["diagnose", *files, *basis, "--out", str(folder)]) == 0


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_by_files_as_in_one_process_to_the_bit(kind: str, tmp_path: Path) -> None:
    paths = sites(tmp_path / "sites", kind)
    by_files(paths, tmp_path / "sent")
    assert main(["diagnose", str(tmp_path / "sites"), "--out", str(tmp_path / "one")]) == 0
    told = [(tmp_path / name / "diagnosis.json").read_bytes() for name in ("sent", "one")]
    assert told[0] == told[1]
    found = json.loads(told[0])
    assert {s["kind"]: s["verdict"] for s in found["findings"]}["label"] == "found"
    for name in ("diagnosis.png", "diagnosis.csv", "basis.json"):
        assert (tmp_path / "sent" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_a_file_holds_what_was_summed_and_no_more(deal, tmp_path: Path) -> None:
    federation = deal(clients=2, size=40)
    basis = agreed([opening(federation, c.name) for c in federation.clients], cell=14)
    summary = summarise(federation, basis)[0]
    path = write_summary(tmp_path, summary)
    with np.load(path) as stored:
        assert set(stored.files) == {"told", "counts", "joined", "sums", "products", "hashes"}
        assert len(stored["sums"]) == (summary.counts > 0).sum() < 3
    again = read_summary(path)
    for name in vars(summary):
        np.testing.assert_array_equal(getattr(again, name), getattr(summary, name))
    write_basis(tmp_path / "basis.json", basis)
    assert read_basis(tmp_path / "basis.json").seal == basis.seal


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def test_files_that_do_not_fit_are_refused_in_one_sentence(tmp_path: Path, capsys) -> None:
    paths = sites(tmp_path / "sites")
    sent = tmp_path / "sent"
    by_files(paths, sent)
    summaries = sorted(map(str, sent.glob("*.summary.npz")))
    assert "there is one client" in refused(["diagnose", summaries[0], "--basis",
                                             str(sent / "basis.json")], capsys)  # fmt: skip
    other = tmp_path / "other.json"
    plain = json.loads((sent / "basis.json").read_text())
    other.write_text(json.dumps(plain | {"seed": 5}))
    assert "another basis" in refused(["diagnose", *summaries, "--basis", str(other)], capsys)
    other.write_text(json.dumps(plain | {"version": 9}))
    assert "version 9" in refused(["diagnose", *summaries, "--basis", str(other)], capsys)
    other.write_text("{}")
    assert "no basis" in refused(["summarise", str(paths[0]), "--basis", str(other)], capsys)
    with np.load(summaries[0]) as stored:
        arrays = dict(stored)
    told = json.loads(str(arrays.pop("told")))
    np.savez(summaries[0], told=np.array(json.dumps(told | {"version": 3})), **arrays)
    assert "is of version 3" in refused(["diagnose", *summaries], capsys)
    np.savez(summaries[0], told=np.array("{}"), **arrays)
    assert "no summary" in refused(["diagnose", *summaries], capsys)
    Path(summaries[0]).write_bytes(b"nothing")
    assert "damaged" in refused(["diagnose", *summaries], capsys)


def test_what_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    assert "is empty" in refused(["diagnose", str(tmp_path / "empty")], capsys)
    paths = sites(tmp_path / "sites")
    assert "cannot be given" in refused(["diagnose", "digits", "--basis", "b.json"], capsys)
    assert "--epsilon" in refused(["summarise", str(paths[0]), "--epsilon", "1"], capsys)
    assert "above 0" in refused(["diagnose", str(tmp_path / "sites"), "--epsilon", "0"], capsys)
    bare = tmp_path / "bare.csv"
    bare.write_text("a,b\n1,2\n3,4\n")
    assert "label" in refused(["summarise", str(bare)], capsys)


def test_a_site_with_two_of_three_classes_sums_up_like_any_other(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site, classes in (("a", "uv"), ("b", "uvw"), ("c", "w")):
        lines = [f"{rng.standard_normal():.4f},{classes[i % len(classes)]}" for i in range(60)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["x,label", *lines]) + "\n")
    by_files([tmp_path / f"{site}.csv" for site in "abc"], tmp_path / "sent")
    found = json.loads((tmp_path / "sent" / "diagnosis.json").read_text())
    assert found["rows"] == [60, 60, 60]
    assert read_summary(tmp_path / "sent" / "a.summary.npz").counts.tolist() == [30, 30, 0]
    assert read_summary(tmp_path / "sent" / "c.summary.npz").counts.tolist() == [0, 0, 60]


def test_what_does_not_fit_the_others_is_refused_in_one_sentence(tmp_path: Path, capsys) -> None:
    paths = sites(tmp_path / "sites")
    other = sites(tmp_path / "numbers", "numbers")[0]
    sent = tmp_path / "sent"
    by_files(paths, sent)
    basis = ["--basis", str(sent / "basis.json")]
    assert "are numbers, those of the basis classes" in refused(
        ["summarise", str(other), *basis], capsys
    )
    assert "leave '/' out" in refused(["summarise", str(paths[0]), "--client", "../x"], capsys)
    assert "no file of 'fedskew summarise'" in refused(
        ["diagnose", str(sent), str(tmp_path / "sites"), *basis], capsys
    )
    one, two = sorted(sent.glob("*.summary.npz"))[:2]
    with np.load(one) as stored:
        arrays = dict(stored)
    told = json.loads(str(arrays.pop("told")))
    for changes, sentence in (
        ({"counts": arrays["counts"] * 9}, "counts do not add up"),
        ({"told": np.array(json.dumps(told | {"rows": -1}))}, "counts do not add up"),
        ({"hashes": arrays["hashes"][:5]}, "sums are of another shape"),
        ({"counts": np.append(arrays["counts"], 0.0)}, "counts 5 classes, the basis 4"),
    ):
        np.savez(one, **{"told": np.array(json.dumps(told)), **arrays, **changes})
        assert sentence in refused(["diagnose", str(one), str(two), *basis], capsys)


def test_a_basis_of_another_version_is_refused() -> None:
    with pytest.raises(DataError, match="version 0"):
        Basis.from_plain({"version": 0})
