"""A site that answers as it should, or as the file ``lie`` in its folder says.

nan: its update is not finite. shape: it has another shape. old: it repeats its last answer.
other: it answers for another study.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
from pathlib import Path

from safetensors.torch import load, save

from fedskew.sites import node
from fedskew.sites.site import Site
from fedskew.sites.worker import Worker


class Liar(Worker):
    last = b""

    def handle(self, message: bytes) -> bytes:
        reply = super().handle(message)
        file = self.site.folder / "lie"
        lie = file.read_text() if file.is_file() else ""
        head, body = split(reply)
        if "answers" not in head or not head["models"]:
            return reply
        told = reply
        if lie in ("nan", "shape"):
            tensors = load(body)
            place = str(head["models"][0][min(head["models"][0])])
            if lie == "nan":
                tensors[place].view(-1)[0] = float("nan")
            else:
                tensors[place] = tensors[place].reshape(-1)[:3].clone()
            told = joined(head, save(tensors))
        if lie == "old":
            told = self.last
        if lie == "other":
            told = joined({**head, "study": "0" * 16}, body)
        self.last = reply
        return told


def split(message: bytes) -> tuple[dict, bytes]:
    (length,) = struct.unpack_from("<I", message)
    return json.loads(message[4 : 4 + length]), message[4 + length :]


def joined(head: dict, body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<I", len(text)) + text + body


if __name__ == "__main__":
    node.Worker = Liar
    node.answer(Site.open(Path(sys.argv[1])), threading.Event())
