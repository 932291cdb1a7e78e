"""The source of users' own code, as it was imported: part of what decides a run's numbers.

A module counts with every module it imports, directly or through others, inside a function or at
its top, that lives in the same package, beside it or under the working folder. Installed libraries
and fedskew itself do not count, nor does what is imported by a name made at run time.

What is hashed is what was executed: the file as it was when this process first saw the module
imported, and once more after ``importlib.reload``. A module that was imported before fedskew was
first given a function of it is read at that moment.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from fedskew.errors import ConfigError

PACKAGE = __name__.partition(".")[0]
_LIBRARIES = tuple(
    Path(folder).resolve()
    for folder in (
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
)


@dataclass(frozen=True)
class Source:
    """One file of code: the hash of its bytes, and the names of the modules it may import."""

    file: Path
    sha256: str
    imports: tuple[str, ...]


_SEEN: dict[str, tuple[object, Source]] = {}
"""By module: the spec, which a reload replaces, and the source as it was then."""


def module_of(name: str, function: Callable[..., Any]) -> str:
    """The module in a user's ``module:function``, or else the one the function was written in."""
    return name.partition(":")[0] if ":" in name else str(function.__module__)


def remember(module: str) -> None:
    """Note the sources behind a module as they are now, unless that was done when it was loaded."""
    _reached(module)


def code_of(picked: Iterable[tuple[str, Callable[..., Any]]]) -> dict[str, dict[str, str]]:
    """File name and hash of each module behind functions picked by name, but not fedskew's own."""
    found: dict[str, dict[str, str]] = {}
    for name, function in picked:
        module = module_of(name, function)
        if module.partition(".")[0] == PACKAGE:
            continue
        sources = _reached(module)
        for reached, source in sources.items():
            found[reached] = {"file": source.file.name, "sha256": source.sha256}
        if module not in sources:
            found[module] = {"file": "", "sha256": _typed(function)}
    return dict(sorted(found.items()))


def edited(code: Iterable[str]) -> list[str]:
    """Those of these modules' files that have changed on disk since they were imported."""
    known = (_SEEN[name][1] for name in code if name in _SEEN)
    return sorted(source.file.name for source in known if _hash_of(source.file) != source.sha256)


def _typed(function: Callable[..., Any]) -> str:
    """The hash of a function that is in no file, as in a notebook."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        raise ConfigError(
            f"the source of {function.__module__}:{function.__qualname__} cannot be read, so its "
            "runs could not be distinguished from those of other code: put it into a file."
        ) from None


def _reached(module: str) -> dict[str, Source]:
    """A user's module and all others of the user that it imports, by name."""
    home = _home(module)
    found: dict[str, Source] = {}
    waiting = [module]
    while waiting:
        parts = waiting.pop().split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            file = _file(name, home)
            # A folder without __init__.py holds modules, but no source; functions are no modules.
            if name in found or file is None:
                continue
            if not _is_users(name, module, file, home):
                break
            found[name] = _source(name, file)
            waiting += found[name].imports
    return found


def _home(module: str) -> Path:
    """The folder that holds a module's outermost package."""
    file = _file(module, Path.cwd())
    if file is None:
        return Path.cwd()
    return file.parents[module.count(".") + (file.name == "__init__.py")]


def is_library(module: str) -> bool:
    """Whether a module is Python's own or an installed one; found without importing it."""
    outermost = module.partition(".")[0]
    if outermost in sys.stdlib_module_names:
        return True
    loaded = sys.modules.get(outermost)
    found: Any = loaded or PathFinder.find_spec(outermost, [str(Path.cwd()), *sys.path])
    files = [getattr(found, "__file__" if loaded else "origin", None)]
    folders = getattr(found, "__path__" if loaded else "submodule_search_locations", None)
    # A package without __init__.py has no file, only folders.
    return any(
        _is_installed(Path(place).resolve()) for place in (*files, *(folders or ())) if place
    )


def _is_installed(file: Path) -> bool:
    return any(file.is_relative_to(library) for library in _LIBRARIES)


def _is_users(name: str, module: str, file: Path, home: Path) -> bool:
    outermost = name.partition(".")[0]
    if outermost in (PACKAGE, module.partition(".")[0]):
        return outermost != PACKAGE
    if _is_installed(file):
        return False
    return file.is_relative_to(home) or file.is_relative_to(Path.cwd())


def _file(name: str, home: Path) -> Path | None:
    """Where a module was imported from or, found without importing anything, would be."""
    module = sys.modules.get(name)
    if module is not None:
        origin = getattr(module, "__file__", None)
    else:
        parent, _, _ = name.rpartition(".")
        near = [str(home), str(Path.cwd()), *sys.path]
        places = list(getattr(sys.modules.get(parent), "__path__", ())) if parent else near
        spec = PathFinder.find_spec(name, places)
        origin = None if spec is None else spec.origin
    return Path(origin).resolve() if origin and Path(origin).is_file() else None


def _source(name: str, file: Path) -> Source:
    """A module's source as it was imported, or as it is now if it has not been."""
    module = sys.modules.get(name)
    if module is None:
        return _read(name, file)
    # A reload replaces the spec of a module; a script has no spec.
    loaded = getattr(module, "__spec__", None) or module
    if name not in _SEEN or _SEEN[name][0] is not loaded:
        _SEEN[name] = (loaded, _read(name, file))
    return _SEEN[name][1]


def _read(name: str, file: Path) -> Source:
    content = file.read_bytes()
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    return Source(file, hashlib.sha256(content).hexdigest(), tuple(_imports(content, package)))


def _hash_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _imports(content: bytes, package: str) -> Iterator[str]:
    """Every name in a source that an import may load; none for compiled code."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            if node.level and not package:
                continue
            start = importlib.util.resolve_name(start, package) if node.level else start
            yield start
            yield from (f"{start}.{alias.name}" for alias in node.names)
