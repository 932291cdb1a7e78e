"""Many runs, one after the other: counted, told to whoever watches, their data loaded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from fedskew.comparisons.crossing import label
from fedskew.comparisons.selection import Members
from fedskew.config import Config, FederationSection
from fedskew.data.federation import Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.errors import ConfigError
from fedskew.federate.holdings import roster_of
from fedskew.federate.metrics import MAIN, Row
from fedskew.federate.planning import checked_model
from fedskew.federate.recipe import Stage, find
from fedskew.federate.roster import Roster
from fedskew.federate.server import Progress, RoundRecord
from fedskew.runs.experiment import Run, Tell, carry_out, make_federation
from fedskew.runs.folder import RunFolder
from fedskew.runs.identity import Identity, identify


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
        self._fingerprint = ""
        self._roster: Roster | None = None
        self._known: dict[str, Identity] = {}

    def federation(self, config: Config) -> Federation:
        key = (config.federation, config.split_seed)
        if self._held is None or key != self._key:
            # Lets go of the old images before the next are read.
            self._held = self._roster = None
            self._held = make_federation(config, self._data_dir)
            self._fingerprint = fingerprint(self._held)
            self._key = key
        return self._held

    def roster(self, config: Config) -> Roster:
        """What a server may know of its clients, counted once for all that use them."""
        federation = self.federation(config)
        if self._roster is None:
            self._roster = roster_of(federation)
        return self._roster

    def identity(self, config: Config) -> Identity:
        """What decides a run's numbers; asked twice, the data are not read again for it."""
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
    ) -> None:
        self.out, self.watch, self.tell = out, watch, tell
        self.position = self.total = 0
        self._shelf = Shelf(data_dir)
        self._runs: dict[Path, Run] = {}

    def run(self, config: Config, *, draw: bool = True, without: str = "") -> Run:
        """Run a config, or finish it; ``without`` is the client it leaves out, if it does."""
        self.position += 1
        finished = self._folder(config).has_finished(self._shelf.identity(config))
        if self.watch:
            self.watch.begin(config, self.position, self.total, without)
        done = carry_out(
            self._shelf.identity(config), lambda: self._shelf.federation(config), self.out,
            self.watch, draw=draw, tell=self.tell,
        )  # fmt: skip
        done = self._known(done)
        if self.watch:
            self.watch.end(done, finished)
        return done

    def check(self, configs: Iterable[Config]) -> None:
        """Refuse what cannot work before anything runs."""
        for config in configs:
            if self._folder(config).has_finished(self._shelf.identity(config)):
                continue
            roster = self._shelf.roster(config)
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
            return Members.found_in(self._known(Run(folder.path)).results.rows)
        return Members.of(self._shelf.federation(config))

    def _known(self, run: Run) -> Run:
        """The same run as it was first met: what was read of it need not be read again."""
        return self._runs.setdefault(run.path, run)

    def _folder(self, config: Config) -> RunFolder:
        return RunFolder.of(self._shelf.identity(config), self.out)
