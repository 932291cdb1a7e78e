"""What becomes of each column, as all who train told of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedskew.data.moments import figures
from fedskew.data.tables.cells import key_of
from fedskew.data.tables.encoder import FARTHEST, Encoding, TableEncoder
from fedskew.data.tables.kinds import WORDS
from fedskew.data.tables.sums import ColumnSums, TableSums, centre_and_scale, words_of
from fedskew.errors import DataError

FEW = 20
"""Of more rows than these, words that are all different name the row."""


def fitted(
    origin: Path | str,
    told: Mapping[str, TableSums],
    *,
    scaled: bool = True,
    given: Sequence[str] = (),
    label: Sequence[str] = (),
    ignored: Mapping[str, str] | None = None,
) -> TableEncoder:
    """The encoder that follows from what clients tell of their training rows, by client.

    Columns come in the order of the first client. ``given`` are those whose kind the user told,
    and ``scaled`` says whether numbers are brought to a common scale. ``ignored`` columns are not
    told of. Where there is nothing but numbers and no row lacks one, mean and deviation scale them,
    as in files that are no tables; else medians and quartiles do.
    """
    ignored = dict(ignored or {})
    _check_same_columns(origin, told)
    plain = _plain(told, scaled)
    if plain:
        return TableEncoder(plain, tuple(label), ignored)
    made: list[Encoding] = []
    for name in next(iter(told.values())).columns:
        by_client = {client: each.columns[name] for client, each in told.items()}
        kind = _one_kind(origin, name, by_client)
        sums = list(by_client.values())
        why = _useless(sums, kind, name in given)
        if why:
            ignored[name] = why
        else:
            made.append(_encoding(name, kind, sums, scaled))
    if not made:
        raise DataError(
            f"{origin} has no column to learn from: "
            + "; ".join(f"{name!r} is {why}" for name, why in ignored.items())
            + "."
        )
    return TableEncoder(tuple(made), tuple(label), ignored)


def _check_same_columns(origin: Path | str, told: Mapping[str, TableSums]) -> None:
    first, *others = told
    for client in others:
        mine, theirs = told[first].columns, told[client].columns
        for name in [*mine, *theirs]:
            if name not in mine or name not in theirs:
                there, lacking = (first, client) if name in mine else (client, first)
                raise DataError(
                    f"{origin}: client {there!r} has a column {name!r} and client {lacking!r} "
                    f"has not: add it, or set federation.columns = {{{key_of(name)} = 'ignore'}}."
                )


def _plain(told: Mapping[str, TableSums], scaled: bool) -> tuple[Encoding, ...]:
    """How columns become features where there is nothing but numbers; else none."""
    moments = [each.moments for each in told.values() if each.moments is not None]
    if len(moments) < len(told):
        return ()
    names = list(next(iter(told.values())).columns)
    mean, deviation = (each.reshape(-1) for each in figures(moments))
    made = [Encoding(name, "number", float(m)) for name, m in zip(names, mean, strict=True)]
    if scaled:
        scales = zip(made, mean, deviation, strict=True)
        made = [replace(each, shift=float(m), spread=float(d)) for each, m, d in scales]
    return tuple(made)


def _one_kind(origin: Path | str, name: str, told: Mapping[str, ColumnSums]) -> str:
    """The first kind that everybody's values fit; those who hold none fit any."""
    held = {client: each.kinds for client, each in told.items() if each.present}
    if not held:
        return next(iter(told.values())).kinds[0]
    (first, kinds), *others = held.items()
    for client, theirs in others:
        common = tuple(kind for kind in kinds if kind in theirs)
        if not common:
            raise DataError(
                f"{origin}: column {name!r} is a {kinds[0]} at client {first!r} and a {theirs[0]} "
                f"at {client!r}: mend it, or set federation.columns = {{{key_of(name)} = "
                "'category'} for everybody."
            )
        kinds = common
    return kinds[0]


def _useless(sums: Sequence[ColumnSums], kind: str, given: bool) -> str:
    """Why a column tells nothing, if it does not."""
    held = [each for each in sums if each.present]
    present, missing = (sum(getattr(each, n) for each in sums) for n in ("present", "missing"))
    if not present:
        return "empty in the training rows"
    if kind in WORDS:
        if all(each.words for each in held) and len(words_of(held)) == 1 and not missing:
            return "always the same"
        if not given and present > FEW and sum(each.distinct for each in sums) == present:
            return "another word in every row, like a name or number of the row"
        return ""
    constant = centre_and_scale(sums, robust=False)[1] == 0
    return "always the same" if constant and not missing else ""


def _encoding(name: str, kind: str, sums: Sequence[ColumnSums], scaled: bool) -> Encoding:
    flagged = any(each.missing for each in sums)
    if kind in WORDS:
        levels = words_of(sums) if kind == "category" else ()
        return Encoding(name, kind, levels=levels, flagged=flagged)
    if kind == "boolean":
        share, _ = centre_and_scale(sums, robust=False)
        return Encoding(name, kind, fill=share, flagged=flagged)
    centre, spread = centre_and_scale(sums, robust=True)
    made = Encoding(name, kind, fill=centre, flagged=flagged)
    if not scaled:
        return made
    return replace(made, shift=centre, spread=spread or 1.0, limit=FARTHEST)
