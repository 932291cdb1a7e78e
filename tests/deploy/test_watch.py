"""Whether a client is less sure than before."""

from __future__ import annotations

from scipy.stats import fisher_exact

from fedskew.deploy.watch import Counted, is_more


def test_more_unsure_than_before_is_fishers_one_sided_test() -> None:
    for now, then in (
        ((4, 20), (10, 100)),
        ((5, 20), (5, 100)),
        ((1, 9), (0, 30)),
        ((3, 9), (0, 9)),
    ):
        table = [[now[0], now[1] - now[0]], [then[0], then[1] - then[0]]]
        p = float(fisher_exact(table, alternative="greater").pvalue)
        for chance in (p * 0.99, p * 1.01):
            assert is_more(Counted(*now), Counted(*then), chance) == (p < chance)
