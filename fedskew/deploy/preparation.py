"""What a run's folder says of its inputs; for folders of earlier versions, what their data say."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedskew.data.federation import Federation
from fedskew.data.fingerprint import fingerprint, sampled_fingerprint
from fedskew.data.profile import Profile
from fedskew.errors import RunError
from fedskew.runs.experiment import Run, make_federation
from fedskew.runs.inputs import PROFILE, load_profile, profile_of_federation, save_inputs
from fedskew.runs.preparation import FILE, SamplePreparation, described, load_preparation
from fedskew.store import check_sha256


def preparation_of(run: Run, data_dir: Path | None = None) -> SamplePreparation:
    """How the samples of a run were prepared.

    It is read from the run's folder, where runs write it. Folders of earlier versions lack it:
    then it is found from the run's data and saved, so that the folder is enough from then on.
    """
    if _is_there(run, FILE):
        return load_preparation(run.path)
    federation = run_federation(run, data_dir)
    with suppress(RunError):  # of a folder that may be read only
        save_inputs(run.path, run.config, federation)
    return described(run.config, federation)


def profile_of(run: Run, data_dir: Path | None = None) -> Profile:
    """What the training rows of a run look like, found in the same way."""
    if _is_there(run, PROFILE):
        return load_profile(run.path)
    return profile_of_federation(run_federation(run, data_dir))


def _is_there(run: Run, name: str) -> bool:
    """Whether the folder has this file, as the run left it."""
    path = run.path / name
    if path.is_file():
        check_sha256(path, run.result.get("hashes", {}).get(name))
    return path.is_file()


def run_federation(run: Run, data_dir: Path | None = None) -> Federation:
    """The same data a run was made with."""
    federation = make_federation(run.config, data_dir, _version(run))
    hashed = fingerprint if _version(run) else sampled_fingerprint
    if hashed(federation) != run.results.settings["data"]:
        raise RunError(
            f"{run.path} was made with other data than are here now: restore the original data, "
            "or name their folder with --data-dir."
        )
    return federation


def _version(run: Run) -> int:
    """The version of a run's folder, 0 before folders told theirs."""
    return int(run.results.settings.get("format", 0))
