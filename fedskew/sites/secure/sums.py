"""The server's part in secure sums: it passes letters on, and takes the masks off the sum.

The stages are those of Flower's ``SecAggPlusWorkflow``, which needs Flower's grid and a strategy of
its own. Every site is every other's neighbour here, and one that is lost before the vectors are
collected is left out of the masks; Flower's loses the round then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, TypeVar

import numpy as np
import torch

from fedskew.config import SecureSection
from fedskew.errors import RunError
from fedskew.federate.backends.wire import decode_beside, encode_asks, encode_head, head_of
from fedskew.federate.tasks import Answer, Ask
from fedskew.parts.aggregate import Update
from fedskew.sites.secure import primitives
from fedskew.sites.secure.numbers import decoded, floating, moved, needed
from fedskew.sites.secure.party import MASKED, digest_of
from fedskew.sites.secure.primitives import MODULUS, Vector, added
from fedskew.types import Tensors

Head = dict[str, Any]
Asked = Mapping[str, Sequence[Ask]]
Make = Callable[[Head], bytes]
"""A message, given what all messages say."""
Send = Callable[[Mapping[str, Make]], Mapping[str, bytes | str]]
Read = Callable[[str, Sequence[Ask], bytes | str], dict[str, Answer]]
"""A site's reply as answers to its asks, whatever is wrong with it."""
Value = TypeVar("Value")


class SecureSum:
    """One round in which some clients train: their updates come as one sum.

    ``weight_of`` is what a client counts.
    """

    def __init__(
        self, section: SecureSection, weight_of: Callable[[str], int], send: Send, read: Read
    ) -> None:
        self._section, self._weight_of = section, weight_of
        self._send, self._read = send, read
        self._session, self._round = os.urandom(8).hex(), ""
        self._keys: dict[str, tuple[str, str]] = {}
        self._letters: dict[str, dict[str, str]] = {}
        self._vectors: dict[str, Vector] = {}
        self._lost: dict[str, str] = {}
        self._silent: set[str] = set()

    def answers(self, asks: Asked) -> dict[str, Answer]:
        """By client its answer; all clients in the sum answer with the same update."""
        trains = {ask.client: ask for its in asks.values() for ask in its if ask.train is not None}
        most = max(self._weight_of(client) for client in trains)
        self._round = next(iter(trains.values())).until
        try:
            self._share([site for site, its in asks.items() if any(ask.train for ask in its)])
            wrong = ""
        except RunError as error:
            self._letters, wrong = {}, str(error)
        found = self._collected(asks, most)
        site_of = {ask.client: site for site, its in asks.items() for ask in its}
        inside = [c for c in trains if site_of[c] in self._vectors and found[c].error is None]
        update: Update | None = None
        if not wrong:
            try:
                update = self._unmasked(inside, trains, most)
            except RunError as error:
                wrong = str(error)
        for client in trains:
            answer, site = found[client], site_of[client]
            if client in inside and update is not None:
                found[client] = replace(answer, update=update)
            elif answer.error is None or (wrong and site in self._lost):
                why = wrong or f"site {site}: {self._lost[site]}"
                found[client] = Answer(client, answer.scored, error=why)
        return found

    def _share(self, sites: Sequence[str]) -> None:
        """All sites' public keys, then letters with shares from each to each."""
        found = self._replies("keys", {site: {"round": self._round} for site in sites}, _keys_of)
        before = [with_whom for _, with_whom in found.values() if with_whom]
        for site in found.keys() - set(sites).intersection(*before):
            # Whoever was left out of a round's first sum would be laid open by a second with it.
            self._lost[site] = f"{self._round} was summed without it before"
            del found[site]
        self._keys = {site: keys for site, (keys, _) in found.items()}
        self._check_enough(self._keys)
        told = {site: {"keys": self._keys} for site in self._keys}
        self._letters = self._replies("shares", told, _letters_of)
        self._check_enough(self._letters)

    def _collected(self, asks: Asked, most: int) -> dict[str, Answer]:
        """What all sites answer, those in the sum with their masked vectors."""
        sent: dict[str, Sequence[Ask]] = {}
        made: dict[str, Make] = {}
        for site, its in asks.items():
            if site in self._letters:
                told = {
                    "session": self._session,
                    "most": most,
                    "letters": {s: self._letters[s][site] for s in self._letters if s != site},
                }
                sent[site], made[site] = its, partial(_with_sum, its, told)
            elif site not in self._silent:
                only = [replace(ask, train=None) for ask in its if ask.scores or not ask.train]
                if only:
                    sent[site], made[site] = only, partial(encode_asks, only)
        found = {ask.client: Answer(ask.client) for its in asks.values() for ask in its}
        replies = self._send(made)
        length = 1 + _length(asks)
        for site, its in sent.items():
            reply = replies.get(site, "it did not answer")
            found |= self._read(site, its, reply)
            if site in self._letters:
                vector = None if isinstance(reply, str) else _vector(reply, length)
                if vector is not None:
                    self._vectors[site] = vector
                else:
                    errors = [found[ask.client].error for ask in its]
                    why = next(filter(None, errors), "it sent no vector")
                    self._lost[site] = why.removeprefix(f"site {site}: ")
        for site in self._silent & asks.keys():
            found |= self._read(site, asks[site], self._lost[site])
        return found

    def _unmasked(self, inside: Sequence[str], trains: Mapping[str, Ask], most: int) -> Update:
        """The mean of all clients ``inside``, once those who are left have told their shares."""
        self._check_enough(self._vectors)
        if not inside:
            raise RunError("nobody's update is in the sum")
        active, gone = sorted(self._vectors), sorted(self._letters.keys() - self._vectors.keys())
        told = {site: {"active": active, "gone": gone} for site in active}
        shares = self._replies("unmask", told, partial(_shares_of, self._letters.keys()))
        self._check_enough(shares)
        secrets = {site: _joined([its[site] for its in shares.values()]) for site in self._letters}
        task = trains[inside[0]].train
        assert task is not None
        about = digest_of(task) if gone else b""
        total = reduce(added, self._vectors.values())
        for site in active:
            own = primitives.mask(primitives.seed_key(secrets[site]), total)
            total = added(total, own, -1)
            for other in gone:
                key = primitives.pair_key(secrets[other], self._keys[site][0].encode(), about)
                total = added(total, primitives.mask(key, total), -1 if site > other else 1)
        weight, numbers = primitives.unweighted(total)
        change = decoded(numbers, weight, len(inside), most, self._section)
        came = 4 * (1 + len(numbers)) * len(active)
        return Update(
            f"{len(active)} sites", moved(task.sent, change), weight, 0, of=tuple(inside), came=came
        )

    def _replies(
        self, op: str, told: Mapping[str, Head], take: Callable[[Head], Value]
    ) -> dict[str, Value]:
        """By site what it replied; who gives no reply that can be used is lost, with the reason."""
        made = {
            site: partial(_message, {"op": op, "session": self._session, **its})
            for site, its in told.items()
        }
        replies, taken = self._send(made), {}
        for site in told:
            reply = replies.get(site, "it did not answer")
            if isinstance(reply, str):
                self._lost[site] = reply
                self._silent.add(site)
                continue
            try:
                head = head_of(reply)
                if head.get("error"):
                    self._lost[site] = str(head["error"]).rstrip(".")
                else:
                    taken[site] = take(head)
            except Exception as error:  # a broken or hostile reply can be wrong in any way at all
                self._lost[site] = f"its reply cannot be read ({type(error).__name__})"
        return taken

    def _check_enough(self, left: Collection[str]) -> None:
        least = max(2, needed(len(self._keys), self._section))
        if len(left) < least:
            why = "; ".join(f"{site}: {reason}" for site, reason in sorted(self._lost.items()))
            raise RunError(
                f"a sum needs {least} sites to its end, and {len(left)} are left ({why})"
            )


def _message(head: Head, about: Head) -> bytes:
    return encode_head({**about, **head})


def _with_sum(asks: Sequence[Ask], told: Head, about: Head) -> bytes:
    return encode_asks(asks, {**about, "sum": told})


def _keys_of(head: Head) -> tuple[tuple[str, str], list[str]]:
    """A site's public keys, and with whom it unmasked this round before."""
    one, other = map(str, head["keys"])
    return (one, other), list(map(str, head["before"]))


def _letters_of(head: Head) -> dict[str, str]:
    return {str(site): str(letter) for site, letter in head["letters"].items()}


def _shares_of(wanted: Collection[str], head: Head) -> dict[str, bytes]:
    return {site: bytes.fromhex(head["shares"][site]) for site in wanted}


def _joined(shares: Sequence[bytes]) -> bytes:
    try:
        return primitives.joined(shares)
    except ValueError as error:
        raise RunError("a site gave a wrong share") from error


def _length(asks: Asked) -> int:
    """How many numbers an update has."""
    sent: Tensors = next(ask.train.sent for its in asks.values() for ask in its if ask.train)
    return sum(sent[name].numel() for name in floating(sent))


def _vector(reply: bytes, length: int) -> Vector | None:
    """The masked vector in a reply, if there is one of the right length."""
    try:
        found = (decode_beside(reply) or {}).get(MASKED)
    except Exception:  # a broken or hostile reply can be wrong in any way at all
        return None
    if found is None or found.dtype != torch.int32 or found.shape != (length,):
        return None
    numbers = found.numpy().astype(np.int64) % MODULUS
    return [numbers[:1], numbers[1:]]
