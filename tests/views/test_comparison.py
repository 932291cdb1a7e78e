"""What a comparison remarks."""

from __future__ import annotations

from fedskew.comparisons.statistics import interval
from fedskew.views.comparison import _remark_on_local
from fedskew.views.leaderboard import Standing


def test_a_lead_of_training_alone_within_the_interval_is_called_open() -> None:
    """Gains of -0.2 and +0.1: mean -0.05, half of the interval far above it."""

    def standing(method: str, gain: list[float] | None) -> Standing:
        score = interval([0.5, 0.6])
        gained = None if gain is None else interval(gain)
        return Standing(
            method, gain is None, "global", score, gained, score, score, score, None, None, None,
            0.0, None, 1.0, (),
        )  # fmt: skip

    ordered = [standing("local", None), standing("fedavg", [-0.2, 0.1])]
    assert list(_remark_on_local(ordered, {"local": "alone", "fedavg": None})) == [
        "No method's mean is above that of local training (0.550), but 2 seeds do not rule out a "
        "gain of fedavg."
    ]
