"""Everything a user can choose from, as ``fedskew list`` prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.errors import unknown

if TYPE_CHECKING:
    from fedskew.data.datasets import NamedDataset
    from fedskew.methods import Method
    from fedskew.registry.entries import Entry, Registry
    from fedskew.registry.knobs import Declared


@dataclass(frozen=True)
class Listed:
    """One thing a user can name: a summary, its knobs, and sections with the details."""

    name: str
    summary: str
    knobs: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)

    def full(self) -> str:
        """Everything known, one section per line or block."""
        shown = {title: text for title, text in self.sections.items() if text}
        width = max((len(title) for title in shown), default=0)
        lines = [f"{self.name}: {self.summary}", ""]
        for title, text in shown.items():
            first, *rest = text.splitlines() or [""]
            lines.append(f"{title.ljust(width)}  {first}".rstrip())
            lines += [" " * (width + 2) + line for line in rest]
        return "\n".join(lines).rstrip()


@dataclass(frozen=True)
class Catalogue:
    """One kind of thing: all known ones, and a function that finds one by name."""

    everything: Callable[[], dict[str, Listed]]
    find: Callable[[str], Listed]


def from_registry(home: str, registry: str, listed: Callable[[Any], Listed]) -> Catalogue:
    """The catalogue of a registry, imported on demand: listing models loads no method."""

    def known() -> Registry[Any]:
        found: Registry[Any] = getattr(import_module(f"fedskew.{home}"), registry)
        return found

    return Catalogue(
        lambda: {name: listed(entry) for name, entry in known().items()},
        lambda name: listed(known().find(name)),
    )


def from_names(kind: str, everything: Callable[[], dict[str, Listed]]) -> Catalogue:
    """The catalogue of things that only the package itself provides."""

    def find(name: str) -> Listed:
        if name not in (known := everything()):
            raise unknown(kind, name, known)
        return known[name]

    return Catalogue(everything, find)


def method_listed(method: Method) -> Listed:
    """A method's card, with the knobs its function declares."""
    card = method.card
    return Listed(
        method.name,
        card.summary,
        _first_few(method.defaults),
        {
            "paper": card.paper,
            "update": card.update,
            "knobs": described(method.knobs),
            "defaults": card.defaults,
            "reduces to": "\n".join(
                f"{r.method}{_given(r.given)} at {_inline(r.at) or 'any knobs'}"
                for r in card.reduces
            ),
            "sends": card.sends,
            "BatchNorm": card.batch_norm,
            "known failure": card.fails,
        },
    )


def entry_listed(entry: Entry) -> Listed:
    """An entry without a card: its docstring and its knobs."""
    sections = {"knobs": described(entry.knobs), "more": entry.details}
    return Listed(entry.name, entry.summary, _first_few(entry.defaults), sections)


def datasets() -> dict[str, Listed]:
    """Every dataset by name, and the presets: a dataset with a skew."""
    from fedskew.data.datasets import DATASETS
    from fedskew.data.presets import BASES, PRESETS

    listed = {name: dataset_listed(entry) for name, entry in DATASETS.items()}
    for name, preset in PRESETS.items():
        sections = {
            "files": "those of its base",
            "how to get it": f"see {', '.join(BASES)}",
            "knobs": described(preset.knobs),
        }
        listed[name] = Listed(name, preset.summary, ", ".join(preset.knobs), sections)
    return listed


def dataset_listed(entry: NamedDataset) -> Listed:
    """A dataset, the files it needs, and its knobs (set in federation.options)."""
    sections = {
        "files": "\n".join(entry.files) or "none: it is embedded or made up",
        "how to get it": entry.how_to_get,
        "knobs": described(entry.knobs) + "\nset them in federation.options" * bool(entry.knobs),
    }
    return Listed(entry.name, entry.summary, ", ".join(entry.knobs), sections)


def described(knobs: Mapping[str, Declared]) -> str:
    """Each knob with its default, what it does, the values it takes and those worth trying."""
    lines = []
    for name, declared in knobs.items():
        lines.append(f"{name} = {_plain(declared.default)}: {declared.knob.text}".rstrip(": "))
        tries = ", ".join(_plain(value) for value in declared.knob.tries)
        why = declared.knob.untuned
        told = f"; worth trying: {tries}" * bool(tries) + f"; tuned only by name: {why}" * bool(why)
        lines.append(f"    {declared.wanted}{told}")
    return "\n".join(lines) or "none"


def examples() -> dict[str, Listed]:
    """The example configs inside the package, with their full text."""
    listed = {}
    for name, path in shipped_examples().items():
        text = path.read_text()
        listed[name] = Listed(name, text.partition("\n")[0].lstrip("# "), "", {path.name: text})
    return listed


def suites() -> dict[str, Listed]:
    """The published comparisons that can be reproduced."""
    from fedskew.papers.suite import suites as shipped

    listed = {}
    for name, suite in shipped().items():
        sections = {
            "source": suite.source,
            "question": suite.question,
            "scales": ", ".join(suite.scales),
            **({"tables": ", ".join(suite.tables)} if suite.tables else {}),
            "claims": "\n".join(f"{claim.name}: {claim.says}" for claim in suite.claims),
        }
        listed[name] = Listed(name, suite.title, ", ".join(suite.scales), sections)
    return listed


def shipped_examples() -> dict[str, Path]:
    """The example configs inside the package, by name."""
    folder = Path(str(files("fedskew"))) / "examples"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


CATALOGUES = {
    "datasets": from_names("dataset", datasets),
    "partitions": from_registry("data.partition", "PARTITIONS", entry_listed),
    "skews": from_registry("data.skew", "SKEWS", entry_listed),
    "environments": from_registry("data.environments", "ENVIRONMENTS", entry_listed),
    "models": from_registry("models", "MODELS", entry_listed),
    "augmentations": from_registry("parts.augment", "AUGMENTATIONS", entry_listed),
    "methods": from_registry("methods", "METHODS", method_listed),
    "examples": from_names("example", examples),
    "suites": from_names("suite", suites),
}


def _inline(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_plain(value)}" for name, value in values.items())


def _first_few(values: Mapping[str, Any], few: int = 3) -> str:
    """The knobs a line has room for; the card has them all."""
    more = f", … {len(values) - few} more" if len(values) > few + 1 else ""
    return _inline(dict(list(values.items())[: few if more else few + 1])) + more


def _given(values: Mapping[str, Any]) -> str:
    return f" ({_inline(values)})" if values else ""


def _plain(value: Any) -> str:
    """A value as users type it."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        value = list(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
