"""What a diagnosis says of federations whose differences are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedskew import Client, DataError, Federation, diagnose
from fedskew.diagnosis.basis import agreed, opening
from fedskew.diagnosis.summary import summarise
from fedskew.errors import ConfigError


def verdicts(found) -> dict[str, str]:
    return {each.kind: each.verdict for each in found.findings}


def test_alike_clients_are_told_to_be_alike(deal) -> None:
    found = diagnose(deal())
    assert set(verdicts(found).values()) == {"none"}
    assert (found.standouts, found.duplicates, found.groups) == ((), (), None)
    assert "one group" in found.groups_words


def test_moved_inputs_are_feature_skew(deal) -> None:
    found = diagnose(deal(change=lambda k, x, y: (x + 0.8 * (k % 2), y)))
    assert verdicts(found)["feature"] == "found"
    assert verdicts(found)["concept"] == "none"
    assert found.groups == (0, 1) * 4


def test_permuted_labels_are_concept_skew(deal) -> None:
    found = diagnose(deal(change=lambda k, x, y: (x, (y + k % 2) % 3)))
    assert verdicts(found)["concept"] == "found"
    assert verdicts(found)["feature"] == "none"


def test_a_client_that_stands_out_is_named_with_why(deal) -> None:
    moved = diagnose(deal(change=lambda k, x, y: (x + 3.0 * (k == 5), y)))
    turned = diagnose(deal(change=lambda k, x, y: (x, (y + (k == 2)) % 3)))
    assert [(s.client, s.by) for s in moved.standouts] == [("c5", "feature")]
    assert [(s.client, s.by) for s in turned.standouts] == [("c2", "concept")]
    assert "other labels" in turned.standouts[0].why


def test_label_skew_is_nothing_for_a_deal_and_all_for_own_classes(deal) -> None:
    alike = diagnose(deal(clients=6))["label"].score
    apart = diagnose(deal(clients=6, change=lambda k, x, y: (x, np.full_like(y, k % 3))))["label"]
    assert abs(alike.value) < 0.02
    assert alike.low <= alike.value <= alike.high
    assert apart.score.value == pytest.approx(1.0, abs=0.01)
    assert apart.verdict == "found"


def test_few_rows_make_it_say_that_it_cannot_tell(deal) -> None:
    found = diagnose(deal(size=12))
    assert verdicts(found)["feature"] == "cannot tell"
    assert "cannot tell, because" in found["feature"].words
    assert found.gain is None


def test_nobody_stands_out_where_hardly_anything_was_sent(deal) -> None:
    for seed in range(12):
        assert diagnose(deal(clients=20, size=24, seed=seed)).standouts == ()


def test_small_cells_are_not_sent_and_counted(deal) -> None:
    federation = deal(size=60, change=lambda k, x, y: (x, np.where(np.arange(60) < 4, 2, y % 2)))
    found = diagnose(federation)
    assert found.hidden == 8
    assert diagnose(federation, cell=3).hidden == 0


def test_rows_that_two_clients_hold_are_noticed(deal) -> None:
    federation = deal(clients=4)
    shared = [*federation.clients[:3], Client("copy", federation.clients[0].train[:60])]
    found = diagnose(federation.with_data(clients=tuple(shared)))
    ((first, second, share),) = found.duplicates
    assert {first, second} == {"c0", "copy"}
    assert share == pytest.approx(60 / 90, abs=0.15)


def test_only_training_rows_of_seen_clients_are_looked_at(deal) -> None:
    federation = deal(clients=5)
    before = diagnose(federation)
    spoiled = federation.x.clone()
    extra = torch.full((20, 10), 99.0)
    more = torch.zeros(20, dtype=torch.int64)
    rows = np.arange(len(spoiled), len(spoiled) + 20)
    first = federation.clients[0]
    longer = Federation(
        "made",
        torch.cat([spoiled, extra]),
        torch.cat([federation.y, more]),
        federation.class_names,
        (Client(first.name, first.train, rows[:5], rows[5:10]), *federation.clients[1:]),
        (Client("unseen", rows[10:]),),
    )
    assert diagnose(longer) == before


def test_a_common_model_helps_alike_clients_and_harms_where_labels_differ(deal) -> None:
    def blurred(k, x, y):
        return x * 0.3 + 1.5 * np.random.default_rng(k).standard_normal(x.shape), y

    helped = diagnose(deal(size=45, change=blurred)).gain
    harmed = diagnose(deal(change=lambda k, x, y: (x, (y + k) % 3))).gain
    assert helped is not None
    assert harmed is not None
    assert helped.pooled.mean > 0 > harmed.pooled.high


def test_epsilon_hides_rows_and_leaves_label_skew(deal) -> None:
    def own(k, x, y):
        return x, np.full_like(y, k % 3)

    found = diagnose(deal(change=own), epsilon=3.0)
    assert verdicts(found)["label"] == "found"
    assert found.duplicates is None
    assert found.gain is None
    alike = verdicts(diagnose(deal(), epsilon=1.0))
    assert "found" not in alike.values()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf"), 21.0, "3"])
def test_an_epsilon_that_is_none_is_refused(deal, epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon must be a number above 0"):
        diagnose(deal(), epsilon=epsilon)


def test_what_cannot_be_compared_is_refused(deal) -> None:
    federation = deal(clients=3)
    with pytest.raises(DataError, match="there is one"):
        diagnose(federation.with_data(clients=federation.clients[:1]))
    with pytest.raises(DataError, match="one class in all"):
        diagnose(deal(change=lambda k, x, y: (x, y * 0)))
    with pytest.raises(DataError, match="constant"):
        diagnose(deal(change=lambda k, x, y: (x * 0 + 3, y)))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"cell": 1}, "cell must be at least 2"),
        ({"cell": "x"}, "cell must be a whole number, not 'x'"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta must be a number above 0"),
    ],
)
def test_settings_that_make_no_sense_are_named(deal, given, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        diagnose(deal(clients=2), **given)


def test_what_is_no_federation_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"takes a fedskew Federation, not dict: .*make_federation"
    ):
        diagnose({})


def test_label_skew_shows_in_groups_of_classes_that_are_too_small_to_be_sent() -> None:
    rng = np.random.default_rng(0)

    def dealt(liked: bool) -> Federation:
        """40 classes for clients of 60 rows; each likes ten of them, or none."""
        own = [rng.choice(np.arange(10 * (k % 4), 10 * (k % 4) + 10), 60) for k in range(8)]
        y = np.concatenate(own) if liked else rng.integers(0, 40, 480)
        x = rng.standard_normal((480, 5)).astype(np.float32)
        parts = [np.arange(60 * k, 60 * k + 60) for k in range(8)]
        clients = tuple(Client(f"c{k}", part) for k, part in enumerate(parts))
        names = tuple(f"class {c}" for c in range(40))
        return Federation("many", torch.from_numpy(x), torch.from_numpy(y), names, clients)

    skewed, alike = diagnose(dealt(True))["label"], diagnose(dealt(False))["label"]
    assert skewed.verdict == "found"
    assert "in 4 random groups of classes" in skewed.words
    assert alike.verdict == "none"
    assert "4 random groups" in alike.words


def test_groups_tell_of_no_fewer_rows_than_a_cell(deal) -> None:
    """Twelve classes in two groups: what is told beside classes that are sent is a cell or more."""
    rng = np.random.default_rng(1)
    federation = deal(clients=3, size=40)
    y = rng.choice(12, 120, p=[0.3, *[0.7 / 11] * 11])
    names = tuple(f"class {c}" for c in range(12))
    federation = federation.with_data(y=torch.from_numpy(y), class_names=names)
    basis = agreed([opening(federation, c.name) for c in federation.clients])
    assert sorted(set(basis.groups)) == [0, 1]
    for client, told in zip(federation.clients, summarise(federation, basis), strict=True):
        rows = np.bincount(y[client.train], minlength=12)
        for group, said in enumerate(told.joined):
            inside = rows[np.array(basis.groups) == group]
            small = inside[inside < 10].sum()
            assert said == inside[inside >= 10].sum() + (small if small >= 10 else 0)
