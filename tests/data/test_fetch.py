"""Fetching datasets: from a server on this machine, and from what users bring."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from loopback import PROXIES, Loopback, moved
from PIL import Image

from fedskew.data import fetch as subject
from fedskew.data.datasets import load
from fedskew.data.download import Patience
from fedskew.data.fetch import NotFetched, Watch, fetch, target_folder
from fedskew.data.locate import cache_folder, data_folders
from fedskew.data.offers import OFFERS, Offer, OfficialFile
from fedskew.errors import DataError

pytestmark = pytest.mark.usefixtures("nowhere_else_to_look")
QUICK = Patience(tries=2, pause=0.01, timeout=60.0)
NOBODY = 65534


class Told(Watch):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def tell(self, sentence: str) -> None:
        self.said.append(sentence)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with Loopback() as running:
        yield running


def get(offer: Offer, folder: Path, watch: Watch | None = None) -> subject.Fetched:
    return fetch(offer, folder, watch, QUICK)


def qmnist(server: Loopback, **manners: object) -> tuple[Offer, dict[str, bytes]]:
    contents = {file.name: file.name.encode() * 500 for file in OFFERS["qmnist-labels"].files}
    return moved(OFFERS["qmnist-labels"], server, contents, **manners), contents


def zipped(members: dict[str, bytes]) -> bytes:
    with io.BytesIO() as out:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return out.getvalue()


def cifar(server: Loopback, members: dict[str, bytes] | None = None, **manners: object) -> Offer:
    """CIFAR-10 of one image per batch, unless other members are given."""
    noise = np.random.default_rng(0)
    if members is None:
        members = {
            f"cifar-10-batches-py/{name}": pickle.dumps(
                {b"data": noise.integers(0, 255, (1, 3072), np.uint8), b"labels": [i]}, protocol=2
            )
            for i, name in enumerate(OFFERS["cifar10"].holds)
        }
    with io.BytesIO() as out:
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        packed = out.getvalue()
    return moved(OFFERS["cifar10"], server, {"cifar-10-python.tar.gz": packed}, **manners)


def har(server: Loopback) -> Offer:
    files = {"activity_labels.txt": b"1 WALKING\n2 UP\n3 DOWN\n4 SIT\n5 STAND\n6 LIE\n"}
    for part in ("train", "test"):
        files[f"{part}/X_{part}.txt"] = b"  1.0e+000  -2.5e-001\n  5 1\n"
        files[f"{part}/y_{part}.txt"] = b"5\n1\n"
        files[f"{part}/subject_{part}.txt"] = b"1\n30\n"
    inner = zipped({f"UCI HAR Dataset/{name}": content for name, content in files.items()})
    outer = zipped({"UCI HAR Dataset.zip": inner, "UCI HAR Dataset.names": b"about"})
    return moved(OFFERS["har"], server, {OFFERS["har"].files[0].name: outer})


def gtsrb(server: Loopback) -> Offer:
    def picture(colour: tuple[int, int, int]) -> bytes:
        with io.BytesIO() as out:
            Image.new("RGB", (40, 36), colour).save(out, "PPM")
            return out.getvalue()

    def table(name: str, label: int) -> bytes:
        return f"Filename;ClassId\n{name};{label}\n".encode()

    training = zipped(
        {
            "GTSRB/Final_Training/Images/00014/00000_00000.ppm": picture((255, 0, 0)),
            "GTSRB/Final_Training/Images/00014/GT-00014.csv": table("00000_00000.ppm", 14),
            "GTSRB/Readme-Images.txt": b"read me",
        }
    )
    images = zipped(
        {
            "GTSRB/Final_Test/Images/00000.ppm": picture((0, 255, 0)),
            "GTSRB/Final_Test/Images/GT-final_test.test.csv": b"Filename\n00000.ppm\n",
        }
    )
    answers = zipped({"GT-final_test.csv": table("00000.ppm", 38)})
    names = [file.name for file in OFFERS["gtsrb"].files]
    return moved(
        OFFERS["gtsrb"], server, dict(zip(names, (training, images, answers), strict=True))
    )


def test_files_are_put_in_their_place_and_what_came_from_where_is_kept(
    server: Loopback, tmp_path: Path
) -> None:
    offer, contents = qmnist(server)
    fetched = get(offer, tmp_path / "data")
    assert (fetched.place, fetched.new) == (tmp_path / "data/QMNIST-labels", True)
    assert {p.name: p.read_bytes() for p in fetched.place.iterdir()} == contents
    downloads = tmp_path / "data/downloads"
    assert sorted(p.name for p in downloads.iterdir()) == [
        "qmnist-labels.json", "qmnist-labels.lock",
    ]  # fmt: skip
    kept = json.loads((downloads / "qmnist-labels.json").read_text())
    assert kept["licence"] == offer.licence
    assert kept["cite"] == offer.cite
    for file in offer.files:
        facts = kept["files"][file.name]
        assert (facts["sha256"], facts["from"]) == (file.sha256, file.addresses[0])


def test_what_is_there_is_neither_fetched_nor_anything_written(
    server: Loopback, tmp_path: Path
) -> None:
    offer, contents = qmnist(server)
    place = tmp_path / "QMNIST-labels"
    place.mkdir()
    for name, content in contents.items():
        (place / name).write_bytes(content)
    assert get(offer, tmp_path).new is False
    assert server.asked == []
    assert list(tmp_path.iterdir()) == [place]


def test_unpacked_files_count_as_there(server: Loopback, tmp_path: Path) -> None:
    offer, _ = qmnist(server)
    place = tmp_path / "QMNIST-labels"
    place.mkdir()
    (place / offer.holds[0]).write_bytes(b"unpacked by somebody")
    get(offer, tmp_path)
    assert server.paths() == [f"/{offer.files[1].name}"]


def test_a_damaged_file_is_fetched_again(server: Loopback, tmp_path: Path) -> None:
    offer, contents = qmnist(server)
    place = get(offer, tmp_path).place
    damaged = place / offer.files[0].name
    damaged.write_bytes(b"?" * offer.files[0].size)
    told = Told()
    assert get(offer, tmp_path, told).new
    assert damaged.read_bytes() == contents[damaged.name]
    assert told.said[0].startswith(f"{damaged} is damaged, its SHA-256 is ")


def test_cifar_is_unpacked_to_where_it_is_read(server: Loopback, tmp_path: Path) -> None:
    assert get(cifar(server), tmp_path).place == tmp_path / "cifar-10-batches-py"
    loaded = load("cifar10", tmp_path)
    assert loaded.y.tolist() == [0, 1, 2, 3, 4, 5]
    left = sorted(p.name for p in (tmp_path / "downloads").iterdir())
    assert left == ["cifar10.json", "cifar10.lock"], "the archive is not kept"


def test_har_is_an_archive_in_an_archive(server: Loopback, tmp_path: Path) -> None:
    get(har(server), tmp_path)
    loaded = load("har", tmp_path, normalise="unit")
    assert loaded.x.tolist() == [[1, -0.25], [5, 1]] * 2
    assert loaded.owner_names == ("subject_01", "subject_30")
    assert loaded.official_test.tolist() == [2, 3]


def test_gtsrb_comes_in_three_archives_and_says_that_only_md5_sums_are_published(
    server: Loopback, tmp_path: Path
) -> None:
    told, offer = Told(), gtsrb(server)
    get(offer, tmp_path, told)
    signs = load("gtsrb", tmp_path, normalise="unit")
    assert [signs.class_names[i] for i in signs.y] == ["stop", "keep right"]
    assert signs.official_test.tolist() == [1]
    kept = json.loads((tmp_path / "downloads/gtsrb.json").read_text())["files"]
    for file in offer.files:
        facts = kept[file.name]
        assert facts["checked by"] == "MD5"
        line = next(one for one in told.said if one.startswith(file.name))
        assert "MD5 as published; no SHA-256 is known" in line
        assert facts["sha256"] in line


def test_another_file_of_the_same_md5_sum_is_not_trusted(server: Loopback, tmp_path: Path) -> None:
    offer = gtsrb(server)
    get(offer, tmp_path)
    shutil.rmtree(tmp_path / "GTSRB")
    path = tmp_path / "downloads/gtsrb.json"
    kept = json.loads(path.read_text())
    kept["files"][offer.files[0].name]["sha256"] = "0" * 64
    path.write_text(json.dumps(kept))
    with pytest.raises(DataError, match=r"another SHA-256 .* was fetched before \(0{64}\)"):
        get(offer, tmp_path)
    assert not (tmp_path / "GTSRB").exists()


@pytest.mark.parametrize(
    "name", ["../../bad", "/tmp/bad-of-fedskew", "cifar-10-batches-py/../../bad"]
)
def test_an_archive_that_leads_out_of_its_folder_leaves_nothing(
    name: str, server: Loopback, tmp_path: Path
) -> None:
    offer = cifar(server, {"cifar-10-batches-py/data_batch_1": b"1", name: b"bad"})
    with pytest.raises(DataError, match="leads out of its folder: it is refused"):
        get(offer, tmp_path / "data")
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["downloads"]
    assert not (tmp_path / "data/downloads/cifar10.unpacked").exists()
    assert not any(path.name.startswith("bad") for path in tmp_path.rglob("*"))
    assert not Path("/tmp/bad-of-fedskew").exists()


def test_an_archive_without_the_dataset_is_refused(server: Loopback, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not hold 'cifar-10-batches-py'"):
        get(cifar(server, {"other/data_batch_1": b"1"}), tmp_path)


def test_half_a_dataset_of_somebody_is_not_touched(server: Loopback, tmp_path: Path) -> None:
    mine = tmp_path / "cifar-10-batches-py/data_batch_1"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"is there but lacks data_batch_2, .*: move it away"):
        get(cifar(server), tmp_path)
    assert mine.read_bytes() == b"mine"
    assert server.asked == []


def test_files_that_users_bring_need_no_network(server: Loopback, tmp_path: Path) -> None:
    offer = cifar(server)
    archive = tmp_path / "downloads/cifar-10-python.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(server.pages["/cifar-10-python.tar.gz"].content)
    told = Told()
    assert get(offer, tmp_path, told).new
    assert server.asked == []
    assert archive.exists(), "it belongs to the user"
    assert told.said[-1] == f"{archive} is not needed any more"


def test_a_wrong_file_that_a_user_brings_is_named_and_kept(
    server: Loopback, tmp_path: Path
) -> None:
    archive = tmp_path / "downloads/cifar-10-python.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="is not the official file, it has 22 bytes, the official"):
        get(cifar(server), tmp_path)
    assert archive.exists()


def test_without_a_network_it_says_which_command_names_the_files_to_bring(tmp_path: Path) -> None:
    with Loopback() as gone:
        offer, _ = qmnist(gone)
    with pytest.raises(NotFetched) as info:
        get(offer, tmp_path)
    message = str(info.value)
    assert "cannot be reached (connection refused)" in message
    assert "bring the files that 'fedskew data list qmnist-labels' names" in message
    assert f"put them into {tmp_path}/downloads and repeat" in message
    assert (info.value.offer, info.value.folder) == (offer, tmp_path)


def test_what_one_file_brought_stays_when_the_next_fails(server: Loopback, tmp_path: Path) -> None:
    offer, _ = qmnist(server)
    second = server.pages[f"/{offer.files[1].name}"]
    second.refuse = [404]
    with pytest.raises(NotFetched, match=r"answers 404 \(Not Found\)"):
        get(offer, tmp_path)
    get(offer, tmp_path)
    assert server.paths() == [f"/{offer.files[i].name}" for i in (0, 1, 1)]


def test_two_at_once_fetch_every_file_once(server: Loopback, tmp_path: Path) -> None:
    gate = Event()
    offer, contents = qmnist(server, gate=gate)
    told = [Told(), Told()]
    both = [Thread(target=get, args=(offer, tmp_path, one)) for one in told]
    for one in both:
        one.start()
    until = time.monotonic() + 60
    while not any("another command" in said for one in told for said in one.said):
        assert time.monotonic() < until
        time.sleep(0.01)
    gate.set()
    for one in both:
        one.join()
    assert sorted(server.paths()) == sorted(f"/{name}" for name in contents)
    said = [sentence for one in told for sentence in one.said]
    assert sum("another command is fetching qmnist-labels" in one for one in said) == 1
    assert offer.lacks(tmp_path) == ()


def test_a_full_disk_is_said_in_one_sentence(server: Loopback, tmp_path: Path) -> None:
    offer, _ = qmnist(server)
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / f"{offer.files[0].name}.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"the disk is full: could not write .*; free some space"):
        get(offer, tmp_path)


def test_too_little_room_is_said_before_anything_is_fetched(
    server: Loopback, tmp_path: Path
) -> None:
    offer, _ = qmnist(server)
    large = replace(offer, files=tuple(replace(file, size=10**18) for file in offer.files))
    with pytest.raises(DataError, match=r"MB free and this needs 2000000000000: free some space"):
        get(large, tmp_path)
    assert server.asked == []


@pytest.fixture
def sealed() -> Iterator[Path]:
    """A folder that whoever runs the tests may read and not write, even as root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        os.seteuid(was)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_folder_to_read_from_is_said_in_one_sentence(server: Loopback, sealed: Path) -> None:
    offer, _ = qmnist(server)
    with pytest.raises(
        DataError, match=rf"could not write {sealed}/downloads: permission denied; name a folder"
    ):
        get(offer, sealed)
    assert server.asked == []


def test_a_file_where_the_folder_should_be_is_said_in_one_sentence(
    server: Loopback, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    offer, _ = qmnist(server)
    with pytest.raises(DataError, match=r"could not write .*file/downloads: not a directory"):
        get(offer, tmp_path / "file")


def test_data_go_where_the_user_says_else_to_fedskew_data_else_to_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert target_folder(None) == tmp_path / "cache/fedskew"
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path / "mine"))
    assert target_folder(None) == tmp_path / "mine"
    assert target_folder(tmp_path / "there") == tmp_path / "there"


def test_the_cache_is_in_the_users_home_and_relative_ones_are_not_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / ".cache/fedskew"


def test_what_was_fetched_to_the_cache_is_found_without_settings(
    server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder() not in list(data_folders(None)), "an absent cache is not searched"
    get(cifar(server), target_folder(None))
    assert list(data_folders(None)) == [Path("data"), tmp_path / "cache/fedskew"]
    assert load("cifar10").y.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_table_may_say_what_makes_a_file_wrong(tmp_path: Path) -> None:
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    # The sums of "abc" in RFC 1321 and FIPS 180-2.
    md5 = "900150983cd24fb0d6963f7d28e17f72"
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert OfficialFile("abc", 3, (), sha256, md5).wrong(path) == ""
    assert OfficialFile("abc", 3, (), md5=md5).wrong(path) == ""
    assert "its SHA-256 is ba7816" in OfficialFile("abc", 3, (), "0" * 64, md5).wrong(path)
    assert "its MD5 is 900150" in OfficialFile("abc", 3, (), md5="0" * 32).wrong(path)
    assert OfficialFile("abc", 4, (), sha256).wrong(path) == (
        "it has 3 bytes, the official file has 4"
    )
