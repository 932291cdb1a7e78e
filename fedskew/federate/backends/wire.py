"""Asks and answers as bytes: a length, a JSON head, and all tensors as one safetensors body.

A model that is sent to many clients, or scored and trained from, is sent once. There is no pickle:
reports and adaptations are given by their position in the plan, and the head holds plain values.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from fedskew.errors import RunError
from fedskew.federate.tasks import (
    Answer,
    Ask,
    DescribeTask,
    FindTask,
    SaveTask,
    Scored,
    ScoreTask,
    TrainTask,
)
from fedskew.parts.aggregate import Update
from fedskew.types import Groups, Tensors

FORMAT = 1
Head = dict[str, Any]


def encode_asks(asks: Sequence[Ask]) -> bytes:
    out = _Outgoing()
    return out.message({"asks": [_ask_head(ask, out) for ask in asks]})


def decode_asks(message: bytes) -> list[Ask]:
    came = _Incoming(message)
    return [_ask(head, came) for head in came.head["asks"]]


def encode_answers(answers: Sequence[Answer]) -> bytes:
    out = _Outgoing()
    return out.message({"answers": [_answer_head(answer, out) for answer in answers]})


def decode_answers(message: bytes) -> list[Answer]:
    came = _Incoming(message)
    return [_answer(head, came) for head in came.head["answers"]]


class _Outgoing:
    """Collects models and tensors, each of them once, and numbers them."""

    def __init__(self) -> None:
        self._models: dict[int, tuple[int, Tensors]] = {}
        self._tensors: dict[int, tuple[int, Tensor]] = {}

    def model(self, tensors: Tensors) -> int:
        # Keep a reference, so that no other object can get the same id.
        return self._models.setdefault(id(tensors), (len(self._models), tensors))[0]

    def groups(self, groups: Groups) -> dict[str, int]:
        return {name: self.model(tensors) for name, tensors in groups.items()}

    def message(self, head: Head) -> bytes:
        head |= {"format": FORMAT, "models": [self._places(t) for _, t in self._models.values()]}
        body = save(
            {str(place): t.detach().clone().contiguous() for place, t in self._tensors.values()}
        )
        text = json.dumps(head).encode()
        return struct.pack("<I", len(text)) + text + body

    def _places(self, tensors: Tensors) -> dict[str, int]:
        return {
            name: self._tensors.setdefault(id(t), (len(self._tensors), t))[0]
            for name, t in tensors.items()
        }


class _Incoming:
    """A decoded message: a model that was sent once for many clients is one object again."""

    def __init__(self, message: bytes) -> None:
        (length,) = struct.unpack_from("<I", message)
        self.head: Head = json.loads(message[4 : 4 + length])
        if self.head["format"] != FORMAT:
            raise RunError(
                f"a message has format {self.head['format']}, but this version of fedskew reads "
                f"{FORMAT}: install the same version everywhere."
            )
        tensors = load(message[4 + length :])
        self._models: list[Tensors] = [
            {name: tensors[str(place)] for name, place in model.items()}
            for model in self.head["models"]
        ]

    def model(self, place: int) -> Tensors:
        return self._models[place]

    def groups(self, places: Mapping[str, int]) -> Groups:
        return {name: self._models[place] for name, place in places.items()}


def _ask_head(ask: Ask, out: _Outgoing) -> Head:
    head: Head = {
        "client": ask.client, "since": ask.since, "until": ask.until, "keep": ask.keep,
        "scores": [
            {
                "round": t.round, "sent": out.model(t.sent), "model": t.model, "splits": t.splits,
                "adapt": t.adapt, "samples": t.samples, "broadcast": out.groups(t.broadcast),
            }
            for t in ask.scores
        ],
    }  # fmt: skip
    if (train := ask.train) is not None:
        head["train"] = {
            "round": train.round, "sent": out.model(train.sent),
            "broadcast": out.groups(train.broadcast), "lr_factor": train.lr_factor,
        }  # fmt: skip
    if (describe := ask.describe) is not None:
        head["describe"] = {
            "round": describe.round, "sent": out.model(describe.sent),
            "broadcast": out.groups(describe.broadcast),
        }  # fmt: skip
    if (saved := ask.save) is not None:
        head["save"] = {
            "name": saved.name, "sent": out.model(saved.sent),
            "broadcast": out.groups(saved.broadcast),
        }  # fmt: skip
    if ask.find is not None:
        head["find"] = {"total": ask.find.total}
    return head


def _ask(head: Head, came: _Incoming) -> Ask:
    client = head["client"]

    def task(kind: Any, found: Head | None) -> Any:
        if found is None:
            return None
        values = dict(found)
        if "sent" in values:
            values["sent"] = came.model(values["sent"])
            values["broadcast"] = came.groups(values["broadcast"])
        if "splits" in values:
            values["splits"] = tuple(values["splits"])
        return kind(client=client, **values)

    return Ask(
        client,
        tuple(task(ScoreTask, found) for found in head["scores"]),
        task(TrainTask, head.get("train")),
        task(DescribeTask, head.get("describe")),
        task(SaveTask, head.get("save")),
        task(FindTask, head.get("find")),
        head["since"],
        head["until"],
        tuple(head["keep"]),
    )


def _answer_head(answer: Answer, out: _Outgoing) -> Head:
    head: Head = {
        "client": answer.client, "loss": answer.loss, "error": answer.error,
        "label": answer.label, "found": answer.found,
        "scored": [{"scores": s.scores, "error": s.error} for s in answer.scored],
    }  # fmt: skip
    if (update := answer.update) is not None:
        head["update"] = {
            "tensors": out.model(update.tensors), "size": update.size, "steps": update.steps,
            "reports": out.groups(update.reports),
        }  # fmt: skip
    return head


def _answer(head: Head, came: _Incoming) -> Answer:
    client, update = head["client"], None
    if (found := head.get("update")) is not None:
        update = Update(
            client, came.model(found["tensors"]), found["size"], found["steps"],
            came.groups(found["reports"]),
        )  # fmt: skip
    scored = tuple(Scored(client, s["scores"], s["error"]) for s in head["scored"])
    return Answer(client, scored, update, head["loss"], head["error"], head["label"], head["found"])
