"""How folders of images are understood: clients, classes, training and test."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.data.images.folders import found_tree
from fedskew.errors import DataError


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


def test_two_folders_around_an_image_are_client_and_class(tmp_path: Path) -> None:
    tree = found_tree(touch(tmp_path, "ann/cat/2.png", "ann/cat/1.JPG", "bob/dog/x.gif"))
    assert [path.name for path in tree.paths] == ["1.JPG", "2.png", "x.gif"]
    assert tree.clients == ("ann", "ann", "bob")
    assert (tree.classes, tree.test) == (("cat", "cat", "dog"), None)


def test_one_folder_is_the_class_and_nobody_owns_its_images(tmp_path: Path) -> None:
    tree = found_tree(touch(tmp_path, "cat/1.png", "dog/1.png", "dog/2.png"))
    assert (tree.classes, tree.clients, tree.test) == (("cat", "dog", "dog"), None, None)


@pytest.mark.parametrize("named", [("train", "test"), ("Training", "Testing")])
def test_train_and_test_are_a_split_and_no_clients(tmp_path: Path, named: tuple[str, str]) -> None:
    train, test = named
    tree = found_tree(touch(tmp_path, f"{train}/cat/1.png", f"{test}/cat/1.png", "val/cat/1.png"))
    assert dict(zip([p.parts[-3] for p in tree.paths], tree.test or (), strict=True)) == {
        train: False, test: True, "val": False,
    }  # fmt: skip
    assert (tree.classes, tree.clients) == (("cat",) * 3, None)


@pytest.mark.parametrize("order", ["{split}/{client}", "{client}/{split}"])
def test_clients_may_lie_inside_a_split_or_around_it(tmp_path: Path, order: str) -> None:
    names = [
        order.format(split=split, client=client) + "/cat/1.png"
        for split in ("test", "train")
        for client in ("ann", "bob")
    ]
    tree = found_tree(touch(tmp_path, *names))
    found = sorted(zip(tree.clients or (), tree.classes, tree.test or (), strict=True))
    assert found == [
        ("ann", "cat", False), ("ann", "cat", True), ("bob", "cat", False), ("bob", "cat", True),
    ]  # fmt: skip


def test_what_is_no_image_is_counted_and_hidden_files_are_not(tmp_path: Path) -> None:
    touch(tmp_path, "a/cat/1.png", "a/cat/Thumbs.db", "a/notes.txt", "b/cat/1.png", "logo.png")
    touch(tmp_path, ".DS_Store", "a/cat/.DS_Store", "a/cat/._1.png", "__MACOSX/a/cat/._1.png")
    tree = found_tree(tmp_path)
    assert len(tree.paths) == 2
    assert dict(tree.others or {}) == {".db": 1, ".txt": 1, ".png": 1}


def test_an_image_elsewhere_is_misplaced_and_an_empty_class_is_told(tmp_path: Path) -> None:
    touch(tmp_path, "a/cat/1.png", "b/cat/1.png", "b/stray.png", "b/cat/more/1.png")
    (tmp_path / "b/dog").mkdir()
    tree = found_tree(tmp_path)
    assert [str(p.relative_to(tmp_path)) for p in tree.misplaced] == [
        "b/cat/more/1.png", "b/stray.png",
    ]  # fmt: skip
    assert tree.empty == ("b/dog",)


def test_a_client_without_images_is_refused_wherever_its_folder_is(tmp_path: Path) -> None:
    touch(tmp_path, "train/ann/cat/1.png", "test/ann/cat/1.png")
    (tmp_path / "train/eve/cat").mkdir(parents=True)
    with pytest.raises(DataError, match=r"train/eve has no images in class folders"):
        found_tree(tmp_path)


def test_no_images_and_too_many_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="has no images in folders CLIENT/CLASS/ or CLASS/"):
        found_tree(touch(tmp_path, "1.png"))
    with pytest.raises(DataError, match=r"a/b/c/1\.png lies in 3 folders, none of which are train"):
        found_tree(touch(tmp_path, "a/b/c/1.png"))
