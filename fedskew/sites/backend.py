"""The server's side: who is there, what is agreed with them, and one message a site and round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from fedskew.config import Config
from fedskew.errors import ConfigError, RunError
from fedskew.federate.backends.local import LocalBackend
from fedskew.federate.backends.wire import (
    decode_answers,
    digest_of,
    encode_asks,
    encode_head,
    head_of,
)
from fedskew.federate.metrics import Measured
from fedskew.federate.plan import Plan
from fedskew.federate.roster import POOLED
from fedskew.federate.tasks import Answer, Ask, TogetherTask
from fedskew.runs.experiment import Tell
from fedskew.runs.identity import hash_of
from fedskew.sites.meeting import Link, heads_of_all, meet
from fedskew.sites.secure.numbers import check_room
from fedskew.sites.secure.recipes import sends_models, weight_of
from fedskew.sites.secure.sums import Make, SecureSum
from fedskew.sites.study import nobody, roster_of_sites


class SitesBackend:
    """Clients at real sites.

    ``config`` is resolved. Sites are asked who is there and agree on classes, scale and who takes
    part in training; from then on every site gets one message a round, with what all its clients
    are asked. A site that was restarted is told again what was agreed.
    """

    pools = False
    apart = True
    rides = True

    def __init__(self, config: Config, link: Link, tell: Tell | None = None) -> None:
        self._link = link
        meeting = meet(config, link, tell)
        self._site_of = meeting.site_of
        self.data = hash_of(meeting.data)
        """The fingerprint of everybody's data."""
        settings = config.resolved()
        del settings["train"]["rounds"]
        class_names, seen = meeting.common["class_names"], meeting.seen
        self._study = hash_of([settings, class_names, seen, meeting.data])[:16]
        self._agreements = {site: meeting.agreement(site) for site in meeting.told}
        agreed = heads_of_all(
            link,
            {
                site: encode_head({"op": "agree", "study": self._study, "agreement": its})
                for site, its in self._agreements.items()
            },
        )
        self.roster = roster_of_sites(meeting.common, meeting.told, agreed)
        if config.secure is not None:
            check_room(config.train.clients_per_round or len(seen), config.secure)
        self._config = config
        self._stage: dict[str, Any] = {}
        self._home: LocalBackend | None = None

    def begin(self, plan: Plan, made_up: Tensor | None = None) -> None:
        assert plan.model is not None
        self._recipe = plan.recipe
        self._stage = {"name": plan.stage, "model": plan.model.model_dump(mode="json")}
        self._home = None
        if made_up is not None:
            # What the server makes up, it trains on itself.
            alone = nobody(self.roster)
            self._home = LocalBackend(alone)
            self._home.begin(plan, made_up)

    def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
        by_site: dict[str, list[Ask]] = {}
        for ask in asks:
            if ask.client != POOLED:
                by_site.setdefault(self._site_of[ask.client], []).append(ask)
        found = self._summed(by_site) if self._hides(asks) else self._answers(by_site)
        at_home = [ask for ask in asks if ask.client == POOLED]
        if at_home:
            assert self._home is not None
            found |= {answer.client: answer for answer in self._home.exchange(at_home)}
        return [found[ask.client] for ask in asks]

    def _answers(self, by_site: Mapping[str, Sequence[Ask]]) -> dict[str, Answer]:
        replies = self._send({site: partial(encode_asks, its) for site, its in by_site.items()})
        found: dict[str, Answer] = {}
        for site, its in by_site.items():
            found |= self._read(site, its, replies.get(site, "it did not answer"))
        return found

    def _send(self, made: Mapping[str, Make]) -> dict[str, bytes | str]:
        """Messages, each made from what all say; a site that was restarted is told all again."""
        about = {"op": "exchange", "study": self._study, "stage": self._stage}
        messages = {site: make(about) for site, make in made.items()}
        replies = dict(self._link.exchange(messages))
        again = {
            site: made[site]({**about, "agreement": self._agreements[site]})
            for site, reply in replies.items()
            if _is_unknown(reply)
        }
        if again:
            messages |= again
            replies |= self._link.exchange(again)
        self._said = {site: digest_of(message) for site, message in messages.items()}
        return replies

    def _read(self, site: str, asks: Sequence[Ask], reply: bytes | str) -> dict[str, Answer]:
        return _answers_of(site, asks, reply, self._study, self._said.get(site, ""))

    def _hides(self, asks: Sequence[Ask]) -> bool:
        return (
            self._config.secure is not None
            and sends_models(self._recipe)
            and any(ask.train is not None for ask in asks)
        )

    def _summed(self, by_site: Mapping[str, Sequence[Ask]]) -> dict[str, Answer]:
        """Answers to a round whose updates the server sees the sum of, and no more."""
        assert self._config.secure is not None
        weights = {
            member.name: weight_of(self._recipe, member.sizes["train"]) or 0
            for member in self.roster.seen
        }
        one = SecureSum(self._config.secure, weights.__getitem__, self._send, self._read)
        return one.answers(by_site)

    def together(self, task: TogetherTask) -> list[Measured]:
        raise ConfigError("clients keep their data to themselves: nothing is measured together.")


def _is_unknown(reply: bytes | str) -> bool:
    """Whether a site was restarted, and has to be told again what was agreed."""
    try:
        return not isinstance(reply, str) and bool(head_of(reply).get("unknown"))
    except RunError:
        return False


def _answers_of(
    site: str, asks: Sequence[Ask], reply: bytes | str, study: str, digest: str
) -> dict[str, Answer]:
    """A site's answers by client; whatever is wrong with its reply is each client's error."""
    wrong = reply if isinstance(reply, str) else ""
    answers: dict[str, Answer] = {}
    if not isinstance(reply, str):
        try:
            head = head_of(reply)
            wrong = str(head.get("error", ""))
            if not wrong and head.get("study") != study:
                wrong = "it answered for another experiment"
            if not wrong and head.get("re") != digest:
                wrong = "it answered what it was asked before"
            if not wrong:
                answers = {answer.client: answer for answer in decode_answers(reply)}
        except Exception as error:  # a broken or hostile reply can be wrong in any way at all
            wrong = f"its reply cannot be read ({type(error).__name__})"
    return {
        ask.client: answers.get(
            ask.client, Answer(ask.client, error=f"site {site}: {wrong or 'no answer for it'}")
        )
        for ask in asks
    }
