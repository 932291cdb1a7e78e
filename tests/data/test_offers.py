"""The table of official files: complete, encrypted, and true of the files that are here."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedskew.data.datasets import DATASETS
from fedskew.data.offers import OFFERS, Offer, sum_of
from fedskew.data.sources import HAR_FILES

every_offer = pytest.mark.parametrize("offer", OFFERS.values(), ids=list(OFFERS))
TORCHVISION = {
    "mnist/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "mnist/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "mnist/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "mnist/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "fashion-mnist/train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "fashion-mnist/train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "fashion-mnist/t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "fashion-mnist/t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    "qmnist-labels/qmnist-train-labels-idx2-int.gz": "0058f8dd561b90ffdd0f734c6a30e5e4",
    "qmnist-labels/qmnist-test-labels-idx2-int.gz": "5b5b05890a5e13444e108efe57b788aa",
    "cifar10/cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "cifar100/cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    "gtsrb/GTSRB_Final_Test_Images.zip": "c7e4e6327067d32654124b0fe9e82185",
    "gtsrb/GTSRB_Final_Test_GT.zip": "fe31e9c9270bbcd7b84b7f21a9d9d9e5",
}
"""The MD5 sums that torchvision checks downloads by."""


@every_offer
def test_every_file_has_a_size_a_sum_and_encrypted_addresses(offer: Offer) -> None:
    for file in offer.files:
        assert file.size > 1000
        assert file.sha256 or file.md5, "an unknown sum would have to be said on the screen"
        assert re.fullmatch(r"([0-9a-f]{64})?", file.sha256)
        assert re.fullmatch(r"([0-9a-f]{32})?", file.md5)
        assert all(urlsplit(address).scheme == "https" for address in file.addresses)
        assert all(re.fullmatch(r"[a-z0-9.-]+\.[a-z]+", host) for host in file.hosts)
        assert "/" not in file.name
    assert offer.licence
    assert offer.cite


@every_offer
def test_what_is_fetched_ends_where_its_reader_looks(offer: Offer) -> None:
    if offer.name not in DATASETS:
        assert offer.place == "QMNIST-labels"
        return
    layout = next(one for one in DATASETS[offer.name].layouts if offer.place in one.places)
    assert set(layout.files) <= set(offer.holds)


def test_the_sums_are_those_that_torchvision_checks_by() -> None:
    ours = {f"{o.name}/{f.name}": f.md5 for o in OFFERS.values() for f in o.files if f.md5}
    assert ours.pop("gtsrb/GTSRB_Final_Training_Images.zip")  # torchvision takes another archive
    assert ours == TORCHVISION


def test_only_files_whose_sha256_nobody_publishes_go_without_one() -> None:
    without = {f.name for o in OFFERS.values() for f in o.files if not f.sha256}
    assert without == {
        "GTSRB_Final_Training_Images.zip", "GTSRB_Final_Test_Images.zip", "GTSRB_Final_Test_GT.zip",
    }  # fmt: skip


def test_har_holds_what_its_reader_wants_and_the_names_of_activities() -> None:
    assert OFFERS["har"].holds == (*HAR_FILES, "activity_labels.txt")


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "qmnist-labels"])
def test_the_real_files_are_the_official_ones(name: str, data_dir: Path) -> None:
    offer = OFFERS[name]
    assert offer.lacks(data_dir) == ()
    for file in offer.files:
        path = data_dir / offer.place / file.name
        assert file.wrong(path) == ""
        assert sum_of(path, "MD5") == file.md5, "both sums are of one file"
