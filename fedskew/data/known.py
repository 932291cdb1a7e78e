"""Every dataset by name: whether it is there and where, how large it is, how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedskew.data.datasets import DATASETS, NamedDataset
from fedskew.data.formats import find_file
from fedskew.data.locate import Layout, Missing, data_folders, locate
from fedskew.data.offers import OFFERS, Offer
from fedskew.data.presets import BASES, PRESETS
from fedskew.errors import ConfigError, unknown


@dataclass(frozen=True)
class Known:
    """A dataset: where it was found, and its bytes there, else the bytes to fetch if it can be."""

    name: str
    summary: str
    place: Path | None
    size: int | None
    needs_files: bool = True

    @property
    def offer(self) -> Offer | None:
        return OFFERS.get(self.name)


def offer_named(name: str) -> Offer:
    """What can be fetched under a name; for other datasets, what to do instead."""
    if name in OFFERS:
        return OFFERS[name]
    if name in PRESETS:
        raise ConfigError(
            f"dataset {name!r} is made from another one: fetch {BASES[0]} or {BASES[1]}."
        )
    if name in DATASETS:
        entry = DATASETS[name]
        if not entry.layouts:
            raise ConfigError(f"dataset {name!r} needs no files: there is nothing to fetch.")
        raise ConfigError(
            f"dataset {name!r} cannot be fetched, no official file holds it as it is read: "
            f"{entry.get}."
        )
    raise unknown("dataset to fetch", name, OFFERS)


def all_known() -> Iterator[Known]:
    """The datasets of the package, then other files that can be fetched."""
    for name, entry in DATASETS.items():
        yield _dataset(name, entry)
    for name, offer in OFFERS.items():
        if name not in DATASETS:
            place = next((f / offer.place for f in data_folders(None) if not offer.lacks(f)), None)
            yield Known(name, offer.summary, place, _tree(place) if place else offer.size)


def _dataset(name: str, entry: NamedDataset) -> Known:
    if not entry.layouts:
        return Known(name, entry.summary, None, None, needs_files=False)
    found = found_at(entry)
    if found is None:
        return Known(name, entry.summary, None, OFFERS[name].size if name in OFFERS else None)
    layout, place = found
    return Known(name, entry.summary, place, _stored(layout, place))


def found_at(entry: NamedDataset) -> tuple[Layout, Path] | None:
    """The layout and place that are read when nobody names a data folder."""
    found = locate(None, entry.layouts, entry.elsewhere)
    return None if isinstance(found, Missing) else found


def _stored(layout: Layout, place: Path) -> int:
    """Bytes of a dataset; in a place that holds others too, of its own files."""
    if place.is_file():
        return place.stat().st_size
    if "." in layout.places and not any(
        place.parts[-len(Path(name).parts) :] == Path(name).parts
        for name in layout.places
        if name != "."
    ):
        files = (find_file(place, name) for name in layout.files)
        return sum(file.stat().st_size for file in files if file is not None)
    return _tree(place)


def _tree(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
