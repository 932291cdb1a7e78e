"""Which code that files name may run.

Whoever types ``module:function`` on a command line, or hands it to a function of this package,
wants it to run. Whoever opens a config or a run folder may not know that it names code: a name
found in a file is *withheld*, and :mod:`fedskew.registry.own`, through which all such code comes,
refuses it. It may run once the user has typed it too, has said so of the file or folder
(``--allow-code``, ``allow_code=True``), or has listed a folder above it in ``FEDSKEW_TRUST``.

All readers of settings report here what they found (``read_toml``, ``read_json``), so nobody has
to remember it. What is known holds for the whole process, in every thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedskew.errors import ConfigError

TRUSTED = "FEDSKEW_TRUST"
"""The environment variable that lists folders whose files may name code."""
_LEFT, _RIGHT = re.compile(r"[\w.]+$"), re.compile(r"\w+")

_given: set[str] = set()
_withheld: dict[str, Path] = {}
_folders: set[Path] = set()


def code_named_in(values: Any) -> frozenset[str]:
    """Everything in nested values that reads ``module:function``, if only as a part of a text.

    >>> sorted(code_named_in({"method": {"name": "erm", "base": "mine:rule"}, "skew": ["a:b:c"]}))
    ['a:b', 'b:c', 'mine:rule']
    """
    return frozenset(target for text in _texts(values) for target in _targets(text))


def _texts(values: Any) -> Iterator[str]:
    waiting = [values]  # a file may nest deeper than functions can call each other
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, Iterable):
            waiting += value


def _targets(text: str) -> Iterator[str]:
    for place, letter in enumerate(text):
        if letter == ":":
            module, function = _LEFT.search(text[:place]), _RIGHT.match(text, place + 1)
            if module and function:
                yield f"{module[0]}:{function[0]}"


def typed(*values: Any) -> None:
    """The user names this code: it may run, whatever files name it as well."""
    _given.update(code_named_in(values))


def allow_code_in(path: str | Path) -> None:
    """The user says that a file, or all files of a folder, may name code."""
    _folders.add(Path(path).resolve())


def found_in_file(path: Path, targets: Iterable[str]) -> None:
    """A file names this code: it is withheld, unless the user trusts the file."""
    names = set(targets)
    if names and _is_trusted(path):
        _given.update(names)
    else:
        _withheld.update(dict.fromkeys(names, path))


def _is_trusted(path: Path) -> bool:
    # Links count as what they lead to: a trusted folder may hold links to anywhere.
    listed = filter(None, os.environ.get(TRUSTED, "").split(os.pathsep))
    folders = {*_folders, *(Path(folder).expanduser().resolve() for folder in listed)}
    return not folders.isdisjoint([path.resolve(), *path.resolve().parents])


def check_consent(kind: str, target: str) -> None:
    """Refuse code that only a file names."""
    if target in _withheld and target not in _given:
        raise ConfigError(
            f"{kind} {target!r} is code that {_withheld[target]} names: look at both, then allow "
            f"it with --allow-code (allow_code=True in Python) or list its folder in {TRUSTED}."
        )


def forget() -> None:
    """Begin as a new process would."""
    for known in (_given, _withheld, _folders):
        known.clear()
