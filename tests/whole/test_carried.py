"""Whole runs whose clients are asked and answer in bytes end with the bits of runs in one process.

Stages, private state, adaptation, unseen clients, findings: all of it crosses as bytes. What is
measured of all clients' models together takes their data in one place, and is left out.
"""

from __future__ import annotations

from pathlib import Path

import digests
import numpy as np
import pytest

import fedskew
from fedskew.data.federation import Federation
from fedskew.errors import ConfigError
from fedskew.federate.backends import Backend
from fedskew.federate.backends.carrier import Carrier
from fedskew.methods import find
from fedskew.runs.experiment import local_backend
from fedskew.runs.folder import RunFolder
from fedskew.store import load_groups

APART = {
    name: settings
    for name, settings in digests.CASES.items()
    if name != "central"
}  # fmt: skip


def in_bytes(federation: Federation, folder: RunFolder) -> Backend:
    return Carrier(local_backend(federation, folder))


@pytest.mark.parametrize("name", APART)
def test_a_run_in_bytes_ends_with_the_recorded_bits(
    name: str, tmp_path: Path, recorded: dict[str, digests.Digests]
) -> None:
    done = fedskew.run(APART[name], out=tmp_path, draw=False, backend=in_bytes)
    found, here = digests.of_run(done), recorded[name]
    method = done.config.method
    if find(method.name).recipe(**method.knobs).objective.draws:
        assert any("all data in one place" in note for note in done.result["notes"])
        assert found["models"] == here["models"]
    else:
        assert found == here


class Overheard(Carrier):
    """Keeps every byte that crosses."""

    def __init__(self, clients: Backend) -> None:
        super().__init__(clients)
        self.messages: list[bytes] = []

    def carry(self, message: bytes) -> bytes:
        answer = super().carry(message)
        self.messages += [message, answer]
        return answer


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("feddisk", {"sample_weight", "best_density"}),
        ("fed-civae", {"model"}),
        ("fedper", {"model"}),
        ("ditto", {"personal"}),
        ("groupdro", {"memory-0"}),
    ],
)
def test_nothing_private_and_no_sample_crosses_in_a_whole_run(
    name: str, secret: set[str], tmp_path: Path
) -> None:
    """What clients hold at the end, and every sample, searched for in every byte."""
    taps: list[Overheard] = []
    shared: list[Federation] = []

    def overheard(federation: Federation, folder: RunFolder) -> Backend:
        taps.append(Overheard(local_backend(federation, folder)))
        shared.append(federation)
        return taps[-1]

    done = fedskew.run(digests.CASES[name], out=tmp_path, draw=False, backend=overheard)
    crossed = b"".join(taps[0].messages)
    held: set[str] = set()
    for pack in (done.path / "checkpoint").glob("private-*.safetensors"):
        for key, tensors in load_groups(pack).items():
            group = key.rsplit("/", 1)[1]
            if group in secret:
                held.add(group)
                for tensor in tensors.values():
                    if tensor.is_floating_point() and len(tensor.unique()) > 1:
                        assert tensor.numpy().tobytes() not in crossed
    assert held == secret
    for sample in shared[0].x.numpy():
        assert np.ascontiguousarray(sample).tobytes() not in crossed


def test_central_is_refused_in_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trains on all data in one place"):
        fedskew.run(digests.CASES["central"], out=tmp_path, draw=False, backend=in_bytes)
    assert list(tmp_path.iterdir()) == []
