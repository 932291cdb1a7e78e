"""Figures of a run and of a comparison: each a PNG, with the numbers it shows as CSV beside it.

The CSV files are made first, from the run's folder, and every picture is drawn from one of them:
readers can load the numbers they see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from fedskew.canvas import Picture, Table, save_picture
from fedskew.comparisons.crossing import TIMES
from fedskew.data.federation import Federation
from fedskew.federate.holdings import roster_of
from fedskew.federate.metrics import MAIN
from fedskew.federate.roster import Roster
from fedskew.rng import thinned
from fedskew.runs.experiment import Run
from fedskew.runs.findings import pictures_of
from fedskew.runs.results import Results
from fedskew.store import make_folder, write_atomically
from fedskew.views import images
from fedskew.views.clients import (
    client_figure,
    client_table,
    compared_client_figure,
    compared_client_table,
)
from fedskew.views.deployment import deployed_pictures
from fedskew.views.encodings import encoding_figure, encoding_table
from fedskew.views.generative import find_vaes, test_rows
from fedskew.views.latent import latent_figure, latent_table, space_figure, space_table
from fedskew.views.learning import (
    compared_learning_figure,
    compared_learning_table,
    crossed_learning,
    learning_figure,
    learning_table,
)
from fedskew.views.partition import partition_figure, partition_table
from fedskew.views.similarity import draw_similarity, similarity_names
from fedskew.views.weights import weight_figure, weight_table

LAST = "partition"
"""The figure that is always drawn, and drawn last: if it exists, so do the others."""
FEW_CURVES = 12
"""Up to this number of methods, their curves fit into one panel."""


def is_drawn(path: str | Path) -> bool:
    """Whether a run has all of its figures: it may have been killed between them."""
    return (Path(path) / "figures" / f"{LAST}.png").is_file()


def draw_run(run: Run, load: Callable[[], Federation]) -> Path:
    """Draw a finished run, unless it is drawn already, and return the folder of its figures.

    ``load`` gives the run's data; it is called only if there is something to draw.
    """
    if is_drawn(run.path):
        return run.path / "figures"
    federation = load()
    weights = weight_table(run.results)
    return _draw(run, roster_of(federation), weights, _model_pictures(run, federation, weights))


def draw_apart(run: Run, roster: Roster) -> Path:
    """The same for a run whose data are elsewhere: all figures that take no data."""
    if is_drawn(run.path):
        return run.path / "figures"
    return _draw(run, roster, weight_table(run.results), ())


def _draw(run: Run, roster: Roster, weights: Table, more: Iterable[Picture]) -> Path:
    folder = make_folder(run.path / "figures")
    results, result = run.results, run.result
    name = str(result["method"])
    for picture in _score_pictures(results):
        save_picture(folder, picture)
    for what in similarity_names(run.path):
        draw_similarity(run.path, what, folder, what, name)
    for picture in chain(
        [Picture("weights", weights, lambda: weight_figure(weights, name))],
        deployed_pictures(results),
        pictures_of(run.path, results.config, result),
        more,
    ):
        save_picture(folder, picture)
    counts = partition_table(roster)
    of = " of each class" if roster.problem.classifies else ""
    title = f"{roster.name}: training samples{of} at each client"
    save_picture(folder, Picture(LAST, counts, lambda: partition_figure(counts, title)))
    return folder


def _score_pictures(results: Results) -> Iterator[Picture]:
    """Scores by round, and by client."""
    result = results.summary
    model, metric = str(result["primary_model"]), str(result["primary_metric"])
    selected, name = int(result["selected_round"]), str(result["method"])
    curves = learning_table(results, model, metric, bool(result["higher_is_better"]))
    yield Picture("learning", curves, lambda: learning_figure(curves, metric, selected, name))
    scores = client_table(results, model, metric, selected)
    yield Picture("clients", scores, lambda: client_figure(scores, metric, selected, name))


def _model_pictures(run: Run, federation: Federation, weights: Table) -> Iterator[Picture]:
    """Codes, reconstructions and samples of a run's autoencoders; nothing for other runs.

    ``weights`` is the run's table of aggregation weights and discrepancies.
    """
    vaes = find_vaes(run, federation)
    if vaes is None:
        return
    result = run.result
    seed, title = int(result["seed"]), str(result["method"])
    recorded = {
        str(line["client"]): float(line["discrepancy"])
        for line in weights
        if line["stage"] == MAIN and line["round"] <= result["selected_round"]
        if line["discrepancy"] is not None
    }
    codes = encoding_table(vaes, federation, recorded, seed)
    coder = "each client's own encoder" if vaes.owners else "the global encoder"
    shown, all_clients = len({line["client"] for line in codes}), len(federation.clients)
    part = f", {shown} of {all_clients} clients" if shown < all_clients else ""
    about = f"{title}, {coder}"
    yield Picture("encodings", codes, lambda: encoding_figure(codes, f"{about}{part}"))
    points = latent_table(vaes, federation, seed)
    yield Picture("latent", points, lambda: latent_figure(points, about))
    space = space_table(vaes, federation, seed)
    yield Picture("latent-space", space, lambda: space_figure(space, about))
    if len(federation.sample_shape) == 3 and federation.sample_shape[0] in (1, 3):
        some = thinned(test_rows(federation), 500, seed, "range")
        shade = images.display_range(federation.x[some])
        yield images.reconstruction_picture(vaes, federation, shade, title)
        yield images.sample_picture(vaes, federation, shade, seed, title)


def draw_comparison(
    out: str | Path,
    runs: Mapping[str, Sequence[Run]],
    metric: str = "accuracy",
    more: Iterable[Picture] = (),
) -> Path:
    """Draw all methods of a comparison into one set of figures, best method first.

    ``runs`` holds the runs of each method, one per seed; ``more`` pictures are added.
    """
    folder = make_folder(Path(out) / "figures")
    curves, spread = compared_learning_table(runs, metric), compared_client_table(runs, metric)
    crossed = len(runs) > FEW_CURVES and any(TIMES in name for name in runs)
    learning = crossed_learning if crossed else compared_learning_figure
    for picture in (
        Picture("learning", curves, lambda: learning(curves, metric)),
        Picture("clients", spread, lambda: compared_client_figure(spread, metric)),
        *more,
    ):
        save_picture(folder, picture)
    first = next(iter(runs.values()))[0].path / "figures"
    for suffix in ("csv", "png"):
        source = first / f"{LAST}.{suffix}"
        if source.is_file():
            write_atomically(folder / f"{LAST}.{suffix}", source.read_bytes())
    return folder
