"""Which methods can be tried on a task, and why the others are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fedskew.comparisons.crossing import Given, label, parse_method
from fedskew.comparisons.runner import Runner
from fedskew.config import Config, Named
from fedskew.errors import ConfigError, FedskewError
from fedskew.federate.recipe import Recipe
from fedskew.methods import METHODS, find
from fedskew.runs.identity import resolve


@dataclass(frozen=True)
class Candidate:
    """A method with its settings, as a run of full length.

    ``alone`` is the yardstick: no federation. ``tuned`` says that the method has clients fine-tune
    what they got before they use it, so its scores are those of fine-tuned models.
    """

    name: str
    config: Config
    alone: bool
    tuned: bool


@dataclass(frozen=True)
class Field:
    """Who takes part, in the order of the registry or of the user, and why others do not."""

    candidates: tuple[Candidate, ...]
    left_out: Mapping[str, str]

    @property
    def alone(self) -> Candidate:
        return next(each for each in self.candidates if each.alone)

    @property
    def contenders(self) -> tuple[Candidate, ...]:
        return tuple(each for each in self.candidates if not each.alone)


def field_of(runner: Runner, base: Config, methods: Iterable[Given] = ()) -> Field:
    """The named methods, or all that fit the task; training alone always takes part.

    The config's own method keeps its settings; others have their defaults.
    """
    named = [parse_method(m) if isinstance(m, str) else Named(**m) for m in methods]
    for method in named:
        find(method.name).recipe(**method.knobs)
    yardstick = _yardstick()
    found: dict[str, Candidate] = {}
    left_out: dict[str, str] = {}
    for method in [yardstick, *(_as_configured(each, base) for each in named or _known())]:
        name = label(method)
        if name in found or name in left_out:
            continue
        try:
            found[name] = _candidate(runner, base, method, yardstick, bool(named))
        except FedskewError as error:
            if method is yardstick:
                raise ConfigError(
                    f"clients cannot train alone here, so nothing can be held against it: {error}"
                ) from None
            why = str(error).removeprefix(f"{name} cannot run: ")
            left_out[name if named else method.name] = why
    if len(found) < 2:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items() if reason)
        raise ConfigError(f"no method but {label(yardstick)} can run here: {why or 'name some.'}")
    return Field(tuple(found.values()), left_out)


def _known() -> Iterator[Named]:
    """All methods of the registry that are no references."""
    for name, known in METHODS.items():
        if known.card.reference is None:
            yield Named(name=name)


def _yardstick() -> Named:
    names = [name for name, known in METHODS.items() if known.card.reference == "alone"]
    return Named(name=names[0])


def _as_configured(method: Named, base: Config) -> Named:
    """The config's own settings of a method, unless the user gave some here."""
    return base.method if method.name == base.method.name and not method.knobs else method


def _candidate(
    runner: Runner, base: Config, method: Named, yardstick: Named, named: bool
) -> Candidate:
    known = find(method.name)
    if not named and "base" in known.knobs:
        raise ConfigError("it changes another method: name it, with its base, to have it tried.")
    recipe = known.recipe(**method.knobs)
    _check_comparable(recipe, method.name == yardstick.name, yardstick)
    config = resolve(base.model_copy(update={"method": method}))
    runner.check([config])
    return Candidate(
        label(method), config, method.name == yardstick.name, recipe.adapts is not None
    )


def _check_comparable(recipe: Recipe, alone: bool, yardstick: Named) -> None:
    """Refuse what is no federation, and what is judged by something else than its answers."""
    if recipe.objective.primary:
        raise ConfigError(
            f"it is judged by {recipe.objective.primary!r}, not by answers about samples."
        )
    if recipe.pools:
        raise ConfigError("it needs all data in one place, which no federation has.")
    if not alone and recipe.shares == find(yardstick.name).recipe().shares:
        raise ConfigError(f"its clients share nothing, as those of {label(yardstick)}.")
