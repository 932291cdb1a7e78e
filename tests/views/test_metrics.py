"""The table of all metrics in a terminal."""

from __future__ import annotations

from typing import Any

from fedskew.views.metrics import metric_lines


def entry(metric: str, mean: float, **more: Any) -> dict[str, Any]:
    plain = {"on": "seen", "adapted": "none", "worst": mean, "clients": 3, "pooled": None}
    return {"metric": metric, "mean": mean, **plain, **more}


def test_every_metric_has_a_line_and_every_other_group_a_column() -> None:
    result = {
        "selected_round": 7,
        "metrics": [
            entry("auroc", 0.91, worst=0.8, clients=2, pooled=0.93),
            entry("rmse", 1234.56, worst=2000.0, pooled=1300.0),
            entry("brier", 0.0123, pooled=0.0111),
            entry("rmse", 99.5, on="unseen"),
            entry("rmse", 0.5, adapted="2-shot 10"),
        ],
    }
    assert metric_lines(result) == [
        "",
        "all metrics at round 7:",
        "test              mean  worst client  pooled  unseen  seen, 2-shot 10",
        "auroc (2 of 3)   0.910         0.800   0.930       –                –",
        "rmse              1235          2000    1300  99.500            0.500",
        "brier           0.0123        0.0123  0.0111       –                –",
    ]


def test_where_samples_stay_at_sites_nothing_is_pooled() -> None:
    lines = metric_lines({"selected_round": 1, "metrics": [entry("accuracy", 0.5)]})
    assert lines[2].split() == ["test", "mean", "worst", "client"]


def test_a_run_without_answers_has_no_table() -> None:
    assert metric_lines({"selected_round": 1}) == []
