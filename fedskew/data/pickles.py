"""Pickles as CIFAR is distributed in them, read without letting a file build any object.

A pickle tells its reader which functions to call. Here it can only reach stand-ins that take
notes: what an array's shape, type and bytes are said to be. numpy is asked to make an array only
when all of that has been checked; its own ``__setstate__`` would follow whatever a file says.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.data.formats import Array, read_bytes
from fedskew.errors import DataError

_TYPES = {"u1", "i1", "i2", "i4", "i8"}
_ORDERS = {"|", "<", "="}


class _Type:
    """Notes the type of an array: ``dtype('u1', False, True)`` and a state that says the order."""

    def __init__(self, *given: Any) -> None:
        self.code = _text(given[0]) if given else ""
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        _, order, *rest = state
        # Fields, sub-arrays and metadata are what an attacker would need, and no image has.
        if any(part is not None for part in rest[:3]):
            raise ValueError("a structured type")
        self.order = _text(order)


class _Array:
    """Notes what an array is said to be."""

    def __init__(self, *given: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def made(self) -> Array:
        """The array, if its bytes are as many as its shape and type need."""
        _, shape, kind, by_column, content = self.state
        if not isinstance(kind, _Type) or kind.code not in _TYPES or kind.order not in _ORDERS:
            raise ValueError("an array of something else than whole numbers")
        if isinstance(content, str):
            content = content.encode("latin1")
        if not isinstance(content, bytes) or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError("an array without bytes")
        dtype = np.dtype(f"<{kind.code}")
        if len(content) != math.prod(shape) * dtype.itemsize:
            raise ValueError("an array of another size than its bytes")
        flat = np.frombuffer(content, dtype)
        return np.ascontiguousarray(flat.reshape(shape, order="F" if by_column else "C"))


class _Spelled:
    """Stands in for codecs.encode, by which pickles spell bytes."""

    def __call__(self, text: str, encoding: str = "latin1") -> bytes:
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a state for a function")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Spelled(),
}


# The reader in C would make room for as many remembered objects as a file says there are.
class _NotesOnly(pickle._Unpickler):
    """Unpickles plain containers and notes about arrays, and looks up nothing else."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.BytesIO(read_bytes(path)), encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(
                f"{self.path} asks for {module}.{name}, which no array needs; refused, because "
                "reading it could run code."
            )
        return _ALLOWED[module, name]


def read_pickle(path: Path) -> dict[str, Any]:
    """A pickled dict of arrays and lists, as CIFAR is distributed, keys made str."""
    try:
        content = _NotesOnly(path).load()
        if isinstance(content, dict):
            return {_text(key): _made(value) for key, value in content.items()}
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way at all
        raise DataError(f"{path} is a damaged or truncated pickle; fetch it again.") from error
    raise DataError(f"{path} holds {type(content).__name__}, not a dict of arrays.")


def _made(value: Any) -> Any:
    return value.made() if isinstance(value, _Array) else value


def _text(value: object) -> str:
    if not isinstance(value, bytes | str):
        raise TypeError(f"a name must be text, not {type(value).__name__}")
    return value.decode("latin1") if isinstance(value, bytes) else value


def read_cifar_pickle(path: Path, label_key: str) -> tuple[Array, Array]:
    """Pixels [N, 3, 32, 32] and labels of one python batch."""
    batch = read_pickle(path)
    missing = [key for key in ("data", label_key) if key not in batch]
    if missing:
        raise DataError(f"{path} has no {missing[0]!r}; it is not the CIFAR batch it should be.")
    pixels, labels = batch["data"], batch[label_key]
    if isinstance(labels, list) and all(type(label) is int for label in labels):
        labels = np.array(labels, dtype=np.int64)
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, np.ndarray):
        raise DataError(f"{path}: 'data' must be an array and {label_key!r} whole numbers.")
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3072) or labels.dtype.kind != "i":
        raise DataError(
            f"{path}: 'data' should be uint8 [{labels.size}, 3072] to match its labels, not "
            f"{pixels.dtype} {list(pixels.shape)}."
        )
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def read_names(path: Path, key: str) -> tuple[str, ...]:
    """A list of names in a pickle; none where it has no such list."""
    found = read_pickle(path).get(key, ())
    if not isinstance(found, list | tuple) or not all(isinstance(n, bytes | str) for n in found):
        raise DataError(f"{path}: {key!r} must be a list of names.")
    return tuple(_text(name) for name in found)
