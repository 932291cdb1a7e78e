"""A site's data: as they are stored, and as all sites agree to number and scale them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.config import Config
from fedskew.data.build import build
from fedskew.data.environments import whole_where_small
from fedskew.data.federation import SPLITS, Federation
from fedskew.data.label_cells import number_first
from fedskew.data.moments import Moments, figures
from fedskew.data.own import check_learnable, load_own
from fedskew.data.scaling import in_scale, scaled_by_clients
from fedskew.data.tables.encoder import TableEncoder
from fedskew.data.tables.fitting import fitted
from fedskew.data.tables.kinds import Columns
from fedskew.data.tables.sums import TableSums
from fedskew.errors import DataError, RunError
from fedskew.problem import Problem
from fedskew.sites.learned import as_plain, from_plain
from fedskew.sites.site import ALL, Site
from fedskew.types import Indices


@dataclass(frozen=True)
class Held:
    """What a site holds: its clients with their splits, samples still as they are stored.

    ``standardise`` says that samples wait for everybody's mean and deviation, ``table`` are the
    columns that they are made of once it is agreed how, and ``label`` the columns of labels.
    ``image`` and ``span`` say how images were converted, and between which values they lie.
    """

    federation: Federation
    standardise: bool
    normalise: str = "standard"
    image: dict[str, int] | None = None
    taken: tuple[int, ...] = ()
    span: tuple[float, float] | None = None
    table: Columns | None = None
    label: tuple[str, ...] = ()

    def fingerprints(self) -> dict[str, str]:
        """By client, the SHA-256 of its samples, labels and splits."""
        federation, found = self.federation, {}
        names, named = np.array(federation.class_names), federation.problem.classifies
        for client in federation.clients:
            digest = hashlib.sha256()
            for split in SPLITS:
                rows = client.split(split)
                digest.update(f"{split} {len(rows)}\n".encode())
                digest.update(federation.x[rows].contiguous().numpy().tobytes())
                if self.table is not None:
                    digest.update(_beside_numbers(self.table, rows))
                labels = federation.y.numpy()[rows]
                told = "\n".join(names[labels]).encode() if named else labels.tobytes()
                digest.update(told)
            found[client.name] = digest.hexdigest()
        return found

    def check_unchanged(self, data: Mapping[str, str], site: str) -> None:
        """Refuse data with other fingerprints than were agreed on."""
        mine = self.fingerprints()
        if changed := sorted(name for name, sha in mine.items() if data.get(name) != sha):
            raise RunError(
                f"the data of client {changed[0]!r} at site {site!r} changed since the "
                "run began: put them back, or start a new run."
            )

    def moments(self) -> dict[str, dict[str, Any]]:
        """By client, the sums of its training rows that everybody's scale is made of."""
        if self.table is not None or not self.standardise:
            return {}
        x = self.federation.x.numpy()
        return {c.name: Moments.of(x, c.train).plain() for c in self.federation.clients}

    def targets(self) -> dict[str, dict[str, Any]]:
        """By client, the same of its targets, if they are numbers."""
        if self.federation.problem.kind != "regression":
            return {}
        y = self.federation.y.numpy()[:, None]
        return {c.name: Moments.of(y, c.train).plain() for c in self.federation.clients}

    def columns(self, allow: Sequence[str]) -> dict[str, dict[str, Any]]:
        """By client, what its training rows tell of the columns of a table.

        Where sums may not leave, nothing is told of plain numbers that are not scaled by others':
        they need none.
        """
        if self.table is None:
            return {}
        told = {c.name: TableSums.of(self.table, c.train) for c in self.federation.clients}
        plain = all(each.moments is not None for each in told.values())
        if plain and not self.standardise and "moments" not in allow:
            return {}
        words = "words" in allow
        return {n: (each if words else each.without_words()).plain() for n, each in told.items()}

    def agreed(self, agreement: Mapping[str, Any], batch_size: int) -> Federation:
        """The same samples, numbered and scaled as all sites agreed."""
        names, problem = tuple(agreement["class_names"]), from_plain(agreement["problem"])
        y = self.federation.y
        if problem.classifies:
            y = torch.tensor([names.index(name) for name in self.federation.class_names])[y]
        elif problem.units is not None:
            y = in_scale(y, problem.units)
        changed = self.federation.with_data(
            x=self._agreed_samples(agreement), y=y, class_names=names, problem=problem,
            environment=self.federation.environment,
            environments_by=self.federation.environments_by,
        )  # fmt: skip
        if encoder := encoder_in(agreement):
            changed = replace(changed, encoder=encoder)
        if self.normalise == "client":
            changed = scaled_by_clients(changed, changed.clients)
        return whole_where_small(changed, batch_size)

    def alone(self, config: Config) -> Federation:
        """The same samples, as if there were no other site."""
        clients, names = self.federation.clients, self.federation.class_names
        agreement = common_scale(
            self.moments(), self.columns(ALL), [client.name for client in clients],
            self.standardise, list(config.federation.columns or ()),
        )  # fmt: skip
        learned = {"class_names": names, "problem": as_plain(self.federation.problem)}
        return self.agreed({**agreement, **learned}, config.train.batch_size)

    def _agreed_samples(self, agreement: Mapping[str, Any]) -> Tensor:
        x = self.federation.x
        if encoder := encoder_in(agreement):
            if self.table is None:
                raise DataError("these samples are no table, but all sites agreed on its columns.")
            return torch.from_numpy(encoder.encode_columns(encoder.read(self.table).used))
        if self.standardise:
            mean, deviation = (
                torch.from_numpy(np.array(agreement[which], np.float32))
                for which in ("mean", "deviation")
            )
            x = (x - mean).div_(deviation)
        return x


def read(site: Site, config: Config) -> Held:
    """A site's data, its clients' splits drawn as the study says."""
    section, own = config.federation, site.settings.data
    dataset = load_own(
        site.data, normalise=section.normalise, image=section.image, columns=section.columns,
        partly=True, **own.labels,
        # A site may hold one of two classes only.
        task="classification" if section.task == "binary" else section.task,
        image_size=own.image_size,
    )  # fmt: skip
    check_learnable(str(site.data), dataset)
    if dataset.owner is None:
        one = np.zeros(len(dataset.y), dtype=np.int64)
        dataset = replace(dataset, owner=one, owner_names=(site.name,))
    federation = build(
        replace(
            dataset,
            standardise=False,
            by_client=False,
            table=None,
            problem=_as_stored(dataset.problem),
        ),
        partition="owner",
        clients=None,
        seed=config.split_seed,
        validation=section.validation,
        test=section.test,
        test_from=section.test_from,
        by_segment=section.by_segment,
        environments={"kind": section.environments.name, **section.environments.knobs},
    )
    for client in federation.clients:
        if len(client.train) < site.settings.min_rows:
            raise RunError(
                f"client {client.name!r} has {len(client.train)} training samples, and site "
                f"{site.name!r} takes part with {site.settings.min_rows} at least (min_rows)."
            )
    x = federation.x
    return Held(
        federation,
        dataset.standardise,
        section.normalise,
        section.image,
        tuple(x.shape[1:]),
        _span(x, section.normalise) if x.ndim == 4 else None,
        dataset.table,
        dataset.label,
    )


def _as_stored(problem: Problem) -> Problem:
    """The problem with targets as they are: all sites scale them, and none by itself."""
    return replace(problem, units=(0.0, 1.0)) if problem.kind == "regression" else problem


def _beside_numbers(table: Columns, rows: Indices) -> bytes:
    """What rows hold that samples before they are encoded do not tell: words, and gaps."""
    found = []
    for column in table.used:
        held = column.values[rows]
        gone = np.isnan(held)
        if column.kind == "text":
            words = (*column.words, "")
            places = np.where(gone, -1, held).astype(np.int64)
            found.append("\0".join(words[place] for place in places).encode())
        elif gone.any():
            found.append(gone.tobytes())
    return b"\n".join(found)


def _span(images: Tensor, normalise: str) -> tuple[float, float]:
    """The smallest and largest value of images, before they were made to span -1..1."""
    low, high = float(images.min()), float(images.max())
    return ((low + 1) / 2, (high + 1) / 2) if normalise == "signed" else (low, high)


def stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes whenever a file of these data was written again."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    found = [(str(file), os.stat(file)) for file in files]
    return tuple((name, info.st_size, info.st_mtime_ns) for name, info in found)


def common_classes(told: Sequence[Sequence[str]]) -> list[str]:
    """The classes of all sites, in an order that does not depend on who holds which.

    >>> common_classes([["0", "1"], ["0", "1", "2"]]), common_classes([["10", "b"], ["2", "a"]])
    (['0', '1', '2'], ['2', '10', 'a', 'b'])
    """
    longest = max(told, key=len)
    if all(list(names) == list(longest[: len(names)]) for names in told):
        return list(longest)
    return sorted({name for names in told for name in names}, key=number_first)


def common_scale(
    told: Mapping[str, Mapping[str, Any]],
    columns: Mapping[str, Mapping[str, Any]],
    seen: Sequence[str],
    scaled: bool,
    given: Sequence[str] = (),
) -> dict[str, Any]:
    """How all samples become alike, from sums of the clients who train, by client.

    ``told`` has those of samples that are no tables, ``columns`` those of tables. Where all are
    tables, an encoder follows; else these must be nothing but numbers.
    """
    tables = {name: TableSums.read(columns[name]) for name in seen if name in columns}
    if len(tables) == len(seen):
        encoder = fitted("the sites", tables, scaled=scaled, given=given)
        return {"encoder": encoder.to_plain()}
    for name, each in tables.items():
        if each.moments is None:
            other = next(client for client in seen if client not in tables)
            raise DataError(
                f"client {name!r} holds a table of more than numbers, and client {other!r} no "
                "table: all sites must bring tables."
            )
    moments = {name: Moments.read(told[name]) for name in seen if name in told}
    moments |= {name: each.moments for name, each in tables.items() if each.moments is not None}
    if not scaled or not moments:
        return {}
    mean, deviation = figures([moments[name] for name in sorted(moments)])
    return {"mean": mean.tolist(), "deviation": deviation.tolist()}


def encoder_in(agreement: Mapping[str, Any]) -> TableEncoder | None:
    """How tables become samples, if that is what was agreed on."""
    return TableEncoder.from_plain(agreement["encoder"]) if "encoder" in agreement else None
