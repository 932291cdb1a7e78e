"""A user's own functions, named ``module:function`` wherever a built-in name would do."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedskew.errors import ConfigError, located
from fedskew.sources import remember


def import_function(kind: str, target: str) -> Callable[..., Any]:
    """Import a user's function; ``kind`` says in errors what it was wanted for.

    Its source is remembered as it was then: see :mod:`fedskew.sources`.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{kind} {target!r} must read 'module:function', both parts given.")
    try:
        with working_folder_importable():
            module = importlib.import_module(module_name)
            remember(module_name)
    except Exception as error:
        raise ConfigError(
            f"{kind} {target!r}: module {module_name!r} cannot be imported "
            f"({type(error).__name__}: {error}); check its name and that Python finds its folder."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{kind} {target!r}: module {module_name!r} has no function {name!r}.")
    return function  # type: ignore[no-any-return]


def call_function(kind: str, target: str, *arguments: Any, **options: Any) -> Any:
    """Import a user's function and call it, with a clear error if it cannot be called so."""
    function = import_function(kind, target)
    try:
        inspect.signature(function).bind(*arguments, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{kind} {target!r} cannot be called with its settings: {error}."
        ) from error
    with located(f"{kind} {target!r}"):
        return function(*arguments, **options)


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
