"""A client whose images turn over time: it notices, asks for a few labels and adapts again.

No label is needed to notice: a client counts how often its model is unsure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedskew.config import Config, config_of
from fedskew.data.federation import Client, Federation
from fedskew.data.skew import rotate
from fedskew.deploy.adapt import EPOCHS
from fedskew.deploy.drift_report import (
    CONTINUED,
    LOOP,
    NEVER,
    ONCE,
    STRATEGIES,
    DriftReport,
    Moment,
)
from fedskew.deploy.model import finished_run, owners_of
from fedskew.deploy.newcomer import begun, newcomers
from fedskew.deploy.preparation import run_federation
from fedskew.deploy.watch import Counted, Trust, is_more, owned_by, sent_to, trust_in
from fedskew.errors import ConfigError, DataError, RunError, unknown
from fedskew.federate.adapting import shots as labelled
from fedskew.federate.confidence import ACCURACY, check_share
from fedskew.federate.holdings import Holdings
from fedskew.federate.recipe import Adapt
from fedskew.federate.scoring import SampleScores, score_samples, scored
from fedskew.federate.tasks import ScoreTask
from fedskew.methods import find
from fedskew.parts.report import PERSONAL, SHARED
from fedskew.parts.scores import decided
from fedskew.rng import stream, torch_seed
from fedskew.runs.experiment import Run
from fedskew.types import Groups, Indices, Tensors

ANGLES = tuple(range(0, 181, 15))


def drift(
    run: str | Path | Run,
    out: str | Path | None = None,
    *,
    client: str | None = None,
    angles: Sequence[float] = ANGLES,
    shots: int = 2,
    threshold: float | None = None,
    accuracy: float = ACCURACY,
    window: int | None = None,
    data_dir: str | Path | None = None,
    allow_code: bool = False,
    seed: int = 0,
) -> DriftReport:
    """Turn a client's images step by step, and measure how its model copes.

    The client is the first unseen one unless named. At each angle it answers ``window`` of its
    test samples, new ones as long as there are any (none given: all of them each time). It is
    unsure of a sample whose confidence is below ``threshold``. If none is given, the threshold is
    the lowest at which seen clients' validation samples are answered with this accuracy, by the
    run's model or, once the client has adapted, by models adapted in the same way; at least a
    tenth of these samples lie below it.

    When the client is unsure significantly more often than models adapted in the same way are of
    validation samples, it asks for ``shots`` labels per class among its training samples, which
    have turned by the same angle, adapts the run's model to them, and answers the window again. A
    client that stays less sure than others keeps asking; one that is sure and wrong, as after a
    sudden turn, notices nothing. It is compared with clients that never adapt, that adapt once, and
    that keep adapting the model they have. Writes ``drift.csv`` and ``drift.png`` into ``out``.
    """
    finished = finished_run(run, allow_code=allow_code)
    federation = run_federation(finished, None if data_dir is None else Path(data_dir))
    who = _chosen(federation, client)
    _check(who, federation, angles, shots, window)
    for name, share in (("accuracy", accuracy), ("threshold", threshold)):
        if share is not None:
            check_share(name, share)
    config = _with_shots(finished.config, shots)
    home = newcomers(config, federation)
    (how,) = home.plan.adapts
    own = who in federation.clients and bool(owners_of(finished))
    before, after = (trust_in(finished, home, each, own, threshold, accuracy) for each in (None, 0))
    start = owned_by(finished, who.name) if own else sent_to(finished, home, who.name)
    states: dict[str, _StrategyState] = {}
    moments: list[Moment] = []
    windows = _windows(who.test, window or len(who.test), len(angles), seed)
    for step, (angle, rows) in enumerate(zip(angles, windows, strict=True)):
        holdings = _turned(
            config, federation, who, rows, float(angle), torch_seed(seed, "drift", step)
        )
        if step == 0:
            start = start if own else _as_newcomer(finished, holdings, who.name, start)
            states = {
                name: _StrategyState(name, start, start, before.threshold) for name in STRATEGIES
            }
        for name, state in states.items():
            states[name], moment = _after_window(holdings, state, how, after, step, float(angle))
            moments.append(moment)
    report = DriftReport(finished.path.resolve().name, who.name, shots, how.label, tuple(moments))
    if out is not None:
        report.save(out)
    return report


@dataclass(frozen=True)
class _StrategyState:
    """A client with one strategy: its current model, and the confidence below which it asks."""

    strategy: str
    original: Tensors
    model: Tensors
    threshold: float


def _after_window(
    holdings: Holdings, state: _StrategyState, how: Adapt, trust: Trust, step: int, angle: float
) -> tuple[_StrategyState, Moment]:
    """A client after one window, and what it did in that window."""
    (client,) = holdings.federation.clients
    first = _answered(holdings, client.name, state.model, None, step)
    now = _counted(first, state.threshold)
    # Compared with models after adapting, not before: otherwise labels would not help.
    noticed = is_more(now, trust.usual)
    adapts = {NEVER: False, ONCE: step == 0, LOOP: noticed, CONTINUED: noticed}[state.strategy]
    last, asked, further = first, 0, state

    def accuracy_of(found: SampleScores) -> float:
        return scored(holdings, found).scores["test"]["accuracy"]

    if adapts:
        model = state.original if state.strategy == LOOP else state.model
        last = _answered(holdings, client.name, model, 0, step)
        asked = _labels(holdings, client, how)
        further = replace(state, model=last.model, threshold=trust.threshold)
    return further, Moment(
        step, angle, state.strategy, now.samples, state.threshold, now.share,
        trust.usual.share, noticed, asked, accuracy_of(first),
        accuracy_of(last),
    )  # fmt: skip


def _answered(
    holdings: Holdings, client: str, model: Tensors, adapt: int | None, step: int
) -> SampleScores:
    """A client's answers to its test samples, after adaptation ``adapt`` if one is given."""
    # The model is taken as it is, with its BatchNorm statistics.
    private: Mapping[str, Groups] = {client: {PERSONAL: model, SHARED: {}}}
    task = ScoreTask(client, step, model, "personal", ("test",), adapt)
    (found,) = score_samples(holdings, [task], private)
    if found.error:
        raise RunError(f"client {client!r} could not be adapted: {found.error}.")
    return found


def _labels(holdings: Holdings, client: Client, how: Adapt) -> int:
    """How many labels an adaptation uses: fewer if a class has fewer samples."""
    assert how.shots is not None
    return len(
        labelled(client.train, holdings.federation.y, how.shots, holdings.plan.seed, client.name)
    )


def _counted(found: SampleScores, threshold: float) -> Counted:
    confidence, _ = decided(found.values["test"]["output"])
    return Counted(int((confidence < threshold).sum()), len(confidence))


def _turned(
    config: Config, federation: Federation, who: Client, window: Indices, angle: float, seed: int
) -> Holdings:
    """Only the client, with its samples of this step: training samples to ask about, a window."""
    rows = np.concatenate([who.train, window])
    images = rotate(federation.x[rows], torch.full((len(rows),), angle))
    place = np.arange(len(rows))
    now = Client(who.name, place[: len(who.train)], test=place[len(who.train) :])
    alone = Federation(federation.name, images, federation.y[rows], federation.class_names, (now,))
    return newcomers(config.model_copy(update={"seed": seed}), alone)


def _as_newcomer(run: Run, holdings: Holdings, client: str, sent: Tensors) -> Tensors:
    """The run's model as a newcomer first has it, with its own BatchNorm statistics."""
    model = begun(run, holdings, client, sent)
    task = ScoreTask(client, 0, model, "personal", ())
    (found,) = score_samples(holdings, [task], {client: {PERSONAL: model}})
    return found.model


def _windows(rows: Indices, size: int, count: int, seed: int) -> Iterator[Indices]:
    """Windows taken from the shuffled rows, which are shuffled again when they run out."""
    pile = rows[:0]
    for number in range(count):
        if len(pile) < size:
            rest = stream(seed, "window", number).permutation(np.setdiff1d(rows, pile))
            pile = np.concatenate([pile, rest])
        window, pile = pile[:size], pile[size:]
        yield np.sort(window)


def _with_shots(config: Config, shots: int) -> Config:
    """The run's settings for one number of shots, for this machine."""
    values = config.resolved() | {"device": "cpu"}
    values["evaluate"]["shots"] = [shots]
    own = find(config.method.name).recipe(**config.method.knobs).adapts
    if not values["evaluate"]["fine_tune_epochs"] and not (own and own.phases[-1].epochs):
        values["evaluate"]["fine_tune_epochs"] = EPOCHS
    return config_of(values)


def _chosen(federation: Federation, client: str | None) -> Client:
    if client is not None and client not in federation.by_name:
        raise unknown("client", client, federation.by_name)
    if client is None and not federation.unseen:
        raise ConfigError("the run has no unseen client: name the client whose images should turn.")
    return federation.by_name[client] if client else federation.unseen[0]


def _check(
    who: Client, federation: Federation, angles: Sequence[float], shots: int, window: int | None
) -> None:
    """Refuse what cannot be done, before anything runs."""
    if len(federation.sample_shape) != 3:
        raise DataError(
            f"drift turns images, but a sample of {federation.name} has shape "
            f"{list(federation.sample_shape)}: choose a run on images."
        )
    if len(angles) < 2 or not all(math.isfinite(angle) for angle in angles):
        raise ConfigError(f"angles must be at least two numbers of degrees, not {list(angles)}.")
    for split in ("train", "test"):
        if not len(who.split(split)):
            raise DataError(f"client {who.name!r} has no {split} samples: name another client.")
    counts: NDArray[np.int64] = np.bincount(federation.y.numpy()[who.train])
    if not 1 <= shots <= counts.max():
        raise ConfigError(
            f"shots must be 1 to {counts.max()} labels per class, the most that client "
            f"{who.name!r} has of any, not {shots}."
        )
    if window is not None and not 1 <= window <= len(who.test):
        raise ConfigError(
            f"window must be 1 to {len(who.test)}, the test samples of client {who.name!r}, "
            f"not {window}."
        )
