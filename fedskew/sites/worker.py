"""The side where the data are: messages in, messages out; it runs no code that it is sent."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedskew.config import Config, Named, config_of
from fedskew.data.federation import Federation
from fedskew.engine.arithmetic import arithmetic, one_order
from fedskew.errors import DataError, FedskewError, RunError
from fedskew.federate.backends.local import LocalBackend
from fedskew.federate.backends.wire import (
    decode_asks,
    digest_of,
    encode_answers,
    encode_head,
    head_of,
)
from fedskew.federate.holdings import roster_of
from fedskew.federate.metrics import MAIN
from fedskew.federate.own_models import own_models
from fedskew.federate.planning import plan_with
from fedskew.federate.private import pack_file
from fedskew.federate.recipe import Stage
from fedskew.federate.tasks import Answer, Ask
from fedskew.methods import find
from fedskew.runs.identity import hash_of
from fedskew.runs.inputs import profile_of_federation
from fedskew.runs.preparation import SamplePreparation
from fedskew.sites import describing
from fedskew.sites.audit import check_allowed, fields_of, needed_by, note
from fedskew.sites.held import Held, read, stamp
from fedskew.sites.secure.party import PROTOCOL, Party
from fedskew.sites.serving import keep_for_use, preparation_at
from fedskew.sites.site import Site
from fedskew.sites.versions import versions
from fedskew.store import load_tensors, make_folder

Head = dict[str, Any]
MOST = 4
"""So many studies stay in memory."""
LABEL = re.compile(r"[a-z0-9][a-z0-9-]{0,80}")
"""What becomes part of a file's name at a site."""


@dataclass
class _Study:
    """One experiment at this site: its settings, data, and what was agreed."""

    config: Config
    federation: Federation
    backend: LocalBackend
    fingerprints: Mapping[str, str]
    stamp: tuple[Any, ...]
    preparation: SamplePreparation
    party: Party | None
    """Where updates leave in sums only, this site's part in them."""
    stage: str = ""
    model: Named = field(default_factory=lambda: Named(name=""))
    needed: dict[str, set[str]] = field(default_factory=dict)
    """By client, the labels of states that may be begun from again."""


class Worker:
    """Answers what a server asks of a site, and stays alive between rounds.

    It keeps data, models and traced steps in memory. What it must not forget lies in the site's
    folder, so a worker that was restarted goes on: it asks to be told again what was agreed.
    """

    def __init__(self, site: Site, tell: Callable[[str], None] | None = None) -> None:
        self.site = site
        self._tell = tell or (lambda sentence: None)
        self._studies: dict[str, _Study] = {}

    def handle(self, message: bytes) -> bytes:
        """The reply to a message; a refusal is a reply, too. What leaves is written down first."""
        head: Head = {}
        begun = time.monotonic()
        try:
            head = head_of(message)
            reply = self._reply(head, message)
            seconds = round(time.monotonic() - begun, 4)
            note(self.site.folder, reply, {**_about(head), "seconds": seconds})
        except DataError as error:
            # Its words may repeat what stands in the data.
            return self._refusal(head, "its data cannot be used (its log says why)", str(error))
        except FedskewError as error:
            return self._refusal(head, str(error).rstrip("."), str(error))
        except Exception as error:  # whatever it is, the server has to hear of it
            kind = type(error).__name__
            said = f"{kind} ({error.strerror})" if isinstance(error, OSError) else kind
            return self._refusal(head, f"{said} (its log says more)", f"{kind}: {error}")
        return reply

    def _reply(self, head: Head, message: bytes) -> bytes:
        op = head.get("op")
        if op == "who":
            return encode_head({"site": self.site.name, **self._who()})
        if op == "hello":
            told = self._hello(head)
        elif op == "agree":
            told = self._agree(head)
        elif op == "exchange" or op in PROTOCOL:
            return self._exchange(head, message)
        elif op in describing.OPS:
            return describing.answer(self.site, head)
        else:
            raise RunError(f"a message asks for {op!r:.60}, which this version does not know")
        reply = encode_head({"site": self.site.name, **told})
        check_allowed(self.site.name, self.site.settings.allow, fields_of(reply))
        return reply

    def _refusal(self, head: Head, said: str, why: str) -> bytes:
        self._tell(f"refused {head.get('op', 'a message')}: {why}")
        # Where things lie on this machine is nobody's business.
        said = said.replace(str(self.site.folder), "its folder")
        return encode_head({"site": self.site.name, "error": said})

    def _who(self) -> Head:
        """What anybody with a place at the server may know of this site."""
        allow = list(self.site.settings.allow)
        try:
            return {**versions(), "allow": allow, "rows": self.site.rows()}
        except DataError as error:
            self._tell(f"the data cannot be read: {error}")
            return {**versions(), "allow": allow, "rows": {}}

    def _hello(self, head: Head) -> Head:
        """Who is here: clients, sizes, classes, and what scales everybody's samples."""
        config = config_of(head["config"])
        held = read(self.site, config)
        needed, why = _needed(head, config)
        check_allowed(self.site.name, self.site.settings.allow, needed, why)
        federation = held.federation
        counted = head.get("epsilon") is not None
        of_rows = describing.of_no_row(self.site.name, held) if counted else self._of_rows(held)
        return {
            **versions(),
            "arithmetic": arithmetic(),
            "sample_shape": list(federation.sample_shape),
            "vocabulary": federation.vocabulary,
            "class_names": list(federation.class_names),
            "learns": federation.problem.kind,
            **of_rows,
        }

    def _of_rows(self, held: Held) -> Head:
        return {
            "data": held.fingerprints(),
            "moments": held.moments(),
            "targets": held.targets(),
            "columns": held.columns(self.site.settings.allow),
        }

    def _agree(self, head: Head) -> Head:
        """Take up a study, and tell what a server may know of the clients."""
        study = self._take_up(head["study"], head["agreement"])
        roster = roster_of(study.federation)
        members = [asdict(member) for member in roster.members]
        if "counts" not in self.site.settings.allow:
            members = [{**member, "classes": ()} for member in members]
        return {
            "members": members,
            "low": roster.low,
            "high": roster.high,
            "environments_by": roster.environments_by,
        }

    def _take_up(self, name: str, agreement: Head) -> _Study:
        if not LABEL.fullmatch(name):
            raise RunError(f"a study cannot be called {name!r:.60}.")
        config = config_of(agreement["config"])
        before = stamp(self.site.data)
        held = read(self.site, config)
        held.check_unchanged(agreement["data"], self.site.name)
        federation = held.agreed(agreement, config.train.batch_size)
        seen = set(agreement["seen"])
        self._forget_others(name)
        backend = LocalBackend(
            federation,
            folder=make_folder(self.site.state_of(name)),
            results=make_folder(self.site.results_of(name)),
        )
        members = tuple(replace(m, seen=m.name in seen) for m in backend.roster.members)
        backend.roster = replace(backend.roster, members=members)
        rules = self.site.settings
        party = None
        if config.secure is not None:
            party = Party(rules.name, rules.min_sites, config.secure, name, self.site.sums)
        self._studies[name] = _Study(
            config, federation, backend, dict(agreement["data"]), before,
            preparation_at(held, agreement, federation), party,
        )  # fmt: skip
        return self._studies[name]

    def _forget_others(self, name: str) -> None:
        """Keep few studies in memory; what they must not forget is on disk."""
        for other in [each for each in self._studies if each != name][: -MOST + 1 or None]:
            del self._studies[other]

    def _exchange(self, head: Head, message: bytes) -> bytes:
        name = str(head.get("study"))
        if "agreement" in head:
            study = self._take_up(name, head["agreement"])
        elif name in self._studies:
            study = self._studies[name]
        else:
            return encode_head({"site": self.site.name, "unknown": True})
        if (now := stamp(self.site.data)) != study.stamp:
            read(self.site, study.config).check_unchanged(study.fingerprints, self.site.name)
            study.stamp = now
        if head["stage"]["name"] != study.stage:
            self._begin(study, head["stage"])
        if (op := str(head["op"])) in PROTOCOL:
            check_allowed(self.site.name, self.site.settings.allow, ["sums"])
            if study.party is None:
                raise RunError("in this study updates leave one by one, and in no sums.")
            return encode_head({"site": self.site.name, **study.party.answer(op, head)})
        asks = decode_asks(message)
        for ask in asks:
            _check_ask(ask, study)
        with one_order():
            answers = study.backend.exchange(asks)
        masked = None
        if study.party is not None:
            plan = study.backend.holdings.plan
            answers, masked = study.party.covered(head.get("sum"), plan, asks, answers)
        self._keep_for_use(name, study, asks)
        self._sweep(name, study, asks)
        about = {"site": self.site.name, "study": name, "re": digest_of(message)}
        reply = encode_answers(answers, about, masked)
        if fields_of(reply).keys() <= set(self.site.settings.allow):
            return reply
        checked = [self._checked(answer, about) for answer in answers]
        return encode_answers(checked, about, masked)

    def _begin(self, study: _Study, told: Head) -> None:
        """Make the plan of a stage as the server made it, with the model that it chose."""
        config, federation = study.config, study.federation
        recipe = find(config.method.name).recipe(**config.method.knobs)
        stages = {stage.name: stage for stage in (*recipe.prepares, Stage(MAIN, recipe))}
        if told["name"] not in stages:
            raise RunError(f"method {config.method.name!r} has no stage {told['name']!r:.60}.")
        plan = plan_with(
            config, Named(**told["model"]), federation.sample_shape, federation.outputs,
            federation.problem, stages[told["name"]],
        )  # fmt: skip
        study.backend.begin(plan)
        study.stage, study.model = told["name"], Named(**told["model"])

    def _checked(self, answer: Answer, about: Head) -> Answer:
        """The answer, or a refusal if its bytes hold what may not leave."""
        try:
            left = fields_of(encode_answers([answer], about))
            check_allowed(self.site.name, self.site.settings.allow, left)
        except RunError as error:
            return Answer(answer.client, error=str(error))
        return answer

    def _keep_for_use(self, name: str, study: _Study, asks: Sequence[Ask]) -> None:
        """Make the models of the selected round ready to be used here."""
        results = self.site.results_of(name)
        config, federation = study.config, study.federation
        for ask in asks:
            if ask.save is None or ask.save.name != "selected":
                continue
            about = {
                "run": name,
                "config": hash_of(config.resolved())[:12],
                "data": study.fingerprints[ask.client],
                "round": ask.save.round,
                "method": {"name": config.method.name, "knobs": config.method.knobs},
                "model": {"name": study.model.name, "knobs": study.model.knobs},
                "sample_shape": list(federation.sample_shape),
                "classes": federation.outputs,
            }
            model = load_tensors(own_models(results / "models" / ask.save.name)[ask.client])
            keep_for_use(
                results, sorted(federation.by_name), ask.client, model, study.preparation, about,
                profile_of_federation(federation),
            )  # fmt: skip

    def _sweep(self, name: str, study: _Study, asks: Sequence[Ask]) -> None:
        """Remove private states that nobody can begin from again."""
        for ask in asks:
            study.needed[ask.client] = {ask.since, ask.until, *ask.keep} - {""}
        if study.needed.keys() < study.federation.by_name.keys():
            return  # of clients that were not asked yet it is not known what they need
        needed = {pack_file(label) for labels in study.needed.values() for label in labels}
        for file in self.site.state_of(name).glob(pack_file("*")):
            if file.name not in needed:
                file.unlink(missing_ok=True)


def _needed(head: Head, config: Config) -> tuple[dict[str, str], str]:
    """What has to leave for what a server says hello for, and the reason."""
    if head.get("for") == describing.DIAGNOSIS:
        return describing.NEEDED, describing.WHY
    recipe = find(config.method.name).recipe(**config.method.knobs)
    needed = needed_by((*recipe.prepares, Stage(MAIN, recipe)))
    if config.secure is not None and "parameters" in needed:
        needed["sums"] = needed.pop("parameters")
    return needed, f", which method {config.method.name!r} needs"


def _about(head: Head) -> Head:
    """What a message was about, for the audit."""
    asks = head.get("asks", ())
    clients = [ask["client"] for ask in asks] or head.get("clients", ())
    return {
        "op": str(head.get("op", ""))[:20],
        "study": str(head.get("study", ""))[:80],
        "stage": str(head.get("stage", {}).get("name", ""))[:80],
        "round": max((_round_of(ask) for ask in asks), default=0),
        "clients": [str(name)[:200] for name in clients],
        **describing.about(head),
    }


def _round_of(ask: Head) -> int:
    tasks = [ask.get("train"), ask.get("describe"), *ask.get("scores", ())]
    return max((int(task["round"]) for task in tasks if task), default=0)


def _check_ask(ask: Ask, study: _Study) -> None:
    """Refuse clients that are not here, and names that are no names."""
    if ask.client not in study.federation.by_name:
        raise RunError(f"there is no client {ask.client!r:.60} here.")
    labels = [ask.since, ask.until, *ask.keep, *([ask.save.name] if ask.save else [])]
    for label in labels:
        if label and not LABEL.fullmatch(label):
            raise RunError(f"{label!r:.60} is no name of a state or model.")
