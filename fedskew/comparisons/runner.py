"""Many runs, one after the other: counted and reported to an observer; data are loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from fedskew.comparisons.crossing import label
from fedskew.comparisons.selection import Members
from fedskew.config import Config, FederationSection
from fedskew.data.federation import Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.errors import ConfigError, RunStopped
from fedskew.federate.holdings import roster_of
from fedskew.federate.metrics import MAIN, Row
from fedskew.federate.planning import checked_model
from fedskew.federate.recipe import Stage
from fedskew.federate.roster import Roster
from fedskew.federate.server import Progress, RoundRecord
from fedskew.methods import find
from fedskew.runs.experiment import Run, Tell, carry_out, make_federation
from fedskew.runs.folder import RunFolder
from fedskew.runs.identity import Identity, identify


class Observer(Protocol):
    """Follows the runs of a command: each begins, finishes rounds, and ends.

    ``name`` says which run it is; ``repeated`` says that it was finished before.
    """

    def begin(self, config: Config, position: int, total: int, name: str) -> None: ...

    def __call__(self, progress: Progress, record: RoundRecord, rows: Sequence[Row]) -> None: ...

    def end(self, run: Run, repeated: bool) -> None: ...


Draw = Callable[[Run, Callable[[], Federation]], object]
"""A function that draws a finished run, given the run and a function that loads its data."""


class FederationCache:
    """The latest federation, its roster, and identities of runs, so that data are read once."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._key: tuple[FederationSection, int] | None = None
        self._held: Federation | None = None
        self._fingerprint = ""
        self._roster: Roster | None = None
        self._known: dict[str, Identity] = {}

    def federation(self, config: Config) -> Federation:
        key = (config.federation, config.split_seed)
        if self._held is None or key != self._key:
            # Free the old images before the next are read.
            self._held = self._roster = None
            self._held = make_federation(config, self._data_dir)
            self._fingerprint = fingerprint(self._held)
            self._key = key
        return self._held

    def roster(self, config: Config) -> Roster:
        """What a server may know of its clients, counted once for all configs that use them."""
        federation = self.federation(config)
        if self._roster is None:
            self._roster = roster_of(federation)
        return self._roster

    def identity(self, config: Config) -> Identity:
        """What decides a run's numbers; a second call does not read the data again."""
        key = config.model_dump_json()
        if key not in self._known:
            federation = self.federation(config)
            self._known[key] = identify(config, federation, self._fingerprint)
        return self._known[key]


class Runner:
    """Runs configs into one folder; ``total`` is how many there will be."""

    def __init__(
        self,
        out: Path,
        data_dir: Path | None,
        watch: Observer | None = None,
        tell: Tell | None = None,
        draw: Draw | None = None,
    ) -> None:
        self.out, self.watch, self.tell, self.draw = out, watch, tell, draw
        self.position = self.total = 0
        self.stopped: dict[str, str] = {}
        """By name, why runs stopped that were attempted."""
        self._data = FederationCache(data_dir)
        self._runs: dict[Path, Run] = {}

    def run(self, config: Config, *, name: str = "", draw: bool = True) -> Run:
        """Run a config, or finish it, and draw it if this runner draws.

        Observers know it by its name, or else by method and seed.
        """
        self.position += 1
        finished = self.has_finished(config)
        if self.watch:
            self.watch.begin(config, self.position, self.total, name or run_name(config))
        done = carry_out(
            self._data.identity(config),
            lambda: self._data.federation(config),
            self.out,
            self.watch,
            tell=self.tell,
        )
        if draw and self.draw:
            self.draw(done, lambda: self._data.federation(config))
        done = self._known(done)
        if self.watch:
            self.watch.end(done, finished)
        return done

    def attempt(self, config: Config, *, name: str = "", draw: bool = True) -> Run | None:
        """The same, but a run that stops because all clients failed does not stop the others."""
        try:
            return self.run(config, name=name, draw=draw)
        except RunStopped as error:
            name = name or run_name(config)
            self.stopped[name] = str(error)
            if self.tell:
                self.tell(f"{name}: {error}")
            return None

    def has_finished(self, config: Config) -> bool:
        """Whether there is nothing left to run."""
        return self._folder(config).has_finished(self._data.identity(config))

    def check(self, configs: Iterable[Config]) -> None:
        """Refuse configs that cannot work, before anything runs."""
        for config in configs:
            if self.has_finished(config):
                continue
            roster = self._data.roster(config)
            recipe = find(config.method.name).recipe(**config.method.knobs)
            for stage in (*recipe.prepares, Stage(MAIN, recipe)):
                try:
                    checked_model(config, roster, stage)
                except ConfigError as error:
                    raise ConfigError(f"{label(config.method)} cannot run: {error}") from None

    def members(self, config: Config) -> Members:
        """Who takes part: the clients a finished run scored, else those in its data."""
        folder = self._folder(config)
        if folder.is_finished:
            return Members.found_in(self._known(Run(folder.path)).results.rows)
        return Members.of(self._data.federation(config))

    def _known(self, run: Run) -> Run:
        """The first object for the same run: what it has read need not be read again."""
        return self._runs.setdefault(run.path, run)

    def _folder(self, config: Config) -> RunFolder:
        return RunFolder.of(self._data.identity(config), self.out)


def run_name(config: Config) -> str:
    """What observers call a run."""
    return f"{label(config.method)}, seed {config.seed}"
