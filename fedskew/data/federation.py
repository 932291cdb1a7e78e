"""Named clients over shared storage: what every method trains on and is scored on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.errors import DataError
from fedskew.types import Indices


def _no_samples() -> Indices:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Client:
    """One participant: which rows of the federation's storage it holds, split three ways."""

    name: str
    train: Indices
    validation: Indices = field(default_factory=_no_samples)
    test: Indices = field(default_factory=_no_samples)

    def split(self, name: str) -> Indices:
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients, unseen clients and a central test set, as index sets over one copy of the data.

    ``x`` holds one float32 sample a row, already scaled; ``y`` its class. ``environment``, where
    it exists, gives each row the id (from 0 on) of the environment it was drawn from inside its
    client, and ``environments_by`` says what told them apart: "colour", "rotation", "owner",
    "random" or "data". ``owner``, where it is known, numbers the writer, subject or source of each
    row. ``public`` rows belong to nobody; everybody may look at them, but not at their labels.
    ``odd`` names clients that were made unlike the others on purpose. ``features`` gives, where
    only some features were kept, the place of each in a sample as stored.

    ``log_ratio`` is known where the clients' laws are: the true log p(x)/q_k(x) of each row a seen
    client k holds in any split, NaN for other rows. q_k is the law of the client's samples and p
    the mean of all seen clients' laws by their training rows. ``same_law`` says that the clients
    were dealt random shares of the same data.

    >>> import numpy as np, torch
    >>> rows = np.arange(4)
    >>> two = Federation("toy", torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]), ("a", "b"),
    ...                  (Client("ann", rows[:2]), Client("bob", rows[2:])))
    >>> [client.name for client in two.clients], two.class_counts().tolist()
    (['ann', 'bob'], [[1, 1], [1, 1]])
    """

    name: str
    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]
    clients: tuple[Client, ...]
    unseen: tuple[Client, ...] = ()
    central_test: Indices = field(default_factory=_no_samples)
    environment: Tensor | None = None
    public: Indices = field(default_factory=_no_samples)
    odd: tuple[str, ...] = ()
    features: tuple[int, ...] = ()
    log_ratio: Tensor | None = None
    same_law: bool = False
    owner: Tensor | None = None
    environments_by: str = ""

    def __post_init__(self) -> None:
        check_samples(self.name, self.x, self.y, len(self.class_names))
        if not self.clients:
            raise DataError(f"federation {self.name!r} has no clients.")
        names = [client.name for client in (*self.clients, *self.unseen)]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"federation {self.name!r} has two clients named {twice!r}.")
        for name in self.odd:
            if name not in names:
                raise DataError(
                    f"federation {self.name!r} has no client {name!r}, which is said to be odd."
                )
        for client in self.clients:
            if len(client.train) == 0:
                raise DataError(f"client {client.name!r} has no training samples.")
        for field_name in ("environment", "owner"):
            self._check_ids(field_name, getattr(self, field_name))
        told = "" if self.environment is None else self.environments_by or "data"
        object.__setattr__(self, "environments_by", told)
        if self.log_ratio is not None and len(self.log_ratio) != len(self.y):
            raise DataError(
                f"{self.name}: {len(self.log_ratio)} log ratios for {len(self.y)} samples."
            )
        self._check_rows("the central test set", self.central_test)
        self._check_rows("the public set", self.public)
        is_public = np.zeros(len(self.y), dtype=bool)
        is_public[self.public] = True
        for client in (*self.clients, *self.unseen):
            for rows in (client.train, client.validation, client.test):
                self._check_rows(f"client {client.name!r}", rows)
                if is_public[rows].any():
                    row = int(rows[is_public[rows]][0])
                    raise DataError(f"client {client.name!r} holds row {row}, which is public.")

    def _check_ids(self, kind: str, ids: Tensor | None) -> None:
        if ids is None:
            return
        if len(ids) != len(self.y):
            raise DataError(f"{self.name}: {len(ids)} {kind} ids for {len(self.y)} samples.")
        if ids.dtype != torch.int64 or (len(ids) and int(ids.min()) < 0):
            raise DataError(f"{self.name}: {kind} ids must be whole numbers (int64) from 0 on.")

    def _check_rows(self, holder: str, rows: Indices) -> None:
        """A row that does not exist would surface much later, as a bare index error."""
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= len(self.y)):
            raise DataError(
                f"{holder} holds row {int(rows.max() if rows.min() >= 0 else rows.min())}, but "
                f"{self.name} has rows 0..{len(self.y) - 1}."
            )

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @cached_property
    def by_name(self) -> dict[str, Client]:
        return {client.name: client for client in (*self.clients, *self.unseen)}

    @cached_property
    def environments(self) -> int:
        """The most environments a client can have: ids of clients' rows are below it."""
        if self.environment is None:
            return 1
        clients = self.by_name.values()
        held = [rows for c in clients for rows in (c.train, c.validation, c.test)]
        return int(self.environment[np.concatenate(held)].max()) + 1

    def class_counts(self, split: str = "train") -> NDArray[np.int64]:
        """How many samples of each class (columns) each client (rows) holds in a split."""
        y = self.y.numpy()
        return np.stack(
            [np.bincount(y[c.split(split)], minlength=self.classes) for c in self.clients]
        )

    def environment_counts(self, split: str = "train") -> NDArray[np.int64]:
        """How many samples of each environment (columns) each client (rows) holds in a split."""
        ids = np.zeros(len(self.y), np.int64) if self.environment is None else self.environment
        ids = np.asarray(ids)
        return np.stack(
            [np.bincount(ids[c.split(split)], minlength=self.environments) for c in self.clients]
        )

    def majority_classes(self) -> dict[str, str]:
        """By client, the class it has most training samples of; the first of equals."""
        most = self.class_counts().argmax(axis=1)
        return {c.name: self.class_names[i] for c, i in zip(self.clients, most, strict=True)}

    def pooled(self) -> Client:
        """All clients' training and validation data in one place: the central reference.

        In the order of their names, so that batches do not depend on who was listed first.
        """
        clients = sorted(self.clients, key=lambda client: client.name)
        return Client(
            "pooled",
            np.concatenate([client.train for client in clients]),
            np.concatenate([client.validation for client in clients]),
        )

    def with_data(self, **changes: Any) -> Federation:
        """A copy with some fields replaced (for skews that change pixels, not who holds them).

        What is known about the clients' laws is forgotten where the samples or clients change,
        and who owns a row where labels do, unless the changes say what became of it.
        """
        if changes.keys() & {"x", "clients"}:
            changes = {"log_ratio": None, "same_law": False, **changes}
        if "y" in changes:
            changes = {"owner": None, **changes}
        if "environment" in changes:
            changes = {"environments_by": "", **changes}
        return replace(self, **changes)


def check_samples(name: str, x: Tensor, y: Tensor, classes: int) -> None:
    """Refuse samples no model could train on, saying which and where."""
    if len(x) != len(y):
        raise DataError(f"{name}: {len(x)} samples but {len(y)} labels.")
    if x.dtype != torch.float32:
        raise DataError(f"{name}: samples must be float32, not {x.dtype}.")
    # The extremes of non-finite values are not finite, and finding them copies nothing.
    if x.numel() and not bool(torch.stack(x.aminmax()).isfinite().all()):
        row = int((~torch.isfinite(x.reshape(len(x), -1)).all(dim=1)).nonzero()[0, 0])
        raise DataError(f"{name}: sample {row} holds a NaN or infinite value.")
    if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        row = int(((y < 0) | (y >= classes)).nonzero()[0, 0])
        raise DataError(f"{name}: label {int(y[row])} of sample {row} is outside 0..{classes - 1}.")
