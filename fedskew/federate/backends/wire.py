"""Asks and answers as bytes: a length, a JSON head, and all tensors as one safetensors body.

A model that is sent to many clients, or scored and trained from, is sent once. There is no pickle:
reports and adaptations are given by their position in the plan, and the head holds plain values.
"""

from __future__ import annotations

import hashlib
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


def head_of(message: bytes) -> Head:
    """The plain values at the beginning of a message, if this version reads it."""
    return _Incoming.read(message)[0]


def encode_head(head: Head) -> bytes:
    """A message without tensors."""
    return _Outgoing().message(dict(head))


def digest_of(message: bytes) -> str:
    """What a reply repeats, so that it can belong to no other message."""
    return hashlib.sha256(message).hexdigest()[:32]


def encode_asks(asks: Sequence[Ask], about: Head | None = None) -> bytes:
    """Asks as a message; ``about`` are plain values that travel with them."""
    out = _Outgoing()
    return out.message({**(about or {}), "asks": [_ask_head(ask, out) for ask in asks]})


def decode_asks(message: bytes) -> list[Ask]:
    came = _Incoming(message)
    return [_ask(head, came) for head in came.head["asks"]]


def encode_answers(
    answers: Sequence[Answer], about: Head | None = None, beside: Tensors | None = None
) -> bytes:
    """Answers as a message; ``beside`` are tensors that are no client's."""
    out = _Outgoing()
    answered = [_answer_head(answer, out) for answer in answers]
    head = {**(about or {}), "answers": answered}
    return out.message(head if beside is None else {**head, "beside": out.model(beside)})


def decode_answers(message: bytes) -> list[Answer]:
    came = _Incoming(message)
    return [_answer(head, came) for head in came.head["answers"]]


def decode_beside(message: bytes) -> Tensors | None:
    came = _Incoming(message)
    return None if "beside" not in came.head else came.model(came.head["beside"])


def encode_groups(groups: Groups, about: Head) -> bytes:
    """Named groups of tensors as a message; ``about`` are plain values that travel with them."""
    out = _Outgoing()
    return out.message({**about, "groups": out.groups(groups)})


def decode_groups(message: bytes) -> Groups:
    came = _Incoming(message)
    return came.groups(came.head.get("groups", {}))


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
        self.head, body = self.read(message)
        tensors = load(body)
        self._models: list[Tensors] = [
            {name: tensors[str(place)] for name, place in model.items()}
            for model in self.head["models"]
        ]

    @staticmethod
    def read(message: bytes) -> tuple[Head, bytes]:
        """Head and body of a message, if this version reads it."""
        try:
            (length,) = struct.unpack_from("<I", message)
            head: Head = json.loads(message[4 : 4 + length])
            version = head["format"]
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise RunError("a message is damaged, or none of fedskew's.") from error
        if version != FORMAT:
            raise RunError(
                f"a message has format {version}, but this version of fedskew reads "
                f"{FORMAT}: install the same version everywhere."
            )
        return head, message[4 + length :]

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
            "name": saved.name, "round": saved.round, "sent": out.model(saved.sent),
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
        "scored": [
            {"scores": s.scores, "error": s.error, **({"final": s.final} if s.final else {})}
            for s in answer.scored
        ],
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
    scored = tuple(
        Scored(client, s["scores"], s["error"], s.get("final", {})) for s in head["scored"]
    )
    return Answer(client, scored, update, head["loss"], head["error"], head["label"], head["found"])
