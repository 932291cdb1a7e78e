"""The datasets that can be fetched: their official files, and under which licence.

Every size and sum is published or was computed from the files themselves; none is a guess:

* MNIST, Fashion-MNIST and the QMNIST labels: computed from the files; the MD5 sums are those that
  torchvision lists, and TensorFlow Datasets lists the same SHA-256 and sizes of the first two.
* CIFAR: MD5 from the CIFAR page, SHA-256 from Keras, sizes from published logs of downloads.
* HAR: the UCI repository publishes no sum; size and SHA-256 are those that several projects pinned
  independently of each other.
* GTSRB: MD5 as torchvision and other projects list it, sizes from published logs of downloads. No
  published SHA-256 sums are known, so none stands here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fedskew.data.formats import find_file
from fedskew.data.sources import CIFAR10_PICKLES, HAR_FILES, IDX_FILES, QMNIST_FILES

BLOCK = 1 << 20


@dataclass(frozen=True)
class OfficialFile:
    """A file as its publisher offers it, and what proves that a file is this one.

    Addresses are tried in order. ``also`` names hosts that they may lead on to.
    """

    name: str
    size: int
    addresses: tuple[str, ...]
    sha256: str = ""
    md5: str = ""
    also: tuple[str, ...] = ()
    inner: str = ""
    """The archive inside this archive that holds the data."""
    into: str = ""
    """The folder its members belong into, if it does not name it itself."""

    @property
    def hosts(self) -> frozenset[str]:
        """Where it may come from."""
        return frozenset((*(urlsplit(a).netloc for a in self.addresses), *self.also))

    @property
    def sum(self) -> tuple[str, str]:
        """The best published sum and how it is computed."""
        return ("SHA-256", self.sha256) if self.sha256 else ("MD5", self.md5)

    def wrong(self, path: Path) -> str:
        """What is wrong with a file that should be this one; nothing if it is."""
        size = path.stat().st_size
        if size != self.size:
            return f"it has {size} bytes, the official file has {self.size}"
        kind, wanted = self.sum
        found = sum_of(path, kind)
        return (
            "" if found == wanted else f"its {kind} is {found}, that of the official file {wanted}"
        )


def sum_of(path: Path, kind: str = "SHA-256") -> str:
    """A file's sum in hexadecimal digits."""
    digest = hashlib.new(kind.replace("-", ""), usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class Offer:
    """A dataset's official files and where below a data folder they end.

    Archives are unpacked and hold ``place`` themselves; other files are put there. ``holds`` is
    what must be there in the end.
    """

    name: str
    summary: str
    place: str
    files: tuple[OfficialFile, ...]
    holds: tuple[str, ...]
    licence: str
    cite: str
    home: str
    packed: bool = False
    terms: str = ""
    """What else is to be known of the licence."""

    @property
    def licence_in_full(self) -> str:
        return f"{self.licence} ({self.terms})" if self.terms else self.licence

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return sum(file.size for file in self.files)

    def lacks(self, folder: Path) -> tuple[str, ...]:
        """What a data folder does not hold of it."""
        place = folder / self.place
        return tuple(name for name in self.holds if find_file(place, name) is None)


def _mirrored(
    bases: tuple[str, ...], files: tuple[tuple[str, int, str, str], ...]
) -> tuple[OfficialFile, ...]:
    return tuple(
        OfficialFile(name, size, tuple(base + name for base in bases), sha256, md5)
        for name, size, sha256, md5 in files
    )


def _toronto(name: str, size: int, sha256: str, md5: str) -> tuple[OfficialFile, ...]:
    address = f"https://www.cs.toronto.edu/~kriz/{name}"
    return (OfficialFile(name, size, (address,), sha256, md5, also=("cave.cs.toronto.edu",)),)


def _gtsrb(name: str, size: int, md5: str, into: str = "") -> OfficialFile:
    archive = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/"
    return OfficialFile(name, size, (archive + name,), md5=md5, into=into)


_NO_LICENCE = "none stated"
_ASK = "ask before commercial use"


_TABLE = (
    Offer(
        "mnist",
        "70,000 handwritten digits",
        "MNIST/raw",
        _mirrored(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            (
                ("train-images-idx3-ubyte.gz", 9912422,
                 "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                 "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                ("train-labels-idx1-ubyte.gz", 28881,
                 "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                 "d53e105ee54ea40749a09fcbcd1e9432"),
                ("t10k-images-idx3-ubyte.gz", 1648877,
                 "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                 "9fb629c4189551a2d022fa330f9573f3"),
                ("t10k-labels-idx1-ubyte.gz", 4542,
                 "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                 "ec29112dd5afa0611ce80d1b7f02629c"),
            ),
        ),
        IDX_FILES,
        "CC BY-SA 3.0",
        "LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, "
        "Proceedings of the IEEE 1998",
        "http://yann.lecun.com/exdb/mnist/",
        terms="as others state it; its own page names none",
    ),
    Offer(
        "qmnist-labels",
        "who wrote each MNIST digit, for writers=true of mnist",
        "QMNIST-labels",
        _mirrored(
            ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
            (
                ("qmnist-train-labels-idx2-int.gz", 463024,
                 "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
                 "0058f8dd561b90ffdd0f734c6a30e5e4"),
                ("qmnist-test-labels-idx2-int.gz", 526800,
                 "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
                 "5b5b05890a5e13444e108efe57b788aa"),
            ),
        ),
        QMNIST_FILES,
        "BSD 3-Clause",
        "Yadav, Bottou: Cold case: the lost MNIST digits, NeurIPS 2019",
        "https://github.com/facebookresearch/qmnist",
    ),
    Offer(
        "fashion-mnist",
        "70,000 pictures of clothes",
        "FashionMNIST/raw",
        _mirrored(
            ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",),
            (
                ("train-images-idx3-ubyte.gz", 26421880,
                 "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                 "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                ("train-labels-idx1-ubyte.gz", 29515,
                 "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                 "25c81989df183df01b3e8a0aad5dffbe"),
                ("t10k-images-idx3-ubyte.gz", 4422102,
                 "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                 "bef4ecab320f06d8554ea6380940ec79"),
                ("t10k-labels-idx1-ubyte.gz", 5148,
                 "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                 "bb300cfdad3c16e7a12a480ee83cd310"),
            ),
        ),
        IDX_FILES,
        "MIT",
        "Xiao, Rasul, Vollgraf: Fashion-MNIST, arXiv 1708.07747, 2017",
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    Offer(
        "cifar10",
        "60,000 colour pictures in 10 classes",
        "cifar-10-batches-py",
        _toronto(
            "cifar-10-python.tar.gz",
            170498071,
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            "c58f30108f718f92721af3b95e74349a",
        ),
        CIFAR10_PICKLES,
        _NO_LICENCE,
        "Krizhevsky: Learning multiple layers of features from tiny images, 2009",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        packed=True,
        terms=_ASK,
    ),
    Offer(
        "cifar100",
        "60,000 colour pictures in 100 classes",
        "cifar-100-python",
        _toronto(
            "cifar-100-python.tar.gz",
            169001437,
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            "eb9058c3a382ffc7106e4002c42a8d85",
        ),
        ("train", "test", "meta"),
        _NO_LICENCE,
        "Krizhevsky: Learning multiple layers of features from tiny images, 2009",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        packed=True,
        terms=_ASK,
    ),
    Offer(
        "har",
        "10,299 windows of phone sensors, 30 people",
        "UCI HAR Dataset",
        (
            OfficialFile(
                "human+activity+recognition+using+smartphones.zip",
                61005872,
                (
                    "https://archive.ics.uci.edu/static/public/240/"
                    "human+activity+recognition+using+smartphones.zip",
                ),
                "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
                inner="UCI HAR Dataset.zip",
            ),
        ),
        (*HAR_FILES, "activity_labels.txt"),
        "CC BY 4.0, not commercial",
        "Anguita, Ghio, Oneto, Parra, Reyes-Ortiz: A public domain dataset for human activity "
        "recognition using smartphones, ESANN 2013",
        "https://archive.ics.uci.edu/dataset/240",
        packed=True,
        terms="its page says CC BY 4.0, its README forbids commercial use: ask before it",
    ),
    Offer(
        "gtsrb",
        "51,839 German traffic signs in 43 classes",
        "GTSRB",
        (
            _gtsrb(
                "GTSRB_Final_Training_Images.zip", 276294756, "f33fd80ac59bff73c82d25ab499e03a3"
            ),
            _gtsrb("GTSRB_Final_Test_Images.zip", 88978620, "c7e4e6327067d32654124b0fe9e82185"),
            _gtsrb("GTSRB_Final_Test_GT.zip", 99620, "fe31e9c9270bbcd7b84b7f21a9d9d9e5", "GTSRB"),
        ),
        ("Final_Training/Images/*/GT-*.csv", "Final_Test/Images/*.p*", "GT-final_test.csv"),
        _NO_LICENCE,
        "Stallkamp, Schlipsing, Salmen, Igel: Man vs. computer, Neural Networks 2012",
        "https://benchmark.ini.rub.de/gtsrb_dataset.html",
        packed=True,
        terms=_ASK,
    ),
)  # fmt: skip

OFFERS: dict[str, Offer] = {offer.name: offer for offer in _TABLE}
"""By the name users type."""
