"""Token ids, texts and signals: from files to samples, unchanged, and what bad ones are told."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedskew.data.build import build
from fedskew.data.federation import Client, Federation, training_rows
from fedskew.data.fingerprint import fingerprint
from fedskew.data.own import load_own
from fedskew.data.skew import apply_skew
from fedskew.data.tokens import TextReader
from fedskew.errors import ConfigError, DataError

IDS = np.array([[5, 3, 0, 0], [1, 2, 3, 4], [9, 0, 0, 0], [2, 2, 2, 0]] * 3, np.uint16)
LABELS = np.array([0, 1, 0, 1] * 3)


def save(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def test_words_become_ids_that_depend_on_nothing_but_the_word() -> None:
    """The id of a word is 1 + its CRC-32 modulo one less than the vocabulary."""
    ids = TextReader(50, 6).tokens(["Fever, no COUGH", "", "no cough"])
    words = [1 + zlib.crc32(w) % 49 for w in (b"fever", b",", b"no", b"cough", b"")]
    fever, comma, no, cough, empty = words
    assert ids.tolist() == [
        [fever, comma, no, cough, 0, 0],
        [empty, 0, 0, 0, 0, 0],
        [no, cough, 0, 0, 0, 0],
    ]
    assert TextReader(50, 2).tokens(["Fever, no COUGH"]).tolist() == [[fever, comma]]


def test_an_npz_with_a_vocabulary_holds_token_ids(tmp_path: Path) -> None:
    path = save(tmp_path / "ids.npz", x=IDS, y=LABELS, class_names=["a", "b"], vocabulary=10)
    found = load_own(path)
    assert found.x.dtype == torch.int64
    assert found.x.tolist() == IDS.tolist()
    assert (found.vocabulary, found.standardise) == (10, False)
    plain = save(tmp_path / "plain.npz", x=IDS, y=LABELS, class_names=["a", "b"])
    assert load_own(plain).x.dtype == torch.float32
    told = load_own(plain, vocabulary=12)
    assert (told.x.tolist(), told.vocabulary) == (IDS.tolist(), 12)
    with pytest.raises(DataError, match="has a vocabulary of 10, not 12: leave"):
        load_own(path, vocabulary=12)


def test_bytes_of_images_stay_images(tmp_path: Path) -> None:
    pixels = np.arange(4 * 16, dtype=np.uint8).reshape(4, 4, 4)
    found = load_own(save(tmp_path / "grey.npz", x=pixels, y=[0, 1, 0, 1]), normalise="unit")
    assert (found.vocabulary, tuple(found.x.shape)) == (0, (4, 1, 4, 4))


def test_token_ids_go_through_a_federation_as_they_are(tmp_path: Path) -> None:
    path = save(tmp_path / "ids.npz", x=IDS, y=LABELS, class_names=["a", "b"], vocabulary=10)
    federation = build(load_own(path), clients=2, partition="iid", seed=0)
    assert (federation.vocabulary, federation.x.dtype) == (10, torch.int64)
    assert federation.x.tolist() == IDS.tolist()
    other = federation.with_data(vocabulary=11)
    assert fingerprint(other) != fingerprint(federation)


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ({"x": IDS.astype(float)}, "token ids must be whole numbers of shape [samples, length], "
         "not float64 of shape [12, 4]."),
        ({"x": IDS, "vocabulary": 9}, "sample 2 holds the token id 9, which is outside 0..8."),
        ({"x": IDS.astype(int) - 1}, "sample 0 holds the token id -1, which is outside 0..9."),
        ({"x": np.zeros_like(IDS)}, "sample 0 is nothing but padding (0)."),
        ({"x": IDS, "vocabulary": 1.5}, "'vocabulary' must be one whole number."),
        ({"x": IDS, "vocabulary": 2}, "the vocabulary must be from 3 to 16777216, not 2."),
        ({"x": IDS, "signals": True, "vocabulary": 0}, "signals must be of shape [samples, "
         "channels, time], not [12, 4]."),
    ],
)  # fmt: skip
def test_what_are_no_token_ids_is_refused(
    tmp_path: Path, stored: dict[str, Any], sentence: str
) -> None:
    path = save(tmp_path / "ids.npz", **{"y": LABELS, "vocabulary": 10, **stored})
    with pytest.raises(DataError) as refused:
        load_own(path)
    assert str(refused.value) == f"{path}: {sentence}"


@pytest.mark.parametrize("setting", [{"normalise": "signed"}, {"normalise": "client"}])
def test_token_ids_are_not_scaled(tmp_path: Path, setting: dict[str, str]) -> None:
    path = save(tmp_path / "ids.npz", x=IDS, y=LABELS, vocabulary=10)
    with pytest.raises(ConfigError, match="which are names and no amounts: leave it out"):
        load_own(path, **setting)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"image needs images, but the samples of .* are token ids"):
        load_own(path, image={"side": 4})


@pytest.mark.parametrize("kind", ["noise", "selection"])
def test_skews_of_numbers_refuse_token_ids(kind: str) -> None:
    two = Federation(
        "ids", torch.from_numpy(IDS.astype(np.int64)), torch.from_numpy(LABELS), ("a", "b"),
        (Client("ann", np.arange(6)), Client("bob", np.arange(6, 12))), vocabulary=10,
    )  # fmt: skip
    with pytest.raises(DataError, match=f"skew '{kind}' changes or measures numbers, but the"):
        apply_skew(two, {"kind": kind}, 0)


def test_whole_numbers_without_a_vocabulary_are_no_samples() -> None:
    with pytest.raises(DataError, match="token ids if their vocabulary is told"):
        Federation(
            "ids", torch.from_numpy(IDS.astype(np.int64)), torch.from_numpy(LABELS), ("a", "b"),
            (Client("ann", np.arange(12)),),
        )  # fmt: skip


def test_a_folder_of_texts_has_clients_and_classes(tmp_path: Path) -> None:
    for client, kind, text in (("ward", "ill", "high fever"), ("ward", "well", "no fever"),
                               ("home", "well", "sleeps well")):  # fmt: skip
        place = tmp_path / client / kind
        place.mkdir(parents=True)
        (place / "1.txt").write_text(text, encoding="utf-8")
    found = load_own(tmp_path, vocabulary=40, length=3)
    assert (found.owner_names, found.class_names) == (("home", "ward"), ("ill", "well"))
    reader = TextReader(40, 3)
    assert found.x.tolist() == reader.tokens(["sleeps well", "high fever", "no fever"]).tolist()
    assert (found.y.tolist(), found.text) == ([1, 0, 1], reader)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no texts in class folders \(empty/class/text"):
        load_own(tmp_path)
    (tmp_path / "empty").rmdir()
    (tmp_path / "ward" / "ill" / "2.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"2\.txt is not UTF-8 text"):
        load_own(tmp_path)


def test_a_column_of_texts_is_all_that_is_learned_from(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text('id,note,label\n1,"High fever, cough",ill\n2,,well\n3,no fever,well\n')
    found = load_own(path, columns={"note": "text", "id": "ignore"}, length=4)
    reader = TextReader(4096, 4, "note")
    assert found.x.tolist() == reader.tokens(["High fever, cough", "", "no fever"]).tolist()
    assert (found.text, found.class_names) == (reader, ("ill", "well"))
    with pytest.raises(DataError) as refused:
        load_own(path, columns={"note": "text"})
    assert str(refused.value) == (
        f"{path}: a column of texts must be the only one to learn from: keep 'note', and ignore "
        "'id' in federation.columns."
    )
    with pytest.raises(ConfigError, match=r"unknown column in federation\.columns 'notes'"):
        load_own(path, columns={"notes": "text"})


def test_signals_are_scaled_by_channel_and_are_no_images(tmp_path: Path) -> None:
    """Of two channels, one a hundred times the other, each gets mean 0 and deviation 1."""
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, (40, 2, 9)) * np.array([[1.0], [100.0]])
    path = save(tmp_path / "ecg.npz", x=x, y=np.arange(40) % 2, signals=True)
    found = load_own(path)
    assert tuple(found.x.shape) == (40, 2, 9)
    federation = build(found, clients=3, partition="iid", seed=0)
    rows = np.concatenate(training_rows(federation.clients))
    told = x[rows]
    mean, deviation = told.mean(axis=(0, 2)), told.std(axis=(0, 2))
    wanted = (x - mean[:, None]) / deviation[:, None]
    np.testing.assert_allclose(federation.x.numpy(), wanted, atol=1e-4)
    alone = build(load_own(path, normalise="client"), clients=3, partition="iid", seed=0)
    for client in alone.clients:
        own = alone.x[client.train].numpy()
        np.testing.assert_allclose(own.mean(axis=(0, 2)), 0, atol=1e-5)
        np.testing.assert_allclose(own.std(axis=(0, 2)), 1, atol=1e-5)
    as_images = load_own(save(tmp_path / "grey.npz", x=x, y=np.arange(40) % 2))
    assert tuple(as_images.x.shape) == (40, 1, 2, 9)
    assert torch.equal(load_own(tmp_path / "grey.npz", signals=True).x, found.x)
