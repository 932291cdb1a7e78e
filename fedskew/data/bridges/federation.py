"""A federation of what a program holds: ``fedskew.federation_from``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedskew.data.bridges.joining import joined
from fedskew.data.bridges.pieces import KINDS, SPLITS, Piece, Wished, piece_of, splits_of
from fedskew.data.build import check_shares, chosen_unseen, on_one_scale, split_off
from fedskew.data.dataset import Dataset, to_dataset, with_problem
from fedskew.data.environments import with_environments
from fedskew.data.federation import Client, Federation
from fedskew.data.own import check_learnable
from fedskew.data.prepare import Preparation
from fedskew.data.problem import Wanted
from fedskew.data.scaling import scaled_by_clients
from fedskew.data.tables.samples import Asked
from fedskew.errors import ConfigError, DataError, unknown
from fedskew.problem import KINDS as TASKS
from fedskew.rng import keyed_rng
from fedskew.trust.names import check_names
from fedskew.types import Indices

CENTRAL = "the central test set"


def federation_from(
    clients: Any,
    *,
    central: Any = None,
    unseen: int | float | Sequence[str] = 0,
    x: str | None = None,
    label: str | Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    task: Wanted = "auto",
    positive: str | None = None,
    columns: Mapping[str, str] | None = None,
    image: Mapping[str, int] | None = None,
    normalise: str = "standard",
    validation: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    name: str = "own data",
) -> Federation:
    """A federation of what a program holds, for ``fedskew.run(..., federation=...)``.

    ``clients`` says by name what each client holds: a pair ``(x, y)`` of arrays or tensors, a torch
    Dataset of such pairs, a data frame (pandas, polars, Arrow, or a dict of columns), or a dataset
    of Hugging Face. A dict of those by split ("train", "validation", "test") tells the client's own
    splits; what is not told is a share, ``validation`` and ``test``, of its training rows. A
    partitioner of Flower gives one client a partition. ``central`` is the central test set, by
    default the test rows of all seen clients; ``unseen`` clients take no part in training.

    ``label`` names the column of labels (or several), ``x`` that of samples where each is whole in
    one column. The other settings are those of the same name in a config's section ``federation``,
    as is what they do: figures for scaling come from the seen clients' training rows.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> sites = {site: (rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for site in ("A", "B")}
    >>> made = federation_from(sites)
    >>> [(client.name, len(client.train), len(client.test)) for client in made.clients]
    [('A', 14, 4), ('B', 14, 4)]
    """
    check_shares(validation=validation, test=test)
    if task not in ("auto", *TASKS):
        raise unknown("task", str(task), ("auto", *TASKS))
    preparation = Preparation(normalise, None, image)
    asked = Asked(label or "label", task, positive, dict(columns or {}))
    if asked.client is not None:
        raise ConfigError(
            f"columns names {asked.client!r} as the column of clients, but clients says by name "
            "what each holds: divide the table first."
        )
    wished = Wished(x, label, image)
    parts = list(_parts(_by_name(name, clients), central, wished))
    names = None if class_names is None else tuple(map(str, class_names))
    raw = joined(name, [part.piece for part in parts], asked, names, image)
    dataset = with_problem(to_dataset(name, raw, preparation), task, positive)
    check_learnable(name, dataset)
    held = _held(parts, dataset)
    members = _members(held, dataset, validation, test, seed)
    apart = chosen_unseen([c.name for c in members], unseen, keyed_rng(seed, "unseen"))
    seen = tuple(client for client in members if client.name not in apart)
    scaled, profile = on_one_scale(dataset, seen)
    tests = held.get(CENTRAL, {}).get("test")
    collected = seen if tests is None else ()
    federation = Federation(
        name,
        scaled.x,
        scaled.y,
        scaled.class_names,
        seen,
        tuple(client for client in members if client.name in apart),
        np.sort(np.concatenate([c.test for c in seen])) if tests is None else tests,
        owner=_owners(held),
        problem=scaled.problem,
        encoder=scaled.encoder,
        stored=scaled.stored,
        profile=profile,
        prepared=preparation,
    )
    if dataset.by_client:
        federation = scaled_by_clients(federation, collected)
    return with_environments(federation, None, seed)


@dataclass(frozen=True, eq=False)
class _Part:
    """One split of a client; the central test set is that of nobody."""

    client: str
    split: str
    piece: Piece


def _by_name(name: str, clients: Any) -> dict[str, Any]:
    """What each client holds, by name."""
    if hasattr(clients, "load_partition") and hasattr(clients, "num_partitions"):
        return _partitions(clients)
    if not isinstance(clients, Mapping):
        raise DataError(
            f"clients is of type {type(clients).__name__}: it must be a dict of what each client "
            f"holds by name, {KINDS}; or a partitioner of Flower."
        )
    if not clients:
        raise DataError("clients is empty: name at least one client.")
    names = [str(client) if isinstance(client, int) else client for client in clients]
    check_names(name, names)
    return dict(zip(names, clients.values(), strict=True))


def _partitions(partitioner: Any) -> dict[str, Any]:
    """One client for each partition of a partitioner of Flower's, named as its data name them."""
    try:
        count = int(partitioner.num_partitions)
        partitions = [partitioner.load_partition(number) for number in range(count)]
    except Exception as error:
        raise DataError(
            f"the partitioner {type(partitioner).__name__} gives no partitions "
            f"({type(error).__name__}: {error}): assign its dataset first."
        ) from error
    if not partitions:
        raise DataError(f"the partitioner {type(partitioner).__name__} has no partitions.")
    told = getattr(partitioner, "partition_id_to_natural_id", None) or {}
    width = max(3, len(str(count - 1)))
    names = [str(told.get(number, f"client-{number:0{width}d}")) for number in range(count)]
    return dict(zip(names, partitions, strict=True))


def _parts(clients: Mapping[str, Any], central: Any, wished: Wished) -> Iterator[_Part]:
    """All splits of all clients, then the central test set."""
    for client, data in clients.items():
        splits = splits_of(f"client {client!r}", data)
        for split in SPLITS:
            if split in splits:
                where = f" ({split})" if len(splits) > 1 else ""
                origin = f"client {client!r}{where}"
                yield _Part(client, split, piece_of(origin, splits[split], wished))
    if central is not None:
        yield _Part(CENTRAL, "test", piece_of(CENTRAL, central, wished))


def _held(parts: Sequence[_Part], dataset: Dataset) -> dict[str, dict[str, Indices]]:
    """By client and split, its rows of all."""
    found: dict[str, dict[str, Indices]] = {}
    start = 0
    for part in parts:
        piece = part.piece
        size = len(piece.x) if hasattr(piece, "x") else piece.rows
        found.setdefault(part.client, {})[part.split] = np.arange(start, start + size)
        start += size
    assert start == len(dataset.y)
    return found


def _owners(held: Mapping[str, Mapping[str, Indices]]) -> torch.Tensor:
    """The number of each row's client."""
    sizes = [sum(map(len, splits.values())) for splits in held.values()]
    return torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))


def _members(
    held: Mapping[str, Mapping[str, Indices]],
    dataset: Dataset,
    validation: float,
    test: float,
    seed: int,
) -> list[Client]:
    """The clients; a split that a client does not tell is a share of its training rows."""
    names = [name for name in held if name != CENTRAL]
    rows = [held[name]["train"] for name in names]
    made: dict[str, list[Indices]] = {}
    for split, share in (("test", test), ("validation", validation)):
        kept, away = split_off(split, share, dataset, names, rows, seed)
        made[split] = [held[name].get(split, cut) for name, cut in zip(names, away, strict=True)]
        rows = [
            before if split in held[name] else after
            for name, before, after in zip(names, rows, kept, strict=True)
        ]
    return list(map(Client, names, rows, made["validation"], made["test"]))
