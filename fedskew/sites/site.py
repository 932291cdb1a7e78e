"""A site's folder: where its data are, what may leave it, and which server it works with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import Field

from fedskew.config import Section, checked_section
from fedskew.data.own import check_learnable, load_own
from fedskew.diagnosis.basis import CELL
from fedskew.errors import ConfigError, RunError
from fedskew.sites.keys import KeyPair
from fedskew.sites.lines import Application, Invitation
from fedskew.store import make_folder, read_table, write_atomically, write_json
from fedskew.trust.toml import read_toml

SITE, JOINED = "site.toml", "joined.json"
COUNTED_SIDE = 8
Leaves = Literal[
    "parameters",
    "sums",
    "reports",
    "scores",
    "counts",
    "moments",
    "words",
    "findings",
    "diagnosis",
]
ALL: tuple[Leaves, ...] = get_args(Leaves)
MEANT = {
    "parameters": "parameters of trained models",
    "sums": "the same, hidden in sums with those of other sites (secure aggregation)",
    "reports": "what some methods report beside them",
    "scores": "how good models are on this site's data",
    "counts": "how many samples of each class each client has",
    "moments": "sums by which everybody's data are scaled alike, and of tables more",
    "words": "the words of columns that hold words, as far as each stands in two rows or more",
    "findings": "numbers that some methods find out",
    "diagnosis": "sums over rows of a class, by which 'fedskew diagnose' compares clients",
}
"""What can leave a site, besides how it is called, its clients and how many samples they have."""


class DataSection(Section):
    """Where a site's data are, and how its files are to be read."""

    path: str
    label: str | list[str] = "label"
    """The column of labels, or several of 0 and 1 each."""
    image_size: Annotated[int | None, Field(ge=1)] = None

    @property
    def labels(self) -> dict[str, Any]:
        """The columns of labels, as own data are read with them."""
        one = isinstance(self.label, str)
        return {"label": self.label} if one else {"labels": self.label}


class SiteFile(Section):
    """All that ``site.toml`` says."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    data: DataSection
    allow: tuple[Leaves, ...] = ALL
    min_rows: Annotated[int, Field(ge=1)] = 1
    """The fewest training samples with which a client takes part."""
    min_sites: Annotated[int, Field(ge=2)] = 3
    """The fewest sites, this one included, that a sum of hidden updates may be of."""
    min_cell: Annotated[int, Field(ge=2)] = CELL
    """The fewest rows of a class at a client that a sum for a diagnosis may be of."""
    row_key: str = ""
    """A word that sites share and the server does not know: a diagnosis hashes rows with it."""


S = TypeVar("S", bound=Section)


def settings_in(folder: Path, file: str, what: str, kind: type[S]) -> S:
    """What the settings file of a site's or server's folder says."""
    path = folder / file
    if not path.is_file():
        raise ConfigError(
            f"{folder} is no folder of a {what} (it has no {file}): make one with "
            f"'fedskew {what} init'."
        )
    return checked_section(kind, read_toml(path), str(path))


@dataclass(frozen=True)
class Site:
    """A site's folder and settings.

    ``site.toml``       name, data, and what may leave
    ``keys/``           the site's own key, and the authority of its server
    ``joined.json``     where its server is
    ``state/STUDY/``    what clients keep between rounds
    ``results/STUDY/``  models that are used here, and what they say of every sample
    ``sums.json``       which updates were summed already, and with whose
    ``audit.jsonl``     what left, when, in how many bytes
    """

    folder: Path
    settings: SiteFile

    @classmethod
    def open(cls, folder: Path) -> Site:
        return cls(folder, settings_in(folder, SITE, "site", SiteFile))

    @classmethod
    def create(
        cls, folder: Path, name: str, data: Path, label: str | list[str] = "label",
        allow: Sequence[str] = ALL, min_rows: int = 1,
    ) -> Site:  # fmt: skip
        """A new folder with a new key, if the data can be read."""
        if (folder / SITE).exists():
            raise ConfigError(f"{folder} is a site's folder already: choose another name.")
        values = {
            "name": name, "data": {"path": str(data.resolve()), "label": label},
            "allow": list(allow), "min_rows": min_rows,
        }  # fmt: skip
        site = cls(folder, checked_section(SiteFile, values, SITE))
        site.rows()
        KeyPair.new().save(site.key_file)
        lines = [
            f"name = {json.dumps(name)}",
            f"min_rows = {min_rows}    # a client with fewer training samples takes no part",
            "# What may leave this site; remove what should not.",
            "allow = [",
            *(
                f"    {json.dumps(each)},".ljust(24) + f"# {MEANT[each]}"
                for each in site.settings.allow
            ),
            "]",
            "",
            "[data]",
            f"path = {json.dumps(str(data.resolve()))}",
            f"label = {json.dumps(label)}    # of labels, or several, in CSV and Parquet",
        ]
        write_atomically(make_folder(folder) / SITE, ("\n".join(lines) + "\n").encode())
        return site

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def data(self) -> Path:
        """The data's path; a relative one begins in the site's folder."""
        return self.folder / self.settings.data.path

    @property
    def key_file(self) -> Path:
        return self.folder / "keys" / "site.key"

    @property
    def application(self) -> Application:
        """What is sent to a server once."""
        return Application(self.name, KeyPair.load(self.key_file).pem)

    @property
    def invitation(self) -> Invitation:
        """The server that this site has joined."""
        if not (self.folder / JOINED).is_file():
            raise RunError(
                f"site {self.name!r} has joined no server yet: 'fedskew site join INVITATION'."
            )
        try:
            return Invitation(**read_table(self.folder / JOINED))
        except TypeError as error:
            raise RunError(f"{self.folder / JOINED} is damaged: join again.") from error

    def join(self, invitation: Invitation) -> None:
        """Work with this server from now on."""
        write_json(self.folder / JOINED, asdict(invitation))

    def rows(self) -> dict[str, int]:
        """How many samples each client here has, in training, validation and test together."""
        own = self.settings.data
        dataset = load_own(
            self.data, normalise="unit", **own.labels,
            # A study says which size images are to have; here they are counted.
            image_size=own.image_size or COUNTED_SIDE,
        )  # fmt: skip
        check_learnable(str(self.data), dataset)
        if dataset.owner is None:
            return {self.name: len(dataset.y)}
        return {
            name: int((dataset.owner == number).sum())
            for number, name in enumerate(dataset.owner_names)
        }

    def state_of(self, study: str) -> Path:
        return self.folder / "state" / study

    @property
    def sums(self) -> Path:
        return self.folder / "sums.json"

    def results_of(self, study: str) -> Path:
        return self.folder / "results" / study
