"""What is said of kept models, by hand-made numbers."""

from __future__ import annotations

from fedskew.runs.kept import Kept, KeptClient
from fedskew.views.kept import MANY, kept_lines


def client(name: str, kept: str, worse: float = 0.0, **scores: float | bool) -> KeptClient:
    return KeptClient(client=name, kept=kept, rows=7, gain=0.01, worse=worse, **scores)


def of(clients: list[KeptClient], **changes: object) -> Kept:
    known = {
        "beside": "../local-1", "beside_identity": "1", "chosen_by": "keeping",
        "metric": "accuracy", "rising": True, "candidates": ["federated"], "clients": clients,
    }  # fmt: skip
    return Kept.model_validate({**known, **changes})


THREE = [
    client("ann", "federated", 0.2, test_rows=10, alone=0.5, federated=0.7, score=0.7, best=0.7),
    client("bob", "alone", test_rows=10, alone=0.6, federated=0.2, score=0.6, best=0.6,
           clearly_before=True),
    client("cas", "alone + federated", 0.1, test_rows=10, alone=0.8, federated=0.7, score=0.7,
           best=0.8),
]  # fmt: skip


def test_the_lines_count_who_is_worse_off_before_and_after() -> None:
    """By hand: gains +.2, -.4, -.1 before; +.2, 0, -.1 after; 0.2 + 0.1 expected to be worse."""
    lines = kept_lines(of(THREE))
    assert lines == [
        "kept by 3 clients: federated (1), alone (1), alone + federated (1)",
        "  decided by 7 validation samples that chose no round of each client, beside ../local-1",
        "  expected to be worse than alone: 0.3 clients, likeliest ann (20.0%)",
        "on the test samples of 3 clients, accuracy against alone:",
        "  all federated  mean -10.0 points, worse 2 (67%), clearly 1, worst -40.0 points",
        "  as kept        mean +3.3 points, worse 1 (33%), clearly 0, worst -10.0 points",
    ]


def test_of_an_error_less_is_a_gain_and_it_has_its_own_units() -> None:
    one = client("ann", "federated", test_rows=5, alone=20.0, federated=15.0, score=15.0)
    lines = kept_lines(of([one], metric="rmse", rising=False))
    assert lines[-1].strip() == "as kept        mean +5, worse 0 (0%), clearly 0, worst +5"


def test_clients_without_test_samples_are_not_counted() -> None:
    lines = kept_lines(of([*THREE, client("dan", "federated")]))
    assert "on the test samples of 3 clients, accuracy against alone:" in lines
    assert not any("test samples" in line for line in kept_lines(of([client("dan", "alone")])))


def test_of_many_clients_a_table_shows_those_likeliest_to_be_worse_off() -> None:
    many = [client(f"c{k:03}", "federated", k / 1000) for k in range(MANY + 5)]
    lines = kept_lines(of(many), every_client=True)
    assert lines[-1] == "... and 5 more in kept.json"
    assert lines[-MANY - 1].startswith(f"c{MANY + 4:03}")
    assert not any(line.startswith("c004") for line in lines)
