"""Reading TOML files that somebody else may have written."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fedskew.errors import ConfigError
from fedskew.trust.consent import code_named_in, found_in_file


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds; code that it names needs consent."""
    try:
        if not path.is_file() and path.exists():
            raise ConfigError(f"{path} is not a file: give the TOML file itself.")
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"could not read {path}: {error.strerror or error}.") from error
    except RecursionError as error:
        raise ConfigError(f"{path} nests values deeper than any setting.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    found_in_file(path, code_named_in(found))
    return found
