"""Private states are found by label, never change, and are swept when nobody will ask again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedskew.errors import RunError
from fedskew.federate.private import PrivateStates, pack_file
from fedskew.types import Groups


def holding(value: float) -> Groups:
    return {"model": {"w": torch.tensor([value])}}


def value(groups: Groups) -> float:
    return float(groups["model"]["w"])


@pytest.mark.parametrize("on_disk", [False, True])
def test_every_label_gives_back_what_was_put_under_it(on_disk: bool, tmp_path: Path) -> None:
    states = PrivateStates(tmp_path if on_disk else None)
    states.put("main-000001", {"ann": holding(1.0), "bob": holding(2.0)})
    states.put("main-000002", {"ann": holding(3.0)})
    now = states.of({"ann": "main-000002", "bob": "main-000001", "eve": ""})
    assert (value(now["ann"]), value(now["bob"]), now["eve"]) == (3.0, 2.0, {})
    assert value(states.of({"ann": "main-000001"})["ann"]) == 1.0


def test_a_new_process_finds_the_states_of_the_one_before(tmp_path: Path) -> None:
    PrivateStates(tmp_path).put("main-000001", {"ann": holding(1.0), "b/ob": holding(2.0)})
    found = PrivateStates(tmp_path).of({"ann": "main-000001", "b/ob": "main-000001"})
    assert (value(found["ann"]), value(found["b/ob"])) == (1.0, 2.0)


def test_a_round_writes_only_those_who_took_part(tmp_path: Path) -> None:
    states = PrivateStates(tmp_path)
    states.put("main-000001", {f"c{k}": holding(float(k)) for k in range(100)})
    states.put("main-000002", {"c7": holding(0.5)})
    first, second = (tmp_path / pack_file(f"main-00000{n}") for n in (1, 2))
    assert second.stat().st_size < first.stat().st_size / 10


def test_an_exchange_in_two_parts_leaves_both_under_the_label(tmp_path: Path) -> None:
    states = PrivateStates(tmp_path)
    states.put("main-000001", {"ann": holding(1.0)})
    states.put("main-000001", {"bob": holding(2.0)})
    again = PrivateStates(tmp_path).of({"ann": "main-000001", "bob": "main-000001"})
    assert (value(again["ann"]), value(again["bob"])) == (1.0, 2.0)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_label_nobody_wrote_is_refused_by_name(on_disk: bool, tmp_path: Path) -> None:
    states = PrivateStates(tmp_path if on_disk else None)
    with pytest.raises(RunError, match="client 'ann' holds no private state 'main-000004'"):
        states.of({"ann": "main-000004"})


def test_in_memory_only_labels_that_are_kept_stay() -> None:
    states = PrivateStates()
    for number in (1, 2, 3):
        states.put(f"main-00000{number}", {"ann": holding(float(number))})
    states.sweep("ann", {"main-000001", "main-000003"})
    assert value(states.of({"ann": "main-000001"})["ann"]) == 1.0
    with pytest.raises(RunError, match="main-000002"):
        states.of({"ann": "main-000002"})
