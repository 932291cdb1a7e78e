"""A worker's side of dealt work: a slice of tasks in, results out; nothing of a client is kept."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor

from fedskew.engine.graph import Graphs
from fedskew.errors import RunError, clients_may_fail
from fedskew.federate.backends.parcel import Parcel, pack, unpack
from fedskew.federate.client import Outcome, describe_clients, train_clients
from fedskew.federate.holdings import Holdings
from fedskew.federate.private import States
from fedskew.federate.scoring import SampleScores, score_clients
from fedskew.federate.tasks import DescribeTask, Scored, ScoreTask, TrainTask
from fedskew.parts.aggregate import Aggregator, ServerState, normalised, weighted_mean
from fedskew.registry.own import working_folder_importable

Kind = Literal["score", "train", "describe"]
Task = ScoreTask | TrainTask | DescribeTask
Result = Outcome | tuple[Scored, SampleScores]


@dataclass(frozen=True)
class Slice:
    """Some clients' tasks of one kind, with the private states they start from."""

    kind: Kind
    tasks: Sequence[Any]
    private: States
    may_fail: bool = False
    """Whether a client whose own code raises is left out (see ``clients_may_fail``)."""
    presum: bool = False
    """Whether the mean of these clients' models comes back in place of each."""


class Sent(NamedTuple):
    """What every worker is sent once: its name, and the parcel or what stands for it."""

    name: str
    parcel: Any


class Raised(NamedTuple):
    """What a slice raised, instead of results."""

    error: Exception
    text: str


class WorkerTraceback(Exception):
    """The cause of an exception that a worker raised: its traceback there, as text."""


class Workbench:
    """Carries out slices on data and plan that it was sent; they stay unpacked for the next one.

    No client's state stays here: any worker can be given any slice, and given it again.
    """

    def __init__(self, graphs: dict[Hashable, Graphs] | None = None) -> None:
        """``graphs`` are those of its holdings."""
        self._graphs = graphs
        self._there: dict[str, tuple[str, Any]] = {}
        self._holdings: Holdings | None = None

    def answer(self, data: Sent, plan: Sent, common: Sent, work: Parcel) -> Parcel:
        """The results of a slice, packed, or what it raised."""
        try:
            federation, known = self._unpacked("data", data, mapped=True)
            agreed, same = self._unpacked("plan", plan)
            if self._holdings is None or not (known and same):
                # A slice is a part of a cohort, and is stacked as it is there.
                self._holdings = Holdings(agreed, federation, graphs=self._graphs, fewest_chunks=1)
            shared: list[Tensor] = self._unpacked("common", common)[0]
            wanted: Slice = unpack(work, shared)
            with clients_may_fail(wanted.may_fail):
                return pack(carry_out(self._holdings, wanted))
        except Exception as error:
            return pack(Raised(portable(error), "".join(traceback.format_exception(error))))

    def _unpacked(self, kind: str, sent: Sent, mapped: bool = False) -> tuple[Any, bool]:
        """The content, and whether it was here already."""
        name, content = self._there.get(kind, ("", None))
        if name == sent.name:
            return content, True
        self._there.pop(kind, None)
        with working_folder_importable():
            content = unpack(sent.parcel, mapped=mapped)
        self._there[kind] = (sent.name, content)
        return content, False


def carry_out(holdings: Holdings, wanted: Slice) -> Sequence[Result]:
    """One result for each task; the scores of single samples only where they are asked for."""
    tasks, private = wanted.tasks, wanted.private
    if wanted.kind == "train":
        outcomes = train_clients(holdings, tasks, private)
        return presummed(holdings.plan.recipe.aggregates, outcomes) if wanted.presum else outcomes
    if wanted.kind == "describe":
        return describe_clients(holdings, tasks, private)
    found = score_clients(holdings, tasks, private)
    return [
        (scores, replace(each, model={}, values=each.values if task.samples else {}))
        for task, (scores, each) in zip(tasks, found, strict=True)
    ]


def presummed(aggregates: Aggregator, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same, but their weighted mean stands for the model of everybody who has one."""
    updates = [o.update for o in outcomes if o.update is not None and o.error is None]
    if not updates or aggregates.weighting is None:
        return [*outcomes]
    weights, _ = normalised(aggregates.weighting, updates, ServerState({}))
    mean = weighted_mean(updates, weights)
    return [
        replace(o, update=replace(o.update, tensors=mean)) if o.update and not o.error else o
        for o in outcomes
    ]


def results_of(parcel: Parcel) -> Sequence[Result]:
    """What a worker answered; what it raised is raised here."""
    found: Sequence[Result] | Raised = unpack(parcel)
    if isinstance(found, Raised):
        raise found.error from WorkerTraceback(found.text)
    return found


def portable(error: Exception) -> Exception:
    """The exception itself, if it comes out of a parcel as it went in."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:  # a user's exception may be made in any way
        pass
    return RunError(f"{type(error).__name__}: {error}")
