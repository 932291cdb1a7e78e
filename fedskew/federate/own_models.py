"""Clients' own models on disk: numbered files, and a table of whose they are.

A client's name may be anything somebody calls a ward or a phone; it is never part of a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedskew.errors import RunError
from fedskew.store import make_folder, read_table, save_tensors, write_json
from fedskew.types import Tensors

OWN, NAMES = "personal", "names.json"


def save_own_model(folder: Path, clients: Sequence[str], client: str, model: Tensors) -> None:
    """Write a client's model into a folder of models; its number is its place among ``clients``."""
    place = make_folder(folder / OWN)
    numbers = {name: number for number, name in enumerate(clients)}
    if not (place / NAMES).is_file() or read_table(place / NAMES) != numbers:
        write_json(place / NAMES, numbers)
    save_tensors(place / _file(numbers[client]), model)


def own_models(folder: Path) -> dict[str, Path]:
    """By client, the file of its own model, of those that have one.

    Run folders made before there was a table have files named by client.
    """
    place = folder / OWN
    if not (place / NAMES).is_file():
        return {path.stem: path for path in sorted(place.glob("*.safetensors"))}
    numbers = read_table(place / NAMES)
    if any(type(number) is not int or number < 0 for number in numbers.values()):
        raise RunError(f"{place / NAMES} must give every client the number of its file.")
    files = {name: place / _file(number) for name, number in sorted(numbers.items())}
    return {name: file for name, file in files.items() if file.is_file()}


def _file(number: int) -> str:
    return f"{number:06d}.safetensors"
