"""From a run folder to its outcome: every number worked by hand from the rows on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import write_rows

from fedskew.federate.metrics import Row
from fedskew.federate.progress import RoundRecord
from fedskew.papers.outcome import Outcome
from fedskew.papers.reading import MADE_WITH, outcome_of
from fedskew.runs.experiment import Run

LAST = {"at": "last", "model": "global", "on": "seen", "adapted": "none", "split": "test",
        "metric": "accuracy", "mean": 0.6, "std": 0.2, "worst": 0.4, "bottom_decile": 0.44,
        "clients": 2}  # fmt: skip
EARLIER = {**LAST, "at": "selected", "mean": 0.5}
RESULT: dict[str, Any] = {
    "method": "fedavg", "seed": 0, "primary_model": "global", "primary_metric": "accuracy",
    "higher_is_better": True, "rounds": 2, "selected_round": 1, "scores": [LAST, EARLIER],
    "bytes": {"up": 60, "down": 60}, "failures": 1, "seconds": 1.5, "hashes": {"a": "b"},
    "warnings": ["w"],
}  # fmt: skip


def row(number: int, client: str, value: float, **changes: Any) -> Row:
    known: dict[str, Any] = {
        "stage": "main", "round": number, "model": "global", "on": "seen", "client": client,
        "adapted": "none", "split": "test", "metric": "accuracy", "value": value, "n": 9,
    }  # fmt: skip
    return Row(**{**known, **changes})


ROWS = [
    row(1, "ann", 0.3), row(1, "bob", 0.7),
    row(2, "ann", 0.4), row(2, "bob", 0.8),
    row(1, "ann", 0.5, split="validation"), row(2, "ann", 0.25, split="validation"),
    row(1, "ann", 1.5, split="validation", metric="loss"),
    row(2, "zoe", 0.1, on="unseen"),
    row(2, "zoe", 0.9, on="unseen", adapted="2-shot 20"),
    row(2, "bob", 0.6, adapted="2-shot 20"),
    # Nothing of another stage or metric counts.
    row(2, "ann", 9.0, stage="first"), row(2, "ann", 9.0, metric="macro_f1"),
]  # fmt: skip


def read(folder: Path, rows: Sequence[Row] = ROWS, **result: Any) -> Outcome:
    write_rows(folder, rows)
    (folder / "result.json").write_text(json.dumps({**RESULT, **result}))
    return outcome_of(Run(folder))


def test_curves_have_the_mean_and_the_worst_client_of_every_scored_round(tmp_path: Path) -> None:
    curves = {(c.model, c.on, c.split): c.rounds for c in read(tmp_path).curves}
    assert curves == {
        ("global", "seen", "test"): {1: (0.5, 0.3), 2: (pytest.approx(0.6), 0.4)},
        ("global", "seen", "validation"): {1: (0.5, 0.5), 2: (0.25, 0.25)},
        ("global", "unseen", "test"): {2: (0.1, 0.1)},
    }


def test_of_a_loss_the_worst_is_the_largest(tmp_path: Path) -> None:
    rows = [row(1, name, value, metric="loss") for name, value in (("a", 1.0), ("b", 3.0))]
    found = read(tmp_path, rows, primary_metric="loss", higher_is_better=False)
    assert found.curves[0].rounds == {1: (2.0, 3.0)}


def test_what_rounds_are_chosen_by_is_kept_with_loss_and_number_of_clients(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found.validation[1] == (0.5, 1.5, 1)
    value, loss, clients = found.validation[2]
    assert (value, clients) == (0.25, 1)
    assert math.isnan(loss)
    assert found.ood[2][0] == 0.1
    assert found.in_domain == pytest.approx({1: 0.5, 2: 0.6})
    assert found.by_round().round_of("selected") == 1
    assert found.by_round().round_of("oracle") == 2


def test_clients_scores_are_those_of_the_last_round(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found.by_client("seen", "none", "accuracy") == {"ann": 0.4, "bob": 0.8}
    assert found.by_client("seen", "2-shot 20", "accuracy") == {"bob": 0.6}
    assert found.by_client("unseen", "2-shot 20", "accuracy") == {"zoe": 0.9}
    assert found.by_client("odd", "none", "accuracy") == {}
    assert (found.members.seen, found.members.unseen) == (("ann", "bob"), ("zoe",))
    assert found.members.validated == ("ann",)


def test_the_summary_keeps_its_scores_and_nothing_no_page_reads(tmp_path: Path) -> None:
    result = read(tmp_path).result
    kept = ("at", "model", "on", "adapted", "split", "metric", "mean", "worst", "clients")
    assert result["scores"] == [{key: s[key] for key in kept} for s in (LAST, EARLIER)]
    assert result["bytes"] == {"up": 60, "down": 60}
    assert not {"hashes", "warnings"} & result.keys()


def test_scores_of_one_round_that_is_last_and_selected_are_kept_once(tmp_path: Path) -> None:
    same = {**LAST, "at": "selected", "mean": LAST["mean"]}
    found = read(tmp_path, selected_round=2, scores=[LAST, same])
    assert [row[0] for row in found.scores] == ["both"]
    assert [s["at"] for s in found.result["scores"]] == ["last", "selected"]


def test_weights_and_models_together_are_those_of_the_rounds_a_summary_tells_of(
    tmp_path: Path,
) -> None:
    rows = [
        row(n, c, v, split="server", metric="weight")
        for n, c, v in ((1, "ann", 0.25), (1, "bob", 0.75), (2, "ann", 1.0), (3, "ann", 9.0))
    ]
    own: dict[str, Any] = {"model": "personal", "on": "central"}
    rows += [row(2, "ann", 0.2, **own), row(2, "bob", 0.6, **own), row(2, "", 0.7, **own)]
    found = read(tmp_path, rows)
    assert found.weights == {1: [0.25, 0.75], 2: [1.0]}
    assert [(t.round, t.metric, t.mean, t.together) for t in found.together] == [
        (2, "accuracy", pytest.approx(0.4), 0.7)
    ]  # fmt: skip


def test_divergence_is_the_mean_over_clients_by_entry(tmp_path: Path) -> None:
    rows = [row(1, c, v, split="server", metric="divergence 0.weight")
            for c, v in (("ann", 2.0), ("bob", 4.0))]  # fmt: skip
    assert read(tmp_path, rows).divergences == {1: {"0.weight": 3.0}}


def test_rounds_that_sent_as_much_are_one_entry_and_come_back_one_by_one(tmp_path: Path) -> None:
    records = [
        RoundRecord("first", 1, 2, 0.1, 10, 20), RoundRecord("first", 2, 2, 0.2, 10, 20),
        RoundRecord("main", 1, 2, 0.3, 10, 20), RoundRecord("main", 2, 1, 0.4, 5, 10, {"bob": "x"}),
    ]  # fmt: skip
    write_rows(tmp_path, ROWS)
    lines = "".join(json.dumps(asdict(record)) + "\n" for record in records)
    (tmp_path / "rounds.jsonl").write_text(lines)
    found = read(tmp_path)
    assert [(e.stage, e.first, e.last) for e in found.exchanged] == [
        ("first", 1, 2), ("main", 1, 1), ("main", 2, 2),
    ]  # fmt: skip
    told = [(r.stage, r.round, r.participants, len(r.failures), r.bytes_down, r.bytes_up)
            for r in found.records]  # fmt: skip
    assert told == [
        ("first", 1, 2, 0, 10, 20), ("first", 2, 2, 0, 10, 20),
        ("main", 1, 2, 0, 10, 20), ("main", 2, 1, 1, 5, 10),
    ]  # fmt: skip


def test_risks_are_of_unseen_clients_as_trained(tmp_path: Path) -> None:
    write_rows(tmp_path, ROWS)
    np.savez(
        tmp_path / "predictions.npz",
        on=np.array(["unseen"] * 4 + ["seen"]), split=np.array(["test"] * 5),
        adapted=np.array(["none"] * 5),
        confidence=np.array([0.9, 0.8, 0.7, 0.6, 0.99], np.float32),
        correct=np.array([True, True, False, False, False]),
    )  # fmt: skip
    found = read(tmp_path)
    # Answering 1, 2, 3 and 4 of the four: no error, none, 1/3, 1/2; their mean is 5/24.
    assert found.aurc == pytest.approx(5 / 24)
    assert len(found.risks) == 50
    assert (found.risks[0], found.risks[-1]) == (0.0, 0.5)
    assert found.risks[24] == 0.0, "a share of 0.5 answers two"


def test_a_run_says_which_code_finished_it(tmp_path: Path) -> None:
    assert read(tmp_path).code == "unknown code"
    (tmp_path / MADE_WITH).write_text('{"code": "0.3.0, commit abc"}')
    assert read(tmp_path).code == "0.3.0, commit abc"
