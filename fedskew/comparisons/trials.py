"""What settings each method tries when it is tuned: given values, or what its knobs declare."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedskew.config import Config, Named, TrainSection, apply_overrides, checked_section
from fedskew.errors import ConfigError, at_least, unknown
from fedskew.methods import find
from fedskew.registry.knobs import Declared, options_of
from fedskew.rng import stream

EVERYTHING = "all"
"""What ``--tune`` without a name stands for."""
OF_TRAINING = (
    "lr", "lr_decay", "momentum", "weight_decay", "batch_size", "epochs", "optimiser",
)  # fmt: skip
"""Settings of [train] that change how well clients learn; the others are the budget itself."""
RATE = "lr"
RATES = 10.0
"""Learning rates are drawn from the configured one divided by this to the same times this."""
DRAWN = 8
"""Trials of each method where settings are drawn."""
Given = bool | str | Iterable[str] | Mapping[str, Any]
Section = Literal["train", "method"]


@dataclass(frozen=True)
class Tuning:
    """What to tune: by name the values to try, None for those a knob declares."""

    values: Mapping[str, tuple[Any, ...] | None] = field(default_factory=dict)
    everything: bool = False
    trials: int | None = None


@dataclass(frozen=True)
class Setting:
    """One choice of the knobs that are tuned, by section and name."""

    changes: tuple[tuple[Section, str, Any], ...] = ()

    def __str__(self) -> str:
        """
        >>> str(Setting((("train", "lr", 0.1), ("method", "mu", 1.0)))), str(Setting())
        ('lr=0.1, mu=1.0', 'as configured')
        """
        told = ", ".join(f"{name}={value}" for _, name, value in self.changes)
        return told or "as configured"

    def applied(self, config: Config) -> Config:
        """The config with these settings, checked."""
        train = {name: value for section, name, value in self.changes if section == "train"}
        knobs = {name: value for section, name, value in self.changes if section == "method"}
        method = config.method
        changed = Named(**{**method.knobs, **knobs, "name": method.name})
        find(method.name).recipe(**changed.knobs)
        update: dict[str, Any] = {"method": changed}
        if train:
            values = {**config.train.model_dump(), **train}
            update["train"] = checked_section(TrainSection, values, f"--tune {self}")
        return config.model_copy(update=update)


@dataclass(frozen=True)
class Axis:
    """A knob that a method tries values of: a list, or a range that is drawn from."""

    section: Section
    name: str
    configured: Any
    values: tuple[Any, ...] = ()
    span: tuple[float, float] | None = None
    whole: bool = False

    def draw(self, seed: int, trial: int) -> Any:
        """A value for one trial: the same for every method, however many trials there are."""
        at = float(stream(seed, "tune", self.name, str(trial)).random())
        if self.span is None:
            return self.values[int(at * len(self.values))]
        low, high = self.span
        drawn = math.exp(math.log(low) + at * (math.log(high) - math.log(low)))
        return round(drawn) if self.whole else float(f"{drawn:.2g}")


def tuning_of(given: Given, trials: int | None = None) -> Tuning | None:
    """What a user wants tuned; None for nothing.

    >>> tuning_of("lr=0.01,0.1 mu").values
    {'lr': (0.01, 0.1), 'mu': None}
    >>> tuning_of(True).everything, tuning_of(False)
    (True, None)
    """
    if trials is not None:
        at_least("trials", trials, 1)
    if isinstance(given, bool):
        found: dict[str, tuple[Any, ...] | None] = {}
        everything = given
    elif isinstance(given, Mapping):
        found = {_plain(name): _values(name, values) for name, values in given.items()}
        everything = False
    else:
        words = given.split() if isinstance(given, str) else [w for t in given for w in t.split()]
        everything = EVERYTHING in words
        found = dict(_parsed(word) for word in words if word != EVERYTHING)
    if not everything and not found:
        if trials is not None:
            raise ConfigError("trials are of settings that are tuned: say which with --tune.")
        return None
    return Tuning(found, everything, trials)


def check_known(tuning: Tuning, methods: Iterable[Named]) -> None:
    """Refuse a name that is neither a knob of any compared method nor a setting of training."""
    knobs = {name for method in methods for name in find(method.name).knobs}
    for name in tuning.values:
        if name in knobs or name in OF_TRAINING:
            continue
        if name in TrainSection.model_fields:
            raise ConfigError(
                f"train.{name} is not tuned: it is part of the budget that all methods share."
            )
        raise unknown("knob", name, knobs | set(OF_TRAINING), of="any compared method")


def settings_of(config: Config, tuning: Tuning, seed: int) -> list[Setting]:
    """What one method tries, in order: every combination of given values, or draws.

    The first draw is what the config says. Of more combinations than there are to be trials some
    are drawn, and stay in order.
    """
    axes = list(_axes(config, tuning))
    if not axes:
        return [Setting()]
    if any(axis.span is not None for axis in axes):
        return _drawn(axes, tuning.trials or DRAWN, seed)
    every = [
        Setting(tuple((a.section, a.name, v) for a, v in zip(axes, values, strict=True)))
        for values in itertools.product(*(axis.values for axis in axes))
    ]
    most = tuning.trials or len(every)
    if len(every) <= most:
        return every
    kept = stream(seed, "tune", "combinations").permutation(len(every))[:most]
    return [every[place] for place in sorted(kept.tolist())]


def _drawn(axes: Sequence[Axis], trials: int, seed: int) -> list[Setting]:
    first = Setting(tuple((a.section, a.name, a.configured) for a in axes))
    found = {str(first): first}
    for trial in range(1, 20 * trials):
        drawn = Setting(tuple((a.section, a.name, a.draw(seed, trial)) for a in axes))
        found.setdefault(str(drawn), drawn)
        if len(found) >= trials:
            break
    return list(found.values())[:trials]


def _axes(config: Config, tuning: Tuning) -> Iterator[Axis]:
    """The knobs of a method that are tuned; a knob of its own goes before one of training."""
    method = find(config.method.name)
    knobs = {**method.defaults, **config.method.knobs}
    if tuning.everything and RATE not in tuning.values:
        rate = config.train.lr
        yield Axis("train", RATE, rate, span=(rate / RATES, rate * RATES))
    for name, values in tuning.values.items():
        if name in method.knobs:
            known = method.knobs[name].knob.tries
            if values is None and not known:
                raise ConfigError(
                    f"{name} of {method.title} declares no values to try: give some, like "
                    f"--tune {name}=A,B."
                )
            yield Axis("method", name, knobs[name], known if values is None else values)
        elif name in OF_TRAINING:
            if values is None:
                raise ConfigError(f"--tune {name} needs values to try, like {name}=A,B.")
            yield Axis("train", name, getattr(config.train, name), values)
    if tuning.everything:
        for name, declared in method.knobs.items():
            if name not in tuning.values and not declared.knob.untuned:
                yield from _declared(declared, knobs[name])


def _declared(declared: Declared, configured: Any) -> Iterator[Axis]:
    """A number with values worth trying is drawn from their range; words are left as they are."""
    tries = declared.knob.tries
    kinds = options_of(declared.hint)
    if len(tries) > 1 and (float in kinds or int in kinds) and min(tries) > 0:
        span = float(min(tries)), float(max(tries))
        yield Axis("method", declared.name, configured, span=span, whole=float not in kinds)


def _parsed(word: str) -> tuple[str, tuple[Any, ...] | None]:
    name, equals, text = word.partition("=")
    if not name or (equals and not text):
        raise ConfigError(f"--tune wants name=value,value, not {word!r}.")
    if not equals:
        return _plain(name), None
    # Inside brackets a comma belongs to the value.
    parts = re.split(r",(?![^\[{]*[\]}])", text)
    return _plain(name), _values(name, [apply_overrides({}, [f"v={p}"])["v"] for p in parts])


def _values(name: str, given: Any) -> tuple[Any, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [given]
    values = tuple({repr(value): value for value in given}.values())
    if not values or "" in values:
        raise ConfigError(f"--tune {name} has an empty value: give some, like {name}=0.01,0.1.")
    return values


def _plain(name: str) -> str:
    """A setting may be named with its section."""
    return name.removeprefix("train.").removeprefix("method.")
