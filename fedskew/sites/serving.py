"""Models that stay at a site, ready to be used there: ``fedskew predict`` needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.data.federation import Federation
from fedskew.data.profile import Profile
from fedskew.deploy.answers import usual_answers
from fedskew.deploy.model import Deployed, empty_model
from fedskew.deploy.threshold import NOT_ADAPTED, validation_threshold
from fedskew.errors import FedskewError, RunError, unknown
from fedskew.models import tells_classes
from fedskew.runs.preparation import SamplePreparation
from fedskew.sites.held import Held, encoder_in
from fedskew.sites.learned import from_plain
from fedskew.sites.site import Site
from fedskew.store import make_folder, read_table, write_json
from fedskew.types import Tensors

USE, CLIENTS = "use", "clients.json"


def preparation_at(
    held: Held, agreement: dict[str, Any], federation: Federation
) -> SamplePreparation:
    """How new samples of a site are prepared: as all sites agreed, and its clients by themselves.

    ``federation`` are its clients with their samples as agreed.
    """
    shift: tuple[float, ...] = (0.0,)
    spread: tuple[float, ...] = (1.0,)
    taken, encoder, scales = held.taken, encoder_in(agreement), federation.scales
    if held.normalise == "signed":
        shift, spread = (0.5,), (0.5,)
    elif encoder is not None:
        taken = tuple(federation.sample_shape)
        encoder = replace(encoder, label=held.label)
        if encoder.plain:
            shift, spread = map(_flat, encoder.figures)
    elif held.standardise:
        shift, spread = (_flat(agreement[which]) for which in ("mean", "deviation"))
    names = tuple(agreement["class_names"])
    return SamplePreparation(
        scale=held.normalise,
        class_names=names,
        numbers=tuple(range(len(names))),
        shape=tuple(federation.sample_shape),
        taken=taken,
        image=held.image,
        shift=shift,
        spread=spread,
        span=held.span,
        problem=from_plain(agreement["problem"]),
        encoder=encoder,
        scale_by=scales.get(""),
        own_scales={name: scale for name, scale in scales.items() if name},
        vocabulary=held.federation.vocabulary,
        text=held.federation.text,
    )


def _flat(figures: Any) -> tuple[float, ...]:
    return tuple(np.array(figures, np.float64).reshape(-1).tolist())


def keep_for_use(
    results: Path,
    clients: Sequence[str],
    client: str,
    model: Tensors,
    preparation: SamplePreparation,
    about: dict[str, Any],
    profile: Profile,
) -> None:
    """Write a client's model so that it can be used without anything else."""
    module = empty_model(about)
    if not tells_classes(module):
        return  # it tells no classes
    module.load_state_dict(model)
    made = Deployed(
        module, preparation.of_client(client), {**about, "from": client}, profile=profile
    )
    with suppress(FedskewError):  # without validation samples there are no usual answers
        problem, names = preparation.problem, preparation.class_names
        made = replace(made, usual=usual_answers(results, problem, names, NOT_ADAPTED))
    with suppress(FedskewError):  # few validation samples choose no threshold
        made = replace(made, threshold=validation_threshold(results))
    numbers = {name: number for number, name in enumerate(clients)}
    write_json(make_folder(results / USE) / CLIENTS, numbers)
    made.save(results / USE / f"{numbers[client]:06d}")


def model_in_use(site: Site, client: str | None = None, study: str | None = None) -> Path:
    """The folder of a client's newest model at a site; the client may be left out if it is one."""
    studies = {
        path.parent.parent.name: path for path in site.folder.glob(f"results/*/{USE}/{CLIENTS}")
    }
    if not studies:
        raise RunError(f"site {site.name!r} has no models yet: they come at the end of a run.")
    if study is not None and study not in studies:
        raise unknown("study", study, studies)
    newest = max(studies, key=lambda name: studies[name].stat().st_mtime)
    table = studies[study or newest]
    numbers = read_table(table)
    if client is None and len(numbers) > 1:
        raise RunError(f"site {site.name!r} has several clients: name one, like {min(numbers)!r}.")
    if client is not None and client not in numbers:
        raise unknown("client", client, numbers)
    return table.parent / f"{numbers[client or min(numbers)]:06d}"
