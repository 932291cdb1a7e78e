"""Archives from elsewhere: what they may hold, and what is refused."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedskew.data import unpack as subject
from fedskew.data.unpack import staging, unpack
from fedskew.errors import DataError

LINK = 0o120777 << 16


def write_tar(path: Path, members: dict[str, bytes], *others: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in others:
            archive.addfile(info)
    return path


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def held(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_folders_and_files_come_as_they_are(write: object, tmp_path: Path) -> None:
    members = {"a/one": b"1", "a/b/two": np.random.default_rng(0).bytes(3_000_000), "three": b""}
    unpack(write(tmp_path / "archive", members), tmp_path / "out")  # type: ignore[operator]
    assert held(tmp_path / "out") == members


@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/tmp/out.txt", "a\\..\\b"])
@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_members_that_lead_out_of_the_folder_are_refused(
    write: object, name: str, tmp_path: Path
) -> None:
    archive = write(tmp_path / "archive", {name: b"bad"})  # type: ignore[operator]
    with pytest.raises(DataError, match="leads out of its folder: it is refused"):
        unpack(archive, tmp_path / "in" / "out")
    assert held(tmp_path / "in") == {}


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_devices_in_a_tar_are_refused(kind: bytes, tmp_path: Path) -> None:
    info = tarfile.TarInfo("passwd")
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(DataError, match="holds 'passwd', which is no plain file"):
        unpack(write_tar(tmp_path / "archive", {}, info), tmp_path / "out")
    assert held(tmp_path / "out") == {}


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        info = zipfile.ZipInfo("passwd")
        info.create_system, info.external_attr = 3, LINK
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="holds 'passwd', which is no plain file"):
        unpack(tmp_path / "archive", tmp_path / "out")


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(
    write: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write(tmp_path / "archive", {"zeros": bytes(30_000_000)})  # type: ignore[operator]
    assert archive.stat().st_size < 40_000
    with pytest.raises(DataError, match="unpacks to far more than its size"):
        unpack(archive, tmp_path / "out")
    assert len(held(tmp_path / "out")["zeros"]) <= subject.BLOCK + subject.RATIO * 40_000


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_a_damaged_archive_says_so(write: object, tmp_path: Path) -> None:
    archive = write(tmp_path / "archive", {"a": bytes(range(256)) * 400})  # type: ignore[operator]
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="is a damaged archive"):
        unpack(archive, tmp_path / "out")
    archive.write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(DataError, match="is a damaged archive"):
        unpack(archive, tmp_path / "out")


def test_a_file_and_a_folder_of_one_name_are_refused(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "archive", {"a": b"1", "a/b": b"2"})
    with pytest.raises(DataError, match="holds a file and a folder of one name"):
        unpack(archive, tmp_path / "out")


def test_an_archive_in_an_archive_is_unpacked_and_leftovers_of_a_mac_are_left_out(
    tmp_path: Path,
) -> None:
    inner = {"data/x.txt": b"1", "__MACOSX/data/._x.txt": b"?", "data/.DS_Store": b"?"}
    content = write_zip(tmp_path / "inner", inner).read_bytes()
    outer = write_zip(tmp_path / "outer", {"data set.zip": content, "names": b"n"})
    unpack(outer, tmp_path / "out", inner="data set.zip")
    assert held(tmp_path / "out") == {"data/x.txt": b"1", "names": b"n"}
    with pytest.raises(DataError, match=r"does not hold 'other\.zip'"):
        unpack(outer, tmp_path / "again", inner="other.zip")


def test_an_archive_in_an_archive_may_not_lead_out_either(tmp_path: Path) -> None:
    content = write_zip(tmp_path / "inner", {"../bad": b"1"}).read_bytes()
    outer = write_zip(tmp_path / "outer", {"inner.zip": content})
    with pytest.raises(DataError, match="leads out of its folder"):
        unpack(outer, tmp_path / "out", inner="inner.zip")
    assert not (tmp_path / "bad").exists()


def test_nothing_is_left_beside_when_unpacking_fails(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "of a killed process").touch()

    def fail() -> None:
        with staging(tmp_path / "beside") as folder:
            assert list(folder.iterdir()) == []
            (folder / "half").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []
