"""A recommendation for people: the answer, the evidence, the reasons, and its files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedskew.comparisons.paired import ClientGain
from fedskew.diagnosis.recommendation import Recommendation
from fedskew.diagnosis.report import Diagnosis
from fedskew.parts.metrics import is_share
from fedskew.store import make_folder, sweep, write_atomically, write_json
from fedskew.views.gains import with_ends
from fedskew.views.leaderboard import aligned
from fedskew.views.terminal import clock

FILE, PAGE = "recommendation.json", "recommendation.md"
SHOWN = 8
"""So many clients that lose are named."""


def written(found: Recommendation) -> str:
    """The recommendation as lines of text."""
    parts = [
        answer(found),
        "\n".join(_facts(found)),
        "\n".join(aligned(*tried_lines(found))),
        reasons(found),
    ]
    if found.left_out:
        parts.append("\n".join(_left_out(found.left_out)))
    return "\n\n".join(parts)


def answer(found: Recommendation) -> str:
    """The one sentence people came for."""
    gain = with_ends(found.gain.gain, found.metric)
    if found.answer == "federate":
        return f"Use {found.method}: {gain} {found.metric} over training alone ({found.alone})."
    if found.answer == "stay alone":
        why = {
            "tie": f"{found.best} is as good, within ±{number(found.gain.margin, found.metric)}",
            "worse": f"{found.best}, the best federated method, is worse",
        }.get(found.gain.verdict, f"it was best on validation data, and {found.best} shows no gain")
        return f"Stay alone ({found.alone}): {why} ({gain} {found.metric} on test data)."
    if found.gain.verdict == "better":
        return (
            f"Cannot tell: {found.alone} was best on validation data, but {found.best} on test "
            f"data ({gain} {found.metric} over {found.alone})."
        )
    return (
        f"Cannot tell: {found.best} was best on validation data, but on test data its gain over "
        f"training alone ({found.alone}) is {gain} {found.metric}."
    )


def settings(found: Recommendation) -> str:
    """The method as a line of a config."""
    knobs = {name: value for name, value in found.settings.items() if value is not None}
    return f"method = {_toml(knobs)}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(v)}" for name, v in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


def _facts(found: Recommendation) -> Iterator[str]:
    yield f"settings:   {settings(found)}"
    yield f"runner-up:  {_runner_up(found)}"
    yield f"who loses:  {who_loses(found)}"
    yield f"cost:       {_cost(found)}"
    yield f"clients:    {_clients(found)}"


def _runner_up(found: Recommendation) -> str:
    if found.runner_up is None or found.over_runner_up is None:
        return "none, because only one federated method was left"
    gain = with_ends(found.over_runner_up.gain, found.metric)
    said = {
        "better": "which is more than chance", "worse": "so the runner-up is better there",
        "tie": "so they are as good", "cannot tell": "so these test samples do not tell them apart",
    }[found.over_runner_up.verdict]  # fmt: skip
    return f"{found.runner_up}; {found.best} less it is {gain} on test data, {said}"


def who_loses(found: Recommendation) -> str:
    """Clients that do worse with the best federated method than alone, and by how much."""
    losers, everyone = found.losers, len(found.gain.clients)
    if not losers:
        return f"nobody of {everyone} scores lower with {found.best} than alone"
    clearly = [client for client in losers if client.is_clearly_worse]
    told = "by more than chance in its own test samples"
    named = [*clearly, *(client for client in losers if client not in clearly)]
    names = ", ".join(_client(client, found.metric) for client in named[:SHOWN])
    rest = f" and {len(losers) - SHOWN} more" if len(losers) > SHOWN else ""
    return (
        f"{len(losers)} of {everyone} score lower with {found.best} than alone, {len(clearly)} "
        f"{told}: {names}{rest}"
    )


def _client(client: ClientGain, metric: str) -> str:
    mark = " (clearly)" if client.is_clearly_worse else ""
    return f"{client.client} {with_ends(client.gain, metric)}{mark}"


def _cost(found: Recommendation) -> str:
    spent = found.spent
    share = f"{spent.rounds / found.full_rounds:.0%} of the {found.full_rounds} of all to the end"
    return (
        f"{spent.rounds} rounds ({share}), {clock(spent.seconds)} of training and scoring "
        f"({clock(60 * found.minutes)} in all), {spent.bytes / 1e6:.1f} MB sent and received"
    )


def _clients(found: Recommendation) -> str:
    if found.diagnosis is None:
        return f"not diagnosed: {found.no_diagnosis}"
    kinds = [each.kind for each in found.diagnosis.findings if each.verdict == "found"]
    unsure = [each.kind for each in found.diagnosis.findings if each.verdict == "cannot tell"]
    said = f"{' and '.join(kinds)} skew" if kinds else "no skew found"
    return said + (f"; cannot tell: {', '.join(unsure)}" if unsure else "")


def tried_lines(found: Recommendation) -> tuple[list[str], list[list[str]]]:
    """Header and rows: how far everybody came, and the validation score there."""
    rows = [
        [
            line.name,
            f"{line.rounds}" if line.rounds else "–",
            number(line.validation, found.metric),
            number(found.scores.get(line.name, math.nan), found.metric),
            f"{line.spent.bytes / 1e6:.2f}" if line.rounds else "–",
            line.why_ended,
        ]
        for line in found.tried
    ]
    return ["method", "rounds", f"validation {found.metric}", "test", "MB", ""], rows


def number(value: float, metric: str) -> str:
    """
    >>> number(0.5, "accuracy"), number(float("nan"), "rmse")
    ('0.500', '–')
    """
    if math.isnan(value):
        return "–"
    return f"{value:.3f}" if is_share(metric) else f"{value:.4g}"


def reasons(found: Recommendation) -> str:
    """One paragraph: how it was found out, what was seen, and what it does not cover."""
    return " ".join(_sentences(found))


def _sentences(found: Recommendation) -> Iterator[str]:
    trained = [line for line in found.tried if line.rounds]
    last, metric = found.rungs[-1], found.metric
    stops = [str(rung) for rung in found.rungs[:-1]]
    yield (
        f"{len(trained) - 1} federated methods and training alone were trained on the same "
        f"clients, rows and seed ({found.seeds[0]})."
    )
    if stops:
        yield (
            f"After round {' and '.join(stops)} those with the worse mean {metric} over clients "
            f"on validation data were stopped; the rest went on to round {last}, training alone "
            "among them."
        )
    ahead = found.tried[0]
    yield (
        f"The best score there had {ahead.name} ({number(ahead.validation, metric)} at round "
        f"{ahead.rounds})."
    )
    yield (
        "Test data decided none of this and were looked at once, for the best federated method on "
        f"validation data ({found.best}), {'the runner-up ' if found.runner_up else ''}"
        f"{f'({found.runner_up}) ' if found.runner_up else ''}and training alone."
    )
    yield (
        f"The mean test {metric} over clients, each counting the same, is "
        f"{number(found.scores[found.best], metric)} with {found.best} and "
        f"{number(found.scores[found.alone], metric)} alone: a gain of "
        f"{with_ends(found.gain.gain, metric)}."
    )
    yield _what_varies(found)
    clearly = found.gain.clearly_worse
    yield (
        f"{found.gain.worse} of {len(found.gain.clients)} clients score lower than alone"
        + ("" if clearly is None else f", {clearly} by more than chance in its own test samples "
           "(of clients without any difference one in 40 would)") + "."
    )  # fmt: skip
    if found.diagnosis is not None:
        yield _why(found.diagnosis)
    yield (
        "Not covered: other clients than these, other settings than those tried, and data that "
        "change."
    )


def _why(diagnosis: Diagnosis) -> str:
    """How the clients differ, as far as sums of their training rows tell."""
    told = [each.words for each in diagnosis.findings if each.verdict == "found"]
    unsure = [each.kind for each in diagnosis.findings if each.verdict == "cannot tell"]
    if unsure:
        told.append(f"too few rows to tell of {' or '.join(unsure)} skew")
    if not told:
        told.append("no difference was found")
    return (
        f"How the clients' training rows differ: {'; '.join(told)}. Foretold from sums of these "
        f"rows alone: {diagnosis.gain_words}."
    )


def _what_varies(found: Recommendation) -> str:
    if len(found.seeds) > 1:
        return (
            f"The 95 % interval is over {len(found.seeds)} trainings and the clients' test "
            "samples, paired by client."
        )
    if not math.isfinite(found.gain.gain.low):
        return "It has no interval, because answers for single test samples are not known."
    return (
        "The 95 % interval is paired by test sample and counts chance in these samples, for these "
        "clients and the models as they were trained; how another training would come out it does "
        "not say (--seeds 3 does)."
    )


def _left_out(left_out: Mapping[str, str]) -> Iterator[str]:
    """Each reason once, with the methods it is about."""
    about: dict[str, list[str]] = {}
    for name, why in left_out.items():
        about.setdefault(why, []).append(name)
    yield "Not tried:"
    for why, names in about.items():
        yield f"  {', '.join(names)}: {why}"


def to_plain(found: Recommendation) -> dict[str, Any]:
    """As JSON holds it."""
    plain = asdict(found)
    plain["losers"] = [asdict(client) for client in found.losers]
    plain["sentence"], plain["reasons"] = answer(found), reasons(found)
    cleaned = _finite(plain)
    assert isinstance(cleaned, dict)
    return cleaned


def _finite(value: Any) -> Any:
    """JSON knows no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def markdown(found: Recommendation) -> str:
    """The page of a recommendation."""
    header, rows = tried_lines(found)
    cells = [header, ["---"] * len(header), *rows]
    table = "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in cells)
    facts = "\n".join(f"- {' '.join(line.split())}" for line in _facts(found))
    parts = ["# Recommendation", f"**{answer(found)}**", facts, reasons(found)]
    parts += ["## What was tried", table]
    if found.left_out:
        why, *lines = _left_out(found.left_out)
        parts += [why, "\n".join(f"- {line.strip()}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def write(folder: Path, found: Recommendation) -> None:
    """The JSON file and the page."""
    make_folder(folder)
    sweep(folder, "")
    write_json(folder / FILE, to_plain(found))
    write_atomically(folder / PAGE, markdown(found).encode())
