"""Every method trains models of texts and signals alike in every executor, or says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import Run, assert_close, assert_same_bits, every_method, make_holdings, run
from helpers import over_the_wire as carried

from fedskew.config import make_config
from fedskew.data.federation import Client, Federation
from fedskew.engine.dropout import with_stream_dropout
from fedskew.engine.graph import TracedStep
from fedskew.engine.optim import Optimiser
from fedskew.errors import ConfigError
from fedskew.federate.holdings import Holdings, roster_of
from fedskew.federate.metrics import MAIN
from fedskew.federate.plan import Settings
from fedskew.federate.planning import make_plan
from fedskew.federate.recipe import Stage
from fedskew.methods import METHODS, find
from fedskew.models import seeded
from fedskew.models.registry import for_samples

KINDS: dict[str, dict[str, Any]] = {
    "embedding": {"units": 4, "hidden": [4]},
    "gru": {"units": 4},
    "transformer": {"units": 4, "heads": 2, "layers": 1},
    "conv1d": {"channels": 8, "layers": 2, "kernel": 3},
}
VOCABULARY, EACH, LENGTH = 9, 20, 4
OF_NUMBERS = {
    "civae", "distilled-vae", "fed-civae", "feddisk", "fedreptile-civae", "latent-weights",
    "latent-weights-online", "made", "vae",
}  # fmt: skip
"""Methods that learn what samples look like, in some stage."""
STEPPING = (
    "and-mask", "coral", "ditto", "fedavg", "fedavg-crsm", "fedbabu", "fedrep", "fedrod", "irm",
    "mldg", "private", "scaffold",
)  # fmt: skip
"""Methods whose steps ask different things of a model; all others take one of these steps."""


def sequences(kind: str) -> Federation:
    """Four clients with as many texts of 1 to 4 words, or as many signals of two channels."""
    rng = np.random.default_rng(0)
    count = 4 * EACH
    y = np.arange(count) % 3
    signals = torch.from_numpy(rng.normal(y[:, None, None], 1.0, (count, 2, LENGTH)))
    ids = rng.integers(1, VOCABULARY, (count, LENGTH))
    ids[:, 0] = 1 + y
    ids *= np.arange(LENGTH) <= rng.integers(0, LENGTH, (count, 1))
    clients = tuple(
        Client(f"c{k}", rows[:16], rows[16:18], rows[18:])
        for k, rows in enumerate(np.split(np.arange(count), 4))
    )
    return Federation(
        "sequences",
        signals.float() if kind == "conv1d" else torch.from_numpy(ids),
        torch.from_numpy(y),
        tuple("uvw"),
        clients,
        central_test=np.concatenate([client.test for client in clients]),
        environment=torch.arange(count) % 2,
        environments_by="data",
        vocabulary=0 if kind == "conv1d" else VOCABULARY,
    )


_graphs: dict[tuple[Any, ...], dict[Any, Any]] = {}


def holdings_of(method: str, kind: str, executor: str) -> Holdings:
    """Methods whose steps are the same share the graphs that were traced of them."""
    federation = sequences(kind)
    knobs = for_samples(kind, KINDS[kind], federation.sample_shape, federation.vocabulary)
    module = with_stream_dropout(seeded(kind, federation.sample_shape, 3, seed=1, **knobs))
    recipe = find(method).recipe()
    holdings = make_holdings(
        recipe, federation, module, Settings(Optimiser("sgd", 0.1), epochs=1, batch_size=8),
        chunk=2 if executor == "vectorised" else 1, executor=executor,
    )  # fmt: skip
    for phase in recipe.trains:
        objective = phase.objective or recipe.objective
        key = (kind, executor, repr(objective), repr(phase), repr(recipe.extends))
        step = holdings.training(phase, 1.0).step
        if isinstance(step, TracedStep):
            step._graphs = _graphs.setdefault(key, {})
    return holdings


def ran(method: str, kind: str, executor: str) -> Run:
    return run(holdings_of(method, kind, executor), 2)


def of_numbers(method: str) -> bool:
    recipe = find(method).recipe()
    return any(s.recipe.objective.of_numbers for s in (*recipe.prepares, Stage(MAIN, recipe)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "embedding") for name in sorted(METHODS)),
        *((name, kind) for kind in KINDS if kind != "embedding" for name in STEPPING),
    ],
)
def test_a_method_trains_a_model_of_sequences_alike_in_every_executor(name: str, kind: str) -> None:
    if "body" not in find(name).recipe().objective.needs:
        pytest.skip("has a model of its own, which the next test looks at")
    if (name, kind) == ("and-mask", "transformer"):
        pytest.skip("masks by signs, and the gradient of a key's bias is 0 but for rounding")
    stacked, apart = (ran(name, kind, executor) for executor in ("vectorised", "threads"))
    assert_close(stacked.everything(), apart.everything(), 1e-5)
    assert stacked.scores == pytest.approx(apart.scores, abs=1e-5)
    assert not [record.failures for record in stacked.journal.records if record.failures]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbabu", "fedrod"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_carrier_of_bytes_changes_nothing_of_it(name: str, kind: str) -> None:
    here = ran(name, kind, "threads")
    there = carried(holdings_of(name, kind, "threads"), 2)
    assert_same_bits(there.everything(), here.everything())
    assert there.journal.rows == here.journal.rows


@every_method
def test_token_ids_are_refused_where_they_would_be_compared_with_numbers(name: str) -> None:
    recipe = find(name).recipe()
    config = make_config(
        {"method": name, "model": {"name": "gru", "units": 4}, "train": {"batch_size": 4}}
    )
    roster = roster_of(sequences("gru"))
    refused = []
    for stage in (*recipe.prepares, Stage(MAIN, recipe)):
        try:
            plan = make_plan(config, roster, stage)
            assert plan.model is not None
            assert plan.model.knobs["vocabulary"] == VOCABULARY
        except ConfigError as error:
            refused.append(str(error))
    assert bool(refused) == (name in OF_NUMBERS) == of_numbers(name)
    assert set(refused) <= {
        f"method {name!r} learns what samples look like, but those of sequences are token ids, of "
        "which it can make none: choose a method that only tells classes apart."
    }
