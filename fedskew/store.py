"""Files that are whole or absent: written beside their place, flushed, then renamed."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedskew.errors import RunError
from fedskew.types import Groups, Tensors

SEPARATOR = "\x1f"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a reader, or a crash, sees the old one or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def make_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(path, error) from error
    return path


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_atomically(path, text.getvalue().encode())


def disk_error(path: Path, error: OSError) -> RunError:
    """A sentence about a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            f"the disk is full: could not write {path}; free some space and repeat the command, "
            "which goes on from the last complete round."
        )
    return RunError(f"could not write {path}: {error.strerror or error}.")


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"could not read {path}: {error}.") from error


def save_tensors(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    # Views into a stack of clients share memory, which the format refuses: make each its own.
    own = {name: _own(tensor) for name, tensor in tensors.items()}
    write_atomically(path, save(own, metadata=metadata))


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().contiguous()


def load_tensors(path: Path) -> Tensors:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"could not read {path}: {error}.") from error


def save_groups(path: Path, groups: Groups) -> None:
    """Named groups of tensors in one file; empty groups leave no trace."""
    flat = {f"{g}{SEPARATOR}{n}": t for g, tensors in groups.items() for n, t in tensors.items()}
    save_tensors(path, flat)


def load_groups(path: Path) -> Groups:
    groups: Groups = {}
    for key, tensor in load_tensors(path).items():
        group, name = key.split(SEPARATOR, 1)
        groups.setdefault(group, {})[name] = tensor
    return groups
