"""A site's part in secure sums: what it tells, and what it refuses to tell.

The stages and their order are those of Flower's ``secaggplus_mod``, which answers messages to a
``ClientApp`` only. A round is a session with new keys; they are never written down.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskew.config import SecureSection
from fedskew.errors import RunError
from fedskew.federate.plan import Plan
from fedskew.federate.tasks import Answer, Ask, TrainTask
from fedskew.parts.aggregate import Update
from fedskew.sites.secure import primitives
from fedskew.sites.secure.numbers import coded, flat, floating, needed
from fedskew.sites.secure.primitives import Vector, added, agreed_key
from fedskew.sites.secure.recipes import sends_models, weight_of
from fedskew.store import read_table, write_json
from fedskew.types import Tensors

Head = Mapping[str, Any]
MASKED = "masked"
PROTOCOL = ("keys", "shares", "unmask")
"""The protocol's own messages; masked vectors come with a round's answers."""


@dataclass
class _Session:
    """One sum: this site's keys, and what it holds of the others' secrets."""

    name: str
    key: tuple[bytes, bytes] = field(default_factory=primitives.key_pair)
    """Makes the masks that cancel in pairs."""
    letter_key: tuple[bytes, bytes] = field(default_factory=primitives.key_pair)
    """Makes the keys of what sites send each other through the server."""
    seed: bytes = field(default_factory=lambda: os.urandom(primitives.SEED_BYTES))
    """Makes this site's own mask."""
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seed_shares: dict[str, bytes] = field(default_factory=dict)
    key_shares: dict[str, bytes] = field(default_factory=dict)
    asked: str = ""
    round: str = ""

    @property
    def sites(self) -> list[str]:
        return sorted(self.keys)


class Party:
    """Takes part in one study's sums; ``done`` is the file that tells what this site summed."""

    def __init__(
        self, site: str, min_sites: int, section: SecureSection, study: str, done: Path
    ) -> None:
        self._site, self._min_sites, self._section = site, min_sites, section
        self._study, self._done = study, done
        self._session: _Session | None = None

    def answer(self, op: str, head: Head) -> dict[str, Any]:
        """The reply to one of the protocol's own messages."""
        if op == "keys":
            self._session = _Session(str(head["session"]))
            public = [self._session.key[1], self._session.letter_key[1]]
            before = self._summed().get(f"{self._study} {head['round']}", {})
            return {"keys": [key.decode() for key in public], "before": before.get("sites", [])}
        return self._shares(head) if op == "shares" else self._unmask(head)

    def _shares(self, head: Head) -> dict[str, Any]:
        """Shares of this site's two secrets for every other, sealed."""
        session, keys = self._open(head), head["keys"]
        if session.keys:
            raise RunError("this site has shared its secrets already.")
        both = [session.key[1].decode(), session.letter_key[1].decode()]
        if list(keys.get(self._site, ())) != both:
            raise RunError("the server tells other keys of this site than its own.")
        if len({key for pair in keys.values() for key in pair}) < 2 * len(keys):
            raise RunError("two sites have the same keys.")
        self._check_enough(keys)
        session.keys = keys
        threshold = needed(len(keys), self._section)
        seeds = primitives.split(session.seed, threshold, len(keys))
        private = primitives.split(session.key[0], threshold, len(keys))
        letters = {}
        me = session.sites.index(self._site)
        for place, site in enumerate(session.sites):
            if site == self._site:
                session.seed_shares[site], session.key_shares[site] = seeds[place], private[place]
                continue
            key = agreed_key(session.letter_key[0], keys[site][1].encode())
            letters[site] = primitives.sealed(key, me, place, seeds[place], private[place])
        return {"letters": letters}

    def _check_enough(self, sites: Sequence[str] | Mapping[str, Any], least: int = 0) -> None:
        least = max(self._min_sites, least)
        if len(sites) < least:
            raise RunError(
                f"site {self._site!r} takes part in sums of {least} sites at least, and this "
                f"would be of {len(sites)} (min_sites in site.toml)."
            )

    def covered(
        self, told: Head | None, plan: Plan, asks: Sequence[Ask], answers: Sequence[Answer]
    ) -> tuple[list[Answer], Tensors | None]:
        """The answers without any update, and the masked sum of all updates."""
        asked = {ask.client: ask for ask in asks}
        found = {answer.client: answer for answer in answers}
        vectors = []
        for client, answer in found.items():
            if answer.update is None:
                continue
            hides = asked[client].train is not None and sends_models(plan.recipe)
            found[client] = replace(answer, update=None if hides else answer.update, loss=math.nan)
            try:
                if answer.update.reports or (answer.update.tensors and not hides):
                    raise RunError("a sum has no room for what a client sends beside its model.")
                if hides:
                    vectors.append(self._coded(told, plan, asked[client], answer.update))
            except RunError as error:
                found[client] = _failed(answer, error)
        masked = None
        if vectors and told is not None:
            try:
                masked = {MASKED: self._masked(told, vectors, plan, asks)}
            except RunError as error:
                found = {c: _failed(a, error) if asked[c].train else a for c, a in found.items()}
        return list(found.values()), masked

    def _coded(self, told: Head | None, plan: Plan, ask: Ask, update: Update) -> Vector:
        """A client's weight, and its change as whole numbers."""
        if told is None or ask.train is None:
            raise RunError("in this study updates leave a site only in sums.")
        weight = weight_of(plan.recipe, update.size)
        if weight is None:
            raise RunError("a client's weight does not follow from its number of samples.")
        names = floating(update.tensors)
        change = flat(update.tensors, names) - flat(ask.train.sent, names)
        numbers = coded(change, weight, int(told["most"]), self._section)
        return primitives.weighted(weight, numbers)

    def _masked(
        self, told: Head, vectors: Sequence[Vector], plan: Plan, asks: Sequence[Ask]
    ) -> torch.Tensor:
        """The sum under this site's own mask, and one for every other site that takes part."""
        session = self._open(told)
        if session.asked:
            raise RunError("this site has sent its masked vector already.")
        tasks = [ask.train for ask in asks if ask.train is not None]
        about, *others = {digest_of(task) for task in tasks}
        if others:
            raise RunError("the clients of a sum all train alike.")
        since = sorted((ask.client, ask.since) for ask in asks if ask.train is not None)
        session.asked = hashlib.sha256(about + json.dumps(since).encode()).hexdigest()
        session.round = plan.label(tasks[0].round)
        vector = reduce(added, vectors)
        letters = {site: letter for site, letter in told["letters"].items() if site != self._site}
        self._check_enough([self._site, *letters], needed(len(session.keys), self._section))
        me = session.sites.index(self._site)
        vector = added(vector, primitives.mask(primitives.seed_key(session.seed), vector))
        for site, letter in letters.items():
            key = agreed_key(session.letter_key[0], session.keys[site][1].encode())
            source, target, seed_share, key_share = primitives.opened(key, letter)
            if (source, target) != (session.sites.index(site), me):
                raise RunError(f"a letter from {site!r} is another's, or for another.")
            session.seed_shares[site], session.key_shares[site] = seed_share, key_share
            key = primitives.pair_key(session.key[0], session.keys[site][0].encode(), about)
            vector = added(vector, primitives.mask(key, vector), 1 if self._site > site else -1)
        return torch.from_numpy(np.concatenate(vector).astype(np.uint32).view(np.int32))

    def _unmask(self, head: Head) -> dict[str, Any]:
        """For every site one share: of its own mask's seed if it came through, else of its key.

        Both would lay its update open, so a session answers this once.
        """
        session = self._open(head)
        active, gone = set(head["active"]), set(head["gone"])
        self._session = None
        if active & gone or active | gone != session.seed_shares.keys():
            raise RunError("the server asks for other sites' secrets than those of the sum.")
        if self._site not in active or not session.asked:
            raise RunError("the server asks for this site's own key.")
        self._check_enough(list(active), needed(len(session.keys), self._section))
        self._remember(session, active)
        shares = {site: session.seed_shares[site].hex() for site in active}
        return {"shares": shares | {site: session.key_shares[site].hex() for site in gone}}

    def _remember(self, session: _Session, active: set[str]) -> None:
        """Refuse a second sum of a round that is not the first one again.

        The difference of two sums is what the sites sent that are in one of them only. Two studies
        with one seed begin with the same model, so what was asked counts whoever asks it.
        """
        summed = self._summed()
        now = {"asked": session.asked, "sites": sorted(active)}
        for key in (f"{self._study} {session.round}", session.asked):
            before = summed.setdefault(key, now)
            if before != now:
                sites = ", ".join(before["sites"])
                raise RunError(
                    f"site {self._site!r} helped to unmask {session.round} for {sites}: it does "
                    "so again only for the same sites and models (or for another seed)."
                )
        self._done.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._done, summed)

    def _summed(self) -> dict[str, Any]:
        """By round, and by what had been asked, with whom the sum was unmasked."""
        return dict(read_table(self._done)) if self._done.is_file() else {}

    def _open(self, head: Head) -> _Session:
        if self._session is None or self._session.name != head["session"]:
            raise RunError("this site has no such session: its worker was restarted, or it ended.")
        return self._session


def _failed(answer: Answer, error: RunError) -> Answer:
    return Answer(answer.client, answer.scored, error=str(error).rstrip("."))


def digest_of(task: TrainTask) -> bytes:
    """Of all that the server decides about a round's training, for whichever client."""
    groups = {"": task.sent, **task.broadcast}
    said = [task.round, task.lr_factor, [[name, sorted(groups[name])] for name in groups]]
    found = hashlib.sha256(json.dumps(said).encode())
    for tensors in groups.values():
        for name in sorted(tensors):
            found.update(tensors[name].contiguous().numpy().tobytes())
    return found.digest()
