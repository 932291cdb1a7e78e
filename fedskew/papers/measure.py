"""What a finished run scored, by the names claims use, and intervals over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.comparisons.costs import Effort, Spending, best_of, effort, spending, times_cheaper
from fedskew.comparisons.statistics import evenness, mean, rank_correlation
from fedskew.federate.confidence import aurc
from fedskew.federate.metrics import CENTRAL, MAIN
from fedskew.papers.reading import DIVERGENCE, ByRound, by_round, divergences
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
from fedskew.runs.experiment import Run
from fedskew.runs.rows import Rows
from fedskew.store import read_arrays, read_json

MADE_WITH = "made-with.json"
"""In a run's folder: the code of the suite's call that finished it."""


@dataclass(frozen=True)
class Measured:
    """One finished run, read for its scores on test data; its curve follows the headline.

    ``rivals`` are the baselines of the same setting and seed, where it is a contender; ``folds``
    the same run without one client each.
    """

    run: Run
    headline: Headline = "clients"
    rivals: tuple[Measured, ...] = ()
    folds: tuple[Run, ...] = ()

    @cached_property
    def result(self) -> dict[str, Any]:
        return self.run.result

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
        return by_round(self.run, self.result["primary_metric"], self.folds)

    @cached_property
    def spending(self) -> Spending:
        """What was sent until each round, beside the curve."""
        records = self.run.results.records
        return spending(self.result, records, self.curve, bool(self.result["higher_is_better"]))

    @cached_property
    def effort(self) -> Effort | None:
        """What it took to reach the best of the rivals, or without any the own best."""
        rivals = [rival.spending for rival in self.rivals if rival.spending.sends]
        target = best_of((rival.best for rival in rivals), self.spending.higher_is_better)
        return effort(self.spending, None if math.isnan(target) else target)

    @property
    def _rows(self) -> Rows:
        """The rows of the main stage."""
        return self.run.results.rows.where(stage=MAIN)

    @cached_property
    def divergences(self) -> dict[int, dict[str, list[float]]]:
        """By round and entry of the model: how far every client's is from the clients' mean."""
        known = self._has(split="server", metric=DIVERGENCE)
        return divergences(self._rows.where(split="server")) if known else {}

    def by_client(self, metric: str, asked: ClientScore = AS_TRAINED) -> dict[str, float]:
        """Every client's test score of the main model after the last round."""
        rows = self._rows.where(
            round=self.result["rounds"], model=self.result["primary_model"], on=asked.on,
            split="test", metric=metric,
        )  # fmt: skip
        labels = [label for label in rows.names("adapted") if how_adapted(label) == asked.adapted]
        return rows.where(adapted=labels).by_client()

    @cached_property
    def answers(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]] | None:
        """How sure and how right the main models are about the unseen clients' test data."""
        path = self.run.path / "predictions.npz"
        if not path.is_file():
            return None
        saved = read_arrays(path)
        wanted = {"on": "unseen", "split": "test", "adapted": "none"}
        mine = np.all([saved[name] == value for name, value in wanted.items()], axis=0)
        return (saved["confidence"][mine], saved["correct"][mine]) if mine.any() else None

    def shots(self, on: str) -> list[int]:
        """How many samples a class these clients' models were adapted on, not at all included."""
        labels = {
            how_adapted(entry["adapted"]) for entry in self.result["scores"] if entry["on"] == on
        }
        few = {int(label.removesuffix("-shot")) for label in labels if label.endswith("-shot")}
        return sorted(few | ({0} if labels else set()))

    @property
    def code(self) -> str:
        path = self.run.path / MADE_WITH
        return str(read_json(path)["code"]) if path.is_file() else "unknown code"

    @property
    def is_share(self) -> bool:
        return bool(self.result["primary_metric"] == "accuracy")

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
            return mean([v for by in self._divergence_at(at).values() for v in by])
        if score == "own-central":
            own = self._own_central(self.result["primary_metric"], at)
            return mean([value for client, value in own.items() if client != CENTRAL])
        if score == "weight-entropy":
            return evenness(self._weights(at))
        if score == "kept":
            weights = self._weights(at)
            return float(sum(weight > 0 for weight in weights)) if weights else math.nan
        if score == "aurc":
            return math.nan if self.answers is None else aurc(*self.answers)
        if score == "epsilon":
            known = (self.result.get("privacy") or {}).get("epsilon")
            return math.nan if known is None else float(known)
        if score == "parameters":
            return self._parameters
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
            found = self.by_round.summary(at, model, on, split)
            return float(getattr(found, of)) if known else math.nan
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

    @cached_property
    def _parameters(self) -> float:
        if self.result.get("model") is None or self.result.get("sample_shape") is None:
            return math.nan
        return float(sum(p.numel() for p in self.run.untrained().parameters()))

    def _round(self, at: At) -> int:
        if at in ("last", "selected"):
            return int(self.result["rounds" if at == "last" else "selected_round"])
        return self.by_round.round_of(at)

    def _central(self, metric: str, at: At) -> float:
        """Of the global model; where there is none, of the clients' models together."""
        found = self._found(at, "global", "central", metric)
        if not math.isnan(found):
            return found
        return self._own_central(metric, at).get(CENTRAL, math.nan)

    def _own_central(self, metric: str, at: At) -> dict[str, float]:
        """Of the clients' models on the central test set: by client, and of all together."""
        if not self._has(metric, model="personal", on="central"):
            return {}
        return self._rows.where(
            round=self._round(at), model="personal", on="central", adapted="none", split="test",
            metric=metric,
        ).by_client()  # fmt: skip

    def _weights(self, at: At) -> list[float]:
        """Every client's weight in the global model; who was not asked has none."""
        if not self._has("weight", split="server"):
            return []
        rows = self._rows.where(round=self._round(at), split="server", metric="weight")
        found: list[float] = rows.value.tolist()
        clients = max(e["clients"] for e in self.result["scores"] if e["on"] == "seen")
        return found + [0.0] * (clients - len(found)) if found else []

    def _divergence_at(self, at: At) -> dict[str, list[float]]:
        return self.divergences.get(self._round(at), {}) if self.divergences else {}

    def _follows(self) -> float:
        if not self.divergences:
            return math.nan
        return rank_correlation(
            [
                (
                    mean([v for by in self.divergences[now].values() for v in by]),
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
