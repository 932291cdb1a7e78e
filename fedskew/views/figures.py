"""Figures of a run and of a comparison: each a PNG, with the numbers it shows as CSV beside it.

The CSV files are made first, from the run folder, and every picture is drawn from one of them:
what a reader sees is what a reader can load. Matrices of very many clients are not copied: their
CSV names the files that hold them.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedskew.comparisons.crossing import TIMES
from fedskew.data.federation import Federation
from fedskew.errors import RunError
from fedskew.federate.metrics import MAIN
from fedskew.runs.findings import pictures_of
from fedskew.runs.results import Results
from fedskew.runs.rows import Rows
from fedskew.store import make_folder, write_atomically, write_csv
from fedskew.views.deployment import deployed_pictures, shots_in
from fedskew.views.generative_figures import pictures
from fedskew.views.picture import Picture, RoundMatrix, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedskew.runs.experiment import Run

LAST = "partition"
"""The figure of a run that is drawn last, and always: where it is, the others are."""
MATRICES = "matrices"
MATRIX_FILE = re.compile(r"(.+)-(\d{6,})\.csv")
FEW_CURVES = 12
"""Up to so many methods, their curves fit into one panel."""
PANELS = 6
"""So many rounds of a series of matrices fit side by side."""
COPIED = 100
"""Up to so many clients, the numbers of a matrix are written beside its picture."""


def is_drawn(path: str | Path) -> bool:
    """Whether a run has all of its figures: it may have been killed between them."""
    return (Path(path) / "figures" / f"{LAST}.png").is_file()


def draw_run(run: Run, federation: Federation) -> Path:
    """Draw a finished run, unless that is done, and return the folder of its figures."""
    folder = _folder(run.path)
    if is_drawn(run.path):
        return folder
    from fedskew.views import plots

    results, result = run.results, run.result
    model, metric = str(result["primary_model"]), str(result["primary_metric"])
    selected, name = int(result["selected_round"]), str(result["method"])
    curves = learning_table(results, model, metric, bool(result["higher_is_better"]))
    _save(folder, "learning", curves, lambda: plots.learning(curves, metric, selected, name))
    scores = client_table(results, model, metric, selected)
    _save(folder, "clients", scores, lambda: plots.clients(scores, metric, selected, name))
    for what in sorted({what for what, _, _ in _matrix_files(run.path)}):
        draw_matrices(run.path, what, folder, what, name)
    weights = weight_table(results)
    _save(folder, "weights", weights, lambda: plots.weights(weights, name))
    of_models = pictures(run, federation, weights)
    left = pictures_of(run.path, results.config, result)
    for picture in chain(deployed_pictures(results), left, of_models):
        _save(folder, *picture)
    counts = partition_table(federation)
    title = f"{federation.name}: training samples of each class at each client"
    _save(folder, LAST, counts, lambda: plots.partition(counts, title))
    return folder


def draw_comparison(
    out: str | Path,
    runs: Mapping[str, Sequence[Run]],
    metric: str = "accuracy",
    more: Iterable[Picture] = (),
) -> Path:
    """Draw all methods of a comparison into one set of figures, best method first.

    ``runs`` holds each method's runs, one a seed; ``more`` pictures stand beside.
    """
    from fedskew.views import domain_plots, plots

    folder = _folder(Path(out))
    curves = comparison_curves(runs, metric)
    crossed = len(runs) > FEW_CURVES and any(TIMES in name for name in runs)
    learning = domain_plots.crossed_learning if crossed else plots.compared_learning
    _save(folder, "learning", curves, lambda: learning(curves, metric))
    spread = comparison_clients(runs, metric)
    _save(folder, "clients", spread, lambda: plots.compared_clients(spread, metric))
    for picture in more:
        _save(folder, *picture)
    first = next(iter(runs.values()))[0].path / "figures"
    for suffix in ("csv", "png"):
        source = first / f"{LAST}.{suffix}"
        if source.is_file():
            write_atomically(folder / f"{LAST}.{suffix}", source.read_bytes())
    return folder


def learning_table(results: Results, model: str, metric: str, higher_is_better: bool) -> Table:
    """Training loss and scores of every round of the main stage."""
    rows = results.as_trained.where(model=model, metric=metric, on="seen")
    tests = rows.where(split="test").by_round()
    validations = rows.where(split="validation").by_round()
    worst, best = (min, max) if higher_is_better else (max, min)
    table: Table = []
    for record in results.records:
        if record.stage != MAIN:
            continue
        test, validation = tests.get(record.round), validations.get(record.round)
        table.append(
            {
                "round": record.round,
                "train_loss": record.train_loss,
                "test_mean": statistics.fmean(test) if test else None,
                "test_worst": worst(test) if test else None,
                "test_best": best(test) if test else None,
                "validation_mean": statistics.fmean(validation) if validation else None,
            }
        )
    return table


def client_table(results: Results, model: str, metric: str, round_number: int) -> Table:
    """Every seen client's test score, before and after adaptation, lowest first.

    Of several adaptations, the one that saw most labels.
    """
    rows = results.rows.where(
        stage=MAIN, round=round_number, model=model, on="seen", split="test", metric=metric
    )
    how = max(rows.names("adapted"), key=shots_in, default="none")
    adapted = rows.where(adapted=how).by_client() if how != "none" else {}
    table: Table = [
        {
            "client": r.client,
            "test_samples": r.n,
            metric: r.value,
            "adapted": adapted.get(r.client),
            "how": how,
        }
        for r in rows.where(adapted="none").rows()
    ]
    return sorted(table, key=lambda line: float(line[metric]))


def weight_table(results: Results) -> Table:
    """What each client weighed in the aggregates of all stages, and its recorded discrepancy."""
    found: dict[tuple[str, int, str], dict[str, float]] = {}
    for row in results.rows.where(split="server", metric=("weight", "discrepancy")).rows():
        found.setdefault((row.stage, row.round, row.client), {})[row.metric] = row.value
    return [
        {
            "stage": stage, "round": number, "client": client,
            "weight": numbers["weight"], "discrepancy": numbers.get("discrepancy"),
        }
        for (stage, number, client), numbers in found.items()
        if "weight" in numbers
    ]  # fmt: skip


def partition_table(federation: Federation) -> Table:
    """Training samples of each class at each client, unseen clients last."""
    y = federation.y.numpy()
    table: Table = []
    for clients, seen in ((federation.clients, True), (federation.unseen, False)):
        for client in clients:
            counts = np.bincount(y[client.train], minlength=federation.classes)
            named = zip(federation.class_names, counts.tolist(), strict=True)
            table.append(
                {
                    "client": client.name,
                    "seen": seen,
                    **{f"class {name}": count for name, count in named},
                }
            )
    return table


def matrix_series(run: Path, name: str) -> list[RoundMatrix]:
    """The recorded matrices of one name, in the order of their rounds."""
    found = sorted((at, path) for what, at, path in _matrix_files(run) if what == name)
    return [RoundMatrix(at, *_read_matrix(path)) for at, path in found]


def evenly(series: Sequence[RoundMatrix], most: int = PANELS) -> list[RoundMatrix]:
    """At most so many of a series, evenly chosen; the first and the last are always among them."""
    if len(series) <= most:
        return list(series)
    return [series[i] for i in np.linspace(0, len(series) - 1, most).round().astype(int)]


def matrix_table(series: Sequence[RoundMatrix], name: str) -> Table:
    """The numbers of some matrices, a line each; for many clients, where they are."""
    if len({client for matrix in series for client in matrix.clients}) > COPIED:
        return [{"round": at, "file": f"{MATRICES}/{name}-{at:06d}.csv"} for at, _, _ in series]
    return [
        {"round": at, "row": row, "column": column, "value": value}
        for at, clients, values in series
        for row, line in zip(clients, values.tolist(), strict=True)
        for column, value in zip(clients, line, strict=True)
    ]


def draw_matrices(run: Path, what: str, folder: Path, file: str, title: str) -> Path:
    """Draw the recorded matrices of one name as heat maps side by side."""
    from fedskew.views import matrices

    series = matrix_series(run, what)
    shown, order = evenly(series), matrices.common_order(series)
    _save(folder, file, matrix_table(shown, what),
          lambda: matrices.heat_maps(shown, order, what, title))  # fmt: skip
    return folder / f"{file}.png"


def comparison_curves(runs: Mapping[str, Sequence[Run]], metric: str) -> Table:
    """Per method and round: the mean over clients, then mean and deviation over seeds."""
    table: Table = []
    for method, group in runs.items():
        by_round: dict[int, list[float]] = {}
        for run in group:
            for number, mean in _tested(run, metric).curve(statistics.fmean).items():
                by_round.setdefault(number, []).append(mean)
        for number, means in sorted(by_round.items()):
            deviation = statistics.stdev(means) if len(means) > 1 else None
            mean = statistics.fmean(means)
            table.append({"method": method, "round": number, "mean": mean, "std": deviation})
    return table


def comparison_clients(runs: Mapping[str, Sequence[Run]], metric: str) -> Table:
    """Every client's test score under every method and seed, at the selected round."""
    table: Table = []
    for method, group in runs.items():
        for run in group:
            rows = _tested(run, metric).where(round=run.result["selected_round"])
            table += [
                {"method": method, "seed": run.result["seed"], "client": client, metric: value}
                for client, value in zip(rows.texts("client"), rows.value.tolist(), strict=True)
            ]
    return table


def _tested(run: Run, metric: str) -> Rows:
    return run.results.as_trained.where(
        model=run.result["primary_model"], metric=metric, on="seen", split="test"
    )


def _matrix_files(run: Path) -> Iterator[tuple[str, int, Path]]:
    """The name, the round and the place of every recorded matrix."""
    for path in (run / MATRICES).glob("*.csv"):
        if match := MATRIX_FILE.fullmatch(path.name):
            yield match[1], int(match[2]), path


def _read_matrix(path: Path) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    try:
        with open(path, newline="") as file:
            (_, *clients), *lines = csv.reader(file)
        values = np.array([line[1:] for line in lines], dtype=np.float64)
    except (OSError, ValueError) as error:
        raise RunError(f"could not read {path}: {error}.") from error
    if not clients or [line[0] for line in lines] != clients or values.shape != (len(clients),) * 2:
        raise RunError(f"{path} is not a square matrix of clients: remove it to draw the others.")
    return tuple(clients), values


def _folder(parent: Path) -> Path:
    return make_folder(parent / "figures")


def _save(folder: Path, name: str, table: Table, draw: Callable[[], Figure]) -> None:
    """The numbers first: a picture without them must not exist."""
    if not table:
        return
    write_csv(folder / f"{name}.csv", [table[0], *(line.values() for line in table)])
    picture = io.BytesIO()
    draw().savefig(picture, format="png", dpi=150)
    write_atomically(folder / f"{name}.png", picture.getvalue())
