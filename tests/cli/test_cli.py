"""The command line: what it prints, what it leaves behind, how it ends."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedskew.api import run
from fedskew.cli import catalogue, main
from fedskew.cli.progress import Live, Plain
from fedskew.comparisons.crossing import label, pairs
from fedskew.config import load_config, make_config
from fedskew.data.datasets import load
from fedskew.federate.metrics import Row
from fedskew.federate.progress import Progress, RoundRecord
from fedskew.federate.rounds import Choice
from fedskew.methods import METHODS
from fedskew.parts.aggregate import ServerState
from fedskew.runs.experiment import load_run
from fedskew.runs.identity import resolve
from fedskew.store import read_sealed, write_sealed

QUICK = ["--set", "model=logistic", "--set", "train.rounds=2", "--set", "federation.clients=3"]
FEDSKEW = [sys.executable, "-c", "import sys, fedskew.cli; sys.exit(fedskew.cli.main())"]


def test_help_imports_nothing_heavy() -> None:
    """What makes help slow is imports; a clock would fail on a busy machine."""
    script = (
        "import sys, fedskew.cli\n"
        "code = fedskew.cli.main(['--help'])\n"
        "heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'pydantic', 'matplotlib', 'safetensors'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)), code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded: [] 0"
    commands = ("run", "compare", "list", "show", "adapt", "predict", "generate", "export", "drift")
    assert all(command in done.stdout for command in commands)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fedskew 0.")


@pytest.mark.parametrize(
    "kind",
    ["datasets", "partitions", "skews", "environments", "models", "methods", "examples", "suites"],
)
def test_list_has_one_line_for_each_and_every_one_can_be_read_in_full(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", kind]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(set(names)) == len(names) >= 1
    for name in names:
        assert main(["list", kind, name]) == 0
        assert capsys.readouterr().out.startswith(f"{name}: ")


def test_the_card_of_a_method_says_all_a_user_should_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["list", "methods", "fedprox"])
    card = capsys.readouterr().out
    known = METHODS["fedprox"].card
    for text in (known.summary, known.paper, known.update, known.sends, known.batch_norm):
        assert text in card
    assert known.fails in card
    assert "mu = 0.01" in card
    assert "fedavg at mu=0.0" in card


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["list", "metods"], "did you mean 'methods'?"),
        (["list", "methods", "fedprx"], "did you mean 'fedprox'?"),
        (["run", "digitz"], "did you mean 'digits'?"),
        (["run"], "missing argument 'CONFIG'; see --help."),
        (["run", "digits", "--outt", "x"], "--out"),
        (["show", "nowhere"], "nowhere is not a run folder"),
        (["run", "digits", "--set", "train.rounds"], "--set wants key=value"),
        (["compare", "fedavg", "--seeds", "0"], "seeds must be at least 1"),
        (["compare", "fedprox:mu"], "needs name=value"),
        (["compare"], "compare needs at least one method, or objectives"),
        (["compare", "--objectives", "erm", "irmm"], "did you mean 'irm'?"),
        (["compare", "--objectives", "erm", "--aggregators", "vae"], "erm × vae cannot run"),
        (["compare", "--aggregators", "fedavg"], "aggregators need objectives"),
        (["compare", "--objectives"], "option '--objectives' requires an argument"),
        (["compare", "--objectives", "erm", "--leave-out", "some"], "'all' or a whole number"),
        (["adapt", "nowhere", "few.npz", "--out", "x"], "nowhere is not a run folder"),
        (["predict", "nowhere", "few.npz"], "nowhere is not a run folder"),
        (["predict", "nowhere", "few.npz", "--threshold", "1"], "threshold must lie between"),
        (["generate", "nowhere", "--count", "5", "--out", "x"], "nowhere is not a run folder"),
        (["generate", "nowhere", "--out", "x"], "missing option '--count'"),
    ],
)
def test_a_wrong_command_gets_one_sentence_and_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert sentence in line


def test_run_leaves_a_folder_that_show_sums_up_and_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "digits", *QUICK, "--out", str(tmp_path)]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "round 1/2: loss" in first
    assert "round 2/2: loss" in first
    (folder,) = tmp_path.iterdir()
    figures = {path.name for path in (folder / "figures").iterdir()}
    names = ("learning", "clients", "partition", "coverage")
    assert figures == {f"{name}.{kind}" for name in names for kind in ("png", "csv")}
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert first.endswith(shown)
    assert "finished after round 2" in shown
    assert "fine-tuned 1" in shown
    stamp = (folder / "result.json").stat().st_mtime_ns
    assert main(command) == 0
    assert "finished already" in capsys.readouterr().out
    assert (folder / "result.json").stat().st_mtime_ns == stamp


def test_a_new_client_adapts_a_run_and_predicts_with_what_that_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "digits", *QUICK, "--out", str(tmp_path / "runs")])
    (folder,) = (tmp_path / "runs").iterdir()
    digits = load("digits", normalise="unit")
    for name, rows in (("few", slice(40)), ("new", slice(40, 100))):
        np.savez(tmp_path / f"{name}.npz", x=digits.x[rows].numpy(), y=digits.y[rows].numpy())
    capsys.readouterr()
    few, mine = str(tmp_path / "few.npz"), str(tmp_path / "mine")
    shots = ["--shots", "3", "--epochs", "8", "--lr", "0.1", "--part", "head", "--seed", "4"]
    assert main(["adapt", str(folder), few, "--out", mine, *shots]) == 0
    printed = capsys.readouterr().out
    assert "adapted:   head for 8 epochs, lr 0.1" in printed
    assert "3 of each class used" in printed
    answers = tmp_path / "answers.csv"
    given = ["--threshold", "0.4", "--out", str(answers)]
    assert main(["predict", mine, str(tmp_path / "new.npz"), *given]) == 0
    printed = capsys.readouterr().out
    lines = answers.read_text().splitlines()
    assert len(lines) == 61
    asked = sum("ask for a label" in line for line in lines)
    assert f"{asked} of 60 to ask" in printed
    assert "threshold: 0.4, as given" in printed
    right = sum(line.split(",")[1] == line.split(",")[4] for line in lines[1:])
    assert f"accuracy:  {right / 60:.3f} of all" in printed


def test_generate_and_export_leave_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("method=civae", "model=dense-civae", "federation.normalise=unit", "train.lr=0.001")
    chosen = [part for setting in settings for part in ("--set", setting)]
    main(["run", "digits", *QUICK, *chosen, "--out", str(tmp_path / "runs")])
    (folder,) = (tmp_path / "runs").iterdir()
    capsys.readouterr()
    chosen = ["--count", "7", "--threshold", "0.11", "--as-drawn", "--spread", "2", "--no-check"]
    assert main(["generate", str(folder), "--out", str(tmp_path / "made"), *chosen]) == 0
    assert capsys.readouterr().out.startswith("7 samples from the global model of civae-")
    assert (tmp_path / "made" / "samples.png").is_file()
    small = ["--no-int8", "--prune", "0.5", "--out", str(tmp_path / "small")]
    assert main(["export", str(folder), *small]) == 0
    assert "pruned 50%" in capsys.readouterr().out
    assert not list((tmp_path / "small").glob("*int8*"))


def test_drift_hands_every_option_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drifted(*places: Path, **options: Any) -> str:
        assert places == (Path("somewhere"), tmp_path)
        assert options == {
            "client": "ann", "shots": 3, "threshold": 0.7, "accuracy": 0.9, "window": 20,
            "seed": 5, "data_dir": Path("data"), "allow_code": False,
        }  # fmt: skip
        return "a table"

    monkeypatch.setattr("fedskew.deploy.drift.drift", drifted)
    options = "--client ann --shots 3 --threshold 0.7 --accuracy 0.9 --window 20 --seed 5"
    given = [*options.split(), "--data-dir", "data", "--out", str(tmp_path)]
    assert main(["drift", "somewhere", *given]) == 0
    assert capsys.readouterr().out.startswith("a table\n")


def test_show_reports_an_unfinished_run_and_its_dropped_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "digits", *QUICK, "--out", str(tmp_path)])
    (folder,) = tmp_path.iterdir()
    (folder / "result.json").unlink()
    log = folder / "rounds.jsonl"
    second = log.read_text().splitlines()[1]
    failed = second.replace('"failures": {}', '"failures": {"client-001": "out of memory"}')
    log.write_text(log.read_text().replace(second, failed))
    # As of a run begun before logs were hashed: else the edit is what is told.
    book = read_sealed(folder / "checkpoint.json")
    write_sealed(folder / "checkpoint.json", {**book, "hashes": {}})
    capsys.readouterr()
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "round 2 of 2 complete; repeat its command to go on" in shown
    assert "failed: client-001 in round 2: out of memory" in shown


def test_compare_prints_the_leaderboard_it_leaves_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "fedavg", "fedprox:mu=0.1", *QUICK, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "[1/4] fedavg, seed 0: test accuracy" in printed
    assert "[2/4] fedprox (mu=0.1), seed 0: test accuracy" in printed
    rows = (tmp_path / "leaderboard.csv").read_text().splitlines()[1:]
    for name in (row.split(",")[0] for row in rows):
        assert f"\n{name} " in printed
    assert {path.name.split("-")[0] for path in (tmp_path / "runs").iterdir()} == {
        "fedavg", "fedprox", "local", "central",
    }  # fmt: skip


@pytest.mark.parametrize(
    "lists",
    [
        "--objectives erm irm:lam=1.0,anneal=5 --seeds 2 --aggregators fedavg fedprox:mu=0.5",
        "--objectives erm,irm:lam=1.0,anneal=5 --aggregators=fedavg,fedprox:mu=0.5 --seeds 2",
        "--objectives=erm irm:lam=1.0,anneal=5 --aggregators fedavg --aggregators fedprox:mu=0.5 "
        "--seeds 2",
    ],
)
def test_objectives_and_aggregators_may_be_listed_in_many_ways(
    lists: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}

    def compared(methods: Any, config: Any, **options: Any) -> str:
        found.update(options, methods=methods)
        return "a table"

    monkeypatch.setattr("fedskew.api.compare", compared)
    assert main(["compare", "fedavg", "ditto", *lists.split(), "--leave-out", "3"]) == 0
    assert (found["methods"], found["seeds"], found["leave_out"]) == (["fedavg", "ditto"], 2, 3)
    assert [label(p.method) for p in pairs(found["objectives"], found["aggregators"])] == [
        "erm × fedavg", "erm × fedprox (mu=0.5)", "irm (anneal=5, lam=1.0) × fedavg",
        "irm (anneal=5, lam=1.0) × fedprox (mu=0.5)",
    ]  # fmt: skip


def test_compare_crosses_objectives_with_aggregators_and_prints_a_table_a_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ["--objectives", "erm", "vrex:lam=1.0", "--aggregators", "fedprox:mu=0.5"]
    more = ["--set", "federation.unseen=1", "--no-references", "--leave-out", "all"]
    assert main(["compare", *pair, *QUICK, *more, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "[1/6] erm × fedprox (mu=0.5), seed 0: test accuracy" in printed
    assert "[3/6] erm × fedprox (mu=0.5), seed 0, without client-00" in printed
    assert len((tmp_path / "matrix.csv").read_text().splitlines()) == 1 + 2 * 4
    assert "oracle: the round with the best score out of domain itself: it peeks" in printed
    table = printed[printed.index("left-out: ") :].splitlines()[1:5]
    assert table[0].split() == ["objective", "fedprox", "(mu=0.5)"]
    assert table[3].startswith("vrex (lam=1.0)  ")
    assert (tmp_path / "figures" / "matrix.png").is_file()
    assert len(list((tmp_path / "runs").glob("*/figures"))) == 2


def test_ctrl_c_says_how_far_the_run_was_and_the_same_command_goes_on(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["run", "digits", *QUICK, "--out", str(tmp_path)]
    show = Plain.show

    def interrupt(self: Plain, *seen: Any) -> None:
        show(self, *seen)
        os.kill(os.getpid(), signal.SIGINT)

    # Whoever starts the tests in the background of a shell has them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch:
        patch.setattr(Plain, "show", interrupt)
        assert main(command) == 130
    signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == (
        "stopped after round 1 of 2 (fedavg, seed 0); repeat the command to go on\n"
    )
    assert main(command) == 0
    assert "round 1/2" not in capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    assert load_run(folder).result["rounds"] == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["report", "x"], "error: no such command 'report'. Did you mean 'export'?\n"),
        (["run", "nix.csv"], "error: nix.csv does not exist.\n"),
        (
            ["run", "digits", "--set", "train.learning_rate=1"],
            "error: unknown setting 'train.learning_rate': did you mean 'train.lr'?\n",
        ),
    ],
)
def test_what_is_not_there_is_said_once(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == sentence


def test_a_reader_that_leaves_is_no_error() -> None:
    command = subprocess.Popen(
        [*FEDSKEW, "list", "examples"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    assert command.stderr.read() == b""
    command.stderr.close()
    assert command.wait(timeout=300) != 2


def test_a_model_in_the_working_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_model_of_the_test.py").write_text(
        "from math import prod\n"
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.body, self.head = nn.Flatten(), nn.Linear(prod(shape), classes)\n"
        "    def forward(self, x):\n"
        "        return self.head(self.body(x))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    settings = [*QUICK, "--set", "model=own_model_of_the_test:Own", "--set", "train.rounds=1"]
    assert main(["run", "digits", *settings]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_shipped_examples_are_valid_configs() -> None:
    examples = catalogue.shipped_examples()
    assert {"digits", "mnist-dirichlet", "own-data"} <= examples.keys()
    for path in examples.values():
        resolve(load_config(path))


def test_the_live_view_shows_the_latest_round(tmp_path: Path) -> None:
    config = resolve(
        make_config({"model": "logistic", "federation": {"clients": 3}, "train": {"rounds": 2}})
    )
    with open(tmp_path / "screen", "w") as screen:
        console = Console(file=screen, force_terminal=True, width=120)
        with Live(console) as live:
            live.begin(config, 1, 2, "fedavg, seed 0")
            live.end(run(config, out=tmp_path, watch=live), repeated=False)
    seen = (tmp_path / "screen").read_text()
    assert "2/2" in seen
    assert "worst" in seen
    assert "[1/2] fedavg, seed 0: test accuracy" in seen


@pytest.mark.parametrize(("rounds", "lines"), [(5, 5), (20, 20), (45, 15), (41, 14)])
def test_a_run_prints_at_most_twenty_lines_and_always_the_last(rounds: int, lines: int) -> None:
    screen = io.StringIO()
    plain = Plain(Console(file=screen, width=200))
    plain.begin(resolve(make_config({"train": {"rounds": rounds}})), 1, 1, "fedavg, seed 0")
    for number in range(1, rounds + 1):
        progress = Progress("main", number, ServerState({}), Choice(), number == rounds)
        row = Row("main", number, "global", "seen", "a", "none", "validation", "accuracy", 0.5, 9)
        worse = replace(row, client="b", value=0.25)
        plain(progress, RoundRecord("main", number, 2, 1.5, 0, 0), [row, worse])
    printed = screen.getvalue().splitlines()
    assert len(printed) == lines
    assert printed[-1].startswith(
        f"round {rounds}/{rounds}: loss 1.5000, validation accuracy 0.375, worst client 0.250"
    )


SUITE = """
title = "Two arms"
source = "Nobody 2020"
question = "Does the pull help?"
[defaults]
model.name = "logistic"
federation.clients = 3
train.rounds = 1
[scales.smoke]
seeds = 1
[[settings]]
name = "plain"
label = "Plain"
[[arms]]
name = "avg"
label = "Average"
method = "fedavg"
[[arms]]
name = "prox"
label = "With a pull"
method = "fedprox"
[[claims]]
name = "bold"
says = "The pull helps."
source = "page 1"
better = "prox"
than = "avg"
on = ["plain"]
"""


def test_reproduce_prints_a_line_for_each_run_and_ends_in_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.toml").write_text(SUITE)
    command = ["reproduce", str(tmp_path / "two.toml"), "--out", str(tmp_path)]
    assert main(command) == 0
    before, first, second, *rest = capsys.readouterr().out.splitlines()
    assert before == (
        "2 runs, 0 of them finished: 2 runs left; nothing tells yet how long they take (--estimate "
        "measures)"
    )
    scores = r"test accuracy 0\.\d{3}, worst client 0\.\d{3}"
    assert re.fullmatch(rf"\[1/2\] plain · avg · seed 0: {scores}, \d+\.\d s", first)
    assert re.fullmatch(rf"\[2/2\] plain · prox · seed 0: {scores}, \d+\.\d s", second)
    assert rest == [
        "bold: undecided (one seed gives no interval)",
        f"The whole page is {tmp_path / 'two-smoke.md'}.",
    ]
    assert main(command) == 0
    again = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(rf"\[1/2\] plain · avg · seed 0: {scores}, finished before", again)


def test_a_part_of_a_suite_is_chosen_by_name_and_has_a_page_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.toml").write_text(SUITE)
    command = ["reproduce", str(tmp_path / "two.toml"), "--out", str(tmp_path)]
    assert main([*command, "--arms", "p*", "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "[2/2] plain · prox · seed 1" in printed
    assert f"The whole page is {tmp_path / 'two-smoke-part.md'}." in printed
    assert not (tmp_path / "two-smoke.md").exists()
    assert '--scale smoke --arms "p*" --seeds 2' in (tmp_path / "two-smoke-part.md").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--arms", "porx"], "unknown arm 'porx' of scale 'smoke' of suite 'two': did you mean"),
        (["--settings", "plane"], "unknown setting 'plane' of scale 'smoke' of suite 'two'"),
        (["--settings", "x*"], "no setting of scale 'smoke' of suite 'two' is like 'x*'"),
        (["--arms", "avg,"], "--arms has an empty name in 'avg,'"),
        (["--tables", "3.1"], "unknown table '3.1' of suite 'two', which has none"),
        (["--seeds", "0"], "seeds must be at least 1, not 0."),
    ],
)
def test_parts_that_do_not_exist_are_refused(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.toml").write_text(SUITE)
    assert main(["reproduce", str(tmp_path / "two.toml"), "--out", str(tmp_path), *options]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_estimate_runs_nothing_that_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.toml").write_text(SUITE)
    command = ["reproduce", str(tmp_path / "two.toml"), "--out", str(tmp_path), "--estimate"]
    assert main([*command, "--seeds", "3", "--arms", "avg"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"plain +avg +3 +\d+:\d\d +1 probe of a few rounds", printed)
    assert re.search(r"0 run\(s\) finished, 3 runs left, about \d+:\d\d\.", printed)
    assert [path.name for path in tmp_path.iterdir()] == ["two.toml"]
