"""From scores over seeds to verdicts: pairing, correction, controls, divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp
from toy_claims import claim

from fedskew.papers.differences import ArmDifference, ControlDifference
from fedskew.papers.suite import find_suite
from fedskew.papers.verdict import (
    Results,
    SettingVerdict,
    compared,
    decide,
    indistinct,
    judge,
    overall,
)


@dataclass
class Scores:
    """Stands for a finished run: scores by name."""

    values: dict[str, float]
    is_share: bool = True
    rising: bool = True

    @property
    def diverged(self) -> bool:
        """Stubs have a number for every score they know of, unless it exploded."""
        return not all(map(math.isfinite, self.values.values()))

    def score(self, score: str, at: str = "last", target: float | None = None) -> float:
        return self.values[score]

    def higher_is_better(self, score: str) -> bool:
        return self.rising and score not in ("rounds", "swing")


def results(score: str = "clients", **arms: list[float]) -> dict[tuple[str, str, int], Any]:
    return {
        ("a", arm, seed): Scores({score: value})
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    }


def around(mean: float, half: float, other: str = "old", bar: float = 0.0) -> ArmDifference:
    """A difference of three seeds whose 95 % interval is mean ± half; nothing else is tested."""
    # Three values m - d, m, m + d deviate by d, so that half is t(0.975, 2) * d / sqrt(3).
    d = half * math.sqrt(3) / student.ppf(0.975, 2)
    found = ArmDifference(other, {0: mean - d, 1: mean, 2: mean + d}, "clients", False)
    return replace(found, p=found.tested(bar))


def control(mean: float, half: float, explains: float) -> ControlDifference:
    found = around(mean, half, "c")
    return ControlDifference("c", found.by_seed, "clients", False, p=found.p, explains=explains)


def some(*values: float) -> ArmDifference:
    return ArmDifference("old", dict(enumerate(values)), "clients", False)


def test_differences_are_paired_by_seed() -> None:
    # Seeds differ by 0.5, arms by 0.1 +- 0.01: only pairing sees it.
    runs = results(new=[0.21, 0.70, 0.39], old=[0.10, 0.60, 0.30])
    [finding] = judge(claim(), runs).findings
    difference = finding.against[0].difference
    assert difference.mean == pytest.approx(0.1)
    assert difference.half == pytest.approx(student.ppf(0.975, 2) * 0.01 / math.sqrt(3))
    assert finding.outcome == "reproduced"


def test_a_seed_without_partner_is_left_out() -> None:
    runs = results(new=[0.2, 0.3, 0.9], old=[0.1, 0.2])
    [finding] = judge(claim(), runs).findings
    assert finding.against[0].difference.n == 2


def test_a_run_that_stopped_has_diverged() -> None:
    runs = results(new=[0.21, 0.70, 0.39], old=[0.10, 0.60, 0.30])
    stopped = ("a", "new", 1)
    rest = {key: run for key, run in runs.items() if key != stopped}
    [finding] = judge(claim(), rest, stopped=[stopped]).findings
    assert finding.against[0].diverged == {"new": (1, 3)}
    assert finding.against[0].difference.n == 2
    assert finding.outcome == "undecided"
    assert "new diverged in 1 of 3 seeds" in finding.reason


def test_arms_whose_runs_all_stopped_have_diverged() -> None:
    runs = results(old=[0.10, 0.60, 0.30])
    stopped = [("a", "new", seed) for seed in range(3)]
    assert judge(claim(), runs, stopped=stopped).text == "diverged (new diverged in 3 of 3 seeds)"


def test_fewer_rounds_speak_for_the_claim() -> None:
    runs = results("rounds", new=[5, 6, 5], old=[9, 11, 9])
    verdict = judge(claim(score="rounds", target=0.8), runs)
    assert verdict.findings[0].against[0].difference.mean == pytest.approx(13 / 3)
    assert verdict.text == "reproduced"


def test_a_lower_loss_speaks_for_the_claim() -> None:
    runs: dict[tuple[str, str, int], Any] = {
        key: Scores(run.values, False, rising=False)
        for key, run in results(new=[1.0, 1.1], old=[2.0, 2.1]).items()
    }
    assert judge(claim(), runs).findings[0].against[0].difference.mean == pytest.approx(1)


def test_a_side_may_look_at_another_score() -> None:
    runs: dict[tuple[str, str, int], Any] = {}
    for seed in range(2):
        runs["a", "new", seed] = Scores({"clients": 0.5})
        runs["a", "old", seed] = Scores({"clients": 0.1, "fine-tuned": 0.8 + seed / 100})
    [finding] = judge(claim(than="old:fine-tuned"), runs).findings
    assert finding.against[0].difference.mean == pytest.approx(-0.305)
    assert finding.outcome == "not reproduced"


def test_arms_nobody_can_tell_apart_are_named() -> None:
    runs = results(new=[0.2, 0.3], old=[0.2, 0.3], other=[0.2, 0.4])
    assert indistinct(runs, "a") == [["new", "old"]]


@pytest.mark.parametrize(
    ("against", "bar", "outcome"),
    [
        ([around(0.3, 0.2)], 0.0, "reproduced"),
        ([around(0.1, 0.2)], 0.0, "undecided"),
        ([around(-0.3, 0.2)], 0.0, "not reproduced"),
        ([around(0.3, 0.2, bar=0.2)], 0.2, "undecided"),
        ([around(-0.005, 0.002, bar=-0.01)], -0.01, "reproduced"),
        ([around(0.3, 0.2), around(-0.3, 0.2)], 0.0, "not reproduced"),
        ([around(0.3, 0.2), around(0.1, 0.2)], 0.0, "undecided"),
        ([some(0.3)], 0.0, "undecided"),
        ([some()], 0.0, "not run"),
        ([some(0.3, math.nan)], 0.0, "not run"),
    ],
)
def test_outcomes(against: list[ArmDifference], bar: float, outcome: str) -> None:
    assert decide(against, [], bar)[0] == outcome


@pytest.mark.parametrize(
    ("gain", "held", "outcome"),
    [
        (around(0.3, 0.2), control(0.2, 0.1, explains=1.0), "reproduced"),
        (around(0.3, 0.2), control(0.1, 0.2, explains=0.04), "the control explains it"),
        (around(0.3, 0.2), control(-0.3, 0.2, explains=0.01), "the control explains it"),
        # C8: not beaten is not the same as shown to be as good.
        (around(0.3, 0.2), control(0.1, 0.2, explains=0.06), "undecided against the control"),
        (around(0.1, 0.2), control(-0.3, 0.2, explains=0.01), "undecided"),
    ],
)
def test_a_control_takes_the_credit_only_if_it_is_shown_to_be_as_good(
    gain: ArmDifference, held: ControlDifference, outcome: str
) -> None:
    assert decide([gain], [held])[0] == outcome


def test_many_comparisons_of_one_claim_are_corrected_for() -> None:
    """C8: of ten rivals one is beyond its own interval by chance in two of five claims."""
    # 0.8, 0.9, 1.0 below: mean 0.9, error 0.1 / sqrt(3), t = 15.59, p = 0.0041; ten times: 0.041.
    # 0.2, 0.3, 0.4 below: t = 5.196, p = 0.0351 alone, but not among ten.
    flat = {f"r{n}": [0.49, 0.5, 0.51] for n in range(9)}
    runs = results(new=[0.5, 0.5, 0.5], bad=[0.7, 0.8, 0.9], **flat)
    alone = judge(claim(than="bad"), runs)
    assert alone.text == "not reproduced (the interval lies below 0)"
    assert alone.findings[0].against[0].p == pytest.approx(0.0351, abs=5e-5)
    among = judge(claim(than=["bad", *flat]), runs)
    assert among.findings[0].outcome == "undecided"
    assert among.findings[0].against[0].p == pytest.approx(0.351, abs=5e-4)
    worse = results(new=[0.5, 0.5, 0.5], bad=[1.3, 1.4, 1.5], **flat)
    assert judge(claim(than=["bad", *flat]), worse).findings[0].outcome == "not reproduced"


def test_comparisons_are_counted_over_all_settings_of_a_claim() -> None:
    here = results(new=[0.7, 0.8, 0.9], old=[0.5, 0.5, 0.5])
    runs = here | {("b", arm, seed): run for (_, arm, seed), run in here.items()}
    # The same difference twice: p = 0.0351 each, 0.0702 corrected.
    assert judge(claim(), here).text == "reproduced"
    verdict = judge(claim(on=["a", "b"]), runs)
    assert [f.against[0].p for f in verdict.findings] == pytest.approx([0.0702] * 2, abs=5e-5)
    assert verdict.text == "undecided (not beyond 0 once corrected for the number of comparisons)"


def test_a_control_is_held_against_the_middle_between_rival_and_method() -> None:
    # Gains over old 0.4, 0.5, 0.6. `near` stays 0.05 to 0.15 behind, half-way is 0.2 to 0.3.
    base = {"new": [0.8, 0.9, 1.0], "old": [0.4, 0.4, 0.4]}
    near = results(**base, c=[0.75, 0.80, 0.85])
    [found] = judge(claim(control="c"), near).findings
    # Half the gain less the gap: 0.15, 0.15, 0.15 is no spread to test by; so shift one seed.
    assert found.controls[0].explains == 1.0
    assert found.outcome == "undecided against the control"
    near = results(**base, c=[0.76, 0.80, 0.85])
    [found] = judge(claim(control="c"), near).findings
    # Gaps 0.04, 0.10, 0.15: t = 3.04, not beaten. Above the middle by 0.16, 0.15, 0.15: t = 46;
    # above old by 0.36, 0.40, 0.45: t = 15.5, p = 0.0041, the weaker of the two.
    assert found.controls[0].explains == pytest.approx(
        ttest_1samp([0.36, 0.40, 0.45], 0).pvalue, rel=1e-6
    )
    assert found.text == "the control explains it (over half of the gain without it: c)"
    noisy = results(**base, c=[0.5, 0.9, 1.1])
    assert judge(claim(control="c"), noisy).text.startswith("undecided against the control")


def test_seeds_that_all_agree_decide_nothing() -> None:
    """C8: three identical differences had a width of nothing and read as certain."""
    runs = results("rounds", new=[5, 6, 5], old=[9, 10, 9])
    verdict = judge(claim(score="rounds", target=0.8), runs)
    assert verdict.text == "undecided (all seeds gave the same number)"
    assert math.isnan(verdict.findings[0].against[0].p)
    # 0.7 - 0.6 and 0.9 - 0.8 differ in the last bit only.
    rounding = results(new=[0.7, 0.9, 0.8], old=[0.6, 0.8, 0.7])
    assert judge(claim(), rounding).text == "undecided (all seeds gave the same number)"


def test_one_method_by_two_names_is_no_worse_than_itself() -> None:
    runs = results(new=[0.5, 0.6, 0.7], old=[0.5, 0.6, 0.7])
    no_worse = claim(kind="no-worse", margin=0.01)
    assert judge(no_worse, runs).text == "reproduced (the same on every seed)"
    assert judge(claim(), runs).text == "undecided (all seeds gave the same number)"


def test_what_follows_from_the_settings_is_the_same_on_all_seeds() -> None:
    runs = results("parameters", new=[30, 30], old=[20, 20])
    assert judge(claim(score="parameters"), runs).text == "reproduced"
    assert judge(claim(score="parameters", better="old", than="new"), runs).text.startswith("not")


def test_a_diverged_seed_is_counted_and_told() -> None:
    """C8: it was called "not run"."""
    runs = results(new=[0.8, math.nan, 0.9, 0.85], old=[0.5, 0.5, 0.5, 0.51])
    [finding] = judge(claim(), runs).findings
    assert finding.against[0].difference.n == 3
    assert finding.text == "undecided (new diverged in 1 of 4 seeds)"
    worse = results(new=[0.2, math.inf, 0.3], old=[0.9, 0.9, 0.95])
    assert judge(claim(), worse).text == (
        "not reproduced (the interval lies below 0; new diverged in 1 of 3 seeds)"
    )
    gone = results(new=[math.nan, math.nan], old=[0.5, 0.6])
    assert judge(claim(), gone).text == "diverged (new diverged in 2 of 2 seeds)"


def test_nothing_is_judged_before_something_is_learnt() -> None:
    runs = results(new=[0.05, 0.06, 0.05], old=[0.02, 0.02, 0.01])
    assert judge(claim(), runs).text == "reproduced"
    assert judge(claim(floor=0.1), runs).text == (
        "undecided (`new` has not learnt enough to judge by: it is below 10 points)"
    )
    assert judge(claim(floor=0.04), runs).text == "reproduced"


def test_a_scale_says_which_claims_it_cannot_judge() -> None:
    runs = results(new=[0.5, 0.6, 0.8], old=[0.1, 0.2, 0.1])
    verdict = judge(claim(), runs, "ten rounds of a hundred")
    assert verdict.text == "not run at this scale (ten rounds of a hundred)"


def test_within_its_margin_a_worse_method_is_called_worse() -> None:
    runs = results(new=[0.500, 0.600, 0.700], old=[0.504, 0.605, 0.706])
    asked = claim(kind="no-worse", margin=0.01)
    assert judge(asked, runs).text == "reproduced (worse, but by less than 1 point)"
    # -0.4, -0.5 and -0.6 points lie below a margin of 0.1.
    below = judge(claim(kind="no-worse", margin=0.001), runs)
    assert below.text == "not reproduced (the interval lies below -0.1 points)"


def test_a_verdict_names_its_bar_in_the_unit_of_its_numbers() -> None:
    """Accuracies are printed in points, so a margin of 0.01 is 1 point."""
    runs = {("a", arm, seed): Scores({"clients": 0.5 + seed * step})
            for arm, step in (("new", 0.1), ("old", 0.2)) for seed in (0, 1)}  # fmt: skip
    asked = claim(kind="no-worse", margin=0.01)
    verdict = judge(asked, cast(Results, runs))
    assert verdict.findings[0].against[0].text.endswith(" points")
    assert verdict.text == "undecided (the interval contains -1 point)"
    toy = find_suite("baselines")
    assert compared(toy, asked, verdict.in_points).endswith("; no worse, by at most 1 point.")
    far = around(0.1, 0.01, bar=0.25)
    assert decide([replace(far, main_is_share=True)], [], 0.25)[1] == (
        "the interval lies below 25 points"
    )
    assert decide([around(0.5, 0.2, bar=1.5)], [], 1.5)[1] == "the interval lies below 1.5"


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        (["reproduced", "reproduced"], "reproduced"),
        (["reproduced", "undecided"], "reproduced only on s0; undecided on s1"),
        (["not reproduced", "reproduced"], "reproduced only on s1; not reproduced on s0"),
        (["not run", "reproduced"], "reproduced"),
        (["undecided", "not reproduced"], "undecided on s0; not reproduced on s1"),
        (
            ["diverged", "undecided against the control"],
            "undecided against the control on s1; diverged on s0",
        ),
        (["not run"], "not run at this scale"),
    ],
)
def test_one_line_for_all_settings(outcomes: list[Any], text: str) -> None:
    findings = [SettingVerdict(f"s{i}", outcome, "", (), ()) for i, outcome in enumerate(outcomes)]
    assert overall(findings) == text
