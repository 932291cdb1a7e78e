"""Parts of users' own, typed by them, that return, raise or ask for the wrong thing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import refused, run

MODULE = """
import sys
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from fedskew import Aggregator, Client, Erm, Federation, Objective, Phase, Recipe, Report, Step


def raises(*given, **more):
    raise KeyError("no such thing")

def leaves(*given, **more):
    sys.exit(3)

def nothing(*given, **more):
    return None

def number(*given, **more):
    return 3

def itself(*given, **more):
    return itself

def endless(*given, **more):
    return endless(*given, **more)

value = 3

def needs(alpha):
    return Recipe()

def needs_two(alpha, /, beta):
    return Recipe()

def odd_default(alpha=object()):
    return Recipe()

def no_phase():
    return Recipe(trains=())

def wrong_parts():
    return Recipe(objective=3)

def wrong_phase():
    return Recipe(trains=(3,))

def no_part():
    from fedskew import only
    return Recipe(trains=(Phase(trains=only("neck")),))

class Mean(Aggregator):
    def aggregate(self, state, updates, trainers):
        names = updates[0].tensors
        mean = {n: torch.stack([u.tensors[n] for u in updates]).mean(0) for n in names}
        return replace(state, shared=self.changed(mean))
    def changed(self, mean):
        return mean

class Drops(Mean):
    def changed(self, mean):
        return dict(list(mean.items())[1:])

class Invents(Mean):
    def changed(self, mean):
        return {**mean, "more": torch.zeros(1)}

class Reshapes(Mean):
    def changed(self, mean):
        return {n: t.reshape(-1) for n, t in mean.items()}

class Empties(Mean):
    def changed(self, mean):
        return {}

class Texts(Mean):
    def changed(self, mean):
        return {n: "a" for n in mean}

class Spoils(Mean):
    def changed(self, mean):
        return {n: t * float("nan") for n, t in mean.items()}

class ReturnsNothing(Aggregator):
    def aggregate(self, state, updates, trainers):
        return None

class Exits(Aggregator):
    def aggregate(self, state, updates, trainers):
        raise SystemExit("enough")

class Fails(Aggregator):
    def aggregate(self, state, updates, trainers):
        raise ZeroDivisionError("by zero")

def drops(): return Recipe(aggregates=Drops())
def invents(): return Recipe(aggregates=Invents())
def reshapes(): return Recipe(aggregates=Reshapes())
def empties(): return Recipe(aggregates=Empties())
def texts(): return Recipe(aggregates=Texts())
def spoils(): return Recipe(aggregates=Spoils())
def returns_nothing(): return Recipe(aggregates=ReturnsNothing())
def exits(): return Recipe(aggregates=Exits())
def fails(): return Recipe(aggregates=Fails())

@dataclass(frozen=True)
class Loss(Erm):
    how: str = ""
    def loss(self, model, batch, client):
        loss = super().loss(model, batch, client)
        if self.how == "raises":
            raise KeyError("no such loss")
        if self.how == "exits":
            raise SystemExit("enough")
        return {"none": None, "text": "a", "vector": loss.expand(3),
                "nan": loss * float("nan")}[self.how]

def loss_raises(): return Recipe(objective=Loss("raises"))
def loss_exits(): return Recipe(objective=Loss("exits"))
def loss_none(): return Recipe(objective=Loss("none"))
def loss_text(): return Recipe(objective=Loss("text"))
def loss_vector(): return Recipe(objective=Loss("vector"))
def loss_nan(): return Recipe(objective=Loss("nan"))

class Stuck(Step):
    def step(self, shared, target, memory, round_number):
        return {}, {}

class StepFails(Step):
    def step(self, shared, target, memory, round_number):
        raise OSError("no such step")

class StepNothing(Step):
    def step(self, shared, target, memory, round_number):
        return None

def stuck(): return Recipe(steps=Stuck())
def step_fails(): return Recipe(steps=StepFails())
def step_nothing(): return Recipe(steps=StepNothing())

class Headless(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 10)

class Wrong(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.body, self.head = nn.Flatten(), nn.Linear(7, classes)
    def forward(self, x):
        return self.head(self.body(x))

class Texting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Flatten(), nn.Linear(64, 10)
    def forward(self, x):
        return "a"

class Few(Wrong):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

class Exiting(Texting):
    def forward(self, x):
        sys.exit(1)

class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Flatten(), nn.Flatten()
    def forward(self, x):
        return x.flatten(1)[:, :10]

def headless(shape, classes): return Headless()
def wrong_size(shape, classes): return Wrong()
def texting(shape, classes): return Texting()
def too_few(shape, classes): return Few()
def exiting(shape, classes): return Exiting()
def bare(shape, classes): return Bare()
def model_needs(shape, classes, depth): return Texting()
def model_of_one(shape): return Texting()

def federation(names=("ann", "bob"), rows=40, **changes):
    x = torch.rand(rows, 3, generator=torch.Generator().manual_seed(0))
    parts = np.array_split(np.arange(rows), len(names))
    clients = tuple(Client(n, p[:-2], test=p[-2:]) for n, p in zip(names, parts))
    facts = {"x": x, "y": torch.arange(rows) % 2, "class_names": ("a", "b"), "clients": clients}
    return Federation("own", **{**facts, **changes})

def one_class(): return federation(y=torch.zeros(40, dtype=torch.int64))
def twins(): return federation(("ann", "ann"))
def reserved(): return federation(("ann", "pooled"))
def controlling(): return federation(("ann", "b\\x1fob"))
def halved(): return federation(("ann", "\\ud800"))
def numbered(): return federation((1, 2))
def doubles(): return federation(x=torch.rand(40, 3, dtype=torch.float64))
def array(): return federation(x=np.zeros((40, 3)))
def infinite(): return federation(x=torch.full((40, 3), float("inf")))
def short(): return federation(y=torch.zeros(3, dtype=torch.int64))
def beyond(): return federation(y=torch.full((40,), 7))
def floats(): return federation(y=torch.rand(40))
def nobody(): return federation(clients=())
def outside(): return federation(clients=(Client("ann", np.array([99])),))
def empty_client(): return federation(clients=(Client("ann", np.array([], dtype=np.int64)),))
def text_rows(): return federation(clients=(Client("ann", "rows"),))
def half_rows(): return federation(clients=(Client("ann", np.array([0.5])),))

def places(pool, clients, rng): return [np.array([10**9])]
def texts_as_places(pool, clients, rng): return ["a", "b"]
def halves(pool, clients, rng): return [np.array([0.5])]
def no_clients(pool, clients, rng): return []
"""
EVERYWHERE = ("raises", "leaves", "nothing", "number", "itself", "endless", "value", "absent")
ONLY = {
    "method": (
        "needs", "needs_two", "odd_default", "no_phase", "wrong_parts", "wrong_phase", "no_part",
        "drops", "invents", "reshapes", "empties", "texts", "spoils", "returns_nothing", "exits",
        "fails", "loss_raises", "loss_exits", "loss_none", "loss_text", "loss_vector",
        "loss_nan", "stuck", "step_fails", "step_nothing",
    ),
    "model": (
        "headless", "wrong_size", "texting", "too_few", "exiting", "bare", "model_needs",
        "model_of_one",
    ),
    "federation.dataset": (
        "one_class", "twins", "reserved", "controlling", "halved", "numbered", "doubles", "array",
        "infinite", "short", "beyond", "floats", "nobody", "outside", "empty_client", "text_rows",
        "half_rows",
    ),
    "federation.partition": ("places", "texts_as_places", "halves", "no_clients"),
    "federation.environments": (),
    "federation.skew": (),
}  # fmt: skip
MODULES = {
    "syntax": "def f(:\n", "raises": "1 / 0\n", "leaves": "raise SystemExit(0)\n",
    "imports": "import no_such_module\n", "recurses": "def f(): return f()\nf()\n",
    "not UTF-8": "x = '\xff'\n", "empty": "",
}  # fmt: skip


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "workplace"
    folder.mkdir()
    (folder / "their_parts.py").write_text(MODULE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield folder
    for name in ("their_parts", "their_module"):
        sys.modules.pop(name, None)


def setting(kind: str, target: str) -> str:
    return f"{kind}=[{{name='{target}'}}]" if kind.endswith("skew") else f"{kind}={target}"


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, n) for kind, more in ONLY.items() for n in (*EVERYWHERE, *more)]
)  # fmt: skip
def test_a_part_that_does_the_wrong_thing_is_a_sentence(
    workplace: Path, kind: str, name: str
) -> None:
    assert refused(workplace, *run(workplace, setting(kind, f"their_parts:{name}")))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_cannot_be_imported_is_a_sentence(workplace: Path, name: str) -> None:
    (workplace / "their_module.py").write_text(MODULES[name], encoding="latin1")
    assert "their_module" in refused(workplace, *run(workplace, "method=their_module:f"))
