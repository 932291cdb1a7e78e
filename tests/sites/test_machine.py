"""Sites with addresses of their own, one of them cut off; and a site whose disk is full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import NAMES, SILENT, Haste, Lot
from studies import MLP, TRAIN

from fedskew.config import make_config
from fedskew.federate.progress import Progress
from fedskew.sites.proxy import find_nginx
from fedskew.sites.run import run_on_sites

pytestmark = [
    pytest.mark.sites,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or find_nginx() is None,
        reason="takes root, iproute2 and nginx",
    ),
]
BRIDGE, SERVER = "fsk-br", "10.77.9.1"


def ip(*words: str, must: bool = True) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if must and done.returncode:
        pytest.skip(f"this machine makes no networks: {done.stderr.strip()}")
    return not done.returncode


@contextmanager
def network() -> Iterator[None]:
    """A network of namespaces, one for each site; it ends with this block."""
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{SERVER}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number, name in enumerate(NAMES):
            space, here, there = f"fsk-{name}", f"fsk-{name}-a", f"fsk-{name}-b"
            ip("netns", "add", space)
            ip("link", "add", here, "type", "veth", "peer", "name", there)
            ip("link", "set", there, "netns", space)
            ip("link", "set", here, "master", BRIDGE, "up")
            ip("-n", space, "addr", "add", f"10.77.9.{number + 10}/24", "dev", there)
            ip("-n", space, "link", "set", there, "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield
    finally:
        for name in NAMES:
            ip("netns", "del", f"fsk-{name}", must=False)
            ip("link", "del", f"fsk-{name}-a", must=False)
        ip("link", "del", BRIDGE, must=False)


@contextmanager
def disk(folder: Path, size: str) -> Iterator[None]:
    """A disk of its own for a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False
    )
    if made.returncode:
        pytest.skip("this machine mounts no disks")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_link_that_is_cut_leaves_a_site_out_until_it_is_back(tmp_path: Path) -> None:
    """Each site at an address of its own; ann's cable is out from round 2 to round 5."""
    failed: dict[int, dict[str, str]] = {}

    def watch(progress: Progress, record: Any, rows: Any) -> None:
        failed[record.round] = record.failures
        haste.round_ended()
        if record.round == 2:
            haste.begin()
            ip("link", "set", "fsk-ann-a", "down")
        if record.round == 5:
            before = lot.signs("ann")
            ip("link", "set", "fsk-ann-a", "up")
            lot.wait_for_sign("ann", before)

    with network():
        lot = Lot(tmp_path, SERVER)
        try:
            lot.start_server()
            lot.start_sites(lambda name: ("ip", "netns", "exec", f"fsk-{name}"))
            given = {"method": "scaffold", "model": MLP, "train": {**TRAIN, "rounds": 12}}
            with lot.link() as link:
                haste = Haste(link)
                done = run_on_sites(make_config(given), link, tmp_path / "runs", watch)
        finally:
            lot.end()
    assert done.result["rounds"] == 12
    assert failed[4]["ann"].startswith(SILENT)
    assert "ann" not in failed[12]
    assert {name for each in failed.values() for name in each} == {"ann"}, failed


def test_a_full_disk_at_a_site_is_its_own_failure_and_leaves_nothing_half(tmp_path: Path) -> None:
    """ann's disk takes no state of 416 kB before round 4; then it is made larger."""
    failed: dict[int, dict[str, str]] = {}
    state = tmp_path / "ann" / "state"

    def watch(progress: Progress, record: Any, rows: Any) -> None:
        failed[record.round] = record.failures
        if record.round == 3:
            left = [path for path in state.rglob("*") if path.is_file()]
            assert not [path for path in left if path.suffix == ".safetensors"]
            assert sum(path.stat().st_size for path in left) < 5_000
            subprocess.run(["mount", "-o", "remount,size=30m", str(state)], check=True)

    lot = Lot(tmp_path)
    with disk(state, "300k"):
        try:
            lot.start_server()
            lot.start_sites()
            wide = {"name": "mlp", "hidden": [4000]}
            given = {"method": "scaffold", "model": wide, "train": {**TRAIN, "rounds": 7}}
            with lot.link() as link:
                done = run_on_sites(make_config(given), link, tmp_path / "runs", watch)
        finally:
            lot.end()
    assert done.result["rounds"] == 7
    assert "the disk is full" in failed[2]["ann"]
    assert str(tmp_path) not in failed[2]["ann"]
    assert "ann" not in failed[7]
