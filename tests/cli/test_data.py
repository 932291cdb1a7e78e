"""``fedskew data``: what it prints, where data end, and how it is stopped and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from loopback import PROXIES, Loopback, moved

from fedskew.cli import main
from fedskew.data.datasets import load
from fedskew.data.offers import OFFERS, Offer
from fedskew.data.presets import PRESETS
from fedskew.errors import DataError

CONTENT = np.random.default_rng(0).bytes(600_000)
COMMAND = """
import sys
from dataclasses import replace
from fedskew.cli import main
from fedskew.data.offers import OFFERS

offer = OFFERS["qmnist-labels"]
files = tuple(
    replace(f, size={size}, sha256={sums!r}[f.name], addresses=({base!r} + f.name,))
    for f in offer.files
)
OFFERS["qmnist-labels"] = replace(offer, files=files)
sys.exit(main())
"""
"""The command in a process of its own, with a table whose files are on this machine."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with Loopback() as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where data go when nothing else is said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fedskew"


@pytest.fixture
def labels(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Two small files under the name of the QMNIST labels."""
    contents = {file.name: CONTENT for file in OFFERS["qmnist-labels"].files}
    offer = moved(OFFERS["qmnist-labels"], server, contents)
    monkeypatch.setitem(OFFERS, offer.name, offer)
    return offer


def started(offer: Offer, folder: Path, server: Loopback, *, half: bool) -> subprocess.Popen[str]:
    """``fedskew data get`` in a process of its own; of every file it may get only one half."""
    for page in server.pages.values():
        page.gate = Event() if half else None
    script = COMMAND.format(
        size=offer.files[0].size,
        sums={file.name: file.sha256 for file in offer.files},
        base=f"http://{server.host}/",
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, "data", "get", offer.name, "--into", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_a_beginning(part: Path, process: subprocess.Popen[str]) -> int:
    deadline = time.monotonic() + 180
    while not (part.exists() and 0 < part.stat().st_size < len(CONTENT)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return part.stat().st_size


def test_get_says_licence_and_source_and_where_the_data_are(
    labels: Offer, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "get", "qmnist-labels"]) == 0
    said = capsys.readouterr().out
    assert "qmnist-labels: who wrote each MNIST digit" in said
    assert "1.2 MB to fetch" in said
    assert "licence  BSD 3-Clause" in said
    assert f"cite     {labels.cite}; https://github.com/facebookresearch/qmnist" in said
    for file in labels.files:
        assert f"{file.name}: 600000 bytes, SHA-256 as published" in said
        assert (cache / "QMNIST-labels" / file.name).read_bytes() == CONTENT
    assert f"qmnist-labels is now in {cache}/QMNIST-labels\n" in said
    assert "--data-dir" not in said, "it is found there"
    assert main(["data", "get", "qmnist-labels"]) == 0
    again = capsys.readouterr().out
    assert f"qmnist-labels is already in {cache}/QMNIST-labels; remove it to" in again


def test_data_elsewhere_are_said_how_to_be_read(
    labels: Offer, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    assert main(["data", "get", "qmnist-labels", "--into", str(there)]) == 0
    assert f"pass --data-dir {there} or set FEDSKEW_DATA={there}" in capsys.readouterr().out


def test_without_a_network_it_says_which_files_to_bring_and_where_to_put_them(
    labels: Offer, cache: Path, server: Loopback, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with Loopback() as gone:
        address = f"http://{gone.host}/"
    nowhere = tuple(replace(f, addresses=(address + f.name,)) for f in labels.files)
    monkeypatch.setitem(OFFERS, labels.name, replace(labels, files=nowhere))
    assert main(["data", "get", "qmnist-labels"]) == 2
    captured = capsys.readouterr()
    assert "cannot be reached (connection refused)" in captured.err
    assert captured.err.count("\n") == 1
    for file in nowhere:
        assert file.name in captured.out
        assert f"600000 bytes, SHA-256 {file.sha256}" in captured.out
        assert file.addresses[0] in captured.out
    assert f"put these files into {cache}/downloads" in captured.out
    for file in nowhere:
        (cache / "downloads" / file.name).write_bytes(CONTENT)
    assert main(["data", "get", "qmnist-labels"]) == 0
    assert server.asked == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nmist", "unknown dataset to fetch 'nmist': did you mean 'mnist'?"),
        ("", "unknown dataset to fetch '': choose from cifar10"),
        ("digits", "dataset 'digits' needs no files: there is nothing to fetch."),
        ("femnist", "build it with the scripts of the LEAF benchmark (data/femnist)."),
        ("chest-xray", "put the images of each source into chest-xray/SOURCE/CLASS/."),
        *((name, "is made from another one: fetch mnist or fashion-mnist.") for name in PRESETS),
    ],
)
def test_what_cannot_be_fetched_says_what_to_do_instead(
    name: str, sentence: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "get", "har", name]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.out == "", "nothing is fetched before every name is known"
    assert not cache.exists()


def test_list_shows_what_is_there_and_what_can_be_fetched(
    labels: Offer,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedskew.cli.watching.WIDE", 400)  # so that no long path is broken
    main(["data", "get", "qmnist-labels"])
    capsys.readouterr()
    assert main(["data", "list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert f"{cache}/QMNIST-labels" in rows["qmnist-labels"]
    assert "1.2 MB" in rows["qmnist-labels"]
    assert "not here  " in rows["gtsrb"]
    assert "365.4 MB" in rows["gtsrb"]
    assert "CC BY 4.0, not commercial" in rows["har"]
    assert "not here, by hand only" in rows["femnist"]
    assert "needs no files" in rows["digits"]


def test_list_of_one_names_its_files_sizes_sums_and_addresses(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "list", "har"]) == 0
    said = capsys.readouterr().out
    (file,) = OFFERS["har"].files
    assert f"{file.size} bytes, SHA-256 {file.sha256}" in said
    assert file.addresses[0] in said
    assert "its README forbids commercial use: ask before it" in said


def test_the_error_of_a_missing_dataset_names_the_command(cache: Path) -> None:
    with pytest.raises(DataError, match="run 'fedskew data get har', or get 'Human Activity"):
        load("har")
    with pytest.raises(DataError, match=r"; build it with the scripts of the LEAF benchmark"):
        load("femnist")


def test_killed_midway_it_goes_on_where_it_was(
    labels: Offer, server: Loopback, tmp_path: Path
) -> None:
    first = labels.files[0].name
    process = started(labels, tmp_path, server, half=True)
    wait_for_a_beginning(tmp_path / "downloads" / f"{first}.part", process)
    process.kill()
    process.communicate()
    came = (tmp_path / "downloads" / f"{first}.part").stat().st_size
    assert not (tmp_path / "QMNIST-labels").exists()
    process = started(labels, tmp_path, server, half=False)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert f"{first}: going on after" in out
    assert [h.get("range") for p, h in server.asked if first in p] == [None, f"bytes={came}-"]
    assert (tmp_path / "QMNIST-labels" / first).read_bytes() == CONTENT


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_leaves_what_came_and_says_so(
    number: signal.Signals, code: int, labels: Offer, server: Loopback, tmp_path: Path
) -> None:
    process = started(labels, tmp_path, server, half=True)
    part = tmp_path / "downloads" / f"{labels.files[0].name}.part"
    wait_for_a_beginning(part, process)
    process.send_signal(number)
    _, error = process.communicate(timeout=300)
    assert process.returncode == code
    assert error == f"stopped; what has come stays in {tmp_path}: repeat the command to go on\n"
    assert 0 < part.stat().st_size < len(CONTENT)


def test_two_commands_at_once_fetch_every_file_once(
    labels: Offer, server: Loopback, tmp_path: Path
) -> None:
    for page in server.pages.values():
        page.pause = 0.05
    both = [started(labels, tmp_path, server, half=False) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted(server.paths()) == sorted(f"/{file.name}" for file in labels.files)
    assert sum("another command is fetching qmnist-labels" in out for out, _ in said) <= 1
    for file in labels.files:
        assert (tmp_path / "QMNIST-labels" / file.name).read_bytes() == CONTENT


@pytest.mark.real_data
def test_a_run_reads_what_was_fetched_to_the_cache(
    data_dir: Path, cache: Path, server: Loopback, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The real files of MNIST by the real table, but for the host they come from."""
    mnist = OFFERS["mnist"]
    for file in mnist.files:
        server.serve(file.name, (data_dir / mnist.place / file.name).read_bytes())
    files = tuple(replace(f, addresses=(f"http://{server.host}/{f.name}",)) for f in mnist.files)
    monkeypatch.setitem(OFFERS, "mnist", replace(mnist, files=files))
    run = [
        "run", "digits", "--set", "federation.dataset=mnist", "--set", "model=logistic",
        "--set", "train.rounds=1", "--set", "federation.clients=3",
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    assert main(run) == 2
    assert "run 'fedskew data get mnist', or " in capsys.readouterr().err
    assert main(["data", "get", "mnist"]) == 0
    assert main(run) == 0, capsys.readouterr().err
    assert os.listdir(cache / "MNIST") == ["raw"]
