"""The bits of a run: whatever the number of threads, and which machine they are of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_limits

import fedskew
from fedskew.data.fingerprint import fingerprint
from fedskew.engine.arithmetic import arithmetic, one_order
from fedskew.errors import RunStopped
from fedskew.runs.experiment import make_federation

SETTINGS: dict[str, Any] = {
    "method": "fedshibu",
    "model": {"name": "mlp", "hidden": [200, 200]},
    "federation": {"samples": 600, "clients": 20},
    "train": {"rounds": 2},
}
SKEWED: dict[str, Any] = {"federation": {"dataset": "gaussian-clients", "partition": "owner"}}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def test_similarity_and_mixing_give_the_same_bits_in_one_thread_and_in_several(
    tmp_path: Path,
) -> None:
    found = []
    for count in (1, 2, 3):
        with threads(count):
            done = fedskew.run(SETTINGS, out=tmp_path / str(count), draw=False)
            assert torch.get_num_threads() == count
        files = [*sorted((done.path / "matrices").iterdir()), *(done.path / "models").rglob("*.*")]
        found.append({f.relative_to(done.path).as_posix(): f.read_bytes() for f in files})
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("settings", [SETTINGS, SKEWED])
def test_data_are_made_to_the_same_bits_in_one_thread_and_in_several(
    settings: dict[str, Any],
) -> None:
    config = fedskew.Config(**settings)
    found = set()
    for count in (1, 2, 3):
        with threads(count):
            found.add(fingerprint(make_federation(config)))
    assert len(found) == 1


def test_in_one_order_there_is_one_thread_of_torch_and_of_blas() -> None:
    from threadpoolctl import threadpool_info

    with threads(2), one_order():
        assert torch.get_num_threads() == 1
        assert {e["num_threads"] for e in threadpool_info() if e["user_api"] == "blas"} == {1}


def stop_after_first(progress: Any, *_: object) -> None:
    raise RunStopped("enough")


def begun_with(other: dict[str, str], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round of a run on a machine of another kind."""
    with monkeypatch.context() as patch:
        patch.setattr("fedskew.runs.checkpoint.arithmetic", lambda: other)
        with pytest.raises(RunStopped):
            fedskew.run(SETTINGS, out=out, watch=stop_after_first, draw=False)


def test_a_run_records_what_it_was_computed_with_and_says_when_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = arithmetic()
    assert here["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert torch.__version__ in here["torch"]
    older = {**here, "instructions": "AVX", "cores": "9000"}
    begun_with(older, tmp_path, monkeypatch)
    told: list[str] = []
    done = fedskew.run(SETTINGS, out=tmp_path, tell=told.append, draw=False)
    (sentence,) = told
    expected = f"was begun with other arithmetic: instructions (AVX, here {here['instructions']});"
    assert expected in sentence
    assert done.result["made_on"] == [older, here]


def test_going_on_with_other_cores_is_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_with({**arithmetic(), "cores": "9000"}, tmp_path, monkeypatch)
    told: list[str] = []
    fedskew.run(SETTINGS, out=tmp_path, tell=told.append, draw=False)
    assert told == []
