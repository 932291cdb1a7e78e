"""Results of runs that never ran: rows on disk, as a run folder would have written them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from fedskew.federate.metrics import Row
from fedskew.runs.results import METRICS, Results


def write_rows(folder: Path, rows: Iterable[Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row.as_dict()) + "\n" for row in rows)
    (folder / METRICS).write_text(lines)
    return folder


def results_of(rows: Iterable[Row]) -> Results:
    """Results that have nothing but rows."""
    with TemporaryDirectory() as folder:
        found = Results(write_rows(Path(folder), rows), whole=True)
        assert found.rows is not None, "read while the file is there"
    return found
