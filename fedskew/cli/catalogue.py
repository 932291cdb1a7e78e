"""What there is to choose from, as ``fedskew list`` prints it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One thing a user can name: a line about it, its settings, and sections for those who ask."""

    name: str
    summary: str
    settings: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)

    def full(self) -> str:
        """Everything known, one section a line or block."""
        width = max((len(title) for title in self.sections), default=0)
        lines = [f"{self.name}: {self.summary}", ""]
        for title, text in self.sections.items():
            first, *rest = text.splitlines() or [""]
            lines.append(f"{title.ljust(width)}  {first}".rstrip())
            lines += [" " * (width + 2) + line for line in rest]
        return "\n".join(lines).rstrip()


def methods() -> dict[str, Entry]:
    from fedskew.federate.recipe import methods as registered

    entries = {}
    for name, method in registered().items():
        card = method.card
        sections = {
            "paper": card.paper,
            "update": card.update,
            "settings": _described(method.defaults, card.knobs),
            "defaults": card.defaults,
            "reduces to": "\n".join(
                f"{r.equals}{_given(r.equals_knobs)} at {_inline(r.knobs)}" for r in card.reduces
            ),
            "sends": card.sends,
            "BatchNorm": card.batch_norm,
            "known failure": card.fails,
        }
        shown = {title: text for title, text in sections.items() if text}
        entries[name] = Entry(name, card.summary, _first_few(method.defaults), shown)
    return entries


def datasets() -> dict[str, Entry]:
    from fedskew.data.datasets import describe

    return {
        row.name: Entry(
            row.name,
            row.summary,
            ", ".join(row.options),
            {
                "files": "\n".join(row.files) or "none: it is embedded or made up",
                "how to get it": row.get,
                **{f"options.{option}": text for option, text in row.options.items()},
            },
        )
        for row in describe()
    }


def partitions() -> dict[str, Entry]:
    from fedskew.data.partition import PARTITIONS

    return {name: _choice(choice) for name, choice in PARTITIONS.items()}


def skews() -> dict[str, Entry]:
    from fedskew.data.skew import SKEWS

    return {name: _choice(choice) for name, choice in SKEWS.items()}


def environments() -> dict[str, Entry]:
    from fedskew.data.environments import ENVIRONMENTS

    return {name: _choice(choice) for name, choice in ENVIRONMENTS.items()}


def models() -> dict[str, Entry]:
    from fedskew.models import describe

    return {
        card.name: Entry(
            card.name, card.summary, _inline(card.knobs), {"settings": _described(card.knobs)}
        )
        for card in describe()
    }


def examples() -> dict[str, Entry]:
    entries = {}
    for name, path in shipped_examples().items():
        text = path.read_text()
        entries[name] = Entry(name, text.partition("\n")[0].lstrip("# "), "", {str(path): text})
    return entries


def suites() -> dict[str, Entry]:
    from fedskew.papers.suite import suites as shipped

    entries = {}
    for name, suite in shipped().items():
        sections = {
            "source": suite.source,
            "question": suite.question,
            "scales": ", ".join(suite.scales),
            "claims": "\n".join(f"{claim.name}: {claim.says}" for claim in suite.claims),
        }
        entries[name] = Entry(name, suite.title, ", ".join(suite.scales), sections)
    return entries


CATALOGUES: dict[str, Callable[[], dict[str, Entry]]] = {
    "datasets": datasets,
    "partitions": partitions,
    "skews": skews,
    "environments": environments,
    "models": models,
    "methods": methods,
    "examples": examples,
    "suites": suites,
}


def _choice(choice: Any) -> Entry:
    documentation = (inspect.getdoc(choice.function) or "").partition("\n")[2].strip()
    sections = {"settings": _described(choice.knobs), "more": documentation}
    shown = {title: text for title, text in sections.items() if text}
    return Entry(choice.name, choice.summary, _inline(choice.knobs), shown)


def _inline(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_plain(value)}" for name, value in values.items())


def _first_few(values: Mapping[str, Any], few: int = 3) -> str:
    """The settings a line has room for; the card has them all."""
    more = f", … {len(values) - few} more" if len(values) > few + 1 else ""
    return _inline(dict(list(values.items())[: few if more else few + 1])) + more


def _given(values: Mapping[str, Any]) -> str:
    return f" ({_inline(values)})" if values else ""


def _described(defaults: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> str:
    lines = []
    for name, value in defaults.items():
        text = (texts or {}).get(name, "")
        lines.append(f"{name} = {_plain(value)}" + (f"  ({text})" if text else ""))
    return "\n".join(lines) or "none"


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)


def shipped_examples() -> dict[str, Path]:
    """The example configs inside the package, by name."""
    folder = Path(str(files("fedskew"))) / "examples"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
