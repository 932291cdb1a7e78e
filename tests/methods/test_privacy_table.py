"""The page on privacy against the registry and the shipped example."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import spent_on

import fedskew
from fedskew.config import load_config
from fedskew.methods import METHODS, find
from fedskew.methods.privacy_table import main, privacy_table, with_table

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
EXAMPLE = Path(fedskew.__file__).parent / "examples" / "private-writers.toml"


def cells(method: str) -> list[str]:
    (row,) = [r for r in privacy_table().splitlines() if r.startswith(f"| `{method}` |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_the_committed_table_is_current() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), (
        "run python -m fedskew.methods.privacy_table docs/privacy.md and commit the page"
    )


def test_every_method_has_a_row() -> None:
    rows = privacy_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == sorted(METHODS)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("fedprox", ["all", "nothing", "all", "–"]),
        ("fedper", ["body", "nothing", "all, clients remember", "–"]),
        ("irm", ["all", "nothing", "all, clients remember", "all, clients remember"]),
        ("fedbn", ["all but batch-norm", "nothing", "all, clients remember", "–"]),
        (
            "feddisco",
            [
                "all",
                "how lopsided their labels are",
                "refused: its clients send more than their models",
                "refused: does not weigh clients: it has no weights to replace",
            ],
        ),
        (
            "feddisk",
            [
                "all",
                "model parameters (stage 'density')",
                "refused: an earlier stage of it would not be private",
                "no ε: in stage 'density' clients send model parameters, neither clipped nor "
                "noised",
            ],
        ),
        ("central", ["none", "raw data", "refused: it pools raw data", "–"]),
    ],
)
def test_a_row_says_what_is_sent_and_what_private_covers(method: str, says: list[str]) -> None:
    assert cells(method) == says


def test_the_table_is_written_between_its_marks_and_nowhere_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- methods: begin -->\nold\n<!-- methods: end -->\nafter\n")
    main(page)
    first, *table, last = page.read_text().splitlines()
    assert (first, last) == ("before", "after")
    assert "\n".join(table[1:-1]) == privacy_table()


def test_the_shipped_example_stays_below_an_epsilon_of_ten() -> None:
    """Everybody takes part in every round, so their number does not matter."""
    config = load_config(EXAMPLE)
    assert config.train.clients_per_round is None
    recipe = find(config.method.name).recipe(**config.method.knobs)
    found = spent_on(recipe, config.train.rounds, 723, 723)
    assert found["epsilon"] == pytest.approx(9.921, abs=1e-3)
    assert found["delta"] == 1e-5
