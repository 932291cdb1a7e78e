"""What has to be the same everywhere, or at least to be known: versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import fedskew
from fedskew.errors import RunError
from fedskew.sites.flower import need_flower


def versions() -> dict[str, str]:
    """Those of this machine."""
    return {"fedskew": fedskew.__version__, "torch": version("torch"), "flwr": need_flower()}


def check_versions(theirs: Mapping[str, Any], tell: Callable[[str], None]) -> None:
    """Refuse another version of fedskew, and mention another torch."""
    mine = versions()
    if theirs.get("fedskew") != mine["fedskew"]:
        raise RunError(
            f"the server has fedskew {theirs.get('fedskew')}, this site {mine['fedskew']}: install "
            "the same version everywhere."
        )
    if theirs.get("torch") != mine["torch"]:
        tell(
            f"the server has torch {theirs.get('torch')}, this site {mine['torch']}: it works, but "
            "last bits of results will differ"
        )
