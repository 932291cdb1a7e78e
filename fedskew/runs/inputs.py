"""What a run's folder keeps of its inputs, so that it is enough where its data are not.

How samples are prepared, and what the training rows of all seen clients look like together: a
range and counts for each column, no row.
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter

from fedskew.config import Config
from fedskew.data.federation import Federation, training_rows
from fedskew.data.profile import Profile, plain, profile_of_samples
from fedskew.runs.preparation import described
from fedskew.runs.summary import checked
from fedskew.store import read_json, write_json

PROFILE = "profile.json"
_PROFILES: WeakKeyDictionary[Federation, Profile] = WeakKeyDictionary()
"""Of federations that several runs are made with."""


def save_inputs(folder: Path, config: Config, federation: Federation) -> None:
    """Write how samples become a federation's, and what its training rows look like."""
    described(config, federation).save(folder)
    save_profile(folder, profile_of_federation(federation))


def profile_of_federation(federation: Federation) -> Profile:
    """Of a table the columns as they are stored, else of samples as models take them."""
    if federation.profile is not None:
        return federation.profile
    if federation not in _PROFILES:
        _PROFILES[federation] = profile_of_samples(federation.x, training_rows(federation.clients))
    return _PROFILES[federation]


def save_profile(folder: Path, profile: Profile) -> None:
    write_json(folder / PROFILE, plain(profile))


def load_profile(folder: Path, name: str = PROFILE) -> Profile:
    """The profile that was saved in a folder."""
    path = folder / name
    return checked(path, read_json(path), TypeAdapter(Profile), "about training rows")
