"""Earlier runs with the same settings: why a new one starts beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedskew.config import config_of
from fedskew.errors import FedskewError, RunError
from fedskew.runs.folder import RunFolder
from fedskew.runs.identity import FORMAT, Identity, resolve
from fedskew.runs.results import CONFIG, RESULT, recorded


def why_anew(identity: Identity, out: Path) -> str:
    """One sentence on why a run starts although there is one with its settings; or nothing.

    An unfinished run from before format versions is refused: its rounds may have been made
    differently, which could not be detected.
    """
    if (place := RunFolder.of(identity, out).path).name != identity.name:
        rounds = identity.config.train.rounds
        return f"{identity.name} has more rounds; running {rounds} again in {place}"
    for folder, before in _beside(identity, out):
        if before.get("format") is None:
            if not _is_same_of_old(before["config"], identity):
                continue
            if not (folder / RESULT).is_file():
                raise RunError(
                    f"{folder} is an unfinished run of an older format, which cannot be "
                    "resumed: move it away, then repeat the command to run again."
                )
            found = "run folders have a format version"
        elif not (found := _news(before, identity)):
            continue
        return f"{found} since {folder.name}; running again in {out / identity.name}"
    return ""


def why_going_on(identity: Identity, folder: RunFolder) -> str:
    """One sentence on a run that was finished or started with fewer rounds; else nothing."""
    before, wanted = folder.rounds, identity.config.train.rounds
    if before == wanted:
        return ""
    return f"{folder.path.name} has up to {before} rounds; going on to {wanted}"


def _beside(identity: Identity, out: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The runs of the same method in a folder, the newest first."""
    method = identity.name.rpartition("-")[0]
    paths = [path for path in out.glob(f"{method}-*/{CONFIG}") if path.is_file()]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(RunError):
            yield path.parent, recorded(path.parent)


def _news(before: Mapping[str, Any], now: Identity) -> str:
    """What changed since a run was recorded; nothing if its settings are different."""
    mine = now.config.resolved()
    if _but_rounds(before["config"]) != _but_rounds(mine) or before["identity"] == now.sha256:
        return ""
    names = {**before["code"], **now.code}
    files = sorted(
        names[name]["file"] or name
        for name in names
        if before["code"].get(name) != now.code.get(name)
    )
    found = [f"{', '.join(files)} changed"] if files else []
    if before["data"] != now.data:
        found.append("the data changed")
    if before["format"] != FORMAT:
        found.append("the format of run folders changed")
    if not found and before["config"] != mine:
        found.append("train.rounds changed, which an earlier stage depends on,")
    return " and ".join(found) or "a default changed"


def _but_rounds(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings, "train": {**settings["train"], "rounds": None}}


def _is_same_of_old(settings: Mapping[str, Any], now: Identity) -> bool:
    """Whether recorded settings, some without their defaults, are those of a run."""
    mine = now.config.resolved()
    # Most already differ in these; resolving every config of a long list would take seconds.
    if any(settings.get(name) != mine[name] for name in ("seed", "train", "evaluate")):
        return False
    try:
        return resolve(config_of(settings)) == now.config
    except FedskewError:
        return False
