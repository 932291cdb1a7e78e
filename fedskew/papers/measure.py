"""What a finished run scored, by the names claims use, and intervals over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from fedskew.comparisons.costs import Effort, Spending, best_of, effort, spending, times_cheaper
from fedskew.comparisons.statistics import evenness, mean, rank_correlation
from fedskew.papers.outcome import ByRound, Outcome, scores_of
from fedskew.papers.reading import outcome_of
from fedskew.papers.scores import (
    AS_TRAINED,
    CENTRAL_METRICS,
    CHEAPER,
    LOSSES,
    NEUTRAL,
    SHARES,
    WEIGHTS,
    At,
    ClientScore,
    Headline,
    ScoreName,
    client_score,
    has_own_metric,
    how_adapted,
)
from fedskew.parts.metrics import is_share
from fedskew.runs.experiment import Run


@dataclass(frozen=True)
class Measured:
    """One finished run, read for its scores on test data; its curve follows the headline.

    ``run`` is its folder, or the outcome alone where that was kept. ``rivals`` are the baselines
    of the same setting and seed, where it is a contender; ``folds`` the same run without one
    client each.
    """

    run: Run | Outcome
    headline: Headline = "clients"
    rivals: tuple[Measured, ...] = ()
    folds: tuple[Run | Outcome, ...] = ()

    @cached_property
    def outcome(self) -> Outcome:
        return outcome_of(self.run) if isinstance(self.run, Run) else self.run

    @property
    def folder(self) -> Run | None:
        """The run on disk, if it is there: pictures of models need it."""
        return self.run if isinstance(self.run, Run) else None

    @property
    def result(self) -> dict[str, Any]:
        return self.outcome.result

    @cached_property
    def curve(self) -> dict[int, float]:
        """The headline score round by round: the clients' mean of the main model, or another."""
        if self.headline == "central":
            return self.central_curve
        if self.headline == "ood":
            return {n: score.value for n, score in self.by_round.selection.ood.items()}
        return self.by_round.curve(self.result["primary_model"], "seen")

    @cached_property
    def central_curve(self) -> dict[int, float]:
        """The global model's main score on the central test set, round by round."""
        return self.by_round.curve("global", "central")

    @cached_property
    def by_round(self) -> ByRound:
        """The main scores of every scored round."""
        folds = [outcome_of(f, is_fold=True) if isinstance(f, Run) else f for f in self.folds]
        return self.outcome.by_round([scores_of(fold.left_out) for fold in folds])

    @cached_property
    def spending(self) -> Spending:
        """What was sent until each round, beside the curve."""
        records = self.outcome.records
        return spending(self.result, records, self.curve, bool(self.result["higher_is_better"]))

    @cached_property
    def effort(self) -> Effort | None:
        """What it took to reach the best of the rivals, or without any the own best."""
        rivals = [rival.spending for rival in self.rivals if rival.spending.sends]
        target = best_of((rival.best for rival in rivals), self.spending.higher_is_better)
        return effort(self.spending, None if math.isnan(target) else target)

    @property
    def divergences(self) -> dict[int, dict[str, float]]:
        """By round and entry of the model: the clients' mean distance from their mean."""
        return self.outcome.divergences

    def by_client(self, metric: str, asked: ClientScore = AS_TRAINED) -> dict[str, float]:
        """Every client's test score of the main model after the last round."""
        found: dict[str, float] = {}
        for kept in self.outcome.clients:
            if how_adapted(kept.adapted) == asked.adapted:
                found |= self.outcome.by_client(asked.on, kept.adapted, metric)
        return found

    def shots(self, on: str) -> list[int]:
        """How many samples a class these clients' models were adapted on, not at all included."""
        labels = {
            how_adapted(entry["adapted"]) for entry in self.result["scores"] if entry["on"] == on
        }
        few = {int(label.removesuffix("-shot")) for label in labels if label.endswith("-shot")}
        return sorted(few | ({0} if labels else set()))

    @property
    def code(self) -> str:
        return self.outcome.code

    @property
    def is_share(self) -> bool:
        return is_share(str(self.result["primary_metric"]))

    @cached_property
    def diverged(self) -> bool:
        """Whether a loss or main score of its last or selected round is not a finite number."""
        main = {"loss", self.result["primary_metric"]}
        mine = [entry["mean"] for entry in self.result["scores"] if entry["metric"] in main]
        return not all(map(math.isfinite, mine))

    @property
    def megabytes(self) -> float:
        sent = self.result["bytes"]
        return float(sent["up"] + sent["down"]) / 1e6

    def higher_is_better(self, score: ScoreName) -> bool:
        """Whether more speaks for an arm; of what is neither good nor bad it does."""
        if score in (CHEAPER, *NEUTRAL, *SHARES) or has_own_metric(score):
            return True
        if score in LOSSES or score in ("rounds", "swing"):
            return False
        return bool(self.result["higher_is_better"])

    def score(self, score: ScoreName, at: At = "last", target: float | None = None) -> float:
        """A score by its name (``scores.meaning`` says what each is); NaN where there is none.

        ``at`` says of which round, see ``scores.At``; ``target`` is what "rounds" has to reach.
        """
        if score in WEIGHTS:
            return self._found(at, "personal", "seen", WEIGHTS[score], split="server")
        if score in CENTRAL_METRICS:
            return self._central(CENTRAL_METRICS[score], at)
        if score == "rounds":
            return self._rounds_to(math.inf if target is None else target)
        if score == "swing":
            late = list(self.curve.values())[len(self.curve) // 2 :]
            return float(np.abs(np.diff(late)).mean()) if len(late) > 1 else math.nan
        if score == "first":
            return next(iter(self.central_curve.values()), math.nan)
        if score == "follows":
            return self._follows()
        if score == "divergence":
            return mean(list(self._divergence_at(at).values()))
        if score == "own-central":
            return self._own_central(self.result["primary_metric"], at)[0]
        if score == "weight-entropy":
            return evenness(self._weights(at))
        if score == "kept":
            weights = self._weights(at)
            return float(sum(weight > 0 for weight in weights)) if weights else math.nan
        if score == "aurc":
            return self.outcome.aurc
        if score == "epsilon":
            known = (self.result.get("privacy") or {}).get("epsilon")
            return math.nan if known is None else float(known)
        if score == "parameters":
            return self.outcome.parameters
        if score == CHEAPER:
            rivals = [rival.spending for rival in self.rivals]
            return times_cheaper(self.spending, rivals) if rivals else math.nan
        if score == "ood":
            return self.by_round.ood(at)
        metric, main = self.result["primary_metric"], self.result["primary_model"]
        if score == "central":
            return self._found(at, "global", "central", metric)
        if score == "own-reconstruction":
            return self._found(at, main, "seen", "reconstruction")
        asked = client_score(score) or AS_TRAINED
        return self._found(
            at, main, asked.on, asked.metric or metric,
            split="validation" if score == "validation" else "test",
            adapted=asked.adapted,
            of="worst" if score == "worst" else "mean",
        )  # fmt: skip

    def _found(
        self,
        at: At,
        model: str,
        on: str,
        metric: str,
        *,
        split: str = "test",
        adapted: str = "none",
        of: str = "mean",
    ) -> float:
        """What the run's summary says; of rounds it does not tell of, the main score alone."""
        if at not in ("last", "selected"):
            known = metric == self.result["primary_metric"] and adapted == "none"
            return self.by_round.score(at, model, on, split, of) if known else math.nan
        wanted = {"at": at, "model": model, "on": on, "metric": metric, "split": split}
        for entry in self.result["scores"]:
            if wanted.items() <= entry.items() and how_adapted(entry["adapted"]) == adapted:
                return float(entry[of])
        return math.nan

    def _has(self, metric: str, **wanted: str) -> bool:
        """Whether the summary knows such a metric: the rows of most runs need not be read."""
        return any(
            entry["metric"].startswith(metric) and wanted.items() <= entry.items()
            for entry in self.result["scores"]
        )

    def _round(self, at: At) -> int:
        if at in ("last", "selected"):
            return int(self.result["rounds" if at == "last" else "selected_round"])
        return self.by_round.round_of(at)

    def _central(self, metric: str, at: At) -> float:
        """Of the global model; where there is none, of the clients' models together."""
        found = self._found(at, "global", "central", metric)
        if not math.isnan(found):
            return found
        return self._own_central(metric, at)[1]

    def _own_central(self, metric: str, at: At) -> tuple[float, float]:
        """Of the clients' models on the central test set: their mean, and all together."""
        for kept in self.outcome.together:
            if (kept.round, kept.metric) == (self._round(at), metric):
                return kept.mean, kept.together
        return math.nan, math.nan

    def _weights(self, at: At) -> list[float]:
        """Every client's weight in the global model; who was not asked has none."""
        found = self.outcome.weights.get(self._round(at), [])
        clients = max((e["clients"] for e in self.result["scores"] if e["on"] == "seen"), default=0)
        return found + [0.0] * (clients - len(found)) if found else []

    def _divergence_at(self, at: At) -> dict[str, float]:
        return self.divergences.get(self._round(at), {}) if self.divergences else {}

    def _follows(self) -> float:
        if not self.divergences:
            return math.nan
        return rank_correlation(
            [
                (
                    mean(list(self.divergences[now].values())),
                    self.central_curve[now] - self.central_curve[before],
                )
                for before, now in pairwise(self.central_curve)
                if now in self.divergences
            ]
        )

    def _rounds_to(self, target: float) -> float:
        higher = self.result["higher_is_better"]
        for number, value in self.curve.items():
            if value >= target if higher else value <= target:
                return float(number)
        return float(self.result["rounds"] + 1)
