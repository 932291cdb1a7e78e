"""Files that are whole or absent: written beside their place, flushed, then renamed."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fedskew.errors import RunError
from fedskew.trust.consent import code_named_in, found_in_file
from fedskew.types import Groups, Tensors

SEPARATOR = "\x1f"
LARGE = 1 << 20
"""From so many bytes on, hashing takes longer than starting a thread for it."""
SEALED, SEAL = "sealed", "sha256"
"""A sealed file says how it is sealed and holds the hash of the rest: damage that hides the one
entry leaves the other."""


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


def write_hashed(path: Path, content: bytes) -> str:
    """Write a file and return its SHA-256, which is computed while the disk is busy."""
    if len(content) < LARGE:
        write_atomically(path, content)
        return hashlib.sha256(content).hexdigest()
    with ThreadPoolExecutor(1) as beside:
        hashed = beside.submit(hashlib.sha256, content)
        write_atomically(path, content)
        return hashed.result().hexdigest()


def sweep(folder: Path, pattern: str = "**/") -> None:
    """Remove what processes that were killed while they wrote left in a folder.

    ``pattern`` says where below it to look: everywhere, unless told otherwise.
    """
    for path in folder.glob(f"{pattern}.*.part"):
        writer = path.name.split(".")[-2]
        # Whoever sweeps is not writing, so its own number is that of somebody before it.
        if writer.isdecimal() and (int(writer) == os.getpid() or not _is_running(int(writer))):
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


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
    """What a JSON file holds; code that it names needs consent."""
    try:
        found = json.loads(path.read_text(), object_hook=lambda values: Table(path, values))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"could not read {path}: {error}.") from error
    found_in_file(path, code_named_in(found))
    return found


class Table(dict[str, Any]):
    """An object of a JSON file; what it should have and lacks is the file's fault."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise RunError(f"{self._path} is not complete: it lacks {key!r}.")


def read_table(path: Path) -> dict[str, Any]:
    """What a JSON file holds that must be an object."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise RunError(f"{path} holds {type(found).__name__}, not an object with named values.")
    return found


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write plain values with their hash, for :func:`read_sealed`."""
    write_json(path, {**value, SEALED: SEAL, SEAL: _seal(value)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Plain values as they were written; a file from the time before seals is taken as it is."""
    found = read_table(path)
    if SEALED not in found and SEAL not in found:
        return found
    rest = Table(path, {n: value for n, value in found.items() if n not in (SEALED, SEAL)})
    if found.get(SEALED) != SEAL or found.get(SEAL) != _seal(rest):
        raise damaged(path, "was edited or damaged since it was written")
    return rest


def _seal(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """The hash of a whole file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    except OSError as error:
        raise RunError(f"could not read {path}: {error.strerror or error}.") from error


def check_sha256(path: Path, sha256: str | None) -> None:
    """Refuse a file that is not the one whose hash was recorded, if one was."""
    if sha256 is not None and sha256_of(path) != sha256:
        raise damaged(path, "is damaged")


def damaged(path: Path, what: str) -> RunError:
    """The error for a file of a run folder that is not as it was written."""
    return RunError(f"{path} {what}: restore it, or delete the run folder to run anew.")


def save_tensors(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> str:
    """Write tensors and return the file's SHA-256."""
    # Views into a stack of clients share memory, which the format refuses: make each its own.
    own = {name: _own(tensor) for name, tensor in tensors.items()}
    return write_hashed(path, save(own, metadata=metadata))


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file, which holds a checksum of each."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise RunError(f"could not read {path}: it is missing.") from None
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError,
            zipfile.BadZipFile, zlib.error) as error:  # fmt: skip
        raise RunError(f"could not read {path}, it is damaged: {error}.") from error


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().contiguous()


def load_tensors(path: Path) -> Tensors:
    try:
        return load_file(path)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(f"could not read {path}: {error}.") from error


def load_into(module: nn.Module, path: Path) -> nn.Module:
    """A model with the numbers of a file, which must be those of such a model."""
    tensors = load_tensors(path)
    wanted = module.state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors or name not in wanted:
            raise RunError(f"{path} does not fit its model, which has {_no(name, wanted)}.")
        ours, theirs = wanted[name], tensors[name]
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            raise RunError(
                f"{path} does not fit its model: {name!r} is {theirs.dtype} "
                f"{list(theirs.shape)}, not {ours.dtype} {list(ours.shape)}."
            )
        if not bool(theirs.isfinite().all()):
            raise RunError(f"{path} is damaged: {name!r} holds a NaN or infinite value.")
    module.load_state_dict(tensors)
    return module.eval()


def _no(name: str, wanted: Tensors) -> str:
    return f"{name!r}, which it lacks" if name in wanted else f"no {name!r}"


def save_groups(path: Path, groups: Groups) -> str:
    """Write named groups of tensors, of which empty ones leave no trace; returns the SHA-256."""
    flat = {f"{g}{SEPARATOR}{n}": t for g, tensors in groups.items() for n, t in tensors.items()}
    return save_tensors(path, flat)


def load_groups(path: Path) -> Groups:
    groups: Groups = {}
    for key, tensor in load_tensors(path).items():
        group, name = key.split(SEPARATOR, 1)
        groups.setdefault(group, {})[name] = tensor
    return groups
