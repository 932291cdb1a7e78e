"""What a user's own part raises reaches its author, with the place where it was raised."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from helpers import make_holdings, method_holdings, run, toy_federation, toy_model
from rich.console import Console
from torch import Tensor

import fedskew
from fedskew.cli import main
from fedskew.cli.progress import Live, Plain, observer
from fedskew.engine.executor import ONE_BY_ONE
from fedskew.errors import RunError, clients_may_fail, place_of
from fedskew.federate.client import train_clients
from fedskew.federate.recipe import Adapt, Phase, Recipe
from fedskew.federate.rounds import Rounds
from fedskew.federate.scoring import score_samples
from fedskew.federate.tasks import ScoreTask, TrainTask
from fedskew.parts.aggregate import Mean, ServerState, Update
from fedskew.parts.begin import Begin, Begun, Start
from fedskew.parts.correct import Correction
from fedskew.parts.objective import Batch, Bound, Context, Erm
from fedskew.parts.report import Finished, Report, Reported
from fedskew.types import Tensors

MODULE = """
import torch
from fedskew.parts.objective import Erm
from fedskew.federate.recipe import Recipe


class Broken(Erm):
    def loss(self, model, batch, client):
        loss = super().loss(model, batch, client)
        raise LookupError("no such penalty")


class Stopping(Erm):
    def loss(self, model, batch, client):
        loss = super().loss(model, batch, client)
        breakpoint()
        return loss


def broken():
    return Recipe(objective=Broken())


def stopping():
    return Recipe(objective=Stopping())


def unmade():
    raise LookupError("no such recipe")
"""
LINE = 'raise LookupError("no such penalty")'
SETTINGS = {"model": "logistic", "train.rounds": 1, "federation.clients": 3}
RAISED = "LookupError: no such penalty"


@pytest.fixture
def own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a user's parts, in the folder the user works in."""
    path = tmp_path / "their_parts.py"
    path.write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSKEW_DEBUG", raising=False)
    monkeypatch.delitem(sys.modules, "their_parts", raising=False)
    return path


def settings(method: str, executor: str = "auto") -> list[str]:
    given = {**SETTINGS, "method": f"their_parts:{method}", "executor": executor}
    return [part for key, value in given.items() for part in ("--set", f"{key}={value}")]


def first_client_and_its_batches() -> tuple[str, int]:
    config = fedskew.make_config({"federation": {"clients": 3}})
    client = fedskew.make_federation(config).clients[0]
    return client.name, -(-len(client.train) // config.train.batch_size) * config.train.epochs


@pytest.mark.parametrize("executor", ["vectorised", "threads", "one-by-one"])
def test_python_raises_what_an_own_objective_raises_with_its_traceback_and_place(
    own_parts: Path, executor: str
) -> None:
    config = {
        "model": "logistic", "method": "their_parts:broken", "executor": executor,
        "train": {"rounds": 1}, "federation": {"clients": 3},
    }  # fmt: skip
    with pytest.raises(LookupError, match="no such penalty") as caught:
        fedskew.run(config, out=own_parts.parent / "runs")
    client, batches = first_client_and_its_batches()
    place = f"client {client!r}, stage 'main', round 1, phase 1, batch 1 of {batches}"
    assert caught.value.__notes__ == [f"raised at {place}"]
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.name, last.line) == (str(own_parts), "loss", LINE)


def in_a_shell(own_parts: Path, method: str, executor: str = "auto", **more: str) -> Any:
    environment = {k: v for k, v in os.environ.items() if k != "FEDSKEW_DEBUG"}
    given = more.pop("input", "")
    return subprocess.run(
        [sys.executable, "-m", "fedskew", "run", "digits", *settings(method, executor)],
        cwd=own_parts.parent, env=environment | more, capture_output=True, text=True, timeout=300,
        input=given,
    )  # fmt: skip


def test_the_command_line_says_it_in_one_sentence_or_shows_the_traceback(own_parts: Path) -> None:
    client, batches = first_client_and_its_batches()
    place = f"phase 1, batch 1 of {batches}"
    short = in_a_shell(own_parts, "broken")
    sentence = f"every client failed in the first round; {client!r}: {RAISED} ({place})."
    assert (short.returncode, short.stderr) == (2, f"error: {sentence}\n")
    long = in_a_shell(own_parts, "broken", FEDSKEW_DEBUG="1")
    assert long.returncode == 2
    *_, raised, note, last = long.stderr.splitlines()
    assert raised == RAISED
    assert note == f"raised at client {client!r}, stage 'main', round 1, {place}"
    assert last.startswith(f"error: {RAISED} (client {client!r}, ")
    assert f'File "{own_parts}", line 10, in loss\n    {LINE}' in long.stderr


def test_an_own_function_that_raises_is_no_error_of_ours(
    own_parts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", "digits", *settings("unmade")]) == 2
    assert capsys.readouterr().err == (
        "error: LookupError: no such recipe (method 'their_parts:unmade'); "
        "FEDSKEW_DEBUG=1 shows the traceback.\n"
    )
    monkeypatch.setenv("FEDSKEW_DEBUG", "1")
    assert main(["run", "digits", *settings("unmade")]) == 2
    assert ", in unmade\n" in capsys.readouterr().err


def test_a_users_mistake_has_a_traceback_when_debugging(
    own_parts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_parts.write_text("import no_such_module")
    assert main(["run", "digits", *settings("broken")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    monkeypatch.setenv("FEDSKEW_DEBUG", "1")
    assert main(["run", "digits", *settings("broken")]) == 2
    assert f'File "{own_parts}", line 1, in <module>' in capsys.readouterr().err


def test_a_debugger_stops_in_an_objective_that_runs_one_by_one(own_parts: Path) -> None:
    commands = "p type(loss).__name__, loss.item() > 0\np batch.x.numpy().ndim\nc\nq\n"
    done = in_a_shell(own_parts, "stopping", "one-by-one", input=commands)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("stopped before another round")
    where = f"> {own_parts}(17)loss()\n-> return loss\n"
    assert done.stdout == f"{where}(Pdb) ('Tensor', True)\n(Pdb) 4\n(Pdb) {where}(Pdb) "


@pytest.mark.parametrize("executor", ["auto", "one-by-one"])
def test_a_debugger_has_the_terminal_for_itself(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDSKEW_DEBUG", raising=False)
    terminal, config = Console(force_terminal=True), fedskew.make_config({"executor": executor})
    assert isinstance(observer(terminal, config), Live if executor == "auto" else Plain)
    monkeypatch.setenv("FEDSKEW_DEBUG", "1")
    assert isinstance(observer(terminal, config), Plain)


@dataclass(frozen=True)
class Late(Erm):
    """Raises where a client has more than 40 samples, at the third batch of its second round."""

    counts_steps = True

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        assert batch.step is not None
        if float(client["class_counts"].sum()) > 40 and int(batch.step) == 12 + 2:
            raise KeyError("fifteen")
        return super().loss(model, batch, client)

    reads = ("class_counts",)


def late(kind: str = ONE_BY_ONE) -> Any:
    return make_holdings(Recipe(objective=Late()), chunk=1, executor=kind)


LATE = "phase 1, batch 3 of 12"
"""The client has 41 samples: two epochs of six batches of 8, the last of one sample."""


def test_one_client_that_raises_in_a_late_round_raises_in_python() -> None:
    with pytest.raises(KeyError) as caught:
        run(late(), 3)
    assert place_of(caught.value) == f"client 'c3', stage 'main', round 2, {LATE}"


def test_one_client_that_raises_is_dropped_for_the_round_where_clients_may_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with clients_may_fail():
        result = run(late(), 3)
        failures = [record.failures for record in result.journal.records]
        # Its second round never counted, so it fails in the same place when it tries again.
        assert failures == [{}, *[{"c3": f"KeyError: 'fifteen' ({LATE})"}] * 2]
        assert [record.participants for record in result.journal.records] == [4, 3, 3]
        monkeypatch.setenv("FEDSKEW_DEBUG", "1")
        with pytest.raises(KeyError, match="fifteen"):
            run(late(), 3)


def test_a_client_our_own_code_refuses_is_dropped_in_python_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BatchNorm cannot train on a single sample: the client's misfortune, nobody's bug."""
    holdings = make_holdings(Recipe(), toy_federation((1, 16)), toy_model("batch-norm"))
    (record,) = run(holdings, 1).journal.records
    assert record.failures.keys() == {"c0"}
    assert record.failures["c0"].startswith("ValueError: Expected more than 1 value")
    assert record.failures["c0"].endswith("(phase 1, batch 1 of 2)")
    monkeypatch.setenv("FEDSKEW_DEBUG", "1")
    with pytest.raises(ValueError, match="more than 1 value"):
        run(holdings, 1)


def refuse(*_: Any) -> Any:
    raise LookupError("never")


class BadCorrection(Correction):
    correct: Callable[..., Tensors] = refuse


class BadReport(Report):
    def report(self, finished: Finished) -> Reported:
        return refuse()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class BadBegin(Begin):
    trains: bool
    personal = True

    def begin(self, start: Start) -> Begun:
        return refuse() if start.trains == self.trains else super().begin(start)


class BadScores(Erm):
    scores: Callable[..., Tensors] = refuse


class BadAggregator(Mean):
    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        return super().aggregate(state, updates, clients) if state.round < 2 else refuse()


@pytest.mark.parametrize(
    ("recipe", "place"),
    [
        (
            Recipe(trains=(Phase(), Phase(corrects=(BadCorrection(),)))),
            "client 'c0', stage 'main', round 1, phase 2, batch 1 of 2",
        ),
        (Recipe(reports=(BadReport(),)), "client 'c0', stage 'main', round 1, report BadReport"),
        (Recipe(begins=BadBegin(True)), "client 'c0', stage 'main', round 1, beginning"),
        (Recipe(begins=BadBegin(False)), "client 'c0', stage 'main', round 1, scoring, beginning"),
        (Recipe(aggregates=BadAggregator()), "stage 'main', round 2, aggregating"),
        (
            Recipe(objective=BadScores()),
            "stage 'main', round 1, scoring 'c0', 'c1', 'c2' and 3 more, batch 1 of 1",
        ),
    ],
)
def test_every_kind_of_part_says_where_it_raised(recipe: Recipe, place: str) -> None:
    with pytest.raises(LookupError, match="never") as caught:
        run(make_holdings(recipe), 2)
    assert place_of(caught.value) == place


def adapting(round_number: int) -> Any:
    holdings = make_holdings(Recipe())
    broken = Adapt((Phase(epochs=1, corrects=(BadCorrection(),)),))
    holdings = replace(holdings, plan=replace(holdings.plan, adapts=(broken,)))
    task = ScoreTask("c1", round_number, holdings.plan.initial, "global", ("test",), 0)
    return score_samples(holdings, [task], {})


def test_who_cannot_begin_is_dropped_for_the_round_where_clients_may_fail() -> None:
    class Picky(Begin):
        def begin(self, start: Start) -> Begun:
            return refuse() if start.samples == 7 else super().begin(start)

    with clients_may_fail():
        (record,) = run(make_holdings(Recipe(begins=Picky())), 1).journal.records
    assert record.failures == {"c0": "LookupError: never (beginning)"}
    assert record.participants == 3


def test_an_adaptation_that_raises_says_where_it_did() -> None:
    with pytest.raises(LookupError, match="never") as caught:
        adapting(7)
    place = "client 'c1', stage 'main', round 7, adapting, phase 1, batch 1 of 3"
    assert place_of(caught.value) == place
    with clients_may_fail():
        (scored,) = adapting(7)
    assert scored.error == "LookupError: never (phase 1, batch 1 of 3)"


def test_a_first_round_in_which_everybody_raises_names_client_and_batch() -> None:
    holdings = make_holdings(Recipe(trains=(Phase(corrects=(BadCorrection(),)),)))
    why = r"first round; 'c0': LookupError: never \(phase 1, batch 1 of 2\)\."
    with clients_may_fail(), pytest.raises(RunError, match=why):
        run(holdings, Rounds(2))


def test_lost_answers_are_no_exceptions() -> None:
    """Numbers that are not finite drop a client for the round, in Python as anywhere."""
    holdings = method_holdings("fedavg")
    wild = TrainTask("c0", 1, holdings.plan.initial, lr_factor=1e300)
    (outcome,) = train_clients(holdings, [wild], {"c0": {}})
    assert outcome.error == "its parameters are not finite after training"
