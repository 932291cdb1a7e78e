"""Labels for samples, each with its probability, and which labels should be asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from fedskew.deploy.kept import open_kept
from fedskew.deploy.model import Deployed, finished_run, open_model
from fedskew.deploy.prediction import Prediction
from fedskew.deploy.samples import prepared, read_samples
from fedskew.deploy.threshold import Threshold, validation_threshold
from fedskew.deploy.unlike import input_columns, unlike
from fedskew.errors import ConfigError, RunError
from fedskew.federate.confidence import ACCURACY, check_share
from fedskew.runs.experiment import Run


def predict(
    model: str | Path | Run | Deployed,
    x: ArrayLike | str | Path | Any,
    y: ArrayLike | None = None,
    *,
    client: str | None = None,
    threshold: float | None = None,
    accuracy: float = ACCURACY,
    label: str | None = None,
    id_column: str | None = None,
    proba: bool = False,
    data_dir: str | Path | None = None,
    allow_code: bool = False,
) -> Prediction:
    """The answer for every sample, its probability, and whether to ask for a label instead.

    ``model`` is the folder of a run (its global model, or what ``client`` keeps, else its own), of
    an adapted or of an exported model. ``x`` is in the shape and scale of the dataset as stored: an
    array, a data frame, or a file or folder of samples. The columns of a table are found by name,
    wherever they stand; labels are in the column ``label`` (none: the run's own), ids in
    ``id_column``, and all others are carried along. With the true labels ``y`` the answers are
    scored. Below ``threshold`` one should ask; if none is given, it is the one saved with an
    adapted model, or the smallest that reached ``accuracy`` on validation data.
    """
    for name, share in (("threshold", threshold), ("accuracy", accuracy)):
        if share is not None:
            check_share(name, share)
    directory = None if data_dir is None else Path(data_dir)
    kept = None if client is None else open_kept(model, client, accuracy, directory, allow_code)
    deployed = kept or open_model(model, client, directory, allow_code=allow_code)
    preparation = deployed.preparation
    problem = preparation.problem
    if problem.kind == "regression" and (proba or threshold is not None):
        wrong = "proba" if proba else "threshold"
        raise ConfigError(
            f"{wrong} is for classes, but this run answers with numbers: leave it out."
        )
    stored = read_samples(x, y, preparation, label, id_column)
    samples = prepared(stored, preparation)
    chosen = None
    if threshold is None and problem.classifies:
        chosen = chosen_threshold(model, deployed, accuracy)
    profile = deployed.profile
    columns = input_columns(preparation, stored.x, samples.x)
    return Prediction(
        deployed.answers(samples.x),
        chosen.value if chosen else float(threshold or 0.0),
        preparation.class_names,
        samples.y,
        chosen,
        problem,
        stored.names,
        stored.id_name,
        stored.carried,
        unlike(profile, columns) if profile is not None else (),
        proba,
        "" if kept is None else f"{client} keeps {kept.about['kept']} (fedskew keep)",
    )


def chosen_threshold(
    model: str | Path | Run | Deployed, deployed: Deployed, accuracy: float
) -> Threshold:
    """The threshold that came with a model, or the one that its run's validation data say."""
    if deployed.threshold is not None:
        return deployed.threshold
    if isinstance(model, Deployed) or "adapted" in deployed.about:
        raise RunError("no threshold could be chosen for this adapted model: give one, like 0.9.")
    return validation_threshold(finished_run(model).path, accuracy)
