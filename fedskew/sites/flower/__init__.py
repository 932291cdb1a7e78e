"""Messages over Flower: the only folder that knows it, and the only one that needs it installed.

A SuperLink in the middle keeps messages until they are fetched. This folder speaks its protocol on
both ends: ``link`` for the server's round loop, ``node`` for a site. A site is one process of ours;
Flower's own SuperNode would load and run whatever app the SuperLink sends, a process for every
message. The parts of Flower that are not public API are used here and nowhere else.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedskew.errors import ConfigError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower reports to nobody, and installs nothing."""
KNOWN = ("1.41.",)
"""Versions of Flower whose private parts are known to fit."""
BODY = "body"


def need_flower() -> str:
    """Flower's version; refused in one sentence where it is not installed, or another one."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        from flwr.supercore.version import package_version
    except ImportError as error:
        raise ConfigError("real sites need Flower: pip install 'fedskew[flower]'.") from error
    if not package_version.startswith(KNOWN):
        raise ConfigError(
            f"Flower {package_version} is installed, but this version of fedskew speaks that of "
            f"{' or '.join(f'{start}x' for start in KNOWN)}: pip install 'flwr==1.41.0'."
        )
    for name in ("flwr", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return str(package_version)


def packed(message: bytes) -> Any:
    """Bytes as Flower carries them: one array, for each array is a request of its own."""
    from flwr.app import ArrayRecord, RecordDict
    from flwr.app.message import Array

    return RecordDict({BODY: ArrayRecord({BODY: Array(np.frombuffer(message, np.uint8))})})


def unpacked(content: Any) -> bytes:
    found: bytes = content[BODY][BODY].numpy().tobytes()
    return found


class Retry:
    """Repeats requests that a network may lose; Flower's own would end the process after some."""

    tries = 5

    def invoke(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        import httpx

        for left in reversed(range(self.tries)):
            try:
                return call(*given, **named)
            except httpx.TransportError:
                if not left:
                    raise
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in (429, 502, 503, 504) or not left:
                    raise
            time.sleep(0.2 * 2 ** (self.tries - 1 - left))
        raise AssertionError("the last try returns or raises")


def is_lost(error: BaseException) -> bool:
    """Whether an error says that a SuperLink is gone, or has forgotten the run."""
    import httpx
    from flwr.supercore.run import RunNotRunningException

    return isinstance(error, httpx.HTTPError | RunNotRunningException)
