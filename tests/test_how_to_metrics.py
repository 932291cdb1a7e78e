"""docs/how-to/metrics.md: its table is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from fedskew.parts.metrics import METRICS

PAGE = (Path(__file__).parents[1] / "docs/how-to/metrics.md").read_text()


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \|$", PAGE, flags=re.MULTILINE)
    assert rows == [
        (
            metric.name,
            "higher" if metric.higher_is_better else "lower",
            ", ".join(metric.of),
            metric.text,
        )
        for metric in METRICS.values()
    ]
