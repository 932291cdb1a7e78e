"""Slices go to whoever is free, and again to others if a worker ends."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    assert_close,
    assert_same_bits,
    make_holdings,
    method_holdings,
    run,
    standard_run,
    toy_federation,
)
from workers import OpenDealt, ThreadPool

from fedskew.engine.cohort import split
from fedskew.errors import ConfigError, RunError
from fedskew.federate.backends.dealer import MOST_LOSSES, Dealer, Lost
from fedskew.federate.backends.parcel import Parcel, pack, unpack
from fedskew.federate.backends.workbench import Sent, WorkerTraceback, presummed
from fedskew.federate.client import Outcome
from fedskew.federate.recipe import Recipe
from fedskew.federate.rounds import Rounds
from fedskew.methods import find
from fedskew.parts.aggregate import Mean, Update
from fedskew.parts.objective import Erm


def test_a_parcel_holds_each_tensor_once_and_gives_back_the_same_objects() -> None:
    one, flags = torch.arange(7.0), torch.tensor([True, False])
    content = {"a": [one, one], "b": (flags, torch.zeros(0, 3), torch.tensor(2.5))}
    parcel = pack(content)
    # 28, 2, 0 and 4 bytes, each begun at a multiple of 64.
    assert parcel.body.nbytes == 192
    came = unpack(parcel)
    assert came["a"][0] is came["a"][1]
    assert torch.equal(came["a"][0], one)
    assert torch.equal(came["b"][0], flags)
    assert (came["b"][1].shape, float(came["b"][2])) == ((0, 3), 2.5)


def test_a_tensor_that_is_there_is_not_sent() -> None:
    there = [torch.ones(1000), torch.zeros(2)]
    parcel = pack({"x": there[0], "y": torch.ones(1)}, there)
    assert parcel.body.nbytes == 64
    assert unpack(parcel, there)["x"] is there[0]


def test_mapped_tensors_share_memory_that_may_be_read_only(
    recwarn: pytest.WarningsRecorder,
) -> None:
    parcel = pack([torch.arange(3.0)])
    parcel.body.flags.writeable = False
    (mapped,) = unpack(parcel, mapped=True)
    assert mapped.data_ptr() == parcel.body.ctypes.data
    (copied,) = unpack(parcel)
    assert copied.data_ptr() != parcel.body.ctypes.data
    assert [str(w.message) for w in recwarn if "writable" in str(w.message)] == []


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_neighbouring_stacks_are_cut_again_as_they_were(most: int) -> None:
    """So a slice of whole stacks trains in the stacks of the whole cohort.

    A cohort that would fit in one stack is cut in two, and dealt in two slices.
    """
    for clients in range(1, 40):
        whole = [list(part) for part in split(range(clients), most)]
        for begin, end in combinations(range(len(whole) + 1), 2):
            if end - begin < len(whole) or len(whole) == 1:
                some = [i for part in whole[begin:end] for i in part]
                assert [list(part) for part in split(some, most, 1)] == whole[begin:end]


@dataclass
class Scripted:
    """A worker that answers with its name, or ends as often as it is told."""

    name: str
    ends: int = 0
    seen: int = 0

    def ready(self) -> Future[None]:
        return _done(None)

    def submit(self, data: Sent, plan: Sent, common: Sent, work: Parcel) -> Future[Parcel]:
        self.seen += 1
        if self.ends:
            self.ends -= 1
            future: Future[Parcel] = Future()
            future.set_exception(Lost("it ended"))
            return future
        return _done(pack((self.name, unpack(work))))


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


@dataclass
class Workers:
    workers: list[Scripted]
    puts: int = 0

    def put(self, parcel: Parcel) -> Parcel:
        self.puts += 1
        return parcel


NOTHING = Sent("nothing", pack(None))


def dealt(dealer: Dealer, count: int) -> dict[int, tuple[str, int]]:
    slices = [partial(pack, i) for i in range(count)]
    return {n: unpack(p) for n, p in dealer.deal(slices, NOTHING, NOTHING, NOTHING)}


def test_every_slice_is_answered_once_whoever_ends() -> None:
    workers = Workers([Scripted("a"), Scripted("b", ends=3), Scripted("c", ends=1)])
    found = dealt(Dealer(workers), 9)
    assert {number: answer[1] for number, answer in found.items()} == {n: n for n in range(9)}
    assert sum(worker.seen for worker in workers.workers) == 9 + 4


def test_a_slice_that_always_ends_its_worker_stops_the_run_with_a_sentence() -> None:
    worker = Scripted("a", ends=100)
    with pytest.raises(RunError, match=r"ended its worker 6 times \(it ended\)"):
        dealt(Dealer(Workers([worker])), 1)
    assert worker.seen == MOST_LOSSES + 1


class Gone(Scripted):
    def ready(self) -> Future[None]:
        future: Future[None] = Future()
        future.set_exception(Lost("nobody is there"))
        return future


def test_where_nobody_comes_back_the_run_stops_with_a_sentence() -> None:
    dealer = Dealer(Workers([Gone("a"), Gone("b")]), patience=0.2, pause=0.01)
    with pytest.raises(RunError, match="none of 2 workers has been there"):
        dealt(dealer, 1)


def test_what_all_need_is_put_once_until_it_changes() -> None:
    workers = Workers([])
    dealer, one, other = Dealer(workers), object(), object()
    first = dealer.sent("plan", [one], lambda: pack(1))
    assert dealer.sent("plan", [one], lambda: pack(1)) is first
    assert dealer.sent("plan", [other], lambda: pack(2)).name != first.name
    assert workers.puts == 2


def test_data_and_plan_are_put_once_a_run_and_the_model_once_a_round() -> None:
    holdings = method_holdings("scaffold")
    pool = Counting(2)
    run(holdings, 3, OpenDealt(holdings, Dealer(pool)))
    # Scores of one small model are computed here: a round's model and variate are put to train.
    assert pool.puts == 2 + 3
    model = holdings.plan.initial
    assert all(next(iter(model.values())).numpy().tobytes() not in body for body in pool.bodies)


class Counting(ThreadPool):
    puts = 0

    def put(self, parcel: Parcel) -> Any:
        self.puts += 1
        return parcel

    @property
    def bodies(self) -> list[bytes]:
        return [parcel.body.tobytes() for parcel in self.sent]


def test_results_do_not_depend_on_how_many_workers_there_are() -> None:
    holdings = method_holdings("fedshibu")
    for count in (1, 4):
        found = run(holdings, backend=OpenDealt(holdings, Dealer(ThreadPool(count))))
        assert_same_bits(found.everything(), standard_run("fedshibu").everything())


@dataclass(frozen=True)
class Strange(Erm):
    """Cannot score."""

    def scores(self, model: Any, batch: Any) -> Any:
        raise ValueError("strange")


def test_what_a_worker_raises_is_raised_here_with_its_traceback() -> None:
    recipe = replace(find("fedper").recipe(), objective=Strange())
    holdings = make_holdings(recipe)
    with pytest.raises(ValueError, match="strange") as caught:
        run(holdings, Rounds(1), OpenDealt(holdings, Dealer(ThreadPool(2))))
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert 'raise ValueError("strange")' in str(caught.value.__cause__)
    assert any("scoring" in note for note in caught.value.__notes__)


def test_other_devices_are_refused() -> None:
    holdings = make_holdings(Recipe())
    elsewhere = {name: tensor.to("meta") for name, tensor in holdings.plan.initial.items()}
    backend = OpenDealt(holdings, Dealer(ThreadPool(1)))
    with pytest.raises(ConfigError, match="--workers ray computes on CPUs"):
        backend.begin(replace(holdings.plan, initial=elsewhere))


def test_the_data_a_worker_holds_are_those_of_the_federation() -> None:
    federation = toy_federation()
    came = unpack(pack(federation), mapped=True)
    assert torch.equal(came.x, federation.x)
    assert [c.name for c in came.clients] == [c.name for c in federation.clients]
    for mine, its in zip(federation.clients, came.clients, strict=True):
        np.testing.assert_array_equal(mine.train, its.train)


def test_models_added_up_by_workers_give_the_same_mean_but_for_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedskew.federate.backends.dealt.SUMMED", 2)
    holdings = method_holdings("fedavg", chunk=1)
    pools = [ThreadPool(1), ThreadPool(3)]
    one, other = (
        run(holdings, backend=OpenDealt(holdings, Dealer(pool), presum=True)) for pool in pools
    )
    assert [pool.submitted for pool in pools] == [6, 6]
    assert_same_bits(one.everything(), other.everything())
    assert_close(one.everything(), run(holdings).everything(), 1e-6)
    assert [r.participants for r in one.journal.records] == [4, 4, 4]


def test_the_mean_of_those_who_have_one_stands_for_each_of_them() -> None:
    """(1·1 + 3·5)/4 = 4; whoever failed has no part in it."""
    ann, bob = (
        Outcome(name, Update(name, {"w": torch.tensor([value])}, size, 1))
        for name, value, size in (("ann", 1.0, 1), ("bob", 5.0, 3))
    )
    one, failed, other = presummed(Mean(), [ann, Outcome("eve", error="broken"), bob])
    assert one.update is not None
    assert other.update is not None
    assert one.update.tensors is other.update.tensors
    assert (float(one.update.tensors["w"]), one.update.size, other.update.size) == (4.0, 1, 3)
    assert failed.error == "broken"


@pytest.mark.parametrize("name", ["fedgma", "feddisco", "fednova", "fedshibu"])
def test_what_needs_every_model_or_what_others_tell_is_not_added_up(name: str) -> None:
    holdings = method_holdings(name)
    with pytest.raises(ConfigError, match="--presum adds up clients' models"):
        OpenDealt(holdings, Dealer(ThreadPool(1)), presum=True).begin(holdings.plan)
