"""The verdict by hand-made evidence, and on federations of which the truth is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

import fedskew
from fedskew.comparisons.paired import Against, Verdict, gain_of_models, side_of
from fedskew.comparisons.statistics import Interval
from fedskew.diagnosis.recommendation import Answer, answered, held_against
from fedskew.federate.predictions import load_answers
from fedskew.views.recommendation import answer, reasons, settings, written


def evidence(verdict: Verdict) -> Against:
    return Against(Interval(0.0, -0.1, 0.1, 1), 0.01, verdict, (), ())


@pytest.mark.parametrize(
    ("verdict", "alone_was_best", "said"),
    [
        ("better", False, "federate"),
        ("tie", False, "stay alone"),
        ("worse", False, "stay alone"),
        ("cannot tell", False, "cannot tell"),
        ("better", True, "cannot tell"),
        ("tie", True, "stay alone"),
        ("worse", True, "stay alone"),
        ("cannot tell", True, "stay alone"),
    ],
)
def test_to_federate_takes_a_gain_on_test_data(
    verdict: Verdict, alone_was_best: bool, said: Answer
) -> None:
    assert answered(evidence(verdict), alone_was_best) == said


def world(permuted: bool, clients: int = 4, size: int = 60) -> fedskew.Federation:
    """Two classes on either side of zero; where ``permuted``, half of the clients swap labels."""
    rng = np.random.default_rng(3)
    sites = {}
    for place in range(clients):
        label = np.arange(5 * size) % 2
        inputs = rng.standard_normal((len(label), 6)) * 1.5 + label[:, None]
        sites[f"site-{place}"] = (inputs.astype(np.float32), label ^ (permuted and place % 2))
    return fedskew.federation_from(sites, validation=0.2, test=0.6)


TRAIN: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [16]}, "train": {"rounds": 6, "batch_size": 8, "lr": 0.1},
}  # fmt: skip


def test_clients_who_mean_opposite_things_are_told_to_stay_alone(tmp_path: Path) -> None:
    found = fedskew.recommend(
        TRAIN, federation=world(permuted=True), methods=["fedavg", "scaffold"], out=tmp_path
    )
    assert (found.answer, found.method) == ("stay alone", "local")
    assert found.gain.verdict == "worse"
    assert len(found.losers) == found.gain.clearly_worse == 4
    assert answer(found).startswith("Stay alone (local)")
    assert found.diagnosis is not None
    assert found.diagnosis["concept"].verdict == "found"


def test_clients_alike_with_few_rows_are_told_to_federate(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "federation": world(permuted=False, clients=6, size=24), "methods": ["fedavg", "fedprox"],
        "out": tmp_path,
    }  # fmt: skip
    found = fedskew.recommend(TRAIN, **given)
    assert found.answer == "federate"
    assert {found.method, found.runner_up} == {"fedavg", "fedprox"}
    assert found.gain.gain.low > 0
    text = written(found)
    assert f"Use {found.method}" in text
    assert "models as they were trained" in text
    assert {path.name for path in tmp_path.iterdir()} == {
        "bakeoff.json", "recommendation.json", "recommendation.md", "runs",
    }  # fmt: skip
    again = fedskew.recommend(TRAIN, **given, seeds=2)
    assert (again.best, again.seeds, again.gain.gain.n) == (found.best, (0, 1), 2)
    assert again.spent.rounds == found.spent.rounds + 3 * 6
    assert "over 2 trainings" in reasons(again)


def test_of_one_seed_the_interval_counts_chance_in_test_samples(tmp_path: Path) -> None:
    """Paired by sample: by hand, from the answers that both runs kept."""
    base = {**TRAIN, "federation": {"samples": 300, "clients": 3}}
    runs = [
        fedskew.run({**base, "method": name}, out=tmp_path, draw=False)
        for name in ("fedavg", "local")
    ]
    ours, alone = (side_of(run, "accuracy") for run in runs)
    found = gain_of_models(ours, alone, higher=True)
    told = [load_answers(run.path) for run in runs]
    means, variances = [], []
    for client in ours.scores:
        rows = [(t["client"] == client) & (t["split"] == "test") & (t["adapted"] == "none")
                for t in told]  # fmt: skip
        right = [t["correct"][mine].astype(float) for t, mine in zip(told, rows, strict=True)]
        means.append((right[0] - right[1]).mean())
        variances.append((right[0] - right[1]).var(ddof=1) / len(right[0]))
    assert found.mean == pytest.approx(np.mean(means), abs=1e-6)
    freedom = sum(variances) ** 2 / sum(
        v**2 / (side - 1) for v, side in zip(variances, ours.samples.values(), strict=True)
    )
    half = student.ppf(0.975, freedom) * math.sqrt(sum(variances)) / len(variances)
    assert found.high - found.mean == pytest.approx(half, rel=1e-6)
    held = held_against([ours], [alone], "accuracy", True)
    assert held.gain == found
    assert held_against([alone], [alone], "accuracy", True).verdict == "tie"


def test_what_a_fine_tuned_model_answered_is_what_counts_for_it(tmp_path: Path) -> None:
    base = {**TRAIN, "federation": {"samples": 300, "clients": 3}, "method": "fedbabu"}
    run = fedskew.run(base, out=tmp_path, draw=False)
    tuned, plain = side_of(run, "accuracy", "fine-tuned 5"), side_of(run, "accuracy")
    assert tuned.scores != plain.scores
    for side in (tuned, plain):
        for client, score in side.scores.items():
            right = side.answers[client].right
            assert right is not None
            assert right.mean() == pytest.approx(score, abs=1e-6)


def test_settings_are_a_line_of_a_config(tmp_path: Path) -> None:
    import tomllib

    found = fedskew.recommend(
        {**TRAIN, "federation": {"samples": 200, "clients": 2}, "train": {"rounds": 1}},
        methods=["fedprox:mu=0.5"], out=tmp_path,
    )  # fmt: skip
    line = tomllib.loads(settings(found))["method"]
    chosen = fedskew.make_config({"method": line}).method
    assert chosen.name in ("fedprox", "local")
    if chosen.name == "fedprox":
        assert chosen.knobs["mu"] == 0.5
    assert found.runner_up is None
    assert "only one federated method" in written(found)


def test_numbers_to_learn_are_recommended_for_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clinics = {}
    for name in ("north", "south", "west"):
        x = rng.standard_normal((80, 4)).astype(np.float32)
        clinics[name] = (x, x @ np.array([1.0, 2.0, -1.0, 0.5]) + rng.normal(0, 0.1, 80))
    federation = fedskew.federation_from(clinics)
    found = fedskew.recommend(
        {**TRAIN, "train": {"rounds": 2, "lr": 0.02}}, federation=federation,
        methods=["fedavg", "fedrod", "ditto"], out=tmp_path,
    )  # fmt: skip
    assert not found.higher_is_better
    assert "needs classes" in found.left_out["fedrod"]
    assert math.isfinite(found.gain.gain.mean)
