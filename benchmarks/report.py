"""Turns the measurements into tables: times, ratios, targets reached or not, and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

Results = dict[str, Any]
GROUPS = {
    "plain": ("plain-1", "plain-default"),
    "pfl": ("pfl-1", "pfl-2"),
    "flower": ("flower",),
}
FASTER_THAN = {
    "plain": {
        "mlr": 5.0,
        "har-mlp": 5.0,
        "2nn": 2.0,
        "femnist-cnn": 2.0,
        "cnn": 1.5,
        "beta-vae": 1.5,
    },
    "pfl": {
        "mlr": 2.0,
        "2nn": 2.0,
        "har-mlp": 2.0,
        "femnist-cnn": 2.0,
        "cnn": 1.2,
        "beta-vae": 1.2,
    },
    "flower": {"mlr": 30.0, "cnn": 3.0},
}
GEMM_SHARE = {"beta-vae": 0.6}
MEMORY_GROWTH = 1.2
WHOLE = {"made": 60.0}
"""Seconds all rounds of a workload may take, from its first."""


def seconds(workload: Results, contender: str, phase: str = "train") -> float | None:
    """Median seconds per round, or per evaluation."""
    values = workload["contenders"].get(contender, {}).get(phase)
    return median(values) if values else None


def best(workload: Results, group: str) -> float | None:
    """The fastest variant of a peer counts."""
    times = [seconds(workload, contender) for contender in GROUPS[group]]
    return min((time for time in times if time is not None), default=None)


def ratio(workload: Results, group: str) -> float | None:
    """How many times faster than the group fedskew is."""
    ours, theirs = seconds(workload, "fedskew"), best(workload, group)
    return theirs / ours if ours and theirs else None


def gemm_share(workload: Results, contender: str, product_flops: float) -> float | None:
    """Training FLOP/s over those of the large product, the best of the same run."""
    time, products = seconds(workload, contender), workload["contenders"]["gemm"]["train"]
    if not time or not products:
        return None
    return (workload["flops_per_round"] / time) / (product_flops / min(products))


def whole(workload: Results | None, contender: str) -> float | None:
    """Seconds for all rounds up to the check of the score, with whatever starts lazily."""
    return (workload or {"contenders": {}})["contenders"].get(contender, {}).get("check_seconds")


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _contenders(results: Results) -> list[str]:
    every = (name for workload in results["workloads"].values() for name in workload["contenders"])
    return [name for name in dict.fromkeys(every) if name != "gemm"]


def _by_contender(results: Results, cell: Callable[[Results, str], str]) -> str:
    names = _contenders(results)
    rows = [
        [workload, *(cell(record, name) for name in names)]
        for workload, record in results["workloads"].items()
    ]
    return _table(["workload", *names], rows)


def _time_cell(workload: Results, contender: str) -> str:
    record = workload["contenders"].get(contender, {})
    values = record.get("train")
    if not values:
        return "failed" if "error" in record else "–"
    low, middle, high = (1000 * value for value in (min(values), median(values), max(values)))
    return f"{middle:.1f} ({low:.1f}–{high:.1f})"


def _startup_cell(workload: Results, contender: str) -> str:
    record = workload["contenders"].get(contender)
    if record is None:
        return "–"
    return f"{_cell(record.get('startup'), '.1f')} + {_cell(record.get('first_round'), '.1f')}"


def _score_cell(workload: Results, contender: str) -> str:
    """A score far from the plain loop's is marked: nobody is timed on not learning."""
    mine = workload["contenders"].get(contender, {}).get("score")
    reference = workload["contenders"].get("plain-1", {}).get("score")
    if mine is None or reference is None:
        return _cell(mine, ".3f")
    allowed = 0.1 * max(1.0, abs(reference))
    return f"{mine:.3f}" + ("" if abs(mine - reference) <= allowed else " (OFF)")


def _ratios(results: Results) -> str:
    product = results["machine"]["gemm_flops"]
    rows = [
        [
            name,
            *(_cell(ratio(workload, group), ".1f") for group in GROUPS),
            _cell(gemm_share(workload, "fedskew", product), ".0%"),
        ]
        for name, workload in results["workloads"].items()
    ]
    header = ["workload", *(f"× faster than {group}" for group in GROUPS), "of GEMM peak"]
    return _table(header, rows)


def _verdict(value: float | None, reached: bool) -> str:
    if value is None:
        return "not measured"
    return "reached" if reached else "NOT reached"


def _targets(results: Results) -> str:
    workloads = results["workloads"]
    rows = []
    for group, wanted in FASTER_THAN.items():
        for name, factor in wanted.items():
            value = ratio(workloads[name], group) if name in workloads else None
            verdict = _verdict(value, (value or 0) >= factor)
            rows.append([name, f"≥ {factor:g}× {group}", _cell(value, ".2f"), verdict])
    for name, share in GEMM_SHARE.items():
        product = results["machine"]["gemm_flops"]
        value = gemm_share(workloads[name], "fedskew", product) if name in workloads else None
        verdict = _verdict(value, (value or 0) >= share)
        rows.append([name, f"≥ {share:.0%} of GEMM peak", _cell(value, ".0%"), verdict])
    for name, limit in WHOLE.items():
        value = None if results["quick"] else whole(workloads.get(name), "fedskew")
        verdict = _verdict(value, (value or limit) < limit)
        rows.append([name, f"all epochs in < {limit:g} s", _cell(value, ".1f"), verdict])
    rows.extend(_memory_targets(results))
    return _table(["workload", "target", "measured", "verdict"], rows)


def _memory_targets(results: Results) -> list[list[str]]:
    sizes = {key: row.get("bytes") for key, row in results.get("memory", {}).items()}
    base = sizes.get("100")
    rows = []
    for clients in ("1000", "10000"):
        size = sizes.get(clients)
        growth = size / base if size and base else None
        verdict = _verdict(growth, (growth or 9) <= MEMORY_GROWTH)
        target = f"{clients} clients ≤ {MEMORY_GROWTH:g}× the memory of 100"
        rows.append(["cnn", target, _cell(growth, ".2f"), verdict])
    return rows


def _memory(results: Results) -> str:
    rows = [
        [key, _cell(row["bytes"] / 2**20 if "bytes" in row else None, ".0f")]
        for key, row in results.get("memory", {}).items()
    ]
    return _table(["clients", "MiB"], rows)


def _machine_lines(results: Results) -> str:
    machine, workloads = results["machine"], results["workloads"].values()
    products = [t for workload in workloads for t in workload["contenders"]["gemm"]["train"]]
    peak = machine["gemm_flops"] / min(products) / 1e9 if products else None
    real = all(workload["real_data"] for workload in workloads)
    versions: dict[str, str] = {}
    for workload in workloads:
        for record in workload["contenders"].values():
            versions.update(record.get("setup", {}).get("versions", {}))
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores; large GEMM {_cell(peak, '.0f')} GFLOP/s; "
        f"load average before the run {machine['load_before']:.2f}.",
        f"Python {machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        + ".",
        f"{results['repeats']} repeats in turns, medians.",
        "Data: the real datasets."
        if real
        else "Data: RANDOM ARRAYS of the same shapes (set FEDSKEW_DATA for the real ones); "
        "scores mean nothing.",
    ]
    if results["quick"]:
        lines.append("QUICK run: checks that everything works, the numbers are no measurement.")
    return "\n".join(f"- {line}" for line in lines)


def _whole(name: str, workload: Results) -> list[str]:
    """A workload from its first epoch to its last."""
    epochs, names = workload["epochs"] * workload["check_rounds"], list(workload["contenders"])
    names.remove("gemm")
    cells = [_cell(whole(workload, contender), ".1f") for contender in names]
    title = f"## {name}: seconds for {epochs} epochs of {workload['clients']} clients"
    return [title, _table(names, [cells])]


def render(results: Results) -> str:
    """The whole report as Markdown."""
    product = results["machine"]["gemm_flops"]
    check = {name: workload["check_rounds"] for name, workload in results["workloads"].items()}
    failures = [
        f"- {name}, {contender}: {record['error']}"
        for name, workload in results["workloads"].items()
        for contender, record in workload["contenders"].items()
        if "error" in record
    ]
    parts = [
        "# Benchmark",
        _machine_lines(results),
        "## How many times faster fedskew is (best variant of each peer)",
        _ratios(results),
        "## Targets",
        _targets(results),
        "## Training: milliseconds per round, median (lowest–highest)",
        _by_contender(results, _time_cell),
        "## Training FLOP/s as a share of the large GEMM on all cores",
        _by_contender(results, lambda w, name: _cell(gemm_share(w, name, product), ".1%")),
        "## Evaluation of the global model (made: of the clients' own): milliseconds, median",
        _by_contender(
            results,
            lambda w, name: _cell(
                None if (t := seconds(w, name, "evaluate")) is None else 1000 * t, ".1f"
            ),
        ),
        "## Start-up: seconds until ready + first round",
        _by_contender(results, _startup_cell),
        "## Do they learn? Test accuracy (beta-vae: test loss, made: loss on held-out samples) "
        "after the same number of rounds",
        f"Rounds: {', '.join(f'{name} {rounds}' for name, rounds in check.items())}.",
        _by_contender(results, _score_cell),
        "## Resident memory of the whole contender at the end: MiB",
        _by_contender(
            results,
            lambda w, name: _cell(
                None if (b := w["contenders"].get(name, {}).get("memory")) is None else b / 2**20,
                ".0f",
            ),
        ),
    ]
    for name in WHOLE.keys() & results["workloads"].keys():
        parts += _whole(name, results["workloads"][name])
    if results.get("memory"):
        parts += ["## fedskew, cnn: resident memory after 3 rounds", _memory(results)]
    if failures:
        parts += ["## Failures", "\n".join(failures)]
    return "\n\n".join(parts) + "\n"


def write(results: Results, folder: Path) -> str:
    """Write ``bench.json`` and ``bench.md``; done after each workload, so a stop loses little."""
    text = render(results)
    (folder / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "bench.md").write_text(text)
    return text
