"""Datasets of Hugging Face and Arrow, and partitions like Flower's, against the same arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedskew import DataError, FedskewError, federation_from
from fedskew.data.fingerprint import fingerprint

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8)
LABELS = np.arange(24) % 3
NAMES = ["bird", "cat", "dog"]


@pytest.fixture(scope="module")
def pictures() -> Any:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
    held = {"image": [Image.fromarray(p) for p in PIXELS], "label": LABELS.tolist()}
    return datasets.Dataset.from_dict(held, features=datasets.Features(features))


class Even:
    """Contiguous partitions of equal size, with the interface of Flower's partitioners."""

    def __init__(self, num_partitions: int) -> None:
        self._num_partitions = num_partitions
        self._dataset: Any = None

    @property
    def dataset(self) -> Any:
        if self._dataset is None:
            raise AttributeError("The dataset field should be set before using it.")
        return self._dataset

    @dataset.setter
    def dataset(self, value: Any) -> None:
        self._dataset = value

    @property
    def num_partitions(self) -> int:
        return self._num_partitions

    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.shard(self._num_partitions, partition_id, contiguous=True)


def test_pictures_of_hugging_face_are_their_pixels_with_names_of_classes(pictures: Any) -> None:
    ours = federation_from({"A": pictures.select(range(12)), "B": pictures.select(range(12, 24))})
    theirs = federation_from(
        {"A": (PIXELS[:12], LABELS[:12]), "B": (PIXELS[12:], LABELS[12:])}, class_names=NAMES
    )
    assert ours.class_names == tuple(NAMES)
    assert fingerprint(ours) == fingerprint(theirs)


def test_a_dict_of_splits_gives_the_clients_own_splits(pictures: Any) -> None:
    splits = datasets.DatasetDict(train=pictures, test=pictures.select(range(5)))
    held = federation_from({"A": splits}, normalise="unit", validation=0)
    (client,) = held.clients
    assert (len(client.train), len(client.test)) == (24, 5)
    assert held.x[client.test].mul(255).round()[:, 0].numpy().tolist() == PIXELS[:5].tolist()


def test_columns_of_one_value_are_a_table_in_any_library() -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "age": [31.0, 45.5, None, 62.0] * 6,
            "ward": ["north", "south"] * 12,
            "ill": ["no", "yes", "yes", "no"] * 6,
        }
    )
    expected = fingerprint(federation_from({"A": frame}, label="ill"))
    arrow = pyarrow.Table.from_pandas(frame)
    hugging = datasets.Dataset.from_pandas(frame)
    named = hugging.class_encode_column("ill").class_encode_column("ward")
    mapping = {name: frame[name].to_numpy() for name in frame}
    kinds = {"arrow": arrow, "hugging": hugging, "named": named, "mapping": mapping}
    found = {k: fingerprint(federation_from({"A": held}, label="ill")) for k, held in kinds.items()}
    assert found == dict.fromkeys(kinds, expected)


def test_lists_of_numbers_are_samples() -> None:
    x = np.random.default_rng(1).normal(size=(12, 3))
    held = datasets.Dataset.from_dict({"signal": x.tolist(), "label": (LABELS[:12]).tolist()})
    ours = federation_from({"A": held})
    assert fingerprint(ours) == fingerprint(federation_from({"A": (x, LABELS[:12])}))


def test_partitions_of_a_partitioner_are_clients(pictures: Any) -> None:
    partitioner = Even(num_partitions=4)
    with pytest.raises(DataError, match=r"gives no partitions .*: assign its dataset first"):
        federation_from(partitioner)
    partitioner.dataset = pictures
    ours = federation_from(partitioner)
    theirs = federation_from(
        {f"client-{k:03d}": (PIXELS[6 * k :][:6], LABELS[6 * k :][:6]) for k in range(4)},
        class_names=NAMES,
    )
    assert fingerprint(ours) == fingerprint(theirs)


def test_partitions_by_a_column_are_named_by_it(pictures: Any) -> None:
    class ByWriter(Even):
        @property
        def partition_id_to_natural_id(self) -> dict[int, str]:
            return {0: "ann", 1: "bob"}

    partitioner = ByWriter(num_partitions=2)
    partitioner.dataset = pictures
    assert [client.name for client in federation_from(partitioner).clients] == ["ann", "bob"]


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"a": [[1.0], [2.0]], "z": [0, 1]}, {}, "has no label column, only a, z: name it with"),
        ({"a": [[1.0], [2.0]], "label": [0, 1]}, {"label": "lable"}, "did you mean 'label'?"),
        ({"a": [[1.0], [2.0]], "label": [0, 1]}, {"x": "b"}, "unknown sample column of client"),
        (
            {"a": [[1.0], [2.0]], "b": [[1.0], [2.0]], "label": [0, 1]},
            {},
            "several columns of samples, a, b: name one with x=",
        ),
        ({"a": [], "label": []}, {}, "has no samples"),
        ({"a": [[1.0], [2.0, 3.0]], "label": [0, 1]}, {}, "all samples must have one shape"),
    ],
)
def test_columns_that_leave_a_question_are_told(
    columns: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedskewError) as raised:
        federation_from({"A": datasets.Dataset.from_dict(columns)}, **settings)
    assert message in str(raised.value)


def test_a_stream_is_refused(pictures: Any) -> None:
    with pytest.raises(DataError, match="is a stream of Hugging Face, which has no length"):
        federation_from({"A": pictures.to_iterable_dataset()})
