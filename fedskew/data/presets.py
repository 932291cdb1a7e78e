"""Datasets that stand for a base dataset under a skew: FeCMNIST and FeRotMNIST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedskew.data.skew import SKEWS
from fedskew.errors import ConfigError, unknown

BASES = ("mnist", "fashion-mnist", "digits")


@dataclass(frozen=True)
class Preset:
    """A skew on one of the base datasets; ``options`` are its knobs and what they do.

    ``unit`` presets need images in 0..1 and get them. They take "standard", which nobody can tell
    from leaving the setting out, for "unit".
    """

    summary: str
    skew: str
    options: dict[str, str]
    unit: bool = False


@dataclass(frozen=True)
class Expanded:
    """What a preset stands for: ``skew`` is the name and the knobs of the one that comes first."""

    dataset: str
    normalise: str
    skew: dict[str, Any]


PRESETS: dict[str, Preset] = {
    "fe-cmnist": Preset(
        "Digits or clothes coloured by their clients; the central test set has other colours.",
        "colour",
        {
            "mode": "'client': any colour on any label, as published; 'class': a colour per class",
            "channels": "3, or 1 for grey levels in place of colours",
            "colours": "colours of a client, and of the test set",
            "correlation": "class mode: by environment, the chance of the class's own colour "
            "(default [0.95, 0.7])",
            "shared": "class mode: all clients have the same class colours",
            "test": "'held-out' colours, or 'permuted' class colours, which mislead",
            "flat": "every inked pixel gets the plain colour; false: shaded",
            "reference": "never use the last colour, as the published code does",
        },
        unit=True,
    ),
    "fe-rotmnist": Preset(
        "Digits or clothes turned by an angle of each client; the central test set is upright.",
        "rotation",
        {
            "low": "smallest angle of a client, in degrees",
            "high": "largest angle of a client",
            "spread": "how far images lie around the client's angle (default 10)",
            "environments": "equal bins of a client's angles",
            "test_angle": "angle of the central test set",
        },
    ),
}
"""By the name users type."""

CLASS_CORRELATION = (0.95, 0.7)


def expanded(name: str, options: Mapping[str, Any], normalise: str) -> Expanded:
    """The base dataset, scale and skew that a preset with these options stands for.

    >>> expanded("fe-rotmnist", {"base": "digits", "low": 30}, "standard")
    Expanded(dataset='digits', normalise='standard', skew={'name': 'rotation', 'low': 30})
    """
    preset = PRESETS[name]
    knobs = dict(options)
    base = knobs.pop("base", BASES[0])
    for option in knobs:
        if option not in preset.options:
            raise unknown(f"option of dataset {name!r}", option, ("base", *preset.options))
    if base not in BASES:
        raise unknown(f"base of dataset {name!r}", str(base), BASES)
    SKEWS[preset.skew].check(knobs)
    if preset.unit and normalise == "signed":
        raise ConfigError(
            f"dataset {name!r} has images in 0..1, not 'signed' ones: leave federation.normalise "
            "out or set it to 'unit'."
        )
    if name == "fe-cmnist" and knobs.get("mode") == "class":
        knobs.setdefault("correlation", list(CLASS_CORRELATION))
    return Expanded(base, "unit" if preset.unit else normalise, {"name": preset.skew, **knobs})


def described_options(preset: Preset) -> dict[str, str]:
    """What each option of a preset does, with its default where the text does not say it."""
    defaults = SKEWS[preset.skew].knobs
    base = f"the images: {', '.join(BASES[:-1])} or {BASES[-1]} (default {BASES[0]})"
    return {"base": base} | {
        option: text if defaults[option] is None else f"{text} (default {_typed(defaults[option])})"
        for option, text in preset.options.items()
    }


def _typed(value: Any) -> str:
    """A default as users type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
