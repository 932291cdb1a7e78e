"""The datasets known by name: where their files are searched for, and how they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from fedskew.data import sources, synthetic
from fedskew.data.dataset import Dataset, to_dataset
from fedskew.data.locate import Layout, Missing, locate, qmnist_folder, read_first
from fedskew.data.offers import OFFERS
from fedskew.data.prepare import Preparation
from fedskew.data.presets import PRESETS
from fedskew.data.raw import RawSamples
from fedskew.data.shared_format import read_shared
from fedskew.errors import ConfigError, DataError
from fedskew.registry.entries import Entry, Registry
from fedskew.registry.knobs import Knob

_DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True)
class NamedDataset(Entry):
    """A function ``(stored, **knobs)``, how to get its files, and the layouts they come in."""

    contract: ClassVar[str] = (
        "The contract of a data function, (**options) -> fedskew.Federation, stands in "
        "docs/how-to/python.md."
    )
    get: str = field(default="", kw_only=True)
    layouts: tuple[Layout, ...] = field(default=(), kw_only=True)
    published: tuple[float, float] | None = field(default=None, kw_only=True)
    """The published mean and deviation of its pixels."""
    elsewhere: tuple[Path, ...] = field(default=(), kw_only=True)
    """Folders that are searched after the data folders."""

    @property
    def how_to_get(self) -> str:
        """The command that fetches it, where there is one, and how to do without it."""
        return f"run 'fedskew data get {self.name}', or " * (self.name in OFFERS) + self.get

    @property
    def files(self) -> tuple[str, ...]:
        """The files searched for under a data folder, first choice first."""
        return tuple(name for layout in self.layouts for name in layout.wanted)

    def is_missing(self, data_dir: Path | None) -> bool:
        """Whether it needs files that were not found."""
        found = locate(data_dir, self.layouts, self.elsewhere) if self.layouts else None
        return isinstance(found, Missing)


@dataclass(frozen=True)
class Stored:
    """The files of a dataset, which are read when its function asks for them."""

    entry: NamedDataset
    data_dir: Path | None

    def read(self) -> RawSamples:
        one = self.entry
        return read_first(one.name, one.layouts, one.elsewhere, one.how_to_get, self.data_dir)


class Datasets(Registry[NamedDataset]):
    """The registry of datasets; users' own functions return a federation and take only knobs."""

    def entry_of(self, name: str, function: Callable[..., Any], **facts: Any) -> NamedDataset:
        entry = super().entry_of(name, function, **facts)
        return entry if facts else replace(entry, leading=0)


DATASETS = Datasets("dataset", "datasets", NamedDataset, leading=1)
_named = DATASETS.register


def load(
    name: str,
    data_dir: Path | None = None,
    *,
    normalise: str = "standard",
    classes: Sequence[int | Sequence[int]] | None = None,
    image: Mapping[str, int] | None = None,
    **knobs: Any,
) -> Dataset:
    """A dataset by name, from ``data_dir``, else FEDSKEW_DATA, ./data, the cache.

    ``normalise`` is "standard", "unit" or "signed", ``classes`` a choice of classes and ``image``
    another size or other channels: see :class:`~fedskew.data.prepare.Preparation`.

    >>> digits = load("digits", normalise="unit")
    >>> tuple(digits.x.shape), float(digits.x.max()), len(digits.official_test)
    ((1797, 1, 8, 8), 1.0, 0)
    >>> pair = load("digits", normalise="signed", classes=[8, 3], image={"side": 16})
    >>> pair.class_names, tuple(pair.x.shape), [float(v) for v in pair.x.aminmax()]
    (('8', '3'), (357, 1, 16, 16), [-1.0, 1.0])
    """
    if name in PRESETS:
        raise ConfigError(
            f"dataset {name!r} is a dataset with a skew, which needs clients: name it in "
            "federation.dataset."
        )
    entry = DATASETS.find(name)
    preparation = Preparation(normalise, classes, image)
    try:
        raw = entry.make(Stored(entry, data_dir), **knobs)
    except PermissionError as error:
        raise DataError(f"dataset {name!r}: no permission to read {error.filename}.") from error
    return to_dataset(name, raw, preparation, entry.published)


def _npz(*names: str) -> Layout:
    return Layout(names, (), read_shared)


def _idx(name: str, places: tuple[str, ...], class_names: tuple[str, ...]) -> Layout:
    read = partial(sources.read_idx_folder, name=name, class_names=class_names)
    return Layout(places, sources.IDX_FILES, read)


def _gtsrb(training: str) -> Layout:
    return Layout(
        ("GTSRB", "gtsrb/GTSRB", "."),
        (training, "Final_Test/Images/*.p*"),
        partial(sources.read_gtsrb_folder, training=training),
    )


TWO_DIMENSIONS = synthetic.Laws(dimensions=2)
TWENTY_BITS = synthetic.Laws(dimensions=20)


@_named("digits", get="nothing to fetch")
def digits(stored: Stored) -> RawSamples:
    """1,797 handwritten digits of 8x8 pixels, embedded in scikit-learn."""
    return sources.embedded_digits()


@_named(
    "mnist",
    get="get the four idx files of the MNIST database",
    layouts=(_idx("mnist", ("MNIST/raw", "mnist", "."), sources.DIGITS),),
    published=(0.1307, 0.3081),
)
def mnist(
    stored: Stored,
    *,
    writers: Annotated[
        bool, Knob("rows are owned by their writers, from the QMNIST labels")
    ] = False,
) -> RawSamples:
    """70,000 handwritten digits of 28x28 pixels."""
    raw = stored.read()
    return sources.with_writers(raw, qmnist_folder(stored.data_dir)) if writers else raw


@_named(
    "fashion-mnist",
    get="install Debian's package dataset-fashion-mnist or get the four idx files from "
    "Zalando Research",
    layouts=(_idx("fashion-mnist", ("FashionMNIST/raw", "fashion-mnist", "."), sources.CLOTHES),),
    published=(0.2860, 0.3530),
    elsewhere=(_DEBIAN_FASHION_MNIST,),
)
def fashion_mnist(stored: Stored) -> RawSamples:
    """70,000 pictures of clothes of 28x28 pixels."""
    return stored.read()


@_named(
    "femnist",
    get="build it with the scripts of the LEAF benchmark (data/femnist)",
    layouts=(
        Layout(
            ("femnist/data/all_data", "femnist/all_data", "femnist", "all_data", "."),
            ("all_data_*.json",),
            sources.read_leaf_folder,
        ),
        _npz("femnist.npz"),
    ),
)
def femnist(
    stored: Stored,
    *,
    digits_only: Annotated[bool, Knob("leave the letters out")] = False,
    ink_on_black: Annotated[
        bool, Knob("ink is 1 and paper 0, as in MNIST; stored images are the opposite")
    ] = False,
) -> RawSamples:
    """Handwritten characters of 28x28 pixels in 62 classes, owned by their writers."""
    raw = stored.read()
    raw = raw.only(range(len(sources.DIGITS))) if digits_only else raw
    return sources.inverted(raw) if ink_on_black else raw


@_named(
    "cifar10",
    get="get the python or binary version from the CIFAR page of the University of Toronto",
    layouts=(
        Layout(("cifar-10-batches-py", "."), sources.CIFAR10_PICKLES, sources.read_cifar10_pickles),
        Layout(
            ("cifar-10-batches-bin", "."),
            sources.CIFAR10_BINARIES,
            sources.read_cifar10_binaries,
        ),
        _npz("cifar10.npz", "cifar10_subset.npz"),
    ),
)
def cifar10(stored: Stored) -> RawSamples:
    """60,000 colour pictures of 32x32 pixels in 10 classes."""
    return stored.read()


@_named(
    "cifar100",
    get="get the python or binary version from the CIFAR page of the University of Toronto",
    layouts=(
        Layout(("cifar-100-python", "."), ("train", "test"), sources.read_cifar100_pickles),
        Layout(
            ("cifar-100-binary", "."),
            ("train.bin", "test.bin"),
            sources.read_cifar100_binaries,
        ),
        _npz("cifar100.npz"),
    ),
)
def cifar100(stored: Stored) -> RawSamples:
    """60,000 colour pictures of 32x32 pixels in 100 classes."""
    return stored.read()


@_named(
    "gtsrb",
    get="get GTSRB_Final_Training_Images, GTSRB_Final_Test_Images and GTSRB_Final_Test_GT of the "
    "GTSRB benchmark of Ruhr-Universität Bochum",
    layouts=(
        _gtsrb("Final_Training/Images/*/GT-*.csv"),
        _gtsrb("Training/*/GT-*.csv"),
        _npz("gtsrb10.npz", "gtsrb.npz"),
    ),
)
def gtsrb(stored: Stored) -> RawSamples:
    """German traffic signs, resized to 32x32 colour pixels."""
    return stored.read()


@_named(
    "har",
    get="get 'Human Activity Recognition Using Smartphones' from the UCI repository",
    layouts=(
        Layout(
            ("UCI HAR Dataset", "UCI_HAR_Dataset", "har", "."),
            sources.HAR_FILES,
            sources.read_har_folder,
        ),
        _npz("har.npz"),
    ),
)
def har(stored: Stored) -> RawSamples:
    """10,299 windows of phone sensors as 561 features, 6 activities, owned by 30 subjects."""
    return stored.read()


@_named(
    "chest-xray",
    get="put the images of each source into chest-xray/SOURCE/CLASS/",
    layouts=(
        Layout(("chest-xray", "chest_xray"), ("*/*/*.*",), sources.read_chest_folder),
        _npz("chest_xray.npz"),
    ),
)
def chest_xray(
    stored: Stored,
    *,
    normal_or_not: Annotated[bool, Knob("two classes: normal, and all others as abnormal")] = False,
) -> RawSamples:
    """Chest X-rays as 32x32 grey pixels, owned by the source they were published in."""
    raw = stored.read()
    return sources.normal_or_not(raw) if normal_or_not else raw


@_named("gaussian-clients", get="nothing to fetch")
def gaussian_clients(
    stored: Stored,
    *,
    laws: synthetic.Laws = TWO_DIMENSIONS,
    correlation: Annotated[float, Knob("of neighbouring dimensions", ge=0, lt=1)] = 0.0,
) -> RawSamples:
    """Owners draw from Gaussians with different means: the true density ratio is known."""
    return synthetic.gaussian_clients(laws, correlation)


@_named("bernoulli-clients", get="nothing to fetch")
def bernoulli_clients(
    stored: Stored,
    *,
    laws: synthetic.Laws = TWENTY_BITS,
) -> RawSamples:
    """Owners draw bits with different probabilities: the true density ratio is known."""
    return synthetic.bernoulli_clients(laws)
