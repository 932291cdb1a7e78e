"""How a method is judged in a bake-off: by its clients' validation data, in the way it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose

from fedskew.comparisons.budget import Spent
from fedskew.federate.metrics import MAIN
from fedskew.federate.rounds import LOSS, SAME, Score
from fedskew.runs.experiment import Run


@dataclass(frozen=True)
class Judged:
    """What a candidate scored on a rung, on validation data, and what it had cost by then."""

    score: Score
    by_client: Mapping[str, float]
    losses: Mapping[str, float]
    round: int
    """The selected round."""
    spent: Spent
    metric: str
    higher_is_better: bool

    def is_twin(self, other: Judged) -> bool:
        """Whether every client scored the same, and had the same loss but for rounding."""
        return (
            bool(self.losses)
            and self.by_client == other.by_client
            and self.losses.keys() == other.losses.keys()
            and all(isclose(loss, other.losses[c], rel_tol=SAME) for c, loss in self.losses.items())
        )


def judge(run: Run, tuned: bool) -> Judged:
    """A finished run by its clients' validation data, at the selected round."""
    result = run.result
    rows = run.results.rows.where(
        stage=MAIN, on="seen", split="validation", round=result["selected_round"],
        model=result["primary_model"], adapted=way_used(run, tuned),
    )  # fmt: skip
    metric, losses = rows.where(metric=result["primary_metric"]), rows.where(metric=LOSS)
    score = Score.of(metric.value.tolist(), losses.value.tolist())
    stages = result["stages"]
    spent = Spent(
        sum(stage["rounds"] for stage in stages), float(result["seconds"]),
        sum(result["bytes"].values()),
    )  # fmt: skip
    return Judged(
        score, metric.by_client(), losses.by_client(), result["selected_round"], spent,
        result["primary_metric"], result["higher_is_better"],
    )  # fmt: skip


def way_used(run: Run, tuned: bool) -> str:
    """How clients adapt the models a method is judged by: not at all, or in the last way it says.

    Where only the last round's models were adapted, there is none of the selected round's.
    """
    result = run.result
    rows = run.results.rows.where(stage=MAIN, on="seen", round=result["selected_round"])
    adapted = [name for name in rows.names("adapted") if name != "none"]
    return adapted[-1] if tuned and adapted else "none"
