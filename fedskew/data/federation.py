"""Named clients over shared storage: what every method trains on and is scored on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.data.as_stored import AsStored
from fedskew.data.own_scale import OwnScale
from fedskew.data.prepare import Preparation
from fedskew.data.profile import Profile
from fedskew.data.remarks import NOTHING, Remarks
from fedskew.data.strata import strata, strata_names
from fedskew.data.tables.encoder import TableEncoder
from fedskew.data.tokens import TextReader, check_tokens
from fedskew.errors import DataError
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.trust.names import check_names
from fedskew.types import Indices

Floats = NDArray[np.float64]
Ends = tuple[tuple[float, ...], tuple[float, ...]]
SPLITS = ("train", "validation", "test", "environment")
"""What a client's rows are for; the last are of an environment held out of the other three."""
KEEPING = "keeping"
"""Rows taken out of validation, of runs that ask for it: see :mod:`fedskew.data.keeping`."""


def _no_samples() -> Indices:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Client:
    """One participant: which rows of the federation's storage it holds, split three ways.

    ``environment`` are rows of an environment that is held out of all three, to choose models by;
    ``keeping`` those by which a client chooses what it keeps at the end, and nobody before.
    """

    name: str
    train: Indices
    validation: Indices = field(default_factory=_no_samples)
    test: Indices = field(default_factory=_no_samples)
    environment: Indices = field(default_factory=_no_samples)
    keeping: Indices = field(default_factory=_no_samples)

    def split(self, name: str) -> Indices:
        found: Indices = getattr(self, name)
        return found


def all_rows(client: Client) -> Indices:
    """What a client holds in any split, each row once, in order."""
    held = (client.train, client.validation, client.test, client.keeping)
    return np.unique(np.concatenate(held))


def training_rows(clients: Sequence[Client]) -> list[Indices]:
    """Each client's, in the order of names: sums of fractions depend on the order a little."""
    return [client.train for client in sorted(clients, key=lambda client: client.name)]


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients, unseen clients and a central test set, as index sets over one copy of the data.

    ``x`` holds one float32 sample per row, already scaled; ``y`` its class, or what ``problem``
    says. ``environment``, where it exists, gives each row the id (from 0 on) of the environment it
    was drawn from inside its client, and ``environments_by`` says how they differ: "colour",
    "rotation", "owner", "random" or "data". ``owner``, where it is known, numbers the writer,
    subject or source of each row. ``public`` rows belong to nobody; everybody may look at them, but
    not at their labels. ``odd`` names clients that were made unlike the others on purpose.
    ``features`` gives, where only some features were kept, the place of each in a sample as stored.
    ``encoder`` makes samples of raw rows where they come from a table, and ``scales`` says by
    client how it then scaled them by itself (``""``: rows of nobody). ``ranges`` has likewise the
    range of features that became 0..1. ``stored`` says what was done to samples before all that,
    and ``profile`` what the training rows of a table look like. ``remarks`` is what there was to
    say when its files were read. ``prepared`` says how samples that a program held were prepared.

    With a ``vocabulary`` samples are token ids below it instead, int64 [N, length], where 0 is
    padding; ``text`` says how they are made of texts, where they are.

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
    problem: Problem = CLASSIFICATION
    encoder: TableEncoder | None = None
    scales: Mapping[str, OwnScale] = field(default_factory=dict)
    ranges: Mapping[str, Ends] = field(default_factory=dict)
    stored: AsStored | None = None
    profile: Profile | None = None
    remarks: Remarks = NOTHING
    prepared: Preparation | None = None
    vocabulary: int = 0
    text: TextReader | None = None

    def __post_init__(self) -> None:
        check_samples(self.name, self.x, self.y, self.vocabulary)
        self.problem.check(self.name, self.y, self.class_names)
        if not self.clients:
            raise DataError(f"federation {self.name!r} has no clients.")
        names = [client.name for client in (*self.clients, *self.unseen)]
        check_names(self.name, names)
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
            for rows in map(client.split, (*SPLITS, KEEPING)):
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
    def outputs(self) -> int:
        """How many numbers a model gives for a sample."""
        return self.problem.outputs(self.class_names)

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
        held = [all_rows(client) for client in clients]
        return int(self.environment[np.concatenate(held)].max()) + 1

    def class_counts(self, split: str = "train") -> NDArray[np.int64]:
        """How many samples of each class (columns) each client (rows) holds in a split."""
        return np.stack([self.counted(c.split(split)) for c in self.clients])

    def need_classes(self, who: str) -> None:
        """Refuse what works on classes where samples have none."""
        if not self.problem.classifies:
            raise DataError(
                f"{who} needs samples that have a class each, but {self.name} is for "
                f"{self.problem.kind}: leave it out."
            )

    def counted(self, rows: Indices) -> NDArray[np.int64]:
        """How many of these samples are of each class."""
        self.need_classes("counting classes")
        return np.bincount(self.y.numpy()[rows], minlength=self.classes)

    def environment_counts(self, split: str = "train") -> NDArray[np.int64]:
        """How many samples of each environment (columns) each client (rows) holds in a split."""
        ids = np.zeros(len(self.y), np.int64) if self.environment is None else self.environment
        ids = np.asarray(ids)
        return np.stack(
            [np.bincount(ids[c.split(split)], minlength=self.environments) for c in self.clients]
        )

    @cached_property
    def strata(self) -> Indices:
        """Of every row, the number of what partitions deal it by: its class, if it has one."""
        return strata(self.y)

    @cached_property
    def strata_names(self) -> tuple[str, ...]:
        """What these numbers stand for."""
        return strata_names(self.y, self.class_names)

    def majority_classes(self) -> dict[str, str]:
        """By client, the class or stratum it trains on most samples of; the first of equals."""
        names = self.strata_names
        counts = [np.bincount(self.strata[c.train], minlength=len(names)) for c in self.clients]
        return {c.name: names[int(n.argmax())] for c, n in zip(self.clients, counts, strict=True)}

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


def checked_federation(maker: str, made: object) -> Federation:
    """What a function made, if it is a federation."""
    if not isinstance(made, Federation):
        raise DataError(f"{maker} returned {type(made).__name__}, not a fedskew Federation.")
    return made


def check_samples(name: str, x: Tensor, y: Tensor, vocabulary: int = 0) -> None:
    """Refuse samples no model could train on, saying which and where."""
    if len(x) != len(y):
        raise DataError(f"{name}: {len(x)} samples but {len(y)} labels.")
    if vocabulary:
        check_tokens(name, x.numpy(), vocabulary)
        return
    if x.dtype == torch.int64:
        raise DataError(
            f"{name}: samples of whole numbers are token ids if their vocabulary is told, else "
            "they must be float32."
        )
    if x.dtype != torch.float32:
        raise DataError(f"{name}: samples must be float32, not {x.dtype}.")
    # The extremes of non-finite values are not finite, and finding them copies nothing.
    if x.numel() and not bool(torch.stack(x.aminmax()).isfinite().all()):
        row = int((~torch.isfinite(x.reshape(len(x), -1)).all(dim=1)).nonzero()[0, 0])
        raise DataError(f"{name}: sample {row} holds a NaN or infinite value.")


def true_log_ratio(
    clients: Sequence[Client], log_laws: Callable[[Indices], Floats], rows: int
) -> Tensor:
    """log p(x)/q_k(x) of each row that a client k holds, NaN for all other rows.

    ``rows`` is the number of rows in the storage. p = sum_j c_j q_j is the mean of the clients'
    laws by their training rows. ``log_laws`` gives log q_j(x) for some rows [rows, clients], up to
    a term that all clients share.

    >>> two = [Client("ann", np.array([0, 1, 2])), Client("bob", np.array([3]))]
    >>> laws = np.log(np.tile([0.2, 0.4], (5, 1)))  # p is 3/4 * .2 + 1/4 * .4 = .25
    >>> true_log_ratio(two, lambda held: laws[held], 5).exp().round(decimals=3).tolist()
    [1.25, 1.25, 1.25, 0.625, nan]
    """
    sizes = np.array([len(client.train) for client in clients])
    ratio = np.full(rows, np.nan)
    for k, client in enumerate(clients):
        held = all_rows(client)
        logs = log_laws(held)
        # Counts stay whole and differences come first, so that equal laws give exactly 0.
        apart = logs - logs[:, [k]]
        most = apart.max(axis=1)
        mean = (np.exp(apart - most[:, None]) * sizes).sum(axis=1) / sizes.sum()
        ratio[held] = np.log(mean) + most
    return torch.from_numpy(ratio).float()
