"""A tiny suite, and claims about it."""

from __future__ import annotations

from typing import Any

from fedskew.papers.claims import Claim

TOY = """
title = "A toy"
source = "Nobody 2020"
question = "Does the mechanism work?"

[defaults]
executor = "threads"
[defaults.federation]
clients = 4
partition = { name = "dirichlet", alpha = 0.5 }
[defaults.model]
name = "logistic"
[defaults.train]
lr = 0.1
[defaults.evaluate]
fine_tune_epochs = 1

[scales.smoke]
seeds = 2
settings = ["skewed"]
[scales.smoke.config.train]
rounds = 2
[scales.smoke.by_arm.prox.train]
rounds = 3

[scales.paper]
seeds = 5
[scales.paper.config.train]
rounds = 7

[[settings]]
name = "skewed"
label = "Skewed digits"
arms = ["avg", "prox", "slow"]
[[settings]]
name = "shards"
label = "Digits in shards"
config.federation.partition = { name = "shards", shards_per_client = 5 }

[[arms]]
name = "avg"
label = "FedAvg"
method = "fedavg"
[[arms]]
name = "prox"
label = "FedProx"
method = { name = "fedprox", mu = 0.5 }
[[arms]]
name = "slow"
label = "Slow FedAvg"
role = "control"
method = "fedavg"
config.train.lr = 0.05
[[arms]]
name = "alone"
label = "Alone"
role = "reference"
method = "local"

[[numbers]]
setting = "skewed"
arm = "avg"
value = 91.5
spread = 0.25
where = "Table 7"

[[claims]]
name = "pull"
says = "The pull helps."
source = "Nobody 2020"
better = "prox"
than = "avg"
control = "slow"
why = "Short steps may do."
on = ["skewed", "shards"]
"""


def claim(**changes: Any) -> Claim:
    values = {"name": "c", "says": "s", "source": "x", "better": "new", "than": "old", "on": ["a"]}
    return Claim.model_validate({**values, **changes})
