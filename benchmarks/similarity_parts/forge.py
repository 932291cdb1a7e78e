"""One client sends a useless body and a fingerprint made to look like everybody's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from benchmarks.similarity_parts.plan import Numbers, Plan, listed, plus_minus
from fedskew import Federation, Run, make_config, make_federation, run
from fedskew.errors import ConfigError
from fedskew.federate.recipe import Recipe
from fedskew.methods import find
from fedskew.papers.page import table
from fedskew.parts.aggregate import Aggregator, ServerState, Update
from fedskew.parts.begin import Opening
from fedskew.parts.mix import BySimilarity, nobody_at_self, shared_out
from fedskew.parts.similarity import FINGERPRINT
from fedskew.types import Groups, Tensors
from fedskew.views.similarity import similarity_series

Attack = Literal["none", "body", "forged"]

CLIENTS, SAMPLES, ROUNDS, HIDDEN = 20, 2000, 20, 64
SHARPEN, CAPS = 4.0, (0.1, 0.05)
SIZES = (3.0, 100.0)
"""Of the useless body's weights, in the size of the initial ones."""
FIRST = "first"
"""The server's memory of the initial body."""
TUNED = 5


def useless(first: Tensors, size: float) -> Tensors:
    """Random weights, the same in every round, ``size`` times as large as the first ones."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(t.shape, generator=generator) * t.square().mean().sqrt() * size
        for name, t in first.items()
    }


def forged(honest: Tensor) -> Tensor:
    """The mean of the honest fingerprints, like everybody at once, and so long that even its least
    similar victim finds a product of one."""
    mean = honest.mean(dim=0)
    return mean / (honest @ mean).min()


@dataclass(frozen=True)
class UnderAttack(Aggregator):
    """An aggregator that is sent what a malicious client made up in place of what it trained."""

    inner: Aggregator
    attack: Attack
    size: float
    attacker: str
    several: bool

    def start(self, opening: Opening) -> Groups:
        return {**self.inner.start(opening), FIRST: opening.parameters}

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        first = state.memory[FIRST]
        received = [
            self._sent(u, first, updates) if u.client == self.attacker else u for u in updates
        ]
        return self.inner.aggregate(state, received, clients)

    def _sent(self, update: Update, first: Tensors, updates: Sequence[Update]) -> Update:
        if self.attack == "none":
            return update
        body = useless(first, self.size)
        reports = update.reports
        if self.attack != "body":
            honest = [u.reports[FINGERPRINT]["v"] for u in updates if u.client != self.attacker]
            reports = {**reports, FINGERPRINT: {"v": forged(torch.stack(honest))}}
        return replace(update, tensors=body, reports=reports)


def attacked(
    attack: Attack = "none",
    attacker: str = "",
    base: str = "fedshibu",
    cap: float = 1.0,
    size: float = 1.0,
    believes: bool = False,
) -> Recipe:
    """FedSHIBU (by features, sharpened) or FedBABU with one malicious client.

    Where it ``believes``, the server takes fingerprints as long as they come.
    """
    if attack not in get_args(Attack):
        raise ConfigError(f"attack must be one of {', '.join(get_args(Attack))}, not {attack!r}.")
    knobs: dict[str, Any] = {"fine_tune_epochs": TUNED}
    if base == "fedshibu":
        knobs |= {"mode": "feature", "sharpen": SHARPEN, "cap": cap}
    recipe = find(base).recipe(**knobs)
    inner = recipe.aggregates
    if believes and isinstance(inner, BySimilarity):
        inner = replace(inner, longest=math.inf)
    return replace(recipe, aggregates=UnderAttack(inner, attack, size, attacker, inner.several))


CALM: dict[str, dict[str, Any]] = {
    "FedSHIBU": {},
    **{f"FedSHIBU, cap {cap:g}": {"cap": cap} for cap in CAPS},
    "FedBABU": {"base": "fedbabu"},
    "local": {},
}
ATTACKED: dict[str, dict[str, Any]] = {
    "FedSHIBU": {"attack": "body"},
    "FedSHIBU, forged": {"attack": "forged"},
    "lengths believed, forged": {"attack": "forged", "believes": True},
    **{
        f"lengths believed, cap {cap:g}, forged": {"attack": "forged", "believes": True, "cap": cap}
        for cap in CAPS
    },
    "FedBABU": {"base": "fedbabu", "attack": "body"},
}
ARMS = {f"none/{name}": arm for name, arm in CALM.items()} | {
    f"{size:g}/{name}": {**arm, "size": size} for size in SIZES for name, arm in ATTACKED.items()
}
"""By the size of the useless body, "none" where nobody attacks, and the server's rule."""


def measure(plan: Plan) -> Numbers:
    found: Numbers = {name: {"mean": [], "worst": [], "tuned": [], "weight": []} for name in ARMS}
    rounds = 2 if plan.quick else ROUNDS
    for seed in range(plan.seeds):
        settings: dict[str, Any] = {
            "seed": seed,
            "federation": {
                "dataset": "fashion-mnist", "clients": CLIENTS, "samples": SAMPLES,
                "test_samples": 2000, "partition": {"name": "shards", "shards_per_client": 2},
            },
            "model": {"name": "mlp", "hidden": [HIDDEN]},
            "train": {"rounds": rounds},
            "evaluate": {"every": rounds, "matrix_rounds": [rounds]},
        }  # fmt: skip
        federation = make_federation(make_config(settings))
        attacker = federation.clients[0].name
        for name, arm in ARMS.items():
            method = {"name": f"{__name__}:{attacked.__name__}", "attacker": attacker, **arm}
            alone = name == "none/local"
            config = {**settings, "method": {"name": "local"} if alone else method}
            done = run(config, out=plan.runs, federation=federation, draw=False)
            for what, value in _scores(done, federation, attacker, arm).items():
                found[name][what].append(value)
    return {"found": found, "rounds": rounds}


def _scores(
    done: Run, federation: Federation, attacker: str, arm: dict[str, Any]
) -> dict[str, float]:
    """The honest clients' test accuracy after the last round, and the attacker's weight."""
    result = done.result
    rows = [
        row for row in done.rows()
        if row.round == result["rounds"] and row.model == result["primary_model"]
        and row.on == "seen" and row.split == "test" and row.metric == "accuracy"
        and row.client != attacker
    ]  # fmt: skip
    plain = [row.value for row in rows if row.adapted == "none"]
    tuned = [row.value for row in rows if row.adapted != "none"]
    found = {"mean": fmean(plain), "worst": min(plain)}
    if tuned:
        found["tuned"] = fmean(tuned)
    series = similarity_series(done.path, "similarity")
    if series:
        others = nobody_at_self(
            torch.from_numpy(series[-1].values), slice(0, len(federation.clients))
        )
        _, rest = shared_out(others, sharpen=SHARPEN, cap=arm.get("cap", 1.0))
        place = series[-1].clients.index(attacker)
        honest = [i for i in range(len(rest)) if i != place]
        found["weight"] = float(rest[honest, place].mean())
    return found


def tell(numbers: Numbers) -> list[str]:
    found = numbers["found"]
    seeds = len(found["none/FedSHIBU"]["mean"])
    heads = ("arm", "mean, %", "worst client, %", f"mean after {TUNED} epochs of fine-tuning, %",
             "weight of client 0 in another's body")  # fmt: skip
    tables = []
    for kind, title in (
        ("none", "Nobody attacks"),
        *((f"{size:g}", f"A useless body, {size:g} times the size of the first") for size in SIZES),
    ):
        arms = {n.partition("/")[2]: v for n, v in found.items() if n.startswith(f"{kind}/")}
        rows = [(name, *_cells(name, values)) for name, values in arms.items()]
        tables += [f"### {title}", table(heads, rows)]
    return [_about(numbers["rounds"], seeds), *tables, "### What follows", *_verdicts(found)]


def _cells(name: str, values: dict[str, list[float]]) -> list[str]:
    cells = [
        plus_minus(values[what], 1, 100.0) if values[what] else "–"
        for what in ("mean", "worst", "tuned")
    ]
    if name == "FedBABU":
        return [*cells, f"{1 / CLIENTS:.3f}"]
    return [*cells, plus_minus(values["weight"]) if values["weight"] else "–"]


def _about(rounds: int, seeds: int) -> str:
    return (
        f"Fashion-MNIST, {CLIENTS} clients with two shards each, {SAMPLES} training samples in "
        f"all, `mlp` with {HIDDEN} hidden units, {rounds} rounds, FedSHIBU with "
        f"`mode = feature` and `sharpen = {SHARPEN:g}`. The first client is malicious and sends "
        f"random weights, {listed([f'{size:g}' for size in SIZES])} times as large as the initial "
        "ones. Forging, it also sends the mean of all honest fingerprints of the round, made so "
        "long that its product with every one of them reaches 1, the most the server counts. "
        "The server cuts a fingerprint to the length of honest ones, which is 1; where it believes "
        "lengths, the forger looks to every client like that client itself, and only a cap on any "
        "one neighbour's weight is left. Knowing everybody's fingerprint is the "
        f"worst case. Test accuracy of the {CLIENTS - 1} honest clients, each on its own test "
        f"data, last round; mean ± standard deviation over {seeds} seeds. `local` trains "
        "alone and cannot be attacked."
    )


def _verdicts(found: Numbers) -> list[str]:
    def mean(name: str, what: str = "mean") -> float:
        values: list[float] = found[name][what]
        return fmean(values) * (1.0 if what == "weight" else 100.0)

    def change(name: str, calm: str = "none/FedSHIBU") -> str:
        return f"{mean(name) - mean(calm):+.1f}"

    parts = []
    for size in (f"{size:g}" for size in SIZES):
        believed = f"{size}/lengths believed"
        caps = [
            f"{change(f'{believed}, cap {cap:g}, forged', f'none/FedSHIBU, cap {cap:g}')} "
            f"with `cap = {cap:g}`"
            for cap in CAPS
        ]
        parts.append(
            f"**A body of {size} times the size.** With its own fingerprint it weighs "
            f"{mean(f'{size}/FedSHIBU', 'weight'):.3f} in the others' bodies at the end and "
            f"changes their mean accuracy by {change(f'{size}/FedSHIBU')} points. Forged, it "
            f"weighs {mean(f'{size}/FedSHIBU, forged', 'weight'):.3f} and changes it by "
            f"{change(f'{size}/FedSHIBU, forged')}; if the server believed lengths, "
            f"{mean(f'{believed}, forged', 'weight'):.3f} and "
            f"{change(f'{believed}, forged')}, and then, against the same rule "
            f"without an attack, {listed(caps)}. FedBABU, where everybody "
            f"weighs 1/{CLIENTS}, changes by {change(f'{size}/FedBABU', 'none/FedBABU')}."
        )
    tuned = [mean(name, "tuned") for name, values in found.items() if values["tuned"]]
    prices = [f"{change(f'none/FedSHIBU, cap {cap:g}')} with `cap = {cap:g}`" for cap in CAPS]
    parts.append(
        "A cap bounds the weight of a forger, not the size of what it sends: harm grows with "
        "both, and keeping the size in bounds takes a check of its own, which there is none "
        "of here. What a cap takes from a neighbour goes to the "
        "client's own body, so a tight cap is training alone by degrees. Without an attack that "
        f"changes the mean by {listed(prices)}; `local` reaches {mean('none/local'):.1f} % here, "
        f"FedSHIBU without a cap {mean('none/FedSHIBU'):.1f} %. A cap costs least where "
        "training alone does well, and more elsewhere. After "
        f"{TUNED} epochs of fine-tuning the means of all arms lie between {min(tuned):.1f} and "
        f"{max(tuned):.1f} %: read the columns before it."
    )
    return parts
