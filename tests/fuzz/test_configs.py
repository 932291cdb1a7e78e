"""Configs nobody should write: each is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import EXAMPLES, attempt, refused, run, survived
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NOT_NUMBERS = (
    "nan", "inf", "-inf", "true", "2020-01-01", "12:30:00", "1" + "0" * 30, "-1", "x", "''",
    "{a = 1}", "[[1]]", "[nan]", "1e400",
)  # fmt: skip
NUMBERS = (
    "train.rounds", "train.epochs", "train.batch_size", "train.lr", "train.momentum",
    "train.weight_decay", "train.lr_decay", "train.clients_per_round", "train.min_clients",
    "train.patience", "evaluate.every", "evaluate.fine_tune_epochs", "evaluate.fine_tune_lr",
    "evaluate.fine_tune_batch", "evaluate.fine_tune_patience", "evaluate.generated", "seed",
    "federation.clients", "federation.validation", "federation.test", "federation.samples",
    "federation.public", "federation.test_samples", "federation.seed",
)  # fmt: skip
NOT_TEXT = ("nan", "1", "true", "[]", "{}", "2020-01-01", "'a\\u0000b'", "''")
TEXTS = (
    "method", "model", "federation.dataset", "federation.partition", "federation.normalise",
    "federation.environments", "federation.test_from", "train.optimiser", "executor", "device",
    "evaluate.fine_tune_at",
)  # fmt: skip
LISTS = {
    "train.lr_steps": ("[0]", "[true]", "[nan]", "['a']", "3"),
    "evaluate.shots": ("[]", "[-1]", "[true]", "['some']", "[1, 1]", "[10000]"),
    "evaluate.matrix_rounds": ("[0]", "[nan]", "1", "[true]"),
    "federation.skew": ("3", "'noise'", "[{}]", "[3]", "[{name = 3}]", "[{name = 'nosie'}]",
                        "[{name = 'noise', std = nan}]", "[{name = 'rotation', low = inf}]"),
    "federation.classes": ("[]", "[1.5]", "[0, 0]", "[99]", "[-1]", "'all'", "[true]"),
    "federation.image": ("{}", "{side = 0}", "{side = true}", "{depth = 3}", "{channels = 2}",
                         "3", "{side = 1.5}"),
    "federation.features": ("{top = 0}", "{tpo = 1}", "3", "{scale = 'row'}"),
    "federation.unseen": ("-1", "nan", "true", "['nobody']", "10", "'x'"),
    "federation.options": ("{x = 1}", "3", "{normalise = 'unit'}"),
    "evaluate.fine_tune_part": ("'neck'", "['head', 'neck']", "3", "[]", "true"),
}  # fmt: skip
KNOBS = (
    ("method={name='fedprox', mu=nan}",), ("method={name='fedprox', mu=inf}",),
    ("method={name='fedprox', mu=true}",), ("method={name='fedprox', mu='x'}",),
    ("method={name='fedprox', mu=2020-01-01}",), ("method={name='fedprox', nu=1}",),
    ("method={name='fedavg', server_lr=-1}",), ("method={name='fedavg', server_lr=0}",),
    ("method={name='grouped', groups=0}",), ("method={name='grouped', groups=[]}",),
    ("method={name='grouped', groups=[[]]}",), ("method={name='grouped', groups=[['nobody']]}",),
    ("method={name='grouped', groups=[[0, 0]]}",), ("method={name='grouped', groups=[[99]]}",),
    ("method={name='erm', base='erm'}",), ("method={name='erm', base=3}",),
    ("method={name='erm', base={}}",), ("method={name='erm', base={name=3}}",),
    ("method={name='erm', base={name='fedprox', mu=nan}}",),
    ("method={name='private', base={name='private'}}",), ("method={mu=1}",),
    ("model={name='mlp', hidden=[1000000000]}",), ("model={name='mlp', hidden=[0]}",),
    ("model={name='mlp', hidden=[99999, 99999]}",), ("model={name='mlp', hidden=[true]}",),
    ("model={name='mlp', hidden=[nan]}",), ("model={name='mlp', hidden=3}",),
    ("model={name='mlp', width=3}",), ("model={name='cnn-bn', channels=1000000}",),
    ("method=vae", "model={name='beta-vae', latent=1000000000}"),
    ("method=vae", "model={name='beta-vae', latent=0}"),
    ("federation.partition={name='dirichlet', alpha=nan}",),
    ("federation.partition={name='dirichlet', alpha=0}",),
    ("federation.partition={name='dirichlet', alpha=true}",),
    ("federation.partition={name='label-groups', groups=0}",),
    ("federation.partition={name='label-groups', groups=[0]}",),
    ("federation.partition={name='owner-groups', groups=0}",),
    ("federation.partition={name='owner'}",), ("federation.partition={alpha=1}",),
    ("federation.environments={name='random', count=0}",),
    ("federation.environments={name='random', count=true}",),
    ("train.min_clients=3",), ("train.clients_per_round=3",),
    ("evaluate.generated=100",), ("evaluate.fine_tune_part=neck",),
    ("evaluate.fine_tune_part=neck", "evaluate.fine_tune_epochs=1"),
    ("device=cuda",), ("device=cuda:7",), ("device=mps",), ("device=meta",), ("device=x",),
    ("device=''",), ("device=xpu",), ("device=cpu:x",), ("device=privateuseone",),
    ("federation.classes=[3]",), ("federation.samples=1",), ("federation.clients=2000",),
    ("federation.dataset=/dev/null",), ("federation.dataset=/dev/zero",),
    (f"federation.dataset={'a' * 5000}",), ("federation.dataset=nowhere.npz",),
    ("train.lr.x=1",), ("train=3",), ("federation=[]",), ("=3",), ("train.=3",), (".=3",),
    ("nosuch.thing=1",), ("train.lr_decay=inf",), ("method.base.base.base=fedavg",),
    ("method=os:system",), ("model=os:system",), ("federation.dataset=os:system",),
    ("federation.partition=os:system",), ("federation.environments=os:system",),
    ("federation.skew=[{name='os:system'}]",), ("method={name='erm', base='os:system'}",),
)  # fmt: skip
FILES = {
    "date": "day = 2020-01-01",
    "date in a section": "[train]\nlr = 2020-01-01T00:00:00Z",
    "time in the method": "[method]\nname = 'fedprox'\nmu = 12:30:00",
    "huge integer": f"seed = {'9' * 5000}",
    "large integer": f"seed = {'9' * 40}",
    "deep list": f"[federation]\nskew = {'[' * 900}{']' * 900}",
    "deep list beyond the parser": f"x = {'[' * 100000}{']' * 100000}",
    "deep table": "[method]\nname = 'erm'\nbase = " + "{base = " * 80 + "1" + "}" * 80,
    "dotted depth": ".".join(["a"] * 3000) + " = 1",
    "nan": "[train]\nlr = nan",
    "nan in options": "[federation]\noptions = {a = nan}",
    "boolean": "[train]\nepochs = true",
    "empty key": '"" = 1',
    "NUL": '"a\\u0000b" = 1',
    "code": 'method = "somebody:runs"',
    "code in a base": 'method = {name = "erm", base = "somebody:runs"}',
    "code as data": '[federation]\ndataset = "somebody:runs"',
    "shell": '[federation]\ndataset = "os:system"\noptions = {command = "touch pwned"}',
    "not TOML": "[train\nlr = ",
    "duplicate": "seed = 1\nseed = 2",
    "unknown section": "[trian]\nrounds = 1",
    "section as value": "train = 3",
    "list as section": "train = [1]",
    "value as list of tables": "[[train]]\nrounds = 1",
}  # fmt: skip


def cases() -> list[tuple[str, ...]]:
    found = [(f"{name}={value}",) for name in NUMBERS for value in NOT_NUMBERS]
    found += [(f"{name}={value}",) for name in TEXTS for value in NOT_TEXT]
    found += [(f"{name}={value}",) for name, values in LISTS.items() for value in values]
    # What these settings may be after all: a batch of all samples, a seed of any size.
    return [*found, *KNOBS]


@pytest.mark.parametrize("chosen", cases(), ids=lambda chosen: " ".join(chosen)[:60])
def test_a_setting_that_cannot_be_meant_is_refused(tmp_path: Path, chosen: tuple[str, ...]) -> None:
    assert refused(tmp_path, *run(tmp_path, *chosen))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_meant_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(FILES[name])
    assert refused(tmp_path, *run(tmp_path, config="a.toml"))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\0", b'a = "\xed\xa0\x80"', b"\x80abc"])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    assert refused(tmp_path, *run(tmp_path, config=str(tmp_path / "a.toml")))


@pytest.mark.parametrize(
    "words",
    [
        ["run"], ["run", "nosuch"], ["run", "a" * 5000], ["run", "/"],
        ["run", "digits", "--set"], ["run", "digits", "--set", "x"], ["walk"], ["--walk"],
        ["compare"], ["compare", "fedprox:mu"], ["compare", "fedprox:mu=nan"],
        ["compare", "os:system"], ["compare", "fedavg", "--seeds", "0"],
        ["compare", "fedavg", "--seeds", "-1"], ["compare", "fedavg", "--seeds", "x"],
        ["compare", "fedavg", "--leave-out", "x"], ["compare", "fedavg", "--aggregators", "x"],
        ["compare", "--objectives", "nosuch"], ["compare", "--objectives", "os:system"],
        ["list", "nosuch"], ["list", "methods", "nosuch"], ["list", "methods", "os:system"],
        ["show", "nowhere"], ["show", "/"], ["reproduce", "nosuch"],
        ["reproduce", "nosuch.toml"], ["reproduce", "baselines", "--scale", "huge"],
        ["predict", "nowhere", "nothing"], ["adapt", "nowhere", "nothing", "--out", "x"],
        ["export", "nowhere", "--out", "x"], ["generate", "nowhere", "--count", "1", "--out", "x"],
        ["drift", "nowhere", "--out", "x"],
    ],
    ids=lambda words: " ".join(words)[:40],
)  # fmt: skip
def test_words_that_cannot_be_meant_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(tmp_path, *words)


SCALARS = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates(), st.none()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def as_toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(letter):08x}" for letter in value) + '"'
    return "none" if value is None else str(value)


PLACES = (*NUMBERS, *TEXTS, *LISTS, "method.mu", "model.hidden", "federation.partition.alpha")


@settings(max_examples=EXAMPLES * 3, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(PLACES), value=VALUES)
def test_random_settings_never_break_anything(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: object
) -> None:
    folder = tmp_path_factory.mktemp("random")
    survived(folder, *run(folder, f"{name}={as_toml(value)}", "train.rounds=1"))


@settings(max_examples=EXAMPLES * 3, suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=60) | st.from_regex(r"(\[\w+\]\n)?\w+ = [\[{\"'\d.\w]*"))
def test_random_files_never_break_anything(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("random")
    (folder / "a.toml").write_text(text, errors="replace")
    survived(folder, *run(folder, config=str(folder / "a.toml")))


def test_the_harness_sees_what_is_left_behind_and_what_is_accepted(tmp_path: Path) -> None:
    assert attempt(*run(tmp_path))[0] == 0
    with pytest.raises(AssertionError, match="exit code 0"):
        refused(tmp_path, *run(tmp_path))
