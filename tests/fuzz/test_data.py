"""Data nobody can learn from, damaged files and files made to do harm: each is refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import EXAMPLES, attempt, refused, run, survived
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

ROWS = 40
X = np.random.default_rng(0).random((ROWS, 4), dtype=np.float32)
Y = np.arange(ROWS) % 2


def npz(**arrays: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **{"x": X, "y": Y, **arrays})
    return content.getvalue()


def promising(shape: tuple[int, ...]) -> bytes:
    """An npz whose x says that it has this shape, and holds eight bytes."""
    header = io.BytesIO()
    facts = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    labels = io.BytesIO()
    np.save(labels, Y)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + b"\0" * 8)
        archive.writestr("y.npy", labels.getvalue())
    return content.getvalue()


def zipped_bomb() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            for _ in range(300):
                file.write(b"\0" * 2**20)
        archive.writestr("y.npy", b"")
    return content.getvalue()


NPZ: dict[str, bytes] = {
    "empty": b"",
    "text": b"not an archive",
    "truncated": npz()[:200],
    "half": npz()[: len(npz()) // 2],
    "no arrays": b"PK\x05\x06" + b"\0" * 18,
    "one label": npz(y=np.zeros(ROWS, int)),
    "billionth label": npz(y=np.where(np.arange(ROWS) == 7, 10**9, Y)),
    "label beyond 64 bits": npz(y=np.full(ROWS, 2**64 - 1, np.uint64)),
    "negative label": npz(y=Y - 1),
    "text labels": npz(y=np.array(["a", "b"] * 20)),
    "complex labels": npz(y=Y * 1j),
    "too few labels": npz(y=Y[:-1]),
    "no labels": npz(y=Y[:0]),
    "one number": npz(x=np.float32(1)),
    "flat": npz(x=X[:, 0]),
    "no features": npz(x=X[:, :0]),
    "no rows": npz(x=X[:0], y=Y[:0]),
    "five dimensions": npz(x=np.zeros((ROWS, 1, 2, 2, 2), np.float32)),
    "nan": npz(x=np.where(X > 0.9, np.nan, X)),
    "infinity": npz(x=np.where(X > 0.9, np.inf, X)),
    "too large for float32": npz(x=X.astype(np.float64) * 1e300),
    "complex": npz(x=X * 1j),
    "texts": npz(x=X.astype(str)),
    "dates": npz(x=X.astype("datetime64[s]")),
    "objects": npz(x=X.astype(object)),
    "records": npz(x=np.zeros((ROWS, 2), dtype=[("a", "f4")])),
    "constant": npz(x=np.ones_like(X)),
    "constant features": npz(x=np.tile([1.0, 2.0, 3.0, 4.0], (ROWS, 1))),
    "x_scale 0": npz(x_scale=0.0),
    "x_scale nan": npz(x_scale=np.nan),
    "x_scale inf": npz(x_scale=np.inf),
    "x_scale of two": npz(x_scale=np.ones(2)),
    "x_scale text": npz(x_scale=np.array("a")),
    "split of 2": npz(split=np.full(ROWS, 2)),
    "all test": npz(split=np.ones(ROWS, int)),
    "short split": npz(split=np.zeros(3, int)),
    "one segment": npz(segment=np.zeros(ROWS, int)),
    "float segments": npz(segment=np.zeros(ROWS)),
    "short segments": npz(segment=np.arange(3)),
    "float owners": npz(owner=np.zeros(ROWS)),
    "owner without a name": npz(owner=Y, owner_names=np.array(["ann"])),
    "short owners": npz(owner=np.arange(3)),
    "objects as owners": npz(owner=np.array([None] * ROWS)),
    "class without a name": npz(class_names=np.array(["a"])),
    "objects as names": npz(class_names=np.array([{}, {}])),
    "a trillion elements": promising((10**12,)),
    "a trillion rows of none": promising((10**12, 10**6)),
    "negative shape": promising((-1, 4)),
    "bomb": zipped_bomb(),
}  # fmt: skip


def rows_of(lines: int = 30) -> str:
    return "".join(f"{i},{i * 2 % 7},{'ab'[i % 2]}\n" for i in range(lines))


def table(row: Callable[[int], str]) -> bytes:
    return "\n".join(["f,g,label", *map(row, range(30))]).encode()


CSV: dict[str, bytes] = {
    "empty": b"",
    "header alone": b"f,g,label\n",
    "no label": b"f,g\n1,2\n3,4\n",
    "label alone": b"label\na\nb\n",
    "same column twice": b"f,f,label\n1,2,a\n3,4,b\n",
    "ragged": b"f,g,label\n1,2,a\n3,b\n",
    "words": b"f,g,label\n1,x,a\n3,4,b\n",
    "underscores": ("f,g,label\n1_000,2,a\n" + rows_of()).encode(),
    "hexadecimal": ("f,g,label\n0x10,2,a\n" + rows_of()).encode(),
    "inf": ("f,g,label\n1e999,2,a\n" + rows_of()).encode(),
    "missing label": ("f,g,label\n1,2,\n" + rows_of()).encode(),
    "one label": table(lambda i: f"{i},{i % 3},a"),
    "constant": table(lambda i: f"1,2,{'ab'[i % 2]}"),
    "not UTF-8": b"f,g,label\n1,2,\xff\xfe\n",
    "NUL": b"f,g,label\n1,\0,a\n",
    "an endless cell": b"f,g,label\n\"" + b"a" * 200_000 + b"\n",
    "an image": b"\x89PNG\r\n\x1a\n\0\0\0",
    "digits beyond Python's": b"f,g,label\n" + b"9" * 5000 + b",2,a\n1,2,b\n",
    "gzip bomb": gzip.compress(b"0," * (200 * 2**20), 9),
    "truncated gzip": gzip.compress(b"f,g,label\n1,2,a\n")[:-9],
    "damaged gzip": b"\x1f\x8b" + b"\0" * 40,
}  # fmt: skip
PARQUET = {
    "empty": b"", "text": b"not parquet", "magic alone": b"PAR1PAR1", "magic": b"PAR1" * 8,
    "footer beyond the file": b"PAR1" + b"\0" * 8 + struct.pack("<I", 2**31 - 1) + b"PAR1",
}  # fmt: skip


def own(path: Path) -> str:
    return f"federation.dataset={path}"


def cases() -> list[tuple[str, str, bytes]]:
    kinds = {"npz": NPZ, "csv": CSV, "parquet": PARQUET}
    return [
        (kind, name, content) for kind, known in kinds.items() for name, content in known.items()
    ]


@pytest.mark.parametrize(
    ("kind", "name", "content"), cases(), ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_file_nobody_can_learn_from_is_refused(
    tmp_path: Path, kind: str, name: str, content: bytes
) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)
    said = refused(tmp_path, *run(tmp_path, own(path)))
    assert str(path) in said or "all of one class" in said


NUMBERS, LABELS = "is learned as a number", "labels, any of which a sample may have"


@pytest.mark.parametrize(
    ("name", "content", "learned"),
    [
        ("a.npz", npz(y=Y + 0.5), NUMBERS),
        ("a.npz", npz(y=np.stack([Y, 1 - Y], 1)), LABELS),
        ("a.csv", table(lambda i: f"{i},{i % 3},{i / 7}"), NUMBERS),
        ("a.csv", table(lambda i: f"{i},{i % 3},{i}"), NUMBERS),
    ],
    ids=["fractions", "two columns", "fractions in a table", "all different"],
)
def test_what_are_no_classes_is_learned_as_what_it_is_and_never_as_classes(
    tmp_path: Path, name: str, content: bytes, learned: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    code, out, err = attempt(*run(tmp_path, own(path)))
    assert code == 0, err
    assert learned in out + err
    if learned == NUMBERS and name.endswith("npz"):
        assert "fractions" in refused(
            tmp_path, *run(tmp_path, own(path), "federation.task=classification")
        )


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
@pytest.mark.parametrize("name", ["text", "empty", "magic"])
def test_a_folder_with_one_such_file_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    folder = tmp_path / "silos"
    folder.mkdir()
    good = npz() if kind == "npz" else ("f,g,label\n" + rows_of()).encode()
    bad = {"text": b"not data", "empty": b"", "magic": b"PAR1"}[name]
    for client, content in {"ann": good, "bob": bad}.items():
        (folder / f"{client}.{kind}").write_bytes(content)
    assert refused(tmp_path, *run(tmp_path, own(folder), "federation.partition=owner"))


@pytest.mark.parametrize(
    "name", ["", " ", "\0", "a\x1fb", "a\nb", "\ud800", "x" * 300, "pooled", "central"]
)
def test_clients_with_harmful_names_are_refused_before_training(tmp_path: Path, name: str) -> None:
    names = np.array([name or "\u2028", "bob"])
    path = tmp_path / "a.npz"
    np.savez(path, x=X, y=Y, owner=np.arange(ROWS) // 20, owner_names=names)
    with np.load(path) as stored:
        if str(stored["owner_names"][0]) != name:
            pytest.skip("numpy cannot store it")
    assert "name" in refused(tmp_path, *run(tmp_path, own(path), "federation.partition=owner"))


@pytest.mark.parametrize("name", ["a.csv", "a.npz", "a.parquet", "plain"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert refused(tmp_path, *run(tmp_path, own(tmp_path / name)))
    folder = tmp_path / "silos"
    folder.mkdir()
    os.mkfifo(folder / name)
    assert refused(tmp_path, *run(tmp_path, own(folder)))


def picture(**how: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(content, "png", **how)
    return content.getvalue()


def huge_png() -> bytes:
    """A picture whose header says that it has ten billion pixels."""
    whole = bytearray(picture())
    whole[16:24] = struct.pack(">II", 100_000, 100_000)
    return bytes(whole)


def large_bmp() -> bytes:
    content = io.BytesIO()
    Image.new("1", (9000, 9000)).save(content, "bmp")
    return content.getvalue()


def put(folder: Path, **files: bytes) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def good(folder: Path) -> None:
    shades = np.random.default_rng(0).integers(0, 255, (2, 2, 4, 8, 8), dtype=np.uint8)
    for i, owner in enumerate(("ann", "bob")):
        for j, label in enumerate(("cat", "dog")):
            for k in range(4):
                path = folder / owner / label / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(shades[i, j, k]).save(path)


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="8" height="8"/></svg>'
Change = Callable[[Path], object]
IMAGES: dict[str, Change] = {
    "SVG beside": lambda f: put(f, ann__cat__x_DOT_svg=SVG),
    "SVG named PNG": lambda f: put(f, ann__cat__x_DOT_png=SVG),
    "zero bytes": lambda f: put(f, ann__cat__x_DOT_png=b""),
    "truncated": lambda f: put(f, ann__cat__x_DOT_png=picture()[:50]),
    "text": lambda f: put(f, ann__cat__x_DOT_jpg=b"not a picture"),
    "ten billion pixels": lambda f: put(f, ann__cat__x_DOT_png=huge_png()),
    "81 million pixels": lambda f: put(f, ann__cat__x_DOT_bmp=large_bmp()),
    "GIF": lambda f: put(f, ann__cat__x_DOT_gif=b"GIF89a"),
    "TIFF": lambda f: put(f, ann__cat__x_DOT_tiff=b"II*\0"),
    "another size": lambda f: Image.new("L", (9, 9)).save(f / "ann/cat/x.png"),
    "a link to nothing": lambda f: (f / "ann/cat/x.png").symlink_to("nowhere.png"),
    "a link to itself": lambda f: (f / "ann/cat/x.png").symlink_to("x.png"),
    "a pipe": lambda f: os.mkfifo(f / "ann/cat/x.png"),
    "an owner without pictures": lambda f: (f / "eve").mkdir(),
    "an owner with a control character": lambda f: good_owner(f, "ev\x1fe"),
    "an owner with a line break": lambda f: good_owner(f, "ev\ne"),
    "an owner that is no text": lambda f: good_owner(f, os.fsdecode(b"ev\xff")),
    "an owner called pooled": lambda f: good_owner(f, "pooled"),
    "an owner of 250 letters": lambda f: good_owner(f, "e" * 250),
    "corrupt PPM": lambda f: put(f, ann__cat__x_DOT_ppm=b"P6 99999999 99999999 255\n"),
    "PGM of letters": lambda f: put(f, ann__cat__x_DOT_pgm=b"P2 a b 255\n"),
    "JPEG header": lambda f: put(f, ann__cat__x_DOT_jpeg=b"\xff\xd8\xff\xe0\0\x10JFIF"),
}  # fmt: skip


def good_owner(folder: Path, name: str) -> None:
    good(folder / "spare")
    (folder / "spare" / "ann").rename(folder / name)
    for path in sorted((folder / "spare").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (folder / "spare").rmdir()


@pytest.mark.parametrize("name", IMAGES)
def test_a_folder_of_images_with_one_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "images"
    good(folder)
    IMAGES[name](folder)
    assert refused(tmp_path, *run(tmp_path, own(folder), "federation.partition=owner"))


def test_the_folder_without_it_is_accepted(tmp_path: Path) -> None:
    good(tmp_path / "images")
    (tmp_path / "images/ann/cat/x.png").mkdir()
    assert (
        survived(tmp_path, *run(tmp_path, own(tmp_path / "images"), "federation.partition=owner"))
        == 0
    )


@pytest.mark.parametrize("loop", ["ann/loop", "loop", "ann/cat/loop"])
def test_folders_that_lead_back_to_themselves_end(tmp_path: Path, loop: str) -> None:
    folder = tmp_path / "images"
    good(folder)
    (folder / loop).symlink_to(folder, target_is_directory=True)
    survived(tmp_path, *run(tmp_path, own(folder), "federation.partition=owner"))


def idx(dimensions: int, *shape: int, kind: int = 8, body: bytes = b"") -> bytes:
    return bytes([0, 0, kind, dimensions]) + b"".join(struct.pack(">I", n) for n in shape) + body


IDX = {
    "empty": b"", "short": b"\0\0", "wrong magic": b"abcd" * 10, "no shape": bytes([0, 0, 8, 3]),
    "too large": idx(3, 2**31, 2**31, 2**31), "unknown type": idx(3, 1, 1, 1, kind=7, body=b"\0"),
    "one byte too many": idx(3, 1, 2, 2, body=b"\0" * 5), "no rows": idx(3, 0, 28, 28),
}  # fmt: skip


@pytest.mark.parametrize("name", IDX)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_idx_file_is_refused(tmp_path: Path, name: str, packed: bool) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    end = ".gz" if packed else ""
    for half in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            content = IDX[name]
            path = raw / f"{half}-{kind}-ubyte{end}"
            path.write_bytes(gzip.compress(content) if packed else content)
    words = run(tmp_path, "federation.dataset=mnist")
    assert refused(tmp_path, *words, "--data-dir", str(tmp_path))


PICKLES = {
    "empty": b"", "text": b"no pickle", "system": b"cos\nsystem\n(S'touch pwned'\ntR.",
    "eval": b"cbuiltins\neval\n(S'1'\ntR.", "number": pickle.dumps(3),
    "list": pickle.dumps([1]), "no data": pickle.dumps({b"labels": [1]}),
    "list as data": pickle.dumps({b"data": [[1]], b"labels": [1]}),
    "huge memo": b"\x80\x02}r\xff\xff\xff\xff.", "unhashable key": b"\x80\x02}]K\x01s.",
    "deep": b"(" * 100_000 + b".", "endless": b"\x80\x04\x8e" + b"\xff" * 8,
    "state of a function": b"\x80\x02c_codecs\nencode\n}U\x01aK\x01sb.",
    "extension": b"\x80\x02\x82\x01.", "persistent": b"\x80\x02K\x01Q.",
    "labels of texts": pickle.dumps(
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": ["a"]}, protocol=2),
    "objects": pickle.dumps(
        {b"data": np.array([None]), b"labels": [1]}, protocol=2),
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_a_harmful_pickle_is_refused(tmp_path: Path, name: str, dataset: str) -> None:
    ten = dataset == "cifar10"
    folder = tmp_path / ("cifar-10-batches-py" if ten else "cifar-100-python")
    folder.mkdir()
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for file in batches if ten else ("train", "test", "meta"):
        (folder / file).write_bytes(PICKLES[name])
    words = run(tmp_path, f"federation.dataset={dataset}")
    assert refused(tmp_path, *words, "--data-dir", str(tmp_path))


LEAF = {
    "empty": "", "list": "[]", "no users": "{}", "users as list": '{"user_data": []}',
    "no samples": '{"user_data": {"a": {"x": [], "y": []}}}',
    "short sample": '{"user_data": {"a": {"x": [[1]], "y": [1]}}}',
    "text": json.dumps({"user_data": {"a": {"x": [["a"] * 784], "y": [1]}}}),
    "nan": '{"user_data": {"a": {"x": [[' + "NaN," * 783 + '1]], "y": [1]}}}',
    "label too large": json.dumps({"user_data": {"a": {"x": [[0.5] * 784], "y": [99]}}}),
    "deep": "[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("name", LEAF)
def test_a_damaged_leaf_file_is_refused(tmp_path: Path, name: str) -> None:
    for place in ("femnist", "femnist/data/all_data", "leaf/femnist", "FEMNIST"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "all_data_0.json").write_text(LEAF[name])
    words = run(tmp_path, "federation.dataset=femnist", "federation.partition=owner")
    assert refused(tmp_path, *words, "--data-dir", str(tmp_path))


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(
    place=st.integers(0, 10**6), change=st.binary(min_size=1, max_size=8), cut=st.booleans(),
    kind=st.sampled_from(["npz", "csv", "csv.gz", "png", "idx"]),
)  # fmt: skip
def test_random_damage_never_breaks_anything(
    tmp_path_factory: pytest.TempPathFactory, place: int, change: bytes, cut: bool, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("random")
    whole = {
        "npz": npz(), "csv": ("f,g,label\n" + rows_of()).encode(),
        "csv.gz": gzip.compress(("f,g,label\n" + rows_of()).encode(), mtime=0),
        "png": picture(), "idx": npz(),
    }[kind]  # fmt: skip
    at = place % len(whole)
    content = whole[:at] + change + (b"" if cut else whole[at + len(change) :])
    if kind == "png":
        good(folder / "images")
        put(folder / "images", ann__cat__x_DOT_png=content)
        path = folder / "images"
    else:
        path = folder / f"a.{kind.partition('.')[0]}"
        path.write_bytes(content)
    survived(folder, *run(folder, own(path)))


def test_bombs_are_refused_within_a_gigabyte_of_memory(tmp_path: Path) -> None:
    """In processes of their own, which may have 3 GB of addresses, most of them torch's."""
    files = {"a.csv": CSV["gzip bomb"], "a.npz": NPZ["a trillion elements"], "b.npz": zipped_bomb(),
             "c.npz": NPZ["billionth label"]}  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)\n"
        "from fedskew.cli import main\n"
        "sys.exit(max(main(['run', 'digits', '--set', f'federation.dataset={name}'])"
        f" != 2 for name in {sorted(files)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True,
                          text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(files)
    assert "memory" not in done.stderr
