"""What clients keep of a run, as lines of text."""

from __future__ import annotations

from statistics import fmean

from fedskew.runs.kept import ALONE, Kept, KeptClient

MANY = 40
"""Of more clients a table shows those that might be worse off, and a file has all."""
WARNING = (
    "the rounds were chosen by these same samples, which flatters all but 'alone' a little: "
    "evaluate.keep = 'best' sets samples aside"
)


def kept_lines(kept: Kept, every_client: bool = False) -> list[str]:
    """Who keeps what, who is worse off than alone before and after, and how sure that is."""
    counts = ", ".join(f"{name} ({count})" for name, count in kept.counts.items())
    rows = sorted(each.rows for each in kept.clients)
    held = f"{rows[0]} to {rows[-1]}" if rows[0] < rows[-1] else str(rows[0])
    lines = [
        f"kept by {len(kept.clients)} clients: {counts}",
        f"  decided by {held} {_samples(kept)} of each client, beside {kept.beside}",
        f"  expected to be worse than alone: {kept.expected_worse:.1f} clients"
        + (f", likeliest {_likeliest(kept)}" if kept.expected_worse else ""),
    ]
    if kept.gains():
        before, after = kept.gains("federated"), kept.gains()
        clear = [sum(e.clearly_before for e in kept.clients),
                 sum(e.clearly_after for e in kept.clients)]  # fmt: skip
        lines += [
            f"on the test samples of {len(after)} clients, {kept.metric} against alone:",
            f"  all federated  {_measured(kept, before, clear[0])}",
            f"  as kept        {_measured(kept, after, clear[1])}",
        ]
    if kept.chosen_by != "keeping":
        lines.append(f"note: {WARNING}")
    return [*lines, "", *_table(kept)] if every_client else lines


def _samples(kept: Kept) -> str:
    chose_nothing = kept.chosen_by == "keeping"
    return "validation samples that chose no round" if chose_nothing else "validation samples"


def _likeliest(kept: Kept) -> str:
    most = max(kept.clients, key=lambda each: each.worse)
    return f"{most.client} ({most.worse:.1%})"


def _measured(kept: Kept, gains: list[float], clear: int) -> str:
    worse = sum(gain < 0 for gain in gains)
    unit = _points if kept.rising else _plain
    return (
        f"mean {unit(fmean(gains))}, worse {worse} ({worse / len(gains):.0%}), clearly {clear}, "
        f"worst {unit(min(gains))}"
    )


def _points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def _plain(value: float) -> str:
    return f"{value:+.4g}"


def _table(kept: Kept) -> list[str]:
    """A line a client; of many those that are likeliest to be worse off."""
    shown = kept.clients
    if len(shown) > MANY:
        shown = sorted(shown, key=lambda each: -each.worse)[:MANY]
    header = ("client", "keeps", "samples", "P(worse)", "alone", "federated", "kept")
    lines = [header, *map(_line, shown)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    more = len(kept.clients) - len(shown)
    return [*text, *([f"... and {more} more in kept.json"] if more else [])]


def _line(each: KeptClient) -> tuple[str, ...]:
    scores = (each.alone, each.federated, each.score)
    sure = "–" if each.kept == ALONE else f"{each.worse:.1%}"
    told = ("–" if score is None else f"{score:.3f}" for score in scores)
    return each.client, each.kept, str(each.rows), sure, *told
