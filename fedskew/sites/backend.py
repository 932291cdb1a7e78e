"""The server's side: who is there, what is agreed with them, and one message a site and round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from fedskew.config import Config
from fedskew.data.build import chosen_unseen
from fedskew.data.tables.telling import columns_told
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
from fedskew.rng import keyed_rng
from fedskew.runs.experiment import Tell
from fedskew.runs.identity import hash_of
from fedskew.sites.held import common_classes, common_scale, encoder_in
from fedskew.sites.learned import as_plain, problem_of_sites
from fedskew.sites.secure.numbers import check_room
from fedskew.sites.secure.recipes import sends_models, weight_of
from fedskew.sites.secure.sums import Make, SecureSum
from fedskew.sites.study import check_alike, nobody, roster_of_sites, sites_of_clients


class Link(Protocol):
    """Carries messages to sites and brings their replies; who does not answer is left out."""

    def sites(self) -> Sequence[str]: ...

    def exchange(self, messages: Mapping[str, bytes]) -> Mapping[str, bytes | str]:
        """By site its reply, or a sentence why there is none."""
        ...


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
        told = self._all(
            {
                site: encode_head({"op": "hello", "config": config.resolved()})
                for site in link.sites()
            }
        )
        if not told:
            raise RunError("no site is connected.")
        check_alike(told, tell)
        self._site_of = sites_of_clients(told)
        names = sorted(self._site_of)
        unseen = chosen_unseen(
            names, config.federation.unseen, keyed_rng(config.split_seed, "unseen")
        )
        seen = [name for name in names if name not in unseen]
        data = {client: sha for each in told.values() for client, sha in each["data"].items()}
        moments = {c: m for each in told.values() for c, m in each["moments"].items()}
        columns = {c: m for each in told.values() for c, m in each["columns"].items()}
        targets = {c: m for each in told.values() for c, m in each["targets"].items() if c in seen}
        class_names = common_classes([each["class_names"] for each in told.values()])
        section = config.federation
        problem = problem_of_sites(section, told, class_names, targets)
        if tell is not None:
            tell(problem.said)
        scaled, given = section.normalise == "standard", list(section.columns or ())
        agreement = {
            "config": config.resolved(),
            "class_names": class_names,
            "problem": as_plain(problem),
            **common_scale(moments, columns, seen, scaled, given),
            "seen": seen,
            "data": data,
        }
        encoder = encoder_in(agreement)
        if encoder is not None and tell is not None:
            tell(columns_told(encoder, section.normalise == "client"))
        self.data = hash_of(data)
        """The fingerprint of everybody's data."""
        settings = config.resolved()
        del settings["train"]["rounds"]
        self._study = hash_of([settings, class_names, seen, data])[:16]
        # A site is told of the others' data no more than that they are there.
        self._agreements = {
            site: {**agreement, "data": each["data"]} for site, each in told.items()
        }
        agreed = self._all(
            {
                site: encode_head({"op": "agree", "study": self._study, "agreement": its})
                for site, its in self._agreements.items()
            }
        )
        self.roster = roster_of_sites(agreement, told, agreed)
        if config.secure is not None:
            check_room(config.train.clients_per_round or len(seen), config.secure)
        self._config = config
        self._stage: dict[str, Any] = {}
        self._home: LocalBackend | None = None

    def _all(self, messages: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
        """The heads of everybody's replies; all refusals are told at once.

        A site that was lost meanwhile is waited for, and asked once more.
        """
        replies = dict(self._link.exchange(messages))
        lost = {site for site, reply in replies.items() if isinstance(reply, str)}
        if lost and (back := lost & set(self._link.sites())):
            replies |= self._link.exchange({site: messages[site] for site in back})
        heads, wrong = {}, []
        for site, reply in replies.items():
            head = {"error": reply} if isinstance(reply, str) else head_of(reply)
            if head.get("error"):
                wrong.append(f"{site}: {head['error']}")
            heads[site] = head
        if wrong:
            raise RunError("; ".join(wrong).rstrip(".") + ".")
        return heads

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
