"""Users' own functions, named ``module:function`` wherever a built-in name would do.

This is the only door for code by name. It opens for functions that a user's own modules define,
and for those registered under a name, by this package or by an installed plug-in; not for whatever
else Python can import, whoever asks. What files name needs consent: :mod:`fedskew.trust.consent`.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from fedskew.errors import ConfigError
from fedskew.registry.sources import PACKAGE, is_library, remember
from fedskew.trust.consent import check_consent, typed

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def import_function(
    kind: str, target: str, group: str = "", declared: Collection[Callable[..., Any]] = ()
) -> Callable[..., Any]:
    """Import a user's function; ``kind`` says in errors what it was wanted for.

    ``declared`` are functions registered for the purpose, wherever they are defined; installed
    plug-ins declare theirs in a ``group`` of entry points. Its source is remembered as it was then:
    see :mod:`fedskew.registry.sources`.
    """
    if not _TARGET.fullmatch(target):
        raise ConfigError(f"{kind} {target!r} must read 'module:function', both parts given.")
    check_consent(kind, target)
    module_name, _, name = target.partition(":")
    with working_folder_importable():
        if _is_closed(module_name) and target not in _plug_ins(group):
            raise _not_own(kind, target)
        module = _imported(kind, target, module_name)
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{kind} {target!r}: module {module_name!r} has no function {name!r}.")
    # A user's module also has whatever it imported from elsewhere.
    if not any(function is known for known in declared) and is_foreign(function):
        raise _not_own(kind, target)
    typed(target)
    return function  # type: ignore[no-any-return]


def _imported(kind: str, target: str, name: str) -> Any:
    try:
        module = importlib.import_module(name)
        remember(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{kind} {target!r}: module {name!r} cannot be imported "
            f"({type(error).__name__}: {error}); check its name and that Python finds its folder."
        ) from error
    return module


def _is_closed(module: str) -> bool:
    """Whether a module is Python's own or an installed library's; found without importing it."""
    return module.partition(".")[0] != PACKAGE and is_library(module)


def is_foreign(function: Any) -> bool:
    """Whether a function is defined in this package or in a library."""
    while isinstance(function, functools.partial):
        function = function.func
    module = str(getattr(function, "__module__", None) or "builtins")
    return module.partition(".")[0] == PACKAGE or is_library(module)


def _plug_ins(group: str) -> set[str]:
    return {point.value for point in entry_points(group=group)} if group else set()


def _not_own(kind: str, target: str) -> ConfigError:
    return ConfigError(
        f"{kind} {target!r} is neither a function of a module of your own nor registered as a "
        f"{kind}: only such code is run; write a function in a file of your own that does it."
    )


@contextmanager
def working_folder_importable() -> Iterator[None]:
    """An installed command, unlike python -m, does not look for modules where it is called."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)
