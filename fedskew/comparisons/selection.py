"""Which round's model counts: the named rules of model selection, and the extra runs one needs.

What is wanted of a model is its score out of domain: on clients nobody trained with or, where
there are none, on the central test set. Only ``oracle`` looks at that score to choose a round.
Which of two rounds is better is what :class:`Choice` says, for every rule as for the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedskew.config import Config
from fedskew.data.federation import Federation
from fedskew.errors import ConfigError
from fedskew.federate.metrics import CENTRAL, MAIN
from fedskew.federate.rounds import LOSS, Choice, Score
from fedskew.rng import keyed_rng
from fedskew.runs.experiment import Run
from fedskew.runs.given import GIVEN
from fedskew.runs.rows import Rows

RULES = ("last", "validation", "environment", "left-out", "oracle")
MEANING = {
    "last": "the last round",
    "validation": "the round with the best mean score on the training clients' validation data",
    "environment": "the round with the best mean score on an environment held out of training at "
    "every client",
    "left-out": "the round with the best mean score on the validation data of a client left out "
    "of training, over runs that leave one out each",
    "oracle": "the round with the best score out of domain itself: it peeks at the test data, so "
    "it is no way to choose a model, only a bound on what choosing could gain",
}
Curve = Mapping[int, Score]
"""What was scored by round, of the rounds that were."""
Count = int | Literal["all"]


@dataclass(frozen=True)
class Curves:
    """What the rules look at, and the test scores of the training clients (``in_domain``)."""

    validation: Curve
    ood: Curve
    left_out: Curve = field(default_factory=dict)
    higher_is_better: bool = True
    in_domain: Mapping[int, float] = field(default_factory=dict)
    environment: Curve = field(default_factory=dict)

    def with_left_out(self, curves: Sequence[Curve]) -> Curves:
        """The same beside the curves of runs that leave one client out each."""
        found = [curve for curve in curves if curve]
        return replace(self, left_out=_mean_curve(found, self.ood))


@dataclass(frozen=True)
class Members:
    """The names of a federation's clients."""

    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    validated: tuple[str, ...]
    """Those seen clients that have validation data."""

    @classmethod
    def of(cls, federation: Federation) -> Members:
        return cls(
            tuple(c.name for c in federation.clients),
            tuple(c.name for c in federation.unseen),
            tuple(c.name for c in federation.clients if len(c.validation)),
        )

    @classmethod
    def found_in(cls, rows: Rows) -> Members:
        """Those a run scored."""

        def named(on: str, split: str | None = None) -> tuple[str, ...]:
            found = rows.where(stage=MAIN, on=on, split=split).names("client")
            return tuple(name for name in found if name != CENTRAL)

        return cls(named("seen"), named("unseen"), named("seen", "validation"))

    @property
    def silent(self) -> tuple[str, ...]:
        """Clients without validation data, which cannot be scored when they are left out."""
        return tuple(name for name in self.seen if name not in self.validated)


def chosen(rule: str, curves: Curves) -> int | None:
    """The round a rule picks; None where it has nothing to go by.

    >>> scores = {1: Score(0.4), 2: Score(0.6, loss=0.8), 3: Score(0.6, loss=0.9)}
    >>> chosen("validation", Curves(scores, ood={}))
    2
    """
    if rule == "last":
        return max(curves.ood, default=None)
    looked_at = {
        "validation": curves.validation, "environment": curves.environment,
        "left-out": curves.left_out, "oracle": curves.ood,
    }[rule]  # fmt: skip
    choice = Choice()
    for number in sorted(looked_at):
        choice = choice.see(number, looked_at[number], curves.higher_is_better)
    return choice.round or None


def curves_of(run: Run, folds: Sequence[Run] = ()) -> Curves:
    """What a finished run scored round by round; ``folds`` are its runs without one client each."""
    result = run.result
    model, metric = str(result["primary_model"]), str(result["primary_metric"])
    trained = run.results.as_trained
    mine = trained.where(model=model)
    central = trained.where(model="global", on="central", split="test", client=CENTRAL)
    ood = _curve(mine.where(on="unseen", split="test"), metric) or _curve(central, metric)
    own = Curves(
        validation=_curve(mine.where(on="seen", split="validation"), metric),
        ood=ood,
        higher_is_better=bool(result["higher_is_better"]),
        in_domain=mine.where(on="seen", split="test", metric=metric).curve(),
        environment=_curve(mine.where(on="seen", split="environment"), metric),
    )
    return own.with_left_out([left_out_curve(fold) for fold in folds])


def left_out_curve(fold: Run) -> Curve:
    """What the models of a run made by :func:`folds` scored on the client it leaves out."""
    rows = fold.results.as_trained.where(
        model=fold.result["primary_model"], on="unseen", split="validation",
        client=left_out_of(fold.config),
    )  # fmt: skip
    return _curve(rows, fold.result["primary_metric"])


def folds(config: Config, members: Federation | Members, count: Count) -> list[Config]:
    """A run again without one of its clients, for ``count`` of them or "all" that have validation.

    Everybody else holds what they held. Who is left out depends on the seed of the split alone,
    so that all methods leave the same clients out, and more folds only add to fewer.
    """
    if isinstance(members, Federation):
        members = Members.of(members)
    if config.federation.dataset == GIVEN:
        raise ConfigError(
            "clients cannot be left out of a federation that was handed over: leave leave-out at 0."
        )
    if ":" in config.federation.dataset:
        raise ConfigError(
            f"clients cannot be left out of {config.federation.dataset!r}, whose function decides "
            "who takes part: leave leave-out at 0."
        )
    able = sorted(members.validated)
    if count == 0:
        return []
    if len(members.seen) < 2:
        raise ConfigError("leave-out needs at least two training clients, but there is only one.")
    if not able:
        raise ConfigError(
            "leave-out needs validation data at the clients: set federation.validation above 0."
        )
    if count != "all" and not 0 < count <= len(able):
        raise ConfigError(
            f"leave-out must be 'all' or a number from 0 to {len(able)}, the training clients with "
            f"validation data, not {count}."
        )
    order = keyed_rng(config.split_seed, "left-out").permutation(able).tolist()
    return [_without(config, members, name) for name in order[: None if count == "all" else count]]


def left_out_of(fold: Config) -> str:
    """The client that a run made by :func:`folds` leaves out."""
    assert isinstance(fold.federation.unseen, list)
    return fold.federation.unseen[-1]


def _without(config: Config, members: Members, name: str) -> Config:
    """The last of the unseen clients is the one left out."""
    federation = config.federation.model_copy(update={"unseen": [*members.unseen, name]})
    train, most = config.train, len(members.seen) - 1
    if train.clients_per_round is not None and train.clients_per_round > most:
        fewest = min(train.min_clients, most)
        train = train.model_copy(update={"clients_per_round": most, "min_clients": fewest})
    # Nobody looks at adapted models or drawn samples of these runs.
    evaluate = config.evaluate.model_copy(
        update={"fine_tune_epochs": 0, "shots": ["all"], "generated": 0}
    )
    return config.model_copy(
        update={"federation": federation, "train": train, "evaluate": evaluate}
    )


def _curve(rows: Rows, metric: str) -> dict[int, Score]:
    """What these rows say of each round, as the run itself made it of them."""
    losses = rows.where(metric=LOSS).by_round()
    values = rows.where(metric=metric).by_round()
    return {number: Score.of(found, losses.get(number, ())) for number, found in values.items()}


def _mean_curve(curves: Sequence[Curve], among: Curve) -> dict[int, Score]:
    """The mean over runs, in those rounds that all of them scored."""
    if not curves:
        return {}
    shared = [number for number in among if all(number in curve for curve in curves)]
    return {n: Score.of([c[n].value for c in curves], [c[n].loss for c in curves]) for n in shared}
