"""Whether the product's own bake-off does what is computed from full ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.recommend_parts.federations import CASES
from benchmarks.recommend_parts.outcomes import Full, climb
from fedskew.comparisons.bakeoff import bake_off
from fedskew.comparisons.candidates import field_of
from fedskew.comparisons.halving import USUAL
from fedskew.comparisons.runner import Runner

RUN = ("hospitals", "X-rays, sources")


def compared(fulls: Sequence[Full], folder: Path) -> Iterator[str]:
    """A sentence for each federation that is run for real, in a folder of its own."""
    for full in fulls:
        if full.case not in RUN or full.seed != 0:
            continue
        case = next(each for each in CASES if each.name == full.case)
        config = case.config(folder, full.seed)
        given = case.changed(config)
        config = case.on_its_data(config, given)
        place = folder / "real" / full.case
        runner = Runner(place / "runs", None, tell=lambda _: None, given=given, grows=True)
        entered = field_of(runner, config, list(full.lines)[1:])
        found = bake_off(runner, entered, None, place, lambda _: None)
        pairs = [
            (its.score.value, full.validation(name, rung.rounds).value)
            for rung in found.rungs
            for name, its in rung.judged.items()
        ]
        apart = max(abs(mine - its) for mine, its in pairs)
        expected = climb(full, USUAL).method
        yield (
            f"{full.case}: {len(pairs)} scores on {len(found.rungs)} rungs differ by at most "
            f"{apart:.1g} from those of the full bake-off (which are kept with five digits); it "
            f"takes `{found.order[0]}`, as computed `{expected}`; {found.spent.rounds} rounds."
        )
