"""What names a run: everything that decides its numbers, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import toy_federation

import fedskew
from fedskew.cli import main
from fedskew.config import Named, make_config
from fedskew.data.datasets import REGISTRY
from fedskew.data.environments import ENVIRONMENTS
from fedskew.data.federation import Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.data.partition import PARTITIONS
from fedskew.data.skew import SKEWS
from fedskew.experiment import make_federation
from fedskew.matrix import label
from fedskew.models.registry import MODELS
from fedskew.recipe import _METHODS, Card, Method, Recipe, find, methods
from fedskew.runs import identity as identity_module
from fedskew.runs.identity import Identity, identify, resolve

QUICK: dict[str, Any] = {"model": "logistic", "train": {"rounds": 1}}
TOY = toy_federation()


def identified(**settings: Any) -> Identity:
    return identify(resolve(make_config({**QUICK, **settings})), TOY)


def name(**settings: Any) -> str:
    return identified(**settings).name


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"model": "mlp"}, {"model": {"name": "mlp", "hidden": [200, 200]}}),
        ({"method": "fedprox"}, {"method": {"name": "fedprox", "mu": 0.01}}),
        (
            {"method": {"name": "private", "base": "fedprox"}},
            {"method": {"name": "private", "base": {"name": "fedprox", "mu": 0.01}}},
        ),
        (
            {"method": {"name": "irm"}},
            {"method": {"name": "irm", "base": {"name": "fedavg", "weights": "size"}}},
        ),
        (
            {"federation": {"partition": "dirichlet"}},
            {"federation": {"partition": {"name": "dirichlet", "alpha": 0.5, "cap": False}}},
        ),
        (
            {"federation": {"skew": ["noise"]}},
            {"federation": {"skew": [{"name": "noise", "level": 0.3}]}},
        ),
        (
            {"federation": {"environments": "random"}},
            {"federation": {"environments": {"name": "random", "count": 2}}},
        ),
        (
            {"federation": {"dataset": "mnist"}},
            {"federation": {"dataset": "mnist", "options": {"writers": False}}},
        ),
        (
            {"federation": {"dataset": "fe-rotmnist"}},
            {"federation": {"dataset": "mnist", "skew": ["rotation"]}},
        ),
        ({"federation": {"features": {}}}, {"federation": {"features": None}}),
        (
            {"federation": {"features": {"top": 3}}},
            {"federation": {"features": {"top": 3, "scale": None}}},
        ),
        ({"seed": 3}, {"seed": 3, "federation": {"seed": 3}}),
        ({"train": {}}, {"train": {"lr": 0.1, "epochs": 1}}),
        ({"train": {"rounds": 20}}, {"train": {"rounds": 60}}),
        ({"federation": {"dataset": "there/own.csv"}}, {"federation": {"dataset": "own.csv"}}),
    ],
)
def test_two_ways_to_say_the_same_are_one_run(short: dict[str, Any], long: dict[str, Any]) -> None:
    assert name(**short) == name(**long)


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 1},
        {"executor": "threads"},
        {"device": "meta"},
        {"evaluate": {"every": 2}},
        {"train": {"rounds": 1, "lr": 0.2}},
        {"federation": {"seed": 5}},
        {"method": {"name": "private", "base": {"name": "fedprox", "mu": 0.1}}},
    ],
)
def test_other_settings_are_another_run(settings: dict[str, Any]) -> None:
    assert name(**settings) != name()


def test_every_default_there_is_is_written_down() -> None:
    for known, section in ((PARTITIONS, "partition"), (ENVIRONMENTS, "environments")):
        for each, choice in known.items():
            config = resolve(make_config({"federation": {section: each}}))
            assert getattr(config.federation, section).knobs == choice.knobs
    for each, choice in SKEWS.items():
        (skew,) = resolve(make_config({"federation": {"skew": [each]}})).federation.skew
        assert skew.knobs == choice.knobs
    for each, entry in REGISTRY.items():
        section = {"dataset": each, "partition": "iid"}
        assert resolve(make_config({"federation": section})).federation.options == entry.defaults
    for each, model in MODELS.items():
        written = resolve(make_config({"model": each})).model.knobs
        assert {n: tuple(v) if isinstance(v, list) else v for n, v in written.items()} == (
            model.knobs
        )
    for each, method in methods().items():
        written = resolve(make_config({"method": each})).method.knobs
        assert written.keys() == method.defaults.keys()
        if "base" in written:
            assert written["base"].keys() == {"name", *find("fedavg").defaults}


def test_what_is_written_down_is_read_back_and_written_down_alike() -> None:
    for each in methods():
        config = resolve(make_config({"method": each, "model": "mlp"}))
        assert resolve(make_config(json.loads(json.dumps(config.resolved())))) == config


def test_a_method_is_labelled_as_it_was_given_however_much_is_written_down() -> None:
    for given, expected in (
        ({"name": "private"}, "private"),
        ({"name": "private", "base": "fedprox"}, "private (base=fedprox)"),
        ({"name": "irm", "base": {"name": "fedprox", "mu": 0.1}}, "irm × fedprox (mu=0.1)"),
        (
            {"name": "feddisk", "base": {"name": "fedreptile", "base": "fedavg", "eta": 0.5}},
            "feddisk (base={'name': 'fedreptile', 'eta': 0.5})",
        ),
    ):
        written = resolve(make_config({"method": given})).method
        assert label(Named(**given)) in (expected, label(written))
        assert label(written) == expected


def _noise(federation: Federation, seed: int, *, level: float = 0.4, clip: bool = True) -> None: ...
def _iid(labels: Any, owners: Any, clients: Any, rng: Any, *, more: int = 1) -> None: ...
def _random(federation: Federation, seed: int, *, count: int = 3) -> None: ...
def _mlp(shape: Any, classes: int, *, hidden: tuple[int, ...] = (100,)) -> None: ...
def _made(shape: Any, classes: int, *, hidden: tuple[int, ...] = (31,)) -> None: ...
def _fedprox(mu: float = 0.02, weights: str = "size", server_lr: float = 1.0) -> Recipe:
    return Recipe()


for _stand_in in (_noise, _iid, _random, _mlp, _made, _fedprox):
    _stand_in.__module__ = "fedskew.changed"  # a default of the package, not a user's code


@pytest.mark.parametrize(
    ("registry", "entry", "function", "settings"),
    [
        (SKEWS, "noise", _noise, {"federation": {"skew": ["noise"]}}),
        (PARTITIONS, "iid", _iid, {"federation": {"partition": "iid"}}),
        (ENVIRONMENTS, "random", _random, {"federation": {"environments": "random"}}),
        (MODELS, "mlp", _mlp, {"model": "mlp"}),
        (MODELS, "gaussian-made", _made, {"method": "feddisk"}),
        (_METHODS, "fedprox", _fedprox, {"method": "fedprox"}),
        (_METHODS, "fedprox", _fedprox, {"method": {"name": "private", "base": "fedprox"}}),
    ],
)
def test_a_changed_default_is_another_run(
    registry: dict[str, Any],
    entry: str,
    function: Callable[..., Any],
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, beside = name(**settings), name()
    old = registry[entry]
    part = next(f for f in ("make", "factory", "function") if hasattr(old, f))
    monkeypatch.setitem(registry, entry, replace(old, **{part: function}))
    assert name(**settings) != before
    assert name() == beside


def test_a_default_of_a_base_that_was_given_another_value_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"method": {"name": "private", "base": {"name": "fedprox", "mu": 0.5}}}
    before = name(**settings)
    monkeypatch.setitem(_METHODS, "fedprox", replace(_METHODS["fedprox"], make=_fedprox))
    assert name(**settings) == before


def test_another_format_is_another_run_and_another_version_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = name()
    monkeypatch.setattr(fedskew, "__version__", "99.0")
    assert name() == before
    monkeypatch.setattr(identity_module, "FORMAT", 99)
    assert name() != before


def test_rounds_count_where_an_earlier_stage_lasts_as_long_as_the_run() -> None:
    settings: dict[str, Any] = {"model": "beta-vae", "method": "latent-weights"}
    few, more = (identified(**settings, train={"rounds": rounds}) for rounds in (2, 3))
    assert few.name != more.name
    assert [stage["rounds"] for stage in few.stages] == [2]
    settings = {"method": "feddisk"}
    assert name(**settings, train={"rounds": 2}) == name(**settings, train={"rounds": 3})


def test_stages_are_shared_by_runs_that_make_them_alike() -> None:
    def made_by(method: dict[str, Any], **settings: Any) -> str:
        found = identified(method=method, **settings)
        knobs = {k: v for k, v in method.items() if k != "name"}
        recipe = find(method["name"]).recipe(**knobs)
        return found.of_stage(recipe.prepares[:1])

    feddisk = {"name": "feddisk"}
    same = made_by(feddisk)
    assert made_by({**feddisk, "estimator": "sampled"}) == same
    assert made_by({**feddisk, "density_rounds": 7}) != same
    assert made_by(feddisk, seed=1) != same
    assert made_by(feddisk, train={"rounds": 9}) == same
    latent = {"name": "latent-weights"}
    assert made_by(latent, model="beta-vae", train={"rounds": 9}) != made_by(
        latent, model="beta-vae"
    )


# Data


def _flipped(values: torch.Tensor, place: int) -> torch.Tensor:
    """The same values with the lowest bit of one of them flipped."""
    flipped = values.clone()
    flat = flipped.view(-1).numpy().view(np.uint8)
    flat[place * values.element_size()] ^= 1
    return flipped


@pytest.fixture(scope="module")
def large() -> Federation:
    """Far more values than a sample of them would look at."""
    federation = toy_federation((40,) * 4, features=5000)
    owner = torch.zeros(len(federation.y), dtype=torch.int64)
    return replace(federation, owner=owner, log_ratio=torch.zeros(len(owner)))


@pytest.mark.parametrize("field", ["x", "y", "environment", "owner", "log_ratio"])
def test_one_bit_anywhere_is_other_data(field: str, large: Federation) -> None:
    values = getattr(large, field)
    seen = {fingerprint(large)}
    places = [0, 1, values.numel() // 2 + 1, values.numel() - 1]
    for place in places:
        changed = _flipped(values, place)
        if field == "y":
            changed = changed.clamp(0, 2)
        if not torch.equal(changed, values):
            seen.add(fingerprint(replace(large, **{field: changed})))
    assert len(seen) > len(places) - 1


def test_who_holds_what_is_part_of_the_data() -> None:
    first, *others = TOY.clients
    moved = replace(first, train=first.train[:-1], test=np.append(first.test, first.train[-1]))
    changes: list[dict[str, Any]] = [
        {"clients": (moved, *others)},
        {"clients": (replace(first, name="eve"), *others)},
        {"clients": (*others, first)},
        {"clients": (first, *others[1:]), "unseen": (*TOY.unseen, others[0])},
        {"public": np.array([], dtype=np.int64), "central_test": TOY.central_test[:-1]},
        {"class_names": ("x", *TOY.class_names[1:])},
        {"odd": (first.name,)},
        {"same_law": not TOY.same_law},
    ]
    prints = [fingerprint(replace(TOY, **change)) for change in changes]
    assert len({fingerprint(TOY), *prints}) == len(changes) + 1
    assert fingerprint(replace(TOY, name="another")) == fingerprint(TOY)
    assert fingerprint(replace(TOY, x=TOY.x.clone())) == fingerprint(TOY)


def test_the_same_bytes_in_another_shape_are_other_data() -> None:
    flat = replace(TOY, x=TOY.x.reshape(-1, 2, 3))
    assert fingerprint(flat) != fingerprint(TOY)
    # Not contiguous in memory, but the same values.
    turned = replace(TOY, x=TOY.x.T.contiguous().T)
    assert fingerprint(turned) == fingerprint(TOY)


def test_the_same_split_has_the_same_fingerprint() -> None:
    config = make_config({"federation": {"seed": 1, "partition": "iid"}})
    one, again = make_federation(config), make_federation(config)
    assert fingerprint(one) == fingerprint(again)
    other = make_federation(make_config({"federation": {"seed": 2, "partition": "iid"}}))
    assert fingerprint(other) != fingerprint(one)


def write_csv(path: Path, last: str = "0.5") -> None:
    rng = np.random.default_rng(0)
    rows = [f"{a:.4f},{b:.4f},{i % 2}" for i, (a, b) in enumerate(rng.normal(size=(80, 2)))]
    rows[-1] = f"0.1,{last},1"
    path.write_text("\n".join(["first,second,label", *rows]) + "\n")


def test_a_finished_run_is_not_reused_when_one_number_of_the_data_changes(tmp_path: Path) -> None:
    data, out = tmp_path / "own.csv", tmp_path / "runs"
    write_csv(data)
    settings = {
        **QUICK,
        "federation": {"dataset": str(data), "partition": "iid", "clients": 2, "test": 0.5},
    }
    first = fedskew.run(settings, out=out, draw=False)
    assert fedskew.run(settings, out=out, draw=False) == first
    write_csv(data, last="0.5001")
    with pytest.warns(UserWarning, match=rf"^the data changed since {first.path.name}; running"):
        second = fedskew.run(settings, out=out, draw=False)
    assert second.path != first.path
    write_csv(data)
    assert fedskew.run(settings, out=out, draw=False) == first


# Own code

RULES = """
from dataclasses import dataclass, replace

from fedskew.parts.aggregate import Mean
from fedskew.recipe import Recipe
from my_helpers import share

@dataclass(frozen=True)
class Part(Mean):
    def aggregate(self, state, updates, clients):
        made = super().aggregate(state, updates, clients)
        return replace(made, shared={n: share(t, SCALE) for n, t in made.shared.items()})

SCALE = 1.0

def rule(strength: float = 1.0):
    return Recipe(aggregates=Part())
"""
HELPERS = """
def share(tensor, scale):
    from my_lazy import FACTOR
    return tensor * scale * FACTOR
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a method that uses a second file, which uses a third."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_rules.py").write_text(RULES)
    (tmp_path / "my_helpers.py").write_text(HELPERS)
    (tmp_path / "my_lazy.py").write_text("FACTOR = 1.0\n")
    (tmp_path / "my_other.py").write_text("UNUSED = 1\n")
    yield tmp_path
    forget()


def forget() -> None:
    """As a new process would find it."""
    for module in ("my_rules", "my_helpers", "my_lazy", "my_wrapper", "my_data", "my_model"):
        sys.modules.pop(module, None)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_own_code_is_recorded_with_all_files_it_is_made_of(own: Path) -> None:
    code = identified(method="my_rules:rule").code
    assert {module: about["file"] for module, about in code.items()} == {
        "my_helpers": "my_helpers.py", "my_lazy": "my_lazy.py", "my_rules": "my_rules.py",
    }  # fmt: skip
    assert identified().code == {}


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("my_rules.py", "SCALE = 1.0", "SCALE = 0.9", True),
        ("my_helpers.py", "tensor * scale", "tensor / scale", True),
        ("my_lazy.py", "FACTOR = 1.0", "FACTOR = 0.9", True),
        ("my_other.py", "UNUSED = 1", "UNUSED = 2", False),
    ],
)
def test_changed_code_is_another_run_where_it_is_used(
    file: str, old: str, new: str, changes: bool, own: Path
) -> None:
    base = {"name": "erm", "base": "my_rules:rule"}
    before = [name(method="my_rules:rule"), name(method=base), name()]
    edit(own / file, old, new)
    forget()
    after = [name(method="my_rules:rule"), name(method=base), name()]
    assert [a != b for a, b in zip(after, before, strict=True)] == [changes, changes, False]


def test_a_method_named_by_any_knob_of_an_own_wrapper_counts(own: Path) -> None:
    (own / "my_wrapper.py").write_text(
        "from fedskew.recipe import find\n\n"
        "def wrap(inner='my_rules:rule'):\n    return find(inner).recipe()\n"
    )
    before = name(method="my_wrapper:wrap")
    assert identified(method="my_wrapper:wrap").code.keys() > {"my_rules", "my_wrapper"}
    edit(own / "my_rules.py", "strength: float = 1.0", "strength: float = 2.0")
    forget()
    assert name(method="my_wrapper:wrap") != before


def test_own_models_and_datasets_count(own: Path) -> None:
    (own / "my_model.py").write_text(
        "from fedskew.models.registry import Classifier\nfrom torch import nn\n\n"
        "def net(shape, classes):\n"
        "    return Classifier(nn.Flatten(), nn.Linear(6, classes))\n"
    )
    (own / "my_data.py").write_text("def toy():\n    from helpers import toy_federation\n")
    for settings in ({"model": "my_model:net"}, {"federation": {"dataset": "my_data:toy"}}):
        before = name(**settings)
        for file in ("my_model.py", "my_data.py"):
            (own / file).write_text((own / file).read_text() + "\n# changed\n")
        forget()
        assert name(**settings) != before


def test_a_method_a_user_registered_counts_by_the_file_it_stands_in() -> None:
    mine = Method("mine", own_rule, Card("mine", "none", "none"))
    _METHODS["mine"] = mine
    try:
        assert identified(method="mine").code.keys() >= {own_rule.__module__}
    finally:
        del _METHODS["mine"]


def own_rule() -> Recipe:
    return Recipe()


def test_code_edited_after_its_import_runs_as_imported_and_a_user_is_told(own: Path) -> None:
    settings = {**QUICK, "method": "my_rules:rule"}
    first = fedskew.run(settings, out="runs", federation=TOY, draw=False)
    edit(own / "my_rules.py", "SCALE = 1.0", "SCALE = 0.9")
    with pytest.warns(UserWarning, match=r"^my_rules.py changed on disk since Python imported it"):
        assert fedskew.run(settings, out="runs", federation=TOY, draw=False) == first


def test_reloaded_code_runs_anew_and_a_user_is_told_why(own: Path) -> None:
    import importlib

    settings = {**QUICK, "method": "my_rules:rule"}
    first = fedskew.run(settings, out="runs", federation=TOY, draw=False)
    edit(own / "my_rules.py", "SCALE = 1.0", "SCALE = 0.9")
    importlib.reload(sys.modules["my_rules"])
    with pytest.warns(UserWarning, match="my_rules") as told:
        second = fedskew.run(settings, out="runs", federation=TOY, draw=False)
    (sentence,) = {str(warning.message) for warning in told}
    assert sentence == (
        f"my_rules.py changed since {first.path.name}; running anew in {second.path}"
    )
    one, two = (run.model().state_dict()["head.weight"] for run in (first, second))
    assert torch.allclose(two, one * 0.9)
    assert not torch.equal(two, one)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedskew", *arguments],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_a_command_repeated_with_changed_code_runs_anew_and_says_why(own: Path) -> None:
    (own / "mine.toml").write_text(
        'method = "my_rules:rule"\nmodel = "logistic"\n[train]\nrounds = 1\n'
    )
    assert command("run", "mine.toml").returncode == 0
    (first,) = (own / "runs").iterdir()
    assert "finished already" in command("run", "mine.toml").stdout
    edit(own / "my_helpers.py", "tensor * scale", "tensor * 0.5")
    again = command("run", "mine.toml")
    assert again.returncode == 0, again.stderr
    (second,) = set((own / "runs").iterdir()) - {first}
    told = f"my_helpers.py changed since {first.name}; running anew in {second.relative_to(own)}"
    assert told in again.stdout.splitlines()
    assert "finished already" in command("run", "mine.toml").stdout


# Run folders


@pytest.fixture
def finished(tmp_path: Path) -> fedskew.Run:
    return fedskew.run(QUICK, out=tmp_path / "runs", draw=False)


def recorded(run: fedskew.Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "config.json").read_text())
    return found


def as_old(run: fedskew.Run) -> fedskew.Run:
    """The folder as it was before run folders had a format version."""
    from fedskew.data.fingerprint import sampled_fingerprint

    known = recorded(run)
    data = sampled_fingerprint(make_federation(run.config))
    config = known["config"]
    del config["federation"]["environments"]
    config["model"] = {"name": config["model"]["name"]}
    config["federation"]["partition"] = {"name": "dirichlet", "alpha": 0.3}
    (run.path / "config.json").write_text(json.dumps({"config": config, "data": data}))
    return fedskew.Run(run.path.rename(run.path.parent / "fedavg-0123456789ab"))


def test_a_run_folder_says_what_decided_its_numbers(finished: fedskew.Run) -> None:
    known = recorded(finished)
    assert known.keys() == {"format", "fedskew", "identity", "config", "code", "data"}
    assert known["format"] == identity_module.FORMAT
    assert known["fedskew"] == fedskew.__version__
    assert known["data"] == fingerprint(make_federation(finished.config))
    assert known["config"] == finished.config.resolved()
    assert finished.path.name == f"fedavg-{known['identity'][:12]}"
    assert resolve(finished.config) == finished.config


def test_folders_of_the_old_format_open_and_predict(
    finished: fedskew.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = finished.result["scores"]
    old = as_old(finished)
    assert fedskew.load_run(old.path).result["scores"] == scores
    assert main(["show", str(old.path)]) == 0
    x = np.zeros((3, 1, 8, 8), np.float32)
    assert len(fedskew.predict(old.path, x).probability) == 3
    adapted = fedskew.adapt(old.path, x, [0, 1, 2])
    assert adapted.about["run"] == old.path.name


def test_old_folders_are_held_to_the_data_they_were_made_with(finished: fedskew.Run) -> None:
    old = as_old(finished)
    known = json.loads((old.path / "config.json").read_text())
    (old.path / "config.json").write_text(json.dumps({**known, "data": "0" * 16}))
    with pytest.raises(fedskew.RunError, match="made with other data"):
        fedskew.predict(old.path, np.zeros((1, 1, 8, 8), np.float32))


def test_a_finished_run_of_the_old_format_is_not_reused(finished: fedskew.Run) -> None:
    old = as_old(finished)
    with pytest.warns(UserWarning, match=f"since {old.path.name}; running anew"):
        again = fedskew.run(QUICK, out=old.path.parent, draw=False)
    assert again.path != old.path


def test_an_unfinished_run_of_the_old_format_is_refused(
    finished: fedskew.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    old = as_old(finished)
    (old.path / "result.json").unlink()
    config = old.path.parent.parent / "quick.toml"
    config.write_text('model = "logistic"\n[train]\nrounds = 1\n')
    before = sorted(path.name for path in old.path.parent.iterdir())
    assert main(["run", str(config), "--out", str(old.path.parent)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "unfinished run of an older format" in sentence
    assert str(old.path) in sentence
    assert sorted(path.name for path in old.path.parent.iterdir()) == before
    # Another run is none of its business.
    fedskew.run({**QUICK, "seed": 1}, out=old.path.parent, draw=False)


def test_another_run_under_a_runs_name_is_refused(finished: fedskew.Run) -> None:
    known = recorded(finished)
    (finished.path / "config.json").write_text(json.dumps({**known, "identity": "0" * 64}))
    with pytest.raises(fedskew.RunError, match="another run than its name says"):
        fedskew.run(QUICK, out=finished.path.parent, draw=False)


def test_a_run_that_is_new_begins_without_a_word(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for seed in (0, 1):
        fedskew.run({**QUICK, "seed": seed}, out=tmp_path, draw=False)
    assert not [warning for warning in recwarn if warning.category is UserWarning]
