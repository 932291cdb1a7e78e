"""Whole runs of methods that compare clients: what they record, who gets which model, bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_close, make_holdings, method_holdings, toy_federation
from helpers import run as run_toy

from fedskew import run
from fedskew.cli import main
from fedskew.data.federation import Client, Federation
from fedskew.federate.rounds import Rounds
from fedskew.methods import find
from fedskew.parts.report import Finished, Reported
from fedskew.parts.similarity import Fingerprint
from fedskew.views.similarity import similarity_series

QUICK: dict[str, Any] = {"model": {"name": "mlp", "hidden": [8]}, "train": {"rounds": 6}}


def test_a_run_keeps_its_matrices_at_the_rounds_asked_for(tmp_path: Path) -> None:
    evaluate = {"every": 3, "matrix_rounds": [2, 6]}
    done = run({**QUICK, "method": "fedshibu", "evaluate": evaluate}, out=tmp_path)
    series = similarity_series(done.path, "similarity")
    assert [found.round for found in series] == [2, 6]
    assert series[0].clients == tuple(f"client-{i:03d}" for i in range(10))
    for _, _, values in series:
        assert np.diagonal(values).tolist() == [1.0] * 10
        np.testing.assert_allclose(values, values.T, atol=1e-5)
        assert ((values >= 0) & (values <= 1)).all()
    assert (done.path / "figures" / "similarity.png").is_file()


def test_without_a_wish_rounds_that_no_longer_run_would_drop_and_the_last_are_kept() -> None:
    kept = [n for n in range(1, 301) if Rounds(300).keeps_matrices_in(n)]
    assert kept == [1, 4, 16, 64, 256, 300]


def test_every_scored_round_records_each_rows_self_weight_and_entropy(tmp_path: Path) -> None:
    done = run({**QUICK, "method": "fedshibu", "evaluate": {"every": 3}}, out=tmp_path)
    rows = [row for row in done.rows() if row.split == "server"]
    assert {row.metric for row in rows} == {"self_weight", "row_entropy"}
    assert {row.round for row in rows} == {3, 6}
    assert len(rows) == 2 * 2 * 10
    matrix = similarity_series(done.path, "similarity")[-1]
    sharpened = matrix.values ** done.config.method.knobs["sharpen"]
    expected = dict(zip(matrix.clients, 1 / sharpened.sum(axis=1), strict=True))
    for row in rows:
        if row.metric == "self_weight" and row.round == 6:
            assert row.value == pytest.approx(expected[row.client], rel=1e-3)
    summed = [s for s in done.result["scores"] if s["metric"] == "self_weight"]
    assert {s["at"] for s in summed} == {"last", "selected"}


def test_a_runs_summary_says_what_the_server_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    given = {**QUICK, "method": {"name": "grouped", "groups": pairs}}
    done = run(given, out=tmp_path, draw=False)
    assert main(["show", str(done.path)]) == 0
    said = capsys.readouterr().out
    assert "clients after round 6, mean and range: 2 groups, self weight 0.200 (0.200 to " in said
    assert "row entropy 0.699 (0.699 to 0.699)" in said


def test_an_interrupted_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    """The server's memory of fingerprints and every client's model survive a stop."""
    config = {**QUICK, "method": "fedshibu", "train": {"rounds": 6, "clients_per_round": 4}}
    whole = run(config, out=tmp_path / "whole")

    class Stop(Exception): ...

    def stop(progress: Any, record: Any, rows: Any) -> None:
        if progress.round == 3:
            raise Stop

    with pytest.raises(Stop):
        run(config, out=tmp_path / "parts", watch=stop)
    parts = run(config, out=tmp_path / "parts")
    for client in ("client-000", "client-007"):
        ours, theirs = (done.model(client).state_dict() for done in (parts, whole))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_unseen_clients_are_scored_with_the_plain_mean() -> None:
    result = run_toy(method_holdings("fedshibu"))
    state = result.progress.state
    assert state.sent_to("c4") is state.shared
    personal, shared = (
        result.scores[(3, model, "unseen", "c4", "none", "test", "loss")]
        for model in ("personal", "global")
    )
    assert personal == shared


def test_with_partial_participation_everybody_seen_so_far_moves_on() -> None:
    holdings = method_holdings("fedshibu")
    result = run_toy(holdings, Rounds(6, clients_per_round=2))
    seen = set().union(*(p.state.personal.keys() for p in result.journal.states))
    assert seen == {"c0", "c1", "c2", "c3"}
    before, after = (result.journal.states[i].state for i in (-2, -1))
    moved = [
        c for c in before.personal
        if not torch.equal(before.personal[c]["body.0.weight"], after.personal[c]["body.0.weight"])
    ]  # fmt: skip
    assert len(moved) > 2
    assert holdings.plan.has_personal_models


def test_found_groups_work_with_partial_participation() -> None:
    result = run_toy(method_holdings("grouped"), Rounds(6, clients_per_round=2))
    assert set(result.progress.state.memory["group"]) == {"c0", "c1", "c2", "c3"}


class NotANumber(Fingerprint):
    """Stands for a client whose report is broken."""

    def report(self, finished: Finished) -> Reported:
        reported = super().report(finished)
        if finished.client.name == "c1":
            reported.sends["fingerprint"]["v"][0] = float("nan")
        return reported


def test_a_client_that_reports_nan_is_left_out_and_named() -> None:
    recipe = replace(find("fedshibu").recipe(), reports=(NotANumber(),))
    result = run_toy(make_holdings(recipe), 2)
    record = result.journal.records[-1]
    assert record.failures == {"c1": "its report v is not finite"}
    assert record.participants == 3
    assert "c1" not in result.progress.state.personal


def tiny_clients() -> Federation:
    """Two clients with too little to compare beside two ordinary ones."""
    federation = toy_federation((16, 16))
    a, b = federation.clients
    return federation.with_data(
        clients=(a, b, Client("one", a.train[:1]), Client("same", np.repeat(b.train[:1], 5)))
    )


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_clients_with_nothing_to_compare_keep_to_themselves(debiased: bool, kernel: str) -> None:
    knobs = {"mode": "feature", "debiased": debiased, "kernel": kernel}
    result = run_toy(method_holdings("fedshibu", knobs=knobs, federation=tiny_clients()), 2)
    for client in ("one", "same"):
        assert result.progress.state.measured[client]["self_weight"] == 1.0
    local = run_toy(
        method_holdings("self-mix", knobs={"self_weight": 1.0}, federation=tiny_clients()), 2
    )
    assert_close(result.model_of("one"), local.model_of("one"), 1e-6)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ["method.samples=1", "method.mode=probe"],
            "samples of method 'fedshibu' must be a whole number of at least 2, not 1.",
        ),
        (["method.mode=probe", "method.probe=public"], "set federation.public, which is 0"),
        (
            ["method.mode=nearest"],
            "mode of method 'fedshibu' must be 'probe', 'feature' or 'own', not 'nearest'.",
        ),
        (
            ["method.kernel=cosine"],
            "kernel of method 'fedshibu' must be 'linear' or 'rbf', not 'cosine'.",
        ),
        (
            ["method.cap=0"],
            "cap of method 'fedshibu' must be a number above 0 and of at most 1, not 0.",
        ),
        (
            ["method.sharpen=-1"],
            "sharpen of method 'fedshibu' must be a number of at least 0, not -1.",
        ),
        (
            ["method.self_weight=2"],
            "self_weight of method 'fedshibu' must be a number from 0 to 1 or none, not 2.",
        ),
        (
            ["method.neighbours=0"],
            "neighbours of method 'fedshibu' must be a whole number of at least 1 or none, not 0.",
        ),
        (
            ["method.fine_tune=tail"],
            "fine_tune of method 'fedshibu' must be 'all', 'head' or 'body', not 'tail'.",
        ),
        (
            ["method=grouped", "method.groups=pairs"],
            "groups of method 'grouped' must be 'found' or a list of lists, not 'pairs'.",
        ),
        (["method=grouped", "method.groups=[[0, 1]]"], "is in no group"),
        (["method=grouped", 'method.groups=[["nobody"]]'], "there is no client 'nobody'"),
        (
            ["method=self-mix", "method.self_weight=guess"],
            "self_weight of method 'self-mix' must be a number from 0 to 1 or "
            "'measured', not 'guess'.",
        ),
        (
            ["method.sharpen=much"],
            "sharpen of method 'fedshibu' must be a number of at least 0, not 'much'.",
        ),
        (
            ["method.samples=2.5"],
            "samples of method 'fedshibu' must be a whole number of at least 2, not 2.5.",
        ),
        (
            ["method.neighbours=few"],
            "neighbours of method 'fedshibu' must be a whole number of at least 1 "
            "or none, not 'few'.",
        ),
        (["method.debiased=1"], "must be true or false, not 1"),
        (
            ["method=fedprox", "method.mu=abc"],
            "mu of method 'fedprox' must be a number of at least 0, not 'abc'.",
        ),
        (["model=logistic"], "no parameters to train in its body"),
    ],
)
def test_bad_settings_get_one_sentence_and_leave_nothing(
    settings: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [part for s in ["method=fedshibu", *settings] for part in ("--set", s)]
    assert main(["run", "digits", *overrides, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []
