"""The table of docs/privacy.md: what each method sends, and which of it ``private`` covers.

``python -m fedskew.methods.privacy_table docs/privacy.md`` writes it anew between its two marks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from fedskew.errors import ConfigError
from fedskew.federate.metrics import MAIN
from fedskew.federate.privacy import PARAMETERS, remembers, sent_in, why_no_epsilon
from fedskew.federate.recipe import Recipe, Stage
from fedskew.methods.registry import METHODS, Method, find
from fedskew.parts.select import EVERYTHING, NOTHING, Select

BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"
HEADER = (
    "| method | parameters sent | sent beside them | `private` on top of it | built on `private` |",
    "|---|---|---|---|---|",
)


def privacy_table() -> str:
    """One row for every method of the registry, at its default settings."""
    rows = [_row(name, method) for name, method in sorted(METHODS.items())]
    return "\n".join([*HEADER, *rows])


def with_table(page: str) -> str:
    """A page with the table of today between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{privacy_table()}\n{END}{after}"


def _row(name: str, method: Method) -> str:
    recipe = method.recipe()
    over = _covered(lambda: find("private").recipe(base=name))
    under = _covered(lambda: method.recipe(base="private")) if "base" in method.knobs else "–"
    cells = [f"`{name}`", _parameters(recipe), _beside(recipe), over, under]
    return f"| {' | '.join(cells)} |"


def _parameters(recipe: Recipe) -> str:
    if recipe.pools or recipe.shares == NOTHING:
        return "none"
    bounded = ", clipped and noised" if recipe.aggregates.noising else ""
    packed = f", {recipe.packs.says}" if recipe.packs.says else ""
    return _named(recipe.shares) + bounded + packed


def _named(select: Select) -> str:
    if select == EVERYTHING:
        return "all"
    but = f"all but {', '.join(select.but)}" if select.but else ""
    return ", ".join(select.only) or but


def _beside(recipe: Recipe) -> str:
    """What is sent and is not the model of the main stage."""
    before = [
        f"{one.what} (stage {one.stage!r})" for stage in recipe.prepares for one in sent_in(stage)
    ]
    now = [one.what for one in sent_in(Stage(MAIN, recipe)) if one.what != PARAMETERS]
    return "; ".join([*before, *now]) or "nothing"


def _covered(make: Callable[[], Recipe]) -> str:
    """Whether the recipe has an ε, and what that does not count on, or why it has none."""
    try:
        recipe = make()
    except ConfigError as error:
        why = re.sub(r"^base = '[^']*' (cannot be made private: )?", "", str(error))
        return f"refused: {why.removesuffix('.')}"
    if why := why_no_epsilon([*recipe.prepares, Stage(MAIN, recipe)]) or "":
        return f"no ε: {why}"
    return "all, clients remember" if remembers(recipe) else "all"


def main(page: Path) -> None:
    """Write the table into a page."""
    page.write_text(with_table(page.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
