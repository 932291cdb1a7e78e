"""The suite file: settings x arms at three scales, published numbers, and claims as checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedskew.config import Named
from fedskew.errors import ConfigError, unknown
from fedskew.papers.claims import Claim
from fedskew.papers.entries import (
    Arm,
    ClientNumbers,
    EffortPlan,
    Fragment,
    Number,
    Part,
    Scale,
    Selection,
    Series,
    Setting,
    SourceTable,
    Trade,
)
from fedskew.papers.pairs import Crossing, matches, unmatched
from fedskew.papers.scores import CHEAPER, Headline, ScoreName
from fedskew.trust.toml import read_toml

OF_ALL_SETTINGS = ("effort", "boxes")
"""Pictures of all settings together that are no series."""


class Suite(Part):
    """The experiments of one source."""

    name: str
    title: str
    source: str
    question: str
    notes: list[str] = Field([], description="paragraphs under the question")
    headline: Headline = Field("clients", description="the score of tables, curves and figures")
    shows: str = Field("", description="an arm whose similarity matrices the page shows")
    columns: list[ScoreName] = Field([], description="further scores the tables show")
    bands: dict[str, float] = Field(
        {}, description="words the source has for scores, each with where it begins"
    )
    clients_of: list[str] = Field([], description="arms whose clients are scored one by one")
    pictures: list[str] = Field([], description="arms whose samples from the prior are shown")
    follows: str = Field("", description="an arm whose divergence is shown beside its loss")
    boxes: list[str] = Field([], description="arms whose clients' scores are drawn as boxes")
    portraits: dict[str, list[str]] = Field(
        {}, description="by arm, which figures of its run with seed 0 the page shows"
    )
    defaults: Fragment = Field({}, description="under the config of every run")
    scales: dict[Literal["smoke", "desk", "tables", "paper"], Scale]
    settings: Annotated[list[Setting], Field(min_length=1)]
    matrix: Crossing | None = Field(None, description="objectives x aggregators, each pair an arm")
    arms: list[Arm] = Field([], validate_default=True)
    selection: Selection = Field(Selection(), description="runs that leave one client out")
    series: list[Series] = Field([], description="settings along an axis")
    trades: list[Trade] = Field([], description="arms along an axis, by a score of theirs")
    effort: EffortPlan | None = Field(None, description="whose effective rounds are counted")
    tables: dict[str, SourceTable] = Field(
        {}, description="tables and figures of the source by their number there"
    )
    numbers: list[Number] = Field([], description="what the source printed")
    client_numbers: list[ClientNumbers] = Field([], description="of single clients")
    claims: list[Claim] = Field([], description="what is judged")

    @field_validator("arms")
    @classmethod
    def _with_pairs(cls, arms: list[Arm], info: ValidationInfo) -> list[Arm]:
        matrix: Crossing | None = info.data.get("matrix")
        every = [*arms, *(matrix.arms if matrix else ())]
        if not every and "matrix" in info.data:
            raise ValueError("a suite needs arms, or a matrix of them")
        return every

    @model_validator(mode="after")
    def _check_names(self) -> Suite:
        _unique("setting", [s.name for s in self.settings])
        _unique("arm", [a.name for a in self.arms])
        _unique("claim", [c.name for c in self.claims])
        drawn = [*(s.name for s in self.series), *(t.name for t in self.trades)]
        _unique("series", drawn)
        for name in OF_ALL_SETTINGS:
            if name in drawn:
                raise ValueError(f"series {name!r}: pages have another picture of that name")
        for number in self.numbers:
            if number.word and number.word not in self.bands:
                words = ", ".join(self.bands) or "none"
                raise ValueError(f"numbers: {number.word!r} is no word of bands ({words})")
        for claim in self.claims:
            side = claim.side(claim.better)
            contenders = self.effort.contenders if self.effort else ()
            if side.score == CHEAPER and side.arm not in contenders:
                raise ValueError(
                    f"claim {claim.name!r}: score {CHEAPER!r} is one of contenders: "
                    f"add {side.arm!r} to effort.contenders"
                )
        claims = [claim.name for claim in self.claims]
        for where, names in self._claims_named():
            for name in names:
                if name not in claims:
                    raise ValueError(f"{where}: {unknown('claim', name, claims)}".removesuffix("."))
        arms = [arm.name for arm in self.arms]
        for where, patterns in self._patterns():
            for wrong in unmatched(patterns, arms):
                raise ValueError(f"{where}: {wrong}")
        for where, kind, names in self._references():
            known = [s.name for s in self.settings] if kind == "setting" else arms
            for name in names:
                if name not in known:
                    error = unknown(kind, name, known)
                    raise ValueError(f"{where}: {str(error).removesuffix('.')}")
        return self

    def _claims_named(self) -> Iterable[tuple[str, Iterable[str]]]:
        """Every place that names claims: where, the names."""
        for name, scale in self.scales.items():
            yield f"scale {name!r}", scale.unjudged
        for claim in self.claims:
            yield f"claim {claim.name!r}", [claim.letter] if claim.letter else []

    def _patterns(self) -> Iterable[tuple[str, Iterable[str]]]:
        """Every place that names arms, or what they are like: where, the names."""
        yield "matrix.curves", self.matrix.curves if self.matrix else ()
        yield "selection", self.selection.arms or ()
        for setting in self.settings:
            yield f"setting {setting.name!r}", setting.arms or ()
        for name, scale in self.scales.items():
            yield f"scale {name!r}", [*(scale.arms or ()), *scale.by_arm]
            yield f"scale {name!r}", (scale.fallback.arms if scale.fallback else None) or ()
        for number, listed in self.tables.items():
            yield f"table {number!r}", listed.arms
        for claim in self.claims:
            sides = [claim.better, *claim.than, *claim.control]
            yield f"claim {claim.name!r}", [claim.side(reference).arm for reference in sides]

    def _references(self) -> Iterable[tuple[str, str, Iterable[str]]]:
        """Every other place that names a setting or an arm: where, which kind, the names."""
        yield "shows", "arm", [self.shows] if self.shows else []
        yield "clients_of", "arm", self.clients_of
        yield "pictures", "arm", self.pictures
        yield "follows", "arm", [self.follows] if self.follows else []
        yield "boxes", "arm", self.boxes
        yield "portraits", "arm", self.portraits
        if self.effort is not None:
            yield "effort", "arm", [*self.effort.arms, *(p.arm for p in self.effort.printed)]
            yield "effort", "setting", [printed.setting for printed in self.effort.printed]
        yield "selection", "setting", self.selection.settings or ()
        for name, scale in self.scales.items():
            where = f"scale {name!r}"
            yield where, "setting", [*(scale.settings or ()), *scale.by_setting, *scale.seeds_on]
            if scale.fallback is not None:
                yield where, "setting", scale.fallback.settings or ()
        for series in self.series:
            where = f"series {series.name!r}"
            yield where, "setting", series.settings
            yield where, "arm", series.arms
        for trade in self.trades:
            where = f"trade {trade.name!r}"
            yield where, "setting", [trade.setting]
            yield where, "arm", trade.arms
        for table, listed in self.tables.items():
            yield f"table {table!r}", "setting", listed.settings
        for number in self.numbers:
            yield "numbers", "setting", [number.setting]
            yield "numbers", "arm", [number.arm]
        for numbers in self.client_numbers:
            yield "client_numbers", "setting", [numbers.setting]
            yield "client_numbers", "arm", [numbers.arm]
        for claim in self.claims:
            places = [*claim.on, *([] if claim.beyond is None else [claim.beyond])]
            yield f"claim {claim.name!r}", "setting", places

    def setting(self, name: str) -> Setting:
        return next(s for s in self.settings if s.name == name)

    def arm(self, name: str) -> Arm:
        return next(a for a in self.arms if a.name == name)

    def in_matrix(self, arm: str) -> bool:
        return self.matrix is not None and arm in self.matrix

    def drawn(self, arms: Iterable[str]) -> list[str]:
        """Those of some arms that have curves: beside a matrix, a part of it and references."""
        if self.matrix is None:
            return list(arms)
        shown: Sequence[str] = self.matrix.drawn
        return [
            arm
            for arm in arms
            if matches(arm, shown) or (not self.in_matrix(arm) and self.arm(arm).role != "control")
        ]

    def scale(self, name: str) -> Scale:
        for known, scale in self.scales.items():
            if known == name:
                return scale
        raise unknown(f"scale of suite {self.name!r}", name, self.scales)


def _unique(kind: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two {kind}s are called {name!r}")


def parse_suite(values: Mapping[str, Any], name: str) -> Suite:
    """A suite from plain nested values, with an error its author can act on."""
    try:
        return Suite.model_validate({**values, "name": name})
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        place = f"{path}: " if path else ""
        raise ConfigError(
            f"suite {name!r}: {place}{message[:1].lower()}{message[1:].removesuffix('.')}."
        ) from None


def suites() -> dict[str, Suite]:
    """The suites that travel with the package, by name.

    >>> "baselines" in suites()
    True
    """
    folder = Path(str(files("fedskew") / "papers"))
    return {path.stem: load_suite(path) for path in sorted(folder.glob("*.toml"))}


def load_suite(path: Path) -> Suite:
    return parse_suite(read_toml(path), path.stem)


def find_suite(name: str) -> Suite:
    """A suite by its name, or a user's own by the path of its file."""
    if name.endswith(".toml"):
        return load_suite(Path(name))
    known = suites()
    if name not in known:
        raise unknown("suite (nor does it end in .toml)", name, known)
    return known[name]


def method_table(method: Named) -> Fragment:
    return {"method": {"name": method.name, **method.knobs}}
