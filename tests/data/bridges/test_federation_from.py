"""Federations of what programs hold are those of the same data in files, to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from fedskew import (
    ConfigError,
    DataError,
    Federation,
    federation_from,
    make_config,
    make_federation,
)
from fedskew.data.fingerprint import fingerprint

SITES = ("ash", "birch", "cedar")


def arrays(site: str, count: int = 30, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SITES.index(site))
    return rng.normal(SITES.index(site), 2.0, (count, 4)), rng.integers(0, classes, count)


def sites(**changes: Any) -> dict[str, Any]:
    return {site: arrays(site, **changes) for site in SITES}


def from_files(folder: Path, **settings: Any) -> Federation:
    section = {"dataset": str(folder), "partition": "owner", "clients": "all", **settings}
    return make_federation(make_config({"federation": section}))


def frame(site: str) -> pd.DataFrame:
    x, y = arrays(site)
    ward = np.array(["north", "south", None], dtype=object)[np.arange(30) % 3]
    columns = {"age": x[:, 0].round(2), "ward": ward, "ill": np.array(["no", "yes"])[y % 2]}
    return pd.DataFrame(columns)


class Photos(Dataset[tuple[Image.Image, int]]):
    """Pictures and numbers of classes, as torchvision's folders of images give them."""

    def __init__(self, site: str, classes: tuple[str, ...] = ("cat", "dog")) -> None:
        rng = np.random.default_rng(SITES.index(site))
        self.pixels = rng.integers(0, 256, (12, 8, 8), dtype=np.uint8)
        self.classes = list(classes)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.pixels[row]), row % len(self.classes)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalise": "unit", "unseen": ["birch"]},
        {"normalise": "client", "validation": 0.25, "test": 0.3},
    ],
)
def test_arrays_are_what_their_files_are(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    for site, (x, y) in sites().items():
        np.savez(tmp_path / f"{site}.npz", x=x.astype(np.float32), y=y)
    ours, theirs = federation_from(sites(), **settings), from_files(tmp_path, **settings)
    assert fingerprint(ours) == fingerprint(theirs)


def test_frames_are_what_their_tables_are(tmp_path: Path) -> None:
    for site in SITES:
        frame(site).to_csv(tmp_path / f"{site}.csv", index=False)
    ours = federation_from({site: frame(site) for site in SITES}, label="ill")
    theirs = from_files(tmp_path, label="ill")
    assert ours.encoder is not None
    assert ours.encoder.outputs == ("age", "ward=north", "ward=south", "ward missing")
    assert fingerprint(ours) == fingerprint(theirs)


def test_pictures_are_what_their_folders_are(tmp_path: Path) -> None:
    for site in SITES:
        for row in range(12):
            image, label = Photos(site)[row]
            folder = tmp_path / site / ("cat", "dog")[label]
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{row:02d}.png")
    by_class = {s: Subset(Photos(s), [*range(0, 12, 2), *range(1, 12, 2)]) for s in SITES}
    ours, theirs = federation_from(by_class), from_files(tmp_path)
    assert ours.sample_shape == (1, 8, 8)
    assert ours.class_names == ("cat", "dog")
    assert fingerprint(ours) == fingerprint(theirs)


def test_all_kinds_of_pairs_are_one(tmp_path: Path) -> None:
    expected = fingerprint(federation_from(sites()))
    x, y = {s: arrays(s)[0] for s in SITES}, {s: arrays(s)[1] for s in SITES}
    tensors = {s: TensorDataset(torch.tensor(x[s]), torch.tensor(y[s])) for s in SITES}
    kinds: dict[str, Any] = {
        "tensors": {s: (torch.tensor(x[s]), torch.tensor(y[s])) for s in SITES},
        "dicts": {s: {"x": x[s], "y": y[s].tolist()} for s in SITES},
        "lists": {s: (x[s].tolist(), y[s].tolist()) for s in SITES},
        "tensor datasets": tensors,
        "subsets": {s: Subset(tensors[s], range(30)) for s in SITES},
        "subsets of subsets": {s: Subset(Subset(tensors[s], range(30)), range(30)) for s in SITES},
        "other datasets": {s: ConcatDataset([tensors[s]]) for s in SITES},
    }
    found = {kind: fingerprint(federation_from(held)) for kind, held in kinds.items()}
    assert found == dict.fromkeys(kinds, expected)


def test_subsets_hold_their_own_rows_in_their_order() -> None:
    x, y = torch.arange(40.0).reshape(20, 2), torch.arange(20) % 2
    whole = TensorDataset(x, y)
    inner = Subset(Subset(whole, [9, 8, 7, 6, 5, 4]), [0, 2, 4, 1])
    held = federation_from({"ash": inner}, normalise="unit", validation=0, test=0)
    assert held.x.tolist() == x[[9, 7, 5, 8]].tolist()
    assert held.y.tolist() == [1, 1, 1, 0]


def test_told_splits_stay_and_the_others_are_shares_of_the_training_rows() -> None:
    x, y = arrays("ash")
    held = federation_from(
        {
            "ash": {"train": (x, y), "test": (x[:7], y[:7])},
            "birch": {"train": (x, y), "validation": (x[:5], y[:5]), "test": (x[:3], y[:3])},
            "cedar": arrays("cedar"),
        },
        central=(x[:11], y[:11]),
        normalise="unit",
    )
    stored = torch.tensor(x, dtype=torch.float32)
    ash, birch, cedar = held.clients
    assert torch.equal(held.x[ash.test], stored[:7])
    assert len(ash.train) + len(ash.validation) == 30
    assert torch.equal(held.x[birch.train], stored)
    assert torch.equal(held.x[birch.validation], stored[:5])
    assert torch.equal(held.x[birch.test], stored[:3])
    assert len(cedar.train) + len(cedar.validation) + len(cedar.test) == 30
    assert torch.equal(held.x[held.central_test], stored[:11])


def test_scaling_goes_by_training_rows_of_those_who_train() -> None:
    held = federation_from(sites(), unseen=["cedar"])
    stored = np.concatenate([arrays(site)[0] for site in SITES]).astype(np.float32)
    rows = np.concatenate([client.train for client in held.clients])
    mean, spread = stored[rows].mean(axis=0), stored[rows].std(axis=0)
    np.testing.assert_allclose(held.x.numpy(), (stored - mean) / spread, atol=1e-5)
    assert held.stored is not None
    np.testing.assert_allclose(held.stored.shift, mean, atol=1e-5)
    np.testing.assert_allclose(held.stored.spread, spread, atol=1e-5)


def test_classes_go_by_name_where_sites_number_them_otherwise() -> None:
    two = {"ash": Photos("ash", ("cat", "dog")), "birch": Photos("birch", ("bird", "dog"))}
    held = federation_from(two, validation=0, test=0)
    assert held.class_names == ("bird", "cat", "dog")
    ash, birch = held.clients
    assert held.y[ash.train].tolist() == [1, 2] * 6
    assert held.y[birch.train].tolist() == [0, 2] * 6
    told = federation_from(two, class_names=["dog", "cat", "bird"], validation=0, test=0)
    assert told.class_names == ("dog", "cat", "bird")
    assert told.y[told.clients[1].train].tolist() == [2, 0] * 6


def test_words_are_classes_of_all_sites_together() -> None:
    x = arrays("ash", 6)[0]
    held = federation_from({"ash": (x, list("abcabc")), "birch": (x, list("bdbdbd"))}, test=0)
    assert held.class_names == ("a", "b", "c", "d")
    told = federation_from(
        {"ash": (x, list("abcabc"))}, class_names=list("cbax"), test=0, validation=0
    )
    assert told.class_names == ("c", "b", "a", "x")
    assert told.y.tolist() == [2, 1, 0, 2, 1, 0]


def test_a_target_of_fractions_is_a_number_and_the_task_can_be_told() -> None:
    x, y = arrays("ash")
    assert federation_from({"ash": (x, x[:, 0])}).problem.kind == "regression"
    assert federation_from({"ash": (x, y)}).problem.kind == "classification"
    assert federation_from({"ash": (x, y)}, task="regression").problem.kind == "regression"
    words = np.array(["no", "yes"])[y % 2]
    told = federation_from({"ash": (x, words)}, positive="no")
    assert (told.problem.kind, told.problem.positive) == ("binary", "no")


def test_grey_beside_colour_becomes_what_image_says() -> None:
    rng = np.random.default_rng(0)
    grey = (rng.integers(0, 256, (6, 8, 8), dtype=np.uint8), [0, 1] * 3)
    colour = (rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8), [0, 1] * 3)
    both = {"ash": grey, "birch": colour}
    with pytest.raises(DataError, match=r"client 'birch': samples are uint8 \[8, 8, 3\]"):
        federation_from(both)
    held = federation_from(both, image={"channels": 3}, normalise="unit", validation=0, test=0)
    ash, birch = held.clients
    expected = torch.from_numpy(grey[0]).float().div(255)[:, None].expand(-1, 3, -1, -1)
    assert torch.equal(held.x[ash.train], expected)
    stored = torch.from_numpy(colour[0]).float().div(255).permute(0, 3, 1, 2)
    assert torch.equal(held.x[birch.train], stored)


def test_pictures_of_several_sizes_need_a_size() -> None:
    sizes = [(8, 8), (10, 6), (8, 8), (4, 4)]
    pictures = [Image.new("L", size, color=50 * row) for row, size in enumerate(sizes)]
    with pytest.raises(DataError, match="image 1 has 6x10 pixels, but image 0 has 8x8: resize"):
        federation_from({"ash": (pictures, [0, 1, 0, 1])})
    held = federation_from(
        {"ash": (pictures, [0, 1, 0, 1])}, image={"side": 5}, normalise="unit", test=0
    )
    assert held.sample_shape == (1, 5, 5)
    means = held.x.mean(dim=(1, 2, 3)).sort().values.tolist()
    assert means == pytest.approx([0, 50 / 255, 100 / 255, 150 / 255], abs=1e-6)


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        yield torch.zeros(3), 0


class Records(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"pixels": torch.full((3,), float(row)), "target": row % 2}


def test_items_that_are_dicts_need_the_names_of_their_parts() -> None:
    held = federation_from({"ash": Records()}, x="pixels", label="target", normalise="unit", test=0)
    assert held.x[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert held.y.tolist() == [0, 1] * 3
    with pytest.raises(DataError, match=r"sample 0 is a dict of .*: name its sample with x="):
        federation_from({"ash": Records()})
    with pytest.raises(DataError, match="sample 0 has no 'goal'; it has"):
        federation_from({"ash": Records()}, x="pixels", label="goal")


X, Y = arrays("ash")


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (None, "clients is of type NoneType: it must be a dict of what each client holds"),
        ([[1, 2]], "clients is of type list"),
        ({}, "clients is empty"),
        ({"ash": None}, "client 'ash' is of type NoneType: it must be a pair"),
        ({"ash": [[1, 2], [3, 4]]}, "client 'ash' is of type list"),
        ({"ash": (row for row in range(3))}, "client 'ash' is of type generator"),
        ({"ash": 3}, "client 'ash' is of type int"),
        ({"ash": "data.csv"}, "files are read by federation.dataset"),
        ({"ash": Stream()}, "client 'ash' is an IterableDataset, which has no length"),
        ({"ash": DataLoader(TensorDataset(torch.zeros(2, 2), torch.zeros(2)))}, "give its dataset"),
        ({"ash": X}, "client 'ash' has no labels: give a pair"),
        ({"ash": (X, None)}, "client 'ash' has no labels: they are None"),
        ({"ash": (None, Y)}, "client 'ash' has no samples: they are None"),
        ({"ash": (X[:0], Y[:0])}, "client 'ash' has no samples: give it at least one"),
        ({"ash": ([], [])}, "client 'ash' has no samples"),
        ({"ash": (X, Y[:-1])}, "client 'ash': 30 samples but 29 labels"),
        ({"ash": (X, Y), "birch": (X[:, :2], Y)}, "client 'birch': samples are float32 [2], but"),
        ({"ash": (X, Y), "birch": (X, ["a"] * 30)}, "client 'birch': labels are words, but"),
        ({"ash": (X, Y), "birch": frame("ash")}, "is a table and"),
        ({1: (X, Y), "1": (X, Y)}, "two clients named '1'"),
        ({"": (X, Y)}, "a client without a name"),
        ({"central": (X, Y)}, "no client can be named 'central'"),
        ({"ash": (X[:, 0], Y)}, "samples of shape [30] have no features"),
        ({"ash": (X.astype(object), Y)}, "an array of objects of Python"),
        ({"ash": ([[1.0, 2.0], [3.0]], [0, 1])}, "sample 1 has shape [1], but sample 0 has [2]"),
        ({"ash": ([["a"], ["b"]], [0, 1])}, "sample 0 is list, not numbers"),
        ({"ash": (X, [0, None] * 15)}, "that of sample 1 is None"),
        ({"ash": (X, [-1, 1] * 15)}, "client 'ash': label -1 of sample 0 is outside 0..1"),
        ({"ash": (np.where(X > 3, np.nan, X), Y)}, "client 'ash': sample"),
        ({"ash": frame("ash")}, "client 'ash' has no label column 'label'"),
        ({"ash": {"train": (X, Y), "rest": (X, Y)}}, "split 'rest' is none of train"),
        ({"ash": {"test": (X, Y)}}, "client 'ash' has no split 'train'"),
        ({"ash": (X.reshape(30, 1, 2, 2, 1), Y)}, "neither features nor images"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_federation_is_told_by_client(clients: Any, message: str) -> None:
    with pytest.raises(DataError) as raised:
        federation_from(clients)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "ranking"}, "unknown task 'ranking'"),
        ({"normalise": "none"}, "unknown normalise 'none'"),
        ({"test": 1.5}, "test must be a share"),
        ({"unseen": ["elm"]}, "unknown unseen client 'elm'"),
        ({"unseen": 3}, "would leave none of the 3 clients to train"),
        ({"columns": {"age": "category"}}, "the clients bring none"),
        ({"columns": {"site": "client"}}, "names 'site' as the column of clients"),
        ({"class_names": ["a", "b"]}, "label 2 of sample"),
        ({"image": {"side": 4}}, "image needs images"),
    ],
)
def test_settings_that_do_not_fit_are_told(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError)) as raised:
        federation_from(sites(), **settings)
    assert message in str(raised.value)
