"""What leaves a site: read off the encoded reply itself, held against what may, written down."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedskew.errors import RunError
from fedskew.federate.backends.wire import decode_answers, decode_beside, decode_groups, head_of
from fedskew.federate.recipe import Stage
from fedskew.parts.select import NOTHING
from fedskew.types import Tensors

AUDIT = "audit.jsonl"


def fields_of(reply: bytes) -> dict[str, int]:
    """What a reply holds, by kind, in bytes; a number in its head counts as the text it is."""
    head, found = head_of(reply), {}
    if any(member.get("classes") for member in head.get("members", ())):
        found["counts"] = sum(len(json.dumps(m["classes"])) for m in head["members"])
    for name in ("moments", "targets"):
        if head.get(name):
            _add(found, "moments", len(json.dumps(head[name])))
    for told in head.get("columns", {}).values():
        words = {n: each["words"] for n, each in told["columns"].items() if each.get("words")}
        _add(found, "moments", len(json.dumps(told)) - len(json.dumps(words)))
        if words:
            _add(found, "words", len(json.dumps(words)))
    for name in ("keys", "letters", "shares"):  # of a sum in which updates are hidden
        if name in head:
            _add(found, "sums", len(json.dumps(head[name])))
    if (beside := decode_beside(reply)) is not None:
        _add(found, "sums", _bytes(beside))
    if "parcels" in head:  # what a diagnosis is made of
        groups = decode_groups(reply).values()
        _add(found, "diagnosis", len(json.dumps(head["parcels"])) + sum(map(_bytes, groups)))
    for answer in decode_answers(reply) if "answers" in head else ():
        if answer.update is not None and answer.update.tensors:
            _add(found, "parameters", _bytes(answer.update.tensors))
        if answer.update is not None and answer.update.reports:
            _add(found, "reports", sum(map(_bytes, answer.update.reports.values())))
        if any(each.scores for each in answer.scored):
            told = [each.scores for each in answer.scored]
            told += [{"test": each.final} for each in answer.scored if each.final]
            _add(found, "scores", sum(len(json.dumps(scores)) for scores in told))
        if answer.found:
            _add(found, "findings", len(json.dumps(answer.found)))
    return found


def _add(found: dict[str, int], what: str, size: int) -> None:
    found[what] = found.get(what, 0) + size


def _bytes(tensors: Tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


def needed_by(stages: Iterable[Stage]) -> dict[str, str]:
    """What has to leave a site for all stages of a method, each kind with what it is."""
    found = {"scores": "scores of models on clients' validation and test data"}
    for stage in stages:
        recipe = stage.recipe
        if recipe.shares != NOTHING:
            found["parameters"] = "parameters of trained models"
        told = [report.tells for report in (*recipe.reports, *stage.hands_over) if report.tells]
        if told:
            known = [found["reports"]] if "reports" in found else []
            found["reports"] = "; ".join([*known, *told])
        if recipe.leaves:
            found["findings"] = ", ".join(finding.name for finding in recipe.leaves)
    return found


def check_allowed(site: str, allow: Sequence[str], what: Iterable[str], why: str = "") -> None:
    """Refuse what may not leave a site."""
    for each in what:
        if each not in allow:
            raise RunError(
                f"site {site!r} lets no {each} leave{why}: its owner can add {json.dumps(each)} to "
                "allow in its site.toml."
            )


def note(folder: Path, reply: bytes, about: Mapping[str, Any]) -> None:
    """Write down what is about to leave; what cannot be written down does not leave."""
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **about,
        "fields": fields_of(reply),
        "bytes": len(reply),
        "sha256": hashlib.sha256(reply).hexdigest(),
    }
    with open(folder / AUDIT, "a") as log:
        log.write(json.dumps(line) + "\n")
        log.flush()
        os.fsync(log.fileno())


def read_audit(folder: Path) -> list[dict[str, Any]]:
    """All that was written down, the oldest first; a line cut off by a full disk is left out."""
    path = folder / AUDIT
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
