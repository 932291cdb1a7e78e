"""Datasets that stand for a base dataset under a skew: FeCMNIST, FeRotMNIST, ColoredMNIST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedskew.data.skew import SKEWS
from fedskew.errors import ConfigError
from fedskew.registry.knobs import Declared, Knob, check_given

BASES = ("mnist", "fashion-mnist", "digits")


@dataclass(frozen=True)
class Preset:
    """A skew on one of the base datasets, which takes some of the skew's knobs.

    ``unit`` presets need images in 0..1 and get them. They take "standard", which nobody can tell
    from leaving the setting out, for "unit". ``sets`` are knobs of the skew with other values than
    its defaults. ``classes`` and ``image`` are those of the federation where it has none.
    """

    summary: str
    skew: str
    takes: tuple[str, ...]
    unit: bool = False
    sets: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[tuple[int, ...], ...] | None = None
    image: Mapping[str, int] | None = None

    @property
    def knobs(self) -> dict[str, Declared]:
        """The base, and what the skew declares."""
        base = Declared("base", Literal[BASES], BASES[0], Knob("the images"))
        declared = {
            name: replace(knob, default=self.sets.get(name, knob.default))
            for name, knob in SKEWS.find(self.skew).knobs.items()
        }
        return {"base": base, **{name: declared[name] for name in self.takes}}


@dataclass(frozen=True)
class Expanded:
    """What a preset stands for: ``skew`` is the name and the knobs of the one that comes first."""

    dataset: str
    normalise: str
    skew: dict[str, Any]
    classes: list[list[int]] | None = None
    image: dict[str, int] | None = None


PRESETS: dict[str, Preset] = {
    "fe-cmnist": Preset(
        "Digits or clothes coloured by their clients; the central test set has other colours.",
        "colour",
        ("mode", "channels", "colours", "correlation", "shared", "test", "flat", "reference"),
        unit=True,
    ),
    "fe-rotmnist": Preset(
        "Digits or clothes turned by an angle of each client; the central test set is upright.",
        "rotation",
        ("low", "high", "spread", "environments", "test_angle"),
    ),
    "colored-mnist": Preset(
        "Low digits or high; colour goes with the label, but in the test set against it.",
        "colour",
        ("correlation", "label_noise", "test_correlation", "channels", "shared", "flat"),
        unit=True,
        sets={
            "mode": "class",
            "correlation": [0.9, 0.8],
            "label_noise": 0.25,
            "test_correlation": 0.1,
            "channels": 2,
            "shared": True,
            "flat": False,
        },
        classes=(tuple(range(5)), tuple(range(5, 10))),
        image={"side": 14},
    ),
}
"""By the name users type."""

CLASS_CORRELATION = (0.95, 0.7)
"""The chances of a class's own colour in class mode, unless others are given."""


def expanded(name: str, options: Mapping[str, Any], normalise: str) -> Expanded:
    """The base dataset, scale and skew that a preset with these options stands for.

    >>> expanded("fe-rotmnist", {"base": "digits", "low": 30}, "standard").skew
    {'name': 'rotation', 'low': 30}
    """
    preset = PRESETS[name]
    check_given(options, preset.knobs, f"dataset {name!r}")
    knobs = dict(options)
    base = knobs.pop("base", BASES[0])
    if preset.unit and normalise == "signed":
        raise ConfigError(
            f"dataset {name!r} has images in 0..1, not 'signed' ones: leave federation.normalise "
            "out or set it to 'unit'."
        )
    knobs = {**preset.sets, **knobs}
    if name == "fe-cmnist" and knobs.get("mode") == "class":
        knobs.setdefault("correlation", list(CLASS_CORRELATION))
    return Expanded(
        base,
        "unit" if preset.unit and normalise != "client" else normalise,
        {"name": preset.skew, **knobs},
        None if preset.classes is None else [list(group) for group in preset.classes],
        None if preset.image is None else dict(preset.image),
    )
