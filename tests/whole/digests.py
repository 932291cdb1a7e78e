"""Small runs of every family of methods, and the SHA-256 of all that came of them.

Only the public API and the files of a run folder are used, so the same script digests any commit:

    python tests/whole/digests.py            prints what differs from digests.json
    python tests/whole/digests.py --record   writes this machine's digests into it

Bits depend on the instructions a processor has, so digests are kept for each kind of it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import fedskew

RECORDED = Path(__file__).with_name("digests.json")
Digests = dict[str, str]

DIGITS: dict[str, Any] = {
    "federation": {"samples": 400, "clients": 5, "unseen": 1, "test": 0.2},
    "model": {"name": "mlp", "hidden": [16]},
    "train": {"rounds": 3, "batch_size": 16},
}
GREY = {"federation": {"normalise": "unit"}}
VAE = {**GREY, "model": {"name": "beta-vae", "latent": 4}, "train": {"lr": 0.001}}
CIVAE = {**GREY, "model": {"name": "dense-civae"}, "train": {"optimiser": "adam", "lr": 0.002}}
SHOTS = {"evaluate": {"shots": [1, 3, "all"], "fine_tune_epochs": 4, "fine_tune_patience": 1}}
NORMED = {"federation": {"image": {"side": 16, "channels": 1}}, "model": {"name": "cnn-bn"}}
TURNED = {"federation": {"skew": [{"name": "rotation", "low": 0, "high": 60}]}}


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, section by section; the last layer that says something decides."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            inner = key in ("federation", "train", "evaluate")
            result[key] = {**result.get(key, {}), **value} if inner else value
    return result


def case(method: str, *layers: Mapping[str, Any], **knobs: Any) -> dict[str, Any]:
    return merged(DIGITS, {"method": {"name": method, **knobs}}, *layers)


CASES: dict[str, dict[str, Any]] = {
    "local": case("local"),
    "central": case("central"),
    "fedavg, some clients a round, falling rate": case(
        "fedavg",
        {"train": {"rounds": 4, "clients_per_round": 2, "lr_decay": 0.5, "lr_steps": [2]}},
    ),
    "fedavg, threads, early stop": case(
        "fedavg",
        {"executor": "threads", "train": {"rounds": 8, "patience": 1}, "evaluate": {"every": 2}},
        server_lr=0.7,
    ),
    "fedprox, vectorised": case("fedprox", {"executor": "vectorised"}, mu=0.5),
    "scaffold with momentum": case("scaffold", {"train": {"momentum": 0.5, "epochs": 2}}),
    "fednova": case("fednova", mu=0.1, server_lr=0.9),
    "fedgma": case("fedgma", server_lr=0.8),
    "fedbn": case("fedbn", NORMED, {"train": {"rounds": 2}}),
    "fedavg with batch statistics": case("fedavg", NORMED, {"train": {"rounds": 2}}),
    "ditto": case("ditto", {"evaluate": {"fine_tune_epochs": 2}}),
    "feddisco": case("feddisco"),
    "vae by loss": case("vae", VAE, {"evaluate": {"generated": 60}}, weights="loss", server_lr=0.5),
    "vae, clients apart": case("vae", VAE, sync=False, shared_start=False, divergence=True),
    "latent-weights": case("latent-weights", VAE, control="labels"),
    "latent-weights-online": case("latent-weights-online", VAE, every=2),
    "distilled-vae": case("distilled-vae", VAE, local_rounds=2, samples=80, components=2),
    "fedreptile on fedprox": case(
        "fedreptile", SHOTS, base={"name": "fedprox", "mu": 0.1}, first=1.0, decay=0.9
    ),
    "fedreptile-civae": case("fedreptile-civae", CIVAE, TURNED, SHOTS),
    "fed-civae": case("fed-civae", CIVAE, {"evaluate": {"fine_tune_epochs": 2}}),
    "fed-civae, a volunteer": case(
        "fed-civae", CIVAE, encoder="volunteer", decoder="mean", server_lr=0.5
    ),
    "fed-classifier": case("fed-classifier", SHOTS),
    "irm on scaffold": case("irm", base="scaffold", anneal=4, lam=2.0),
    "groupdro": case("groupdro", TURNED, eta=0.1),
    "mldg with adam": case("mldg", {"train": {"optimiser": "adam", "lr": 0.01}}),
    "made": case("made", GREY, {"model": {"name": "made", "hidden": [12]}}),
    "feddisk": case("feddisk", GREY),
    "feddisk, oracle": case(
        "feddisk",
        {
            "federation": {
                "dataset": "gaussian-clients", "partition": "owner", "clients": "all",
                "samples": None, "unseen": 0,
            }
        },
        estimator="oracle",
    ),
    "fedper": case("fedper", {"evaluate": {"fine_tune_epochs": 1, "fine_tune_part": "head"}}),
    "fedrep": case("fedrep", head_epochs=2),
    "fedrod": case("fedrod"),
    "per-fedavg": case("per-fedavg", alpha=0.05),
    "private": case("private", {"train": {"clients_per_round": 3}}, clip=0.5, noise=0.4),
    "compressed": case(
        "compressed", {"train": {"clients_per_round": 3}}, base={"name": "scaffold"}, share=0.05
    ),
    "compressed, half": case("compressed", NORMED, {"train": {"rounds": 2}}, how="half"),
    "fedbabu": case("fedbabu"),
    "fedshibu": case("fedshibu", {"train": {"clients_per_round": 3}}),
    "fedavg-crsm on a public probe": case(
        "fedavg-crsm", {"federation": {"public": 20}}, mode="probe", probe="public", samples=20
    ),
    "grouped": case("grouped", groups="found"),
    "self-mix": case("self-mix", self_weight="measured"),
}  # fmt: skip
RESUMED = (
    "fedrep", "scaffold with momentum", "feddisk", "latent-weights", "fedshibu", "groupdro",
    "compressed",
)  # fmt: skip
"""Stopped after their second round and begun again, these end with the bits of the others."""


def machine() -> str:
    """What of this processor decides bits: who made it, and the widest instructions in use."""
    described = Path("/proc/cpuinfo")
    text = described.read_text() if described.exists() else platform.processor()
    maker = "intel" if "GenuineIntel" in text else "amd" if "AuthenticAMD" in text else "other"
    return f"{maker}-{torch.backends.cpu.get_cpu_capability().lower()}-torch-{torch.__version__}"


def digest(value: Any) -> str:
    """Of plain values; floats by all their digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:20]


def of_arrays(arrays: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(np.asarray(arrays[name]))
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:20]


def of_run(run: fedskew.Run) -> Digests:
    """The models a run ended with, all numbers it measured, and its summary."""
    folder = run.path / "models"
    tensors = {
        f"{named(path).relative_to(folder)} {name}": tensor.numpy()
        for path in folder.rglob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    result = run.result
    told = ("scores", "bytes", "rounds", "selected_round", "failures", "privacy", "sample_weights")
    return {
        "models": of_arrays(tensors),
        "metrics": digest(sorted(json.dumps(json.loads(line), sort_keys=True) for line in lines)),
        "summary": digest(
            [sorted(map(json.dumps, result["scores"])), [result.get(t) for t in told]]
        ),
    }


def named(path: Path) -> Path:
    """A model's file as if it had its client's name, where a table says whose it is."""
    table = path.with_name("names.json")
    names = json.loads(table.read_text()) if table.is_file() else {}
    owner = {f"{number:06d}": name for name, number in names.items()}
    return path.with_name(f"{owner.get(path.stem, path.stem)}.safetensors")


class Stopped(BaseException):
    """Ends a run between two rounds, as Ctrl-C would."""


def interrupted(settings: Mapping[str, Any], out: Path) -> fedskew.Run:
    rounds: list[int] = []

    def watch(*_: Any) -> None:
        rounds.append(len(rounds))
        if len(rounds) == 2:
            raise Stopped

    try:
        fedskew.run(settings, out=out, watch=watch, draw=False)
    except Stopped:
        return fedskew.run(settings, out=out, draw=False)
    raise AssertionError("the run ended before it could be stopped")


def newcomer() -> tuple[Any, Any]:
    """Samples of somebody who was never there, as the dataset stores them."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images[-60:, None].astype(np.float32) / 16, digits.target[-60:]


def answers(out: Path) -> dict[str, Digests]:
    """What adapt, predict and compare say."""
    x, y = newcomer()
    found: dict[str, Digests] = {}
    for name in ("fedreptile-civae", "fedper", "fedshibu"):
        run = fedskew.run(CASES[name], out=out, draw=False)
        adapted = fedskew.adapt(run, x[:30], y[:30], shots=2, epochs=3)
        state = {n: t.numpy() for n, t in adapted.module.state_dict().items()}
        answer = fedskew.predict(adapted, x[30:])
        found[f"adapt {name}"] = {
            "model": of_arrays(state),
            "answers": of_arrays({"label": answer.label, "probability": answer.probability}),
        }
    plain = fedskew.predict(fedskew.run(CASES["fedbabu"], out=out, draw=False), x)
    found["predict fedbabu"] = {
        "answers": of_arrays({"label": plain.label, "probability": plain.probability}),
        "threshold": digest(plain.threshold),
    }
    table = fedskew.compare(
        ["fedprox:mu=0.2", "fedper"], merged(DIGITS), seeds=2, out=out / "compared"
    )
    found["compare"] = {"leaderboard": digest(without_time(table.to_csv()))}
    crossed = fedskew.compare(
        [], merged(DIGITS, TURNED), objectives="erm, groupdro", aggregators=["fedavg", "scaffold"],
        leave_out=1, out=out / "crossed",
    )  # fmt: skip
    assert crossed.matrix is not None
    found["compare objectives"] = {
        "leaderboard": digest(without_time(crossed.to_csv())),
        "matrix": digest(crossed.matrix.to_csv()),
    }
    return found


def without_time(table: str) -> list[list[str]]:
    """A leaderboard's cells but those that measure the machine or name folders."""
    header, *rows = (line.split(",") for line in table.splitlines())
    # Gains over local and losers are in no recorded digest; they follow from the scores.
    dropped = ("second", "run", "gain_over_local", "paired", "worse_off")
    kept = [i for i, name in enumerate(header) if not any(word in name for word in dropped)]
    return [[row[i] for i in kept] for row in (header, *rows)]


def works(out: Path) -> dict[str, Callable[[], dict[str, Digests]]]:
    """Everything that is digested, by name."""

    def whole(name: str) -> dict[str, Digests]:
        return {name: of_run(fedskew.run(CASES[name], out=out, draw=False))}

    def resumed(name: str) -> dict[str, Digests]:
        return {f"{name}, resumed": of_run(interrupted(CASES[name], out / "interrupted"))}

    found: dict[str, Callable[[], dict[str, Digests]]] = {}
    for name in CASES:
        found[name] = lambda name=name: whole(name)
    for name in RESUMED:
        found[f"{name}, resumed"] = lambda name=name: resumed(name)
    found["answers"] = lambda: answers(out)
    return found


def main(arguments: Sequence[str]) -> int:
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    before = recorded.get(machine(), {})
    now: dict[str, Digests] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, work in works(Path(folder)).items():
            now |= work()
            print(f"digested {name}", file=sys.stderr, flush=True)
    changed = [
        f"{name}: {what}"
        for name in sorted(before.keys() | now.keys())
        for what in sorted(before.get(name, {}).keys() | now.get(name, {}).keys())
        if before.get(name, {}).get(what) != now.get(name, {}).get(what)
    ]
    print("\n".join(changed) or f"nothing differs ({machine()})")
    if "--record" in arguments:
        RECORDED.write_text(json.dumps({**recorded, machine(): now}, indent=1) + "\n")
        return 0
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
