"""A model of texts, used on new texts: read as the run read its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedskew
from fedskew.data.tokens import TextReader
from fedskew.deploy.preparation import SamplePreparation, load_preparation, preparation_of
from fedskew.errors import DataError
from fedskew.runs.experiment import Run

WORDS = {"ill": ("fever", "cough", "pain"), "well": ("sleeps", "eats", "walks")}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two wards whose texts say by a word whether somebody is ill; 0.9 of all words say nothing."""
    folder, rng = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    for ward in ("north", "south"):
        for kind, telling in WORDS.items():
            place = folder / "wards" / ward / kind
            place.mkdir(parents=True)
            for number in range(40):
                others = [f"word{i}" for i in rng.integers(0, 30, rng.integers(1, 8))]
                text = " ".join([*others, str(rng.choice(telling)).capitalize()])
                (place / f"{number}.txt").write_text(text, encoding="utf-8")
    return fedskew.run(
        {
            "federation": {
                "dataset": str(folder / "wards"), "partition": "owner", "clients": "all",
                "options": {"vocabulary": 500, "length": 8},
            },
            "model": {"name": "embedding", "units": 8, "hidden": [8]},
            "train": {"rounds": 15, "optimiser": "adam", "lr": 0.02, "batch_size": 16},
        },
        out=folder / "runs",
        draw=False,
    )  # fmt: skip


def test_the_run_knows_its_vocabulary_and_how_texts_are_read(run: Run) -> None:
    assert run.result["model"]["knobs"]["vocabulary"] == 500
    made = preparation_of(run)
    assert (made.vocabulary, made.text) == (500, TextReader(500, 8))
    assert load_preparation(run.path) == made


def test_new_texts_are_answered_from_a_list_a_folder_and_a_table_of_ids(
    run: Run, tmp_path: Path
) -> None:
    texts = ["word1 FEVER word2", "word3 sleeps"]
    found = fedskew.predict(run, texts, threshold=0.5)
    assert list(found.names) == ["ill", "well"]
    for kind, text in zip(("ill", "well"), texts, strict=True):
        (tmp_path / "new" / kind).mkdir(parents=True)
        (tmp_path / "new" / kind / "1.txt").write_text(text, encoding="utf-8")
    told = fedskew.predict(run, tmp_path / "new", threshold=0.5)
    assert told.accuracy == 1.0
    ids = TextReader(500, 3).tokens(texts)
    np.savez(tmp_path / "ids.npz", x=ids)
    again = fedskew.predict(run, tmp_path / "ids.npz", threshold=0.5)
    np.testing.assert_array_equal(again.probability, found.probability)
    with pytest.raises(DataError, match=r"token id 500, which is outside 0\.\.499"):
        fedskew.predict(run, np.full((1, 3), 500), threshold=0.5)


def test_a_newcomer_adapts_to_texts_of_its_own(run: Run, tmp_path: Path) -> None:
    texts = ["fever word1", "cough", "eats word5", "walks"] * 3
    labels = ["ill", "ill", "well", "well"] * 3
    adapted = fedskew.adapt(run, np.array(texts), labels, epochs=2, out=tmp_path / "mine")
    found = fedskew.predict(tmp_path / "mine", ["pain word9", "sleeps"], threshold=0.5)
    assert list(found.names) == ["ill", "well"]
    assert adapted.preparation.text == TextReader(500, 8)


def test_ids_are_filled_up_and_cut_like_the_runs() -> None:
    made = SamplePreparation(
        "standard", ("a", "b"), (0, 1), shape=(4,), taken=(4,), vocabulary=10, text=None
    )
    short, long = np.array([[3, 2]]), np.array([[1, 2, 3, 4, 5, 6]])
    assert made.samples(short).tolist() == [[3, 2, 0, 0]]
    assert made.samples(long).tolist() == [[1, 2, 3, 4]]
    assert made.samples(short).dtype == torch.int64
    with pytest.raises(DataError, match="token ids must be whole numbers of shape"):
        made.samples(np.array([["fever"]]))
