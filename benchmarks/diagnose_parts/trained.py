"""What federating is really worth: models trained on each client's rows, and on everybody's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from fedskew.data.federation import Client, Federation

HELD = 0.3


def split(federation: Federation) -> Federation:
    """Each client's rows, in their random order: the last three tenths to test on."""
    made = []
    for client in federation.clients:
        rows = np.random.default_rng(0).permutation(client.train)
        cut = max(1, int(HELD * len(rows)))
        made.append(Client(client.name, np.sort(rows[cut:]), test=np.sort(rows[:cut])))
    return federation.with_data(clients=tuple(made))


def worth(federation: Federation, model: str) -> float:
    """Mean accuracy over clients of one model of all rows, less that of models trained alone."""
    x = federation.x.numpy().reshape(len(federation.y), -1)
    y = federation.y.numpy()
    every = np.concatenate([client.train for client in federation.clients])
    mean, spread = (
        x[every].mean(axis=0),
        x[every].std() if federation.x.ndim == 4 else x[every].std(axis=0),
    )
    x = (x - mean) / np.where(spread > 0, spread, 1.0)
    pooled = _fit(model, x[every], y[every])
    gains = []
    for client in federation.clients:
        alone = _fit(model, x[client.train], y[client.train])
        held, truth = x[client.test], y[client.test]
        gains.append((pooled(held) == truth).mean() - (alone(held) == truth).mean())
    return float(np.mean(gains))


def _fit(model: str, x: Any, y: Any) -> Any:
    if len(set(y)) == 1:
        return lambda held: np.full(len(held), y[0])
    made: Any
    if model == "logistic":
        made = LogisticRegression(C=0.01, max_iter=60)
    else:
        made = MLPClassifier(
            (64,), max_iter=25, learning_rate_init=0.003, random_state=0, alpha=0.01
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return made.fit(x, y).predict
