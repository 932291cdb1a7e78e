"""Rows in columns: every line comes back, filters find by name, damage is named."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from made_up import results_of, write_rows

from fedskew.errors import RunError
from fedskew.federate.metrics import CENTRAL, Row
from fedskew.runs import rows as reading
from fedskew.runs.results import METRICS
from fedskew.runs.rows import Rows, read_lines, read_rows

ROW = Row("main", 1, "global", "seen", "ann", "none", "test", "accuracy", 0.5, 40)
HALF = json.dumps(ROW.as_dict())[:70]


def many() -> list[Row]:
    """Two stages, two rounds, three clients, two splits and metrics, and one of nobody."""
    fields = product(("first", "main"), (2, 1), ("ann", "bob", "cy"), ("test", "validation"),
                     ("accuracy", "loss"))  # fmt: skip
    rows = [
        replace(ROW, stage=stage, round=at, client=client, split=split, metric=metric,
                value=number / 7, n=number)
        for number, (stage, at, client, split, metric) in enumerate(fields)
    ]  # fmt: skip
    return [*rows, replace(ROW, on="central", client=CENTRAL)]


def read(rows: list[Row]) -> Rows:
    return results_of(rows).rows


def test_rows_come_back_as_they_were_written_whatever_they_hold() -> None:
    odd = [
        replace(ROW, client='a "quoted", "value": name\t\\ é', value=1e-300),
        replace(ROW, metric="divergence body.0.weight", adapted="2-shot 50", value=-3.0),
        replace(ROW, value=math.inf),
        replace(ROW, value=-math.inf, n=0),
        replace(ROW, value=0.1 + 0.2, round=1234567),
        replace(ROW, value=5e-324, client=CENTRAL),
    ]
    assert read([*many(), *odd]).rows() == [*many(), *odd]
    assert math.isnan(read([replace(ROW, value=math.nan)]).rows()[0].value)
    assert type(read([ROW]).rows()[0].value) is float


def test_a_file_larger_than_what_is_read_at_once_loses_no_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = many()
    for size in (1, 100, 200, 201, 4096):
        monkeypatch.setattr(reading, "PORTION", size)
        assert read(rows).rows() == rows


def test_lines_in_another_form_of_json_are_read_as_well(tmp_path: Path) -> None:
    values = ROW.as_dict()
    turned = dict(reversed(values.items()))
    whole = {**values, "value": 2}
    lines = [json.dumps(values), json.dumps(turned, indent=None, separators=(",", ":")),
             json.dumps(whole)]  # fmt: skip
    (tmp_path / METRICS).write_text("\n".join(lines))
    assert read_rows(tmp_path / METRICS).rows() == [ROW, ROW, replace(ROW, value=2.0)]


def test_a_filter_finds_the_rows_that_bear_all_names_in_their_order() -> None:
    rows = read(many())
    wanted = [
        r for r in many()
        if (r.stage, r.split) == ("main", "test") and r.client in ("cy", "ann") and r.round == 2
    ]  # fmt: skip
    found = rows.where(stage="main", split="test", client=("cy", "ann")).where(round=2)
    assert len(found) == 4
    assert found.rows() == wanted
    assert found.value.tolist() == [r.value for r in wanted]
    assert found.n.tolist() == [r.n for r in wanted]
    assert rows.where(client=CENTRAL).texts("on") == ["central"]
    for nothing in (rows.where(stage="last"), rows.where(client=()), rows.where(round=9)):
        assert len(nothing) == 0
        assert nothing.rows() == []
        assert nothing.curve() == nothing.by_client() == {}
        assert nothing.names("client") == []


def test_a_filter_by_a_word_that_no_row_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="clients"):
        read(many()).where(clients="ann")  # type: ignore[call-arg]


def test_names_stand_in_the_order_in_which_they_first_appear() -> None:
    rows = [replace(ROW, client=name, on=on) for name, on in
            (("zoe", "unseen"), ("bob", "seen"), ("ann", "seen"), ("bob", "seen"))]  # fmt: skip
    assert read(rows).names("client") == ["zoe", "bob", "ann"]
    assert read(rows).where(on="seen").names("client") == ["bob", "ann"]
    assert read(rows).texts("client") == ["zoe", "bob", "ann", "bob"]


def test_a_curve_is_the_mean_by_round_the_first_round_first() -> None:
    rows = [
        replace(ROW, round=at, client=client, value=value)
        for at, client, value in ((2, "ann", 0.5), (1, "ann", 0.2), (1, "bob", 0.6), (2, "bob", 1))
    ]
    assert list(read(rows).curve().items()) == [(1, 0.4), (2, 0.75)]
    assert read(rows).by_round() == {1: [0.2, 0.6], 2: [0.5, 1.0]}
    assert read(rows).curve(max) == {1: 0.6, 2: 1.0}


def test_a_curve_adds_client_after_client_as_the_run_does_when_it_chooses_its_round() -> None:
    values = np.random.default_rng(0).random(1000).tolist()
    rows = [replace(ROW, client=f"c{i}", value=value) for i, value in enumerate(values)]
    total = 0.0
    for value in values:
        total += value
    assert read(rows).curve() == {1: total / 1000}
    assert total / 1000 != float(np.mean(values)), "another order of summation has other bits"


def test_the_last_of_a_clients_values_counts() -> None:
    rows = [replace(ROW, value=0.1), replace(ROW, client="bob"), replace(ROW, value=0.9)]
    assert read(rows).by_client() == {"ann": 0.9, "bob": 0.5}


def test_no_file_and_an_empty_one_have_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / METRICS).rows() == []
    (tmp_path / METRICS).touch()
    assert read_rows(tmp_path / METRICS).rows() == []
    assert read_rows(tmp_path / METRICS).where(stage="main").curve() == {}


def damaged() -> Iterator[tuple[str, str]]:
    values = ROW.as_dict()
    yield "half a line", HALF
    yield "no object", "[1, 2]"
    yield "a blank line", ""
    yield "a field too few", json.dumps({k: v for k, v in values.items() if k != "metric"})
    yield "a field too many", json.dumps({**values, "more": 1})
    yield "another field", json.dumps(values).replace('"on"', '"off"')
    yield "a text for a number", json.dumps({**values, "value": "0.5"})
    yield "a number for a text", json.dumps({**values, "client": 3})
    yield "no number", json.dumps(values).replace("0.5", "0.5.1")
    yield "a broken text", json.dumps(values).replace('"seen"', '"seen')
    yield "half a round", json.dumps({**values, "round": 1.5})
    yield "a round beyond all bounds", json.dumps({**values, "round": 10**30})


@pytest.mark.parametrize("line", [pytest.param(line, id=name) for name, line in damaged()])
def test_a_damaged_line_is_an_error_that_names_the_file_and_the_line(
    tmp_path: Path, line: str
) -> None:
    path = write_rows(tmp_path, many()) / METRICS
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(RunError, match=rf"^line {len(many()) + 1} of .*metrics\.jsonl is damaged"):
        read_rows(path)


def test_bytes_that_are_no_text_are_damage_too(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_bytes(b'{"stage": "\xff"}\n')
    with pytest.raises(RunError, match="line 1 of"):
        read_rows(tmp_path / METRICS)


def test_only_so_many_bytes_are_read_as_are_asked_for(tmp_path: Path) -> None:
    path = write_rows(tmp_path, many()) / METRICS
    whole = path.stat().st_size
    with open(path, "a") as file:
        file.write(HALF)
    assert read_rows(path, whole).rows() == many()
    assert read_rows(path, 0).rows() == []
    first = len(path.read_bytes().splitlines(keepends=True)[0])
    assert read_rows(path, first).rows() == many()[:1]


def test_a_line_that_lacks_what_is_wanted_of_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "timing.jsonl"
    path.write_text('{"seconds": 1.5}\n{"minutes": 2}\n')
    with pytest.raises(RunError, match=r"^line 2 of .*timing\.jsonl is damaged"):
        read_lines(path, lambda line: float(line["seconds"]))


def test_a_thousand_clients_over_a_hundred_rounds_are_open_in_seconds(tmp_path: Path) -> None:
    """About one second of an idle processor here; the bound leaves room for a slower, busy one."""
    kinds = [
        json.dumps(replace(ROW, client=f"client-{c}", split=split, metric=metric).as_dict())
        for c in range(1000)
        for split in ("validation", "test")
        for metric in ("accuracy", "loss", "f1")
    ]
    values = iter(np.random.default_rng(0).random(6000).tolist() * 100)
    with open(tmp_path / METRICS, "w") as file:
        for at in range(1, 101):
            file.writelines(
                line.replace('"round": 1', f'"round": {at}').replace("0.5", repr(next(values)))
                + "\n"
                for line in kinds
            )
    started = time.process_time()
    rows = read_rows(tmp_path / METRICS)
    assert time.process_time() - started < 6.0
    assert len(rows) == 600_000
    curve = rows.where(split="test", metric="accuracy").curve()
    assert list(curve) == [*range(1, 101)]
    assert curve[1] == curve[100] == pytest.approx(0.5, abs=0.05)
