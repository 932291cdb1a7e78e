"""The datasets known by name: where their files are looked for and what they load into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.data import sources
from fedskew.data.choice import Choice, same_type
from fedskew.data.dataset import Dataset
from fedskew.data.locate import Layout, Missing, data_folders, find_file, locate
from fedskew.data.prepare import Preparation
from fedskew.data.presets import BASES, PRESETS, described_options
from fedskew.data.raw import RawSamples, read_shared, to_dataset
from fedskew.data.synthetic import bernoulli_clients, gaussian_clients
from fedskew.errors import ConfigError, DataError, unknown

_DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True)
class Entry:
    """A named dataset: what it is, the layouts it is found in, and its own options.

    ``make`` returns it without any file. The options are true or false, or of the type of the
    keyword of ``make`` that they set.
    """

    summary: str
    get: str
    layouts: tuple[Layout, ...]
    options: dict[str, str] = field(default_factory=dict)
    published: tuple[float, float] | None = None
    elsewhere: tuple[Path, ...] = ()
    make: Callable[..., RawSamples] | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """What options are where they are not given."""
        made = {} if self.make is None else Choice("dataset", "", self.make).knobs
        return {option: made.get(option, False) for option in self.options}

    @property
    def files(self) -> tuple[str, ...]:
        """What is looked for under a data folder, first choice first."""
        return tuple(name for layout in self.layouts for name in layout.wanted)


@dataclass(frozen=True)
class Description:
    """One row of ``fedskew list datasets``."""

    name: str
    summary: str
    files: tuple[str, ...]
    options: dict[str, str]
    get: str


def describe() -> list[Description]:
    """Every dataset known by name, with the files it wants and where they come from.

    >>> [row.name for row in describe()][:3]
    ['digits', 'mnist', 'fashion-mnist']
    """
    found = [
        Description(name, entry.summary, entry.files, _with_defaults(entry), entry.get)
        for name, entry in REGISTRY.items()
    ]
    files = tuple(name for base in BASES for name in REGISTRY[base].files)
    get = f"those of its base are enough, see {', '.join(BASES)}"
    return found + [
        Description(name, preset.summary, files, described_options(preset), get)
        for name, preset in PRESETS.items()
    ]


def _with_defaults(entry: Entry) -> dict[str, str]:
    """What each option does, and its default where it is a number."""
    return {
        option: text
        if entry.defaults[option] is False
        else f"{text} (default {entry.defaults[option]})"
        for option, text in entry.options.items()
    }


def load(
    name: str,
    data_dir: Path | None = None,
    *,
    normalise: str = "standard",
    classes: Sequence[int] | None = None,
    image: Mapping[str, int] | None = None,
    **options: Any,
) -> Dataset:
    """A dataset by name, from ``data_dir``, else FEDSKEW_DATA, else ./data.

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
            f"dataset {name!r} is a dataset under a skew, which clients are needed for: name it in "
            "federation.dataset."
        )
    if name not in REGISTRY:
        raise unknown("dataset", name, REGISTRY)
    entry = REGISTRY[name]
    preparation = Preparation(normalise, classes, image)
    _check_options(name, entry, options)
    try:
        raw = _read(name, entry, data_dir) if entry.make is None else entry.make(**options)
        if options.get("writers"):
            raw = sources.with_writers(raw, _qmnist_folder(data_dir))
        if options.get("digits_only"):
            raw = sources.only_digits(raw)
        if options.get("ink_on_black"):
            raw = sources.inverted(raw)
        if options.get("normal_or_not"):
            raw = sources.normal_or_not(raw)
    except PermissionError as error:
        raise DataError(f"dataset {name!r}: no permission to read {error.filename}.") from error
    return to_dataset(name, raw, preparation, entry.published)


_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def _check_options(name: str, entry: Entry, options: dict[str, Any]) -> None:
    for option, value in options.items():
        if not entry.options:
            raise ConfigError(f"dataset {name!r} takes no options, but got {option!r}.")
        if option not in entry.options:
            raise unknown(f"option of dataset {name!r}", option, entry.options)
        if not same_type(value, entry.defaults[option]):
            kind = _KINDS[type(entry.defaults[option])]
            raise ConfigError(
                f"option {option!r} of dataset {name!r} must be {kind}, not {value!r}."
            )


def _read(name: str, entry: Entry, data_dir: Path | None) -> RawSamples:
    found = locate(data_dir, entry.layouts, entry.elsewhere)
    if isinstance(found, Missing):
        wanted = "; ".join(found.incomplete) or f"it wants {' or '.join(entry.files)}"
        raise DataError(
            f"dataset {name!r} was not found: {wanted} (looked in {', '.join(found.looked)}); "
            f"{entry.get}, then set FEDSKEW_DATA or pass --data-dir."
        )
    layout, place = found
    return layout.read(place)


def _qmnist_folder(data_dir: Path | None) -> Path:
    """The folder with both QMNIST label files, which name the writer of every MNIST image."""
    looked = []
    for root in data_folders(data_dir):
        looked.append(str(root))
        for place in ("QMNIST-labels", "QMNIST/raw", "MNIST/raw", "."):
            if all(find_file(root / place, name) for name in sources.QMNIST_FILES):
                return root / place
    raise DataError(
        f"dataset 'mnist' with writers=true wants QMNIST-labels/{sources.QMNIST_FILES[0]}.gz and "
        f"{sources.QMNIST_FILES[1]}.gz (looked in {', '.join(looked)}); get them from the QMNIST "
        "repository of Facebook Research, then set FEDSKEW_DATA or pass --data-dir."
    )


def _embedded_digits() -> RawSamples:
    """scikit-learn's own copy, which makes the demo work without any download."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = (found.images / 16).astype(np.float32)
    return RawSamples("digits", x, found.target.astype(np.int64), sources.DIGITS)


def _npz(*names: str) -> Layout:
    return Layout(names, (), read_shared)


def _idx(name: str, places: tuple[str, ...], class_names: tuple[str, ...]) -> Layout:
    read: Callable[[Path], RawSamples] = partial(
        sources.read_idx_folder, name=name, class_names=class_names
    )
    return Layout(places, sources.IDX_FILES, read)


def _gtsrb(training: str) -> Layout:
    return Layout(
        ("GTSRB", "gtsrb/GTSRB", "."),
        (training, "Final_Test/Images/*.p*"),
        partial(sources.read_gtsrb_folder, training=training),
    )


_LAW_OPTIONS = {
    "owners": "how many",
    "dimensions": "features of a sample, 2 to 784",
    "size": "samples of each owner",
    "shift": "how far owners are from the law they share, in any number of dimensions; 0: not",
    "data_seed": "the seed of the laws and of the samples; no other seed changes them",
}

REGISTRY: dict[str, Entry] = {
    "digits": Entry(
        "1,797 handwritten digits of 8x8 pixels, embedded in scikit-learn.",
        "nothing to fetch",
        (),
        make=_embedded_digits,
    ),
    "mnist": Entry(
        "70,000 handwritten digits of 28x28 pixels.",
        "get the four idx files of the MNIST database",
        (_idx("mnist", ("MNIST/raw", "mnist", "."), sources.DIGITS),),
        options={"writers": "rows are owned by their writers, from the QMNIST labels"},
        published=(0.1307, 0.3081),
    ),
    "fashion-mnist": Entry(
        "70,000 pictures of clothes of 28x28 pixels.",
        "install Debian's package dataset-fashion-mnist or get the four idx files from "
        "Zalando Research",
        (_idx("fashion-mnist", ("FashionMNIST/raw", "fashion-mnist", "."), sources.CLOTHES),),
        published=(0.2860, 0.3530),
        elsewhere=(_DEBIAN_FASHION_MNIST,),
    ),
    "femnist": Entry(
        "Handwritten characters of 28x28 pixels in 62 classes, owned by their writers.",
        "build it with the scripts of the LEAF benchmark (data/femnist)",
        (
            Layout(
                ("femnist/data/all_data", "femnist/all_data", "femnist", "all_data", "."),
                ("all_data_*.json",),
                sources.read_leaf_folder,
            ),
            _npz("femnist.npz"),
        ),
        options={
            "digits_only": "leave the letters out",
            "ink_on_black": "ink is 1 and paper 0, as in MNIST; stored images are the other way",
        },
    ),
    "cifar10": Entry(
        "60,000 colour pictures of 32x32 pixels in 10 classes.",
        "get the python or binary version from the CIFAR page of the University of Toronto",
        (
            Layout(
                ("cifar-10-batches-py", "."),
                sources.CIFAR10_PICKLES,
                sources.read_cifar10_pickles,
            ),
            Layout(
                ("cifar-10-batches-bin", "."),
                sources.CIFAR10_BINARIES,
                sources.read_cifar10_binaries,
            ),
            _npz("cifar10.npz", "cifar10_subset.npz"),
        ),
    ),
    "cifar100": Entry(
        "60,000 colour pictures of 32x32 pixels in 100 classes.",
        "get the python or binary version from the CIFAR page of the University of Toronto",
        (
            Layout(("cifar-100-python", "."), ("train", "test"), sources.read_cifar100_pickles),
            Layout(
                ("cifar-100-binary", "."),
                ("train.bin", "test.bin"),
                sources.read_cifar100_binaries,
            ),
            _npz("cifar100.npz"),
        ),
    ),
    "gtsrb": Entry(
        "German traffic signs, resized to 32x32 colour pixels.",
        "get GTSRB_Final_Training_Images, GTSRB_Final_Test_Images and GTSRB_Final_Test_GT of the "
        "GTSRB benchmark of Ruhr-Universität Bochum",
        (
            _gtsrb("Final_Training/Images/*/GT-*.csv"),
            _gtsrb("Training/*/GT-*.csv"),
            _npz("gtsrb10.npz", "gtsrb.npz"),
        ),
    ),
    "har": Entry(
        "10,299 windows of phone sensors as 561 features, 6 activities, owned by 30 subjects.",
        "get 'Human Activity Recognition Using Smartphones' from the UCI repository",
        (
            Layout(
                ("UCI HAR Dataset", "UCI_HAR_Dataset", "har", "."),
                sources.HAR_FILES,
                sources.read_har_folder,
            ),
            _npz("har.npz"),
        ),
    ),
    "chest-xray": Entry(
        "Chest X-rays as 32x32 grey pixels, owned by the source they were published in.",
        "put the images of each source into chest-xray/SOURCE/CLASS/",
        (
            Layout(
                ("chest-xray", "chest_xray"),
                ("*/*/*.*",),
                sources.read_chest_folder,
            ),
            _npz("chest_xray.npz"),
        ),
        options={"normal_or_not": "two classes: normal, and all that is not as abnormal"},
    ),
    "gaussian-clients": Entry(
        "Owners that draw from Gaussians with means of their own: the true density ratio is known.",
        "nothing to fetch",
        (),
        options={
            **_LAW_OPTIONS,
            "correlation": "of neighbouring dimensions, from 0 up to, not including, 1",
        },
        make=gaussian_clients,
    ),
    "bernoulli-clients": Entry(
        "Owners that draw bits with chances of their own: the true density ratio is known.",
        "nothing to fetch",
        (),
        options=_LAW_OPTIONS,
        make=bernoulli_clients,
    ),
}
