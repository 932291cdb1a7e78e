"""Many runs, one after the other: counted and reported to an observer; data are loaded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fedskew.comparisons.at_once import AtOnce, Wanted
from fedskew.comparisons.crew import Crew, Draw, Order
from fedskew.comparisons.crossing import label
from fedskew.comparisons.selection import Members
from fedskew.config import Config, FederationSection
from fedskew.data.federation import Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.data.telling import told_of
from fedskew.errors import ConfigError, RunStopped, may_clients_fail
from fedskew.federate.holdings import roster_of
from fedskew.federate.metrics import MAIN, Row
from fedskew.federate.planning import checked_model
from fedskew.federate.progress import Progress, RoundRecord
from fedskew.federate.recipe import Stage
from fedskew.federate.roster import Roster
from fedskew.methods import find
from fedskew.runs.experiment import (
    MakeBackend,
    Run,
    Tell,
    carry_out,
    local_backend,
    make_federation,
    on_data,
)
from fedskew.runs.folder import RunFolder
from fedskew.runs.identity import Identity, identify
from fedskew.runs.results import CONFIG


class Observer(Protocol):
    """Follows the runs of a command: each begins, finishes rounds, and ends.

    ``name`` says which run it is; ``repeated`` says that it was finished before.
    """

    def begin(self, config: Config, position: int, total: int, name: str) -> None: ...

    def __call__(self, progress: Progress, record: RoundRecord, rows: Sequence[Row]) -> None: ...

    def end(self, run: Run, repeated: bool) -> None: ...


class FederationCache:
    """The latest federation, its roster, and identities of runs, so that data are read once.

    A federation that was ``given`` is that of all configs.
    What the columns of a table were taken for is told when it was read.
    """

    def __init__(
        self, data_dir: Path | None, tell: Tell | None = None, given: Federation | None = None
    ) -> None:
        self._data_dir = data_dir
        self._tell = tell
        self._given = given
        self._key: tuple[FederationSection, int] | None = None
        self._held: Federation | None = None
        self._fingerprint = ""
        self._roster: Roster | None = None
        self._known: dict[str, Identity] = {}
        self._said: set[str] = set()

    def federation(self, config: Config) -> Federation:
        key = (config.federation, 0 if self._given else config.split_seed)
        if self._held is None or key != self._key:
            # Free the old images before the next are read.
            self._held = self._roster = None
            self._held = self._given or make_federation(config, self._data_dir)
            self._say(self._held, config.federation)
            self._fingerprint = fingerprint(self._held)
            self._key = key
        return self._held

    def _say(self, federation: Federation, section: FederationSection) -> None:
        """Tell what was made of a user's own data, and what is learned: once for data."""
        if self._tell is None or section.dataset in self._said:
            return
        self._said.add(section.dataset)
        for sentence in told_of(federation, section):
            self._tell(sentence)

    def fingerprint(self, config: Config) -> str:
        self.federation(config)
        return self._fingerprint

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
            self.federation(config)
            self._known[key] = identify(config, lambda: self.roster(config), self._fingerprint)
        return self._known[key]


class Runner:
    """Runs configs into one folder; ``total`` is how many there will be.

    ``backend`` makes who carries tasks to the clients of each run; with a ``crew`` runs that are
    attempted together are carried out at the same time, by its processes. All runs are on the
    federation that is ``given``, if there is one. ``grows`` says that runs are made longer on
    purpose, of which nobody need be told.
    """

    def __init__(
        self,
        out: Path,
        data_dir: Path | None,
        watch: Observer | None = None,
        tell: Tell | None = None,
        draw: Draw | None = None,
        backend: MakeBackend = local_backend,
        crew: Crew | None = None,
        given: Federation | None = None,
        grows: bool = False,
    ) -> None:
        self.out, self.watch, self.tell, self.draw = out, watch, tell, draw
        self.backend, self.crew, self.grows = backend, crew, grows
        self.position = self.total = 0
        self.stopped: dict[str, str] = {}
        """By name, why runs stopped that were attempted."""
        self._data = FederationCache(data_dir, tell, given)
        self._runs: dict[Path, Run] = {}

    def run(self, config: Config, *, name: str = "") -> Run:
        """Run a config, or finish it, and draw it if this runner draws.

        Observers know it by its name, or else by method and seed.
        """
        return self.run_wanted(Wanted(config, name))

    def run_wanted(self, wanted: Wanted, elsewhere: bool = False) -> Run:
        """The same; ``elsewhere`` says that another process has just finished it, and drawn it."""
        config = wanted.config
        self.position += 1
        finished = self.has_finished(config) and not elsewhere
        if self.watch:
            name = wanted.name or run_name(config)
            self.watch.begin(config, self.position, self.total, name)
        done = carry_out(
            self._data.identity(config),
            on_data(config, lambda: self._data.federation(config), self.backend),
            self.out,
            self.watch,
            tell=self.tell,
            grows=self.grows,
        )
        if wanted.draw and self.draw and not elsewhere:
            self.draw(done, lambda: self._data.federation(config))
        done = self._known(done)
        if self.watch:
            self.watch.end(done, finished)
        if wanted.ended:
            wanted.ended(done, finished)
        return done

    def attempt(self, wanted: Wanted) -> Run | None:
        """The same, but a run that stops because all clients failed does not stop the others."""
        try:
            return self.run_wanted(wanted)
        except RunStopped as error:
            if not wanted.bears(error):
                raise
            self.note(wanted.name or run_name(wanted.config), error)
            return None

    def note(self, name: str, error: RunStopped) -> None:
        """Remember why a run stopped."""
        self.stopped[name] = str(error)
        if self.tell:
            self.tell(f"{name}: {error}")

    def attempt_all(self, wanted: Sequence[Wanted]) -> list[Run | None]:
        """Attempt each, one after the other, or with a crew several at a time.

        The results are in this order, and so are the reasons of those that stopped.
        """
        if self.crew is None:
            return [self.attempt(each) for each in wanted]
        named = [replace(w, name=w.name or run_name(w.config)) for w in wanted]
        return AtOnce(self, self.crew, named).carry_out()

    def order(self, number: int, wanted: Wanted) -> Order:
        """What another process needs to carry out a run."""
        assert self.crew is not None
        config = wanted.config
        return Order(
            number,
            config,
            self.crew.put(self._data.federation(config)),
            self._data.fingerprint(config),
            self._data.identity(config).sha256,
            self.out,
            may_clients_fail(),
            self.draw if wanted.draw else None,
            self.grows,
        )

    def in_common(self, config: Config) -> set[str]:
        """What no two runs may make at the same time: a folder, and a stage that others share."""
        identity = self._data.identity(config)
        recipe = find(config.method.name).recipe(**config.method.knobs)
        shared = identity.of_stage(recipe.prepares[:1]) if recipe.prepares else ""
        return {identity.name, shared} - {""}

    def has_finished(self, config: Config) -> bool:
        """Whether there is nothing left to run."""
        return self._folder(config).has_finished(self._data.identity(config))

    def finished(self, config: Config) -> Run | None:
        """The run, if there is nothing left to run."""
        return self._known(Run(self._folder(config).path)) if self.has_finished(config) else None

    def has_begun(self, config: Config) -> bool:
        """Whether a round of it may be on disk."""
        return (self._folder(config).path / CONFIG).is_file()

    def identity(self, config: Config) -> Identity:
        """What decides a run's numbers, its data included, which are read for it."""
        return self._data.identity(config)

    def federation(self, config: Config) -> Federation:
        """The data of a config, read once for all runs on them."""
        return self._data.federation(config)

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
