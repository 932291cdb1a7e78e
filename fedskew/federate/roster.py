"""What a server knows of its clients: names, sizes and counts; never data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from fedskew.problem import CLASSIFICATION, Problem
from fedskew.types import Indices

POOLED = "pooled"
"""The name of the only trainer if all data are in one place, or the server makes up data."""


@dataclass(frozen=True)
class Member:
    """One client: how many samples it has in each split, by class and by environment.

    ``classes`` counts its training samples by class, if they have one, ``environments`` by
    environment.
    """

    name: str
    sizes: Mapping[str, int]
    classes: tuple[int, ...] = ()
    environments: tuple[int, ...] = ()
    seen: bool = True
    odd: bool = False
    """Whether it was made different from the others on purpose."""


@dataclass(frozen=True)
class Roster:
    """All clients of a federation, and what is common to their samples.

    ``central`` and ``public`` count the samples of the central test set and those that belong to
    no client, ``low`` and ``high`` are the smallest and largest value that seen clients train on.
    ``law_known`` says that the clients' true densities are known, ``environments_by`` how
    environments differ, ``problem`` what is to be learned of a sample. With a ``vocabulary``
    samples are token ids below it.

    >>> ann = Member("ann", {"train": 3}, classes=(2, 1))
    >>> bob = Member("bob", {"train": 2}, classes=(0, 2), seen=False)
    >>> two = Roster("toy", (4,), ("a", "b"), (ann, bob))
    >>> [member.name for member in two.seen], two.most_of_a_class
    (['ann'], 2)
    """

    name: str
    sample_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    members: tuple[Member, ...]
    central: int = 0
    public: int = 0
    low: float = 0.0
    high: float = 1.0
    law_known: bool = False
    environments_by: str = ""
    problem: Problem = CLASSIFICATION
    vocabulary: int = 0

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample."""
        return self.problem.outputs(self.class_names)

    @cached_property
    def by_name(self) -> dict[str, Member]:
        return {member.name: member for member in self.members}

    @cached_property
    def seen(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.seen)

    @cached_property
    def unseen(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if not member.seen)

    @property
    def most_of_a_class(self) -> int:
        """The most training samples of one class that any client has; without classes, of all."""
        if not self.problem.classifies:
            return max((member.sizes["train"] for member in self.members), default=0)
        return max((max(member.classes, default=0) for member in self.members), default=0)

    def counts(self, of: Literal["classes", "environments"]) -> Indices:
        """Training samples of every seen client (rows) by class or environment (columns)."""
        return np.array([getattr(member, of) for member in self.seen], dtype=np.int64)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each thing about these clients that makes scores look too good."""
        held = self.counts("classes") > 0
        single = int((held.sum(axis=1) == 1).sum())
        if 3 * single < len(held) or held.any(axis=0).sum() < 2:
            return ()
        return (
            f"{single} of {len(held)} clients hold one label only: a model can tell "
            "where a sample comes from instead of what it shows (the source instead of the "
            "illness), and scores per client flatter it.",
        )

    @property
    def unscored(self) -> tuple[str, ...]:
        """A sentence for each kind of score that some clients have no samples for."""
        tested = [member for member in self.members if member.sizes.get("test")]
        chosen = [member for member in self.seen if member.sizes.get("validation")]
        found = []
        if not tested:
            found.append("no client has test samples, so there are no test scores of clients.")
        elif missing := [m.name for m in self.members if not m.sizes.get("test")]:
            found.append(
                f"{_lack(missing, len(self.members))} test samples ({shortened(missing)}): test "
                "scores leave out who has none."
            )
        missing = [m.name for m in self.seen if not m.sizes.get("validation")]
        if chosen and missing:
            found.append(
                f"{_lack(missing, len(self.seen))} validation samples ({shortened(missing)}): who "
                "has none has no say in which round is selected."
            )
        return tuple(found)

    def whole_where_small(self, batch_size: int) -> Roster:
        """The roster in which clients too small for a batch per environment have only one."""
        if self.environments_by != "random":
            return self
        members = tuple(_whole_if_small(m, batch_size) if m.seen else m for m in self.members)
        return replace(self, members=members)


def _lack(names: Sequence[str], of: int) -> str:
    return f"{len(names)} of {of} clients {'has' if len(names) == 1 else 'have'} no"


def shortened(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, and how many there are beside them.

    >>> shortened(["ann", "bob", "cas"], most=2)
    'ann, bob and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _whole_if_small(member: Member, batch_size: int) -> Member:
    if not any(0 < count < batch_size for count in member.environments):
        return member
    total = sum(member.environments)
    whole = (total, *(0 for _ in member.environments[1:]))
    return replace(member, environments=whole)
