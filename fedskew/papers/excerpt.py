"""Part of a suite: some of its settings, arms or tables, and how many seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedskew.errors import ConfigError, at_least, unknown
from fedskew.papers.entries import Fallback
from fedskew.papers.format import Suite
from fedskew.papers.grid import Cell, cells
from fedskew.papers.pairs import ANYTHING, filled, is_pattern


@dataclass(frozen=True)
class Excerpt:
    """What of a scale is run; nothing named means everything.

    Names of settings and arms may be patterns with one ``*``. Tables are called as in the source.
    """

    settings: Sequence[str] = ()
    arms: Sequence[str] = ()
    tables: Sequence[str] = ()
    seeds: int | None = None

    @property
    def is_part(self) -> bool:
        """Whether settings or arms are left out; fewer seeds are no other page."""
        return bool(self.settings or self.arms or self.tables)

    @property
    def options(self) -> str:
        """As it is typed on the command line, with a blank before."""
        named = {"tables": self.tables, "settings": self.settings, "arms": self.arms}
        texts = [
            f" --{name} {_typed(','.join(values))}" for name, values in named.items() if values
        ]
        return "".join(texts) + (f" --seeds {self.seeds}" if self.seeds else "")

    def of(self, suite: Suite, scale: str, fallback: Fallback | None = None) -> list[Cell]:
        """The runs of a scale that are chosen; a name that means none of them is refused."""
        if self.seeds is not None:
            at_least("seeds", self.seeds, 1)
        every = cells(suite, scale, fallback, self.seeds)
        where = f"scale {scale!r} of suite {suite.name!r}"
        places = _meant("setting", self.settings, [cell.setting for cell in every], where)
        arms = _meant("arm", self.arms, [cell.arm for cell in every], where)
        listed = self._in_tables(suite)
        found = [
            cell
            for cell in every
            if cell.setting in places
            and cell.arm in arms
            and (listed is None or (cell.setting, cell.arm) in listed)
        ]
        if not found:
            raise ConfigError(f"no run of {where} is of{self.options}: leave one of them out.")
        return found

    def _in_tables(self, suite: Suite) -> set[tuple[str, str]] | None:
        """The settings and arms of the tables; None where no table was chosen."""
        if not self.tables:
            return None
        for name in self.tables:
            if name not in suite.tables:
                raise unknown("table", name, suite.tables, of=f"suite {suite.name!r}")
        arms = [arm.name for arm in suite.arms]
        return {
            (setting, arm)
            for name in self.tables
            for setting in suite.tables[name].settings
            for pattern in suite.tables[name].arms
            for arm in filled(pattern, arms).values()
        }


EVERYTHING = Excerpt()


def _meant(kind: str, wanted: Sequence[str], names: Sequence[str], where: str) -> set[str]:
    """The names these names and patterns mean; every name where none is given."""
    known = list(dict.fromkeys(names))
    if not wanted:
        return set(known)
    found: set[str] = set()
    for name in wanted:
        if name.count(ANYTHING) > 1:
            raise ConfigError(f"pattern {name!r} has more than one {ANYTHING}: give two patterns.")
        meant = filled(name, known).values()
        if not meant and is_pattern(name):
            raise ConfigError(
                f"no {kind} of {where} is like {name!r}: choose from {', '.join(known)}."
            )
        if not meant:
            raise unknown(kind, name, known, of=where)
        found.update(meant)
    return found


def _typed(text: str) -> str:
    return f'"{text}"' if " " in text or ANYTHING in text else text
