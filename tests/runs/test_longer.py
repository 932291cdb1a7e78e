"""A run that is asked for more rounds goes on, and ends like one asked for them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from same_run import assert_same_run

import fedskew

SETTINGS: dict[str, Any] = {
    "federation": {"samples": 300, "clients": 5, "unseen": 1},
    "model": {"name": "mlp", "hidden": [12]},
    "train": {"batch_size": 16},
}


def settings(rounds: int, method: Any, evaluate: dict[str, Any], **train: Any) -> dict[str, Any]:
    sections = {"train": {**SETTINGS["train"], "rounds": rounds, **train}, "evaluate": evaluate}
    return {**SETTINGS, "method": method, **sections}


FEDDISK = {"name": "feddisk", "density_rounds": 2, "local_epochs": 2}


@pytest.mark.parametrize(
    ("method", "evaluate", "train"),
    [
        ("fedavg", {}, {}),
        ("scaffold", {"every": 3}, {"clients_per_round": 3}),
        ("fedrep", {"every": 4, "fine_tune_epochs": 1}, {}),
        ("fedshibu", {}, {}),
        ("fedavg", {}, {"patience": 1, "lr": 1e-9}),
        ("fedavg", {"every": 3}, {"patience": 1, "lr": 1e-9}),
        ("fedavg", {}, {"patience": 2, "lr_decay": 1e4, "lr_steps": [2]}),
        (FEDDISK, {"every": 2}, {}),
    ],
)
def test_a_longer_run_is_the_same_whether_it_was_asked_for_at_once_or_later(
    method: Any, evaluate: dict[str, Any], train: dict[str, Any], tmp_path: Path
) -> None:
    short = fedskew.run(settings(2, method, evaluate, **train), out=tmp_path / "later")
    with pytest.warns(UserWarning, match="has up to 2 rounds; going on to 5"):
        later = fedskew.run(settings(5, method, evaluate, **train), out=tmp_path / "later")
    at_once = fedskew.run(settings(5, method, evaluate, **train), out=tmp_path / "at once")
    assert later.path == short.path
    assert_same_run(later, at_once)


def test_a_run_in_a_relative_folder_goes_on_with_its_matrices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the command line has it: ``runs`` below where it was started."""
    monkeypatch.chdir(tmp_path)
    fedskew.run(settings(2, "fedshibu", {}), out="runs", draw=False)
    with pytest.warns(UserWarning, match="going on"):
        longer = fedskew.run(settings(3, "fedshibu", {}), out="runs", draw=False)
    at_once = fedskew.run(settings(3, "fedshibu", {}), out=tmp_path / "at once", draw=False)
    assert_same_run(longer, at_once)


def test_patience_that_is_used_up_ends_a_run_that_went_on(tmp_path: Path) -> None:
    """From round 3 a rate ruins the model; with two rounds of patience the fourth is the last."""
    ruined = {"patience": 2, "lr_decay": 1e4, "lr_steps": [2]}
    fedskew.run(settings(3, "fedavg", {}, **ruined), out=tmp_path, draw=False)
    with pytest.warns(UserWarning, match="going on"):
        longer = fedskew.run(settings(9, "fedavg", {}, **ruined), out=tmp_path, draw=False)
    assert (longer.result["rounds"], longer.result["selected_round"]) == (4, 2)


def test_rounds_that_are_done_are_not_done_again(tmp_path: Path) -> None:
    fedskew.run(settings(2, "fedavg", {}), out=tmp_path, draw=False)
    seen: list[int] = []
    with pytest.warns(UserWarning, match="going on"):
        fedskew.run(
            settings(4, "fedavg", {}), out=tmp_path, draw=False,
            watch=lambda progress, *_: seen.append(progress.round),
        )  # fmt: skip
    assert seen == [3, 4]


def test_a_last_round_scored_out_of_turn_is_forgotten_and_so_is_its_choice(tmp_path: Path) -> None:
    """Rounds 3 and 6 are in turn; of four rounds the fourth is scored because it is the last."""
    evaluate = {"every": 3}
    short = fedskew.run(settings(4, "fedavg", evaluate), out=tmp_path, draw=False)
    assert {row.round for row in short.rows()} == {3, 4}
    with pytest.warns(UserWarning, match="going on"):
        longer = fedskew.run(settings(6, "fedavg", evaluate), out=tmp_path, draw=False)
    assert {row.round for row in longer.rows()} == {3, 6}


def test_a_run_that_is_stopped_while_it_grows_grows_on(tmp_path: Path) -> None:
    class Stopped(BaseException):
        pass

    def stop(progress: Any, *_: Any) -> None:
        if progress.round == 4:
            raise Stopped

    evaluate = {"every": 3}
    fedskew.run(settings(2, "scaffold", evaluate), out=tmp_path / "later")
    with pytest.raises(Stopped), pytest.warns(UserWarning, match="going on"):
        fedskew.run(settings(5, "scaffold", evaluate), out=tmp_path / "later", watch=stop)
    later = fedskew.run(settings(5, "scaffold", evaluate), out=tmp_path / "later")
    assert_same_run(later, fedskew.run(settings(5, "scaffold", evaluate), out=tmp_path / "once"))


def test_fewer_rounds_than_a_run_has_are_run_beside_it(tmp_path: Path) -> None:
    long = fedskew.run(settings(4, "fedavg", {}), out=tmp_path, draw=False)
    with pytest.warns(UserWarning, match="has more rounds; running 2 again"):
        short = fedskew.run(settings(2, "fedavg", {}), out=tmp_path, draw=False)
    assert short.path.name == f"{long.path.name}-2-rounds"
    assert (short.result["rounds"], long.result["rounds"]) == (2, 4)
    assert fedskew.run(settings(2, "fedavg", {}), out=tmp_path, draw=False).path == short.path
    alone = fedskew.run(settings(2, "fedavg", {}), out=tmp_path / "alone", draw=False)
    model = "models/last/global.safetensors"
    ours, theirs = load_file(short.path / model), load_file(alone.path / model)
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_a_run_whose_earlier_stage_lasts_as_long_begins_anew_and_says_why(tmp_path: Path) -> None:
    vae = {"federation": {**SETTINGS["federation"], "normalise": "unit"}, "model": "beta-vae"}
    method = {"name": "distilled-vae", "samples": 20, "components": 1}
    short = fedskew.run({**settings(1, method, {}), **vae}, out=tmp_path, draw=False)
    with pytest.warns(UserWarning, match="which an earlier stage depends on"):
        longer = fedskew.run({**settings(2, method, {}), **vae}, out=tmp_path, draw=False)
    assert longer.path != short.path
    assert longer.result["rounds"] == 2
