"""Asking twice gives the same answer twice, and messages hold what they should and no more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from helpers import OpenBackend, assert_same_bits, copied, method_holdings, run

from fedskew.errors import RunError
from fedskew.federate.backends import wire
from fedskew.federate.backends.wire import (
    decode_answers,
    decode_asks,
    encode_answers,
    encode_asks,
)
from fedskew.federate.tasks import Answer, Ask, FindTask, SaveTask, Scored, ScoreTask, TrainTask
from fedskew.parts.aggregate import Update


class Repeating(OpenBackend):
    """Remembers every ask that trains, with its answer."""

    asked: tuple[tuple[Ask, Answer], ...] = ()

    def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
        answers = super().exchange(asks)
        self.asked += tuple((a, b) for a, b in zip(asks, answers, strict=True) if a.train)
        return answers


@pytest.mark.parametrize(
    "name", ["scaffold", "fedper", "ditto", "groupdro", "fedshibu", "irm", "compressed"]
)
def test_a_round_asked_for_again_is_answered_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """The last one, out of states that lie on disk, after a later label was written."""
    holdings = method_holdings(name)
    backend = Repeating(holdings, tmp_path)
    run(holdings, 3, backend)
    last = [(ask, answer) for ask, answer in backend.asked if ask.train and ask.train.round == 3]
    before = {ask.client: backend.private_of(ask.client) for ask, _ in last}
    again = OpenBackend(holdings, tmp_path).exchange([ask for ask, _ in last])
    for (_, first), second in zip(last, again, strict=True):
        assert first.update is not None
        assert second.update is not None
        assert_same_bits(second.update.tensors, first.update.tensors)
        assert (second.label, second.loss) == (first.label, first.loss)
        for group, tensors in first.update.reports.items():
            assert_same_bits(second.update.reports[group], tensors)
    states = OpenBackend(holdings, tmp_path)._states
    after = states.of({answer.client: answer.label for answer in again})
    for client, groups in before.items():
        assert groups.keys() == after[client].keys()
        for group, tensors in groups.items():
            assert_same_bits(after[client][group], tensors)


def an_ask() -> Ask:
    model = copied(method_holdings("fedavg").plan.initial)
    said = {"control": {"w": torch.tensor([1.5, -2.0])}}
    score = ScoreTask("ann", 3, model, "personal", ("validation", "test"), 1, True, said)
    return Ask(
        "ann",
        (score,),
        TrainTask("ann", 4, model, said, 0.5),
        save=SaveTask("ann", "last", 7, model, said),
        find=FindTask("ann", 12),
        since="main-000003",
        until="main-000004",
        keep=("main-000001",),
    )


def test_an_ask_comes_out_as_it_went_in() -> None:
    ask = an_ask()
    (came,) = decode_asks(encode_asks([ask]))
    assert came.train is not None
    assert ask.train is not None
    assert (came.since, came.until, came.keep, came.find) == (
        ask.since, ask.until, ask.keep, ask.find,
    )  # fmt: skip
    assert (came.train.round, came.train.lr_factor) == (4, 0.5)
    assert came.scores[0].splits == ("validation", "test")
    assert (came.scores[0].adapt, came.scores[0].samples) == (1, True)
    assert_same_bits(came.train.sent, ask.train.sent)
    assert_same_bits(came.train.broadcast["control"], ask.train.broadcast["control"])


def test_a_model_that_many_are_sent_travels_once_and_is_one_object_again() -> None:
    ask = an_ask()
    one = encode_asks([ask])
    many = encode_asks([ask] * 20)
    assert ask.train is not None
    weights = sum(t.numel() * t.element_size() for t in ask.train.sent.values())
    assert len(many) - len(one) < 19 * 800
    assert one.count(next(iter(ask.train.sent.values())).numpy().tobytes()) == 1
    assert len(one) < weights + 1500
    came = decode_asks(many)
    assert came[0].scores[0].sent is came[-1].scores[0].sent


def test_an_answer_comes_out_as_it_went_in() -> None:
    update = Update("ann", {"w": torch.arange(3.0)}, 7, 2, {"length": {"a": torch.tensor(0.1)}})
    scores = Scored("ann", {"test": {"accuracy": 0.1 + 0.2}}, "odd")
    answer = Answer("ann", (scores,), update, 1 / 3, None, "main-000004", {"left": {"n": 3}})
    (came,) = decode_answers(encode_answers([answer]))
    assert came.update is not None
    assert_same_bits(came.update.tensors, update.tensors)
    assert_same_bits(came.update.reports["length"], update.reports["length"])
    assert (came.update.size, came.update.steps) == (7, 2)
    assert (came.scored, came.loss, came.label) == (answer.scored, 1 / 3, "main-000004")
    assert came.found == {"left": {"n": 3}}
    (lost,) = decode_answers(encode_answers([Answer("bob", error="out of memory")]))
    assert (lost.update, lost.error) == (None, "out of memory")
    assert lost.loss != lost.loss


def test_a_message_of_another_format_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = encode_asks([an_ask()])
    monkeypatch.setattr(wire, "FORMAT", 2)
    with pytest.raises(RunError, match="has format 1, but this version of fedskew reads 2"):
        decode_asks(message)
