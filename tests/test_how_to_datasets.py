"""docs/how-to/datasets.md: its table is the table of the code, its commands work."""

from __future__ import annotations

import gzip
import re
import shlex
import struct
from pathlib import Path

import numpy as np
import pytest
from loopback import PROXIES, Loopback, moved

from fedskew.cli import main
from fedskew.cli.downloads import megabytes
from fedskew.data.datasets import DATASETS
from fedskew.data.offers import OFFERS

PAGE = (Path(__file__).parents[1] / "docs/how-to/datasets.md").read_text()
COMMANDS = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
]


def idx(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 0x08, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


def small_mnist() -> dict[str, bytes]:
    """400 noisy images, whose labels go round."""
    noise, contents = np.random.default_rng(0), {}
    for part, rows in (("train", 300), ("t10k", 100)):
        pixels = noise.integers(0, 255, (rows, 28, 28), np.uint8)
        contents[f"{part}-images-idx3-ubyte.gz"] = idx(pixels)
        contents[f"{part}-labels-idx1-ubyte.gz"] = idx(np.arange(rows, dtype=np.uint8) % 10)
    return contents


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    assert rows == [
        f"| {one.name} | {one.summary} | {megabytes(one.size)} | {one.files[0].sum[0]} | "
        f"{one.licence_in_full} |"
        for one in OFFERS.values()
    ]


def test_every_dataset_is_on_the_page() -> None:
    assert [name for name in DATASETS if not re.search(rf"\b{name}\b", PAGE)] == []


def test_the_commands_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    assert len(COMMANDS) == 4
    with Loopback() as server:
        monkeypatch.setitem(OFFERS, "mnist", moved(OFFERS["mnist"], server, small_mnist()))
        for command in COMMANDS:
            program, *arguments = shlex.split(command)
            assert (program, main(arguments)) == ("fedskew", 0)
    assert (tmp_path / "cache/fedskew/MNIST/raw").is_dir()
