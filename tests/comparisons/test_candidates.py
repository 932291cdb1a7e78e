"""Who takes part in a bake-off, and why others do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedskew.comparisons.candidates import Field, field_of
from fedskew.comparisons.runner import Runner
from fedskew.config import make_config
from fedskew.errors import ConfigError
from fedskew.methods import METHODS

QUICK: dict[str, Any] = {
    "federation": {"samples": 300, "clients": 3}, "model": {"name": "mlp", "hidden": [8]},
}  # fmt: skip
UNIT = {**QUICK["federation"], "normalise": "unit"}


def field(out: Path, *methods: Any, **changes: Any) -> Field:
    return field_of(Runner(out, None), make_config({**QUICK, **changes}), methods)


def test_all_that_fit_take_part_and_every_other_has_its_reason(tmp_path: Path) -> None:
    found = field(tmp_path)
    known = {name for name, each in METHODS.items() if each.card.reference is None}
    names = {each.name for each in found.contenders}
    reasons = {name.split(" ")[0] for name in found.left_out}
    assert names | reasons >= known - {name.split(" ")[0] for name in reasons}
    assert names & reasons == set()
    assert found.alone.name == "local"
    assert {"fedavg", "scaffold", "fedrep", "ditto", "fedbabu"} <= names
    assert "encoder" in found.left_out["fed-civae"]
    assert "share nothing" in found.left_out["local-classifier"]
    assert "name it, with its base" in found.left_out["feddisk"]
    assert not list(tmp_path.iterdir()), "nothing was run"


def test_a_model_without_a_body_leaves_those_out_that_train_one(tmp_path: Path) -> None:
    found = field(tmp_path, model="logistic")
    assert "no parameters to train in its body" in found.left_out["fedrep"]
    assert {"fedavg", "ditto"} <= {each.name for each in found.contenders}


def test_who_fine_tunes_is_known_by_its_recipe(tmp_path: Path) -> None:
    tuned = {each.name for each in field(tmp_path).candidates if each.tuned}
    assert {"fedbabu", "per-fedavg", "fed-classifier"} <= tuned
    assert not {"local", "fedavg", "fedrep", "ditto"} & tuned


def test_the_configs_own_method_keeps_its_settings(tmp_path: Path) -> None:
    found = field(tmp_path, "fedprox", "ditto", method={"name": "fedprox", "mu": 0.5})
    assert [each.name for each in found.candidates] == ["local", "fedprox (mu=0.5)", "ditto"]
    asked = field(tmp_path, "fedprox:mu=0.1", method={"name": "fedprox", "mu": 0.5})
    assert [each.name for each in asked.contenders] == ["fedprox (mu=0.1)"]


def test_methods_that_change_another_can_be_named(tmp_path: Path) -> None:
    found = field(tmp_path, "compressed:base=fedprox", "fedavg")
    assert [each.name for each in found.contenders] == ["compressed (base=fedprox)", "fedavg"]


def test_numbers_to_learn_leave_methods_out_that_need_classes(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    lines = "\n".join(f"{i % 7},{i % 5},{0.37 * i}" for i in range(90))
    data.write_text(f"a,b,label\n{lines}\n")
    section = {"dataset": str(data), "partition": "iid", "clients": 3}
    found = field(tmp_path / "runs", federation=section)
    assert "needs classes" in found.left_out["fedrod"]
    assert "fedavg" in {each.name for each in found.contenders}


@pytest.mark.parametrize(
    ("methods", "changes", "said"),
    [
        (("fedavgg",), {}, "did you mean 'fedavg'"),
        (("fed-civae", "civae"), {}, "no method but local can run here: fed-civae: .*encoder"),
        (("central",), {}, "needs all data in one place"),
        (("vae",), {"model": "beta-vae", "federation": UNIT}, "clients cannot train alone here"),
        (("fedprox:mu=-1",), {}, "mu"),
    ],
)  # fmt: skip
def test_what_leaves_nothing_to_try_is_refused(
    methods: tuple[str, ...], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        field(tmp_path, *methods, **changes)
