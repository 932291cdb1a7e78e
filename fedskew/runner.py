"""Many runs, one after the other: counted, told to whoever watches, their data loaded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from fedskew.config import Config, FederationSection
from fedskew.data.federation import Federation
from fedskew.errors import ConfigError
from fedskew.experiment import Run, make_federation, run
from fedskew.federate.holdings import roster_of
from fedskew.federate.planning import MAIN, checked_model
from fedskew.folder import RunFolder
from fedskew.matrix import label
from fedskew.recipe import Stage, find
from fedskew.score import Row
from fedskew.selection import Members
from fedskew.server import Progress, RoundRecord


class Observer(Protocol):
    """Somebody who wants to know how far a comparison is."""

    def begin(self, config: Config, position: int, total: int, without: str) -> None: ...

    def __call__(self, progress: Progress, record: RoundRecord, rows: Sequence[Row]) -> None: ...

    def end(self, run: Run, repeated: bool) -> None: ...


class Shelf:
    """The federation in use: runs follow each other on the same data, which are read once."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._key: tuple[FederationSection, int] | None = None
        self._held: Federation | None = None

    def federation(self, config: Config) -> Federation:
        key = (config.federation, config.split_seed)
        if self._held is None or key != self._key:
            self._held = None  # lets go of the old images before the next are read
            self._held = make_federation(config, self._data_dir)
            self._key = key
        return self._held


class Runner:
    """Runs configs into one folder; ``total`` is how many there will be."""

    def __init__(self, out: Path, data_dir: Path | None, watch: Observer | None) -> None:
        self.out, self.data_dir, self.watch = out, data_dir, watch
        self.position = self.total = 0
        self._shelf = Shelf(data_dir)

    def run(self, config: Config, *, draw: bool = True, without: str = "") -> Run:
        """Run a config, or finish it; ``without`` is the client it leaves out, if it does."""
        self.position += 1
        finished = self._folder(config).is_finished
        federation = None if finished else self._shelf.federation(config)
        if self.watch:
            self.watch.begin(config, self.position, self.total, without)
        done = run(
            config, out=self.out, data_dir=self.data_dir, watch=self.watch, federation=federation,
            draw=draw,
        )  # fmt: skip
        if self.watch:
            self.watch.end(done, finished)
        return done

    def check(self, configs: Iterable[Config]) -> None:
        """Refuse what cannot work before anything runs."""
        for config in configs:
            if self._folder(config).is_finished:
                continue
            roster = roster_of(self._shelf.federation(config))
            recipe = find(config.method.name).recipe(**config.method.knobs)
            for stage in (*recipe.prepares, Stage(MAIN, recipe)):
                try:
                    checked_model(config, roster, stage)
                except ConfigError as error:
                    raise ConfigError(f"{label(config.method)} cannot run: {error}") from None

    def members(self, config: Config) -> Members:
        """Who takes part: those a finished run scored, else those its data give."""
        folder = self._folder(config)
        if folder.is_finished:
            return Members.found_in(folder.rows())
        return Members.of(self._shelf.federation(config))

    def _folder(self, config: Config) -> RunFolder:
        return RunFolder.of(config, self.out)
