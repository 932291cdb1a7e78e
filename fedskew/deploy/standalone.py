"""A model with its preparation inside: from raw numbers to answers, in torch alone.

It computes what a :class:`SamplePreparation` does, but for what numbers cannot hold: images come
in floats of 0..1 and in the size the run takes, words by their numbers (see ``inputs_of``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.data.own_scale import OwnScale
from fedskew.data.tables.encoder import BUCKETS, FARTHEST, Encoding, TableEncoder
from fedskew.data.tables.kinds import WORDS
from fedskew.deploy.answers import in_words
from fedskew.runs.preparation import SamplePreparation

HASHED = (
    f"scikit-learn's FeatureHasher({BUCKETS}, input_type='string', alternate_sign=False) gives a "
    "word's number; NaN where there is none"
)


class Standalone(nn.Module):
    """Raw numbers in; probabilities of the classes or labels, or numbers in their units, out."""

    def __init__(self, model: nn.Module, preparation: SamplePreparation) -> None:
        super().__init__()
        self.model = model
        self._preparation = preparation
        self.encoder = _Columns(preparation.encoder) if preparation.encoder else None
        self.own = _Own(preparation.scale_by, preparation) if preparation.scale_by else None
        places = (1, -1) + (1,) * (len(preparation.taken) - 1)
        self._constant("shift", preparation.shift, places)
        self._constant("spread", preparation.spread, places)
        low, high = torch.tensor(preparation.low), torch.tensor(preparation.high)
        noise = 1e-6 * torch.maximum(low.abs(), high.abs())
        self._constant("low", low.tolist(), (1, -1))
        self._constant("width", torch.where(high - low > noise, high - low, 1.0).tolist(), (1, -1))
        self.register_buffer("kept", torch.tensor(preparation.kept, dtype=torch.int64))

    def _constant(self, name: str, values: Any, shape: tuple[int, ...]) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.float32).reshape(shape))

    def forward(self, inputs: Tensor) -> Tensor:
        """Answers for raw rows or images."""
        preparation = self._preparation
        if self.encoder is not None:
            x: Tensor = self.encoder(inputs)
        else:
            x = (inputs - self.get_buffer("shift")) / self.get_buffer("spread")
        if self.own is not None:
            x = self.own(x)
        if preparation.kept:
            x = x[:, self.get_buffer("kept")]
        if preparation.scaled_by is not None:
            x = (x - self.get_buffer("low")) / self.get_buffer("width")
        if x.ndim == 4 and preparation.shape[0] != preparation.taken[0]:
            x = x.expand(-1, preparation.shape[0], -1, -1)
        return in_words(preparation.problem, self.model(x))


class _Columns(nn.Module):
    """What a table's encoder makes of columns of numbers."""

    def __init__(self, encoder: TableEncoder) -> None:
        super().__init__()
        numbers: list[int] = []
        figures: list[tuple[float, float, float, float]] = []
        words: list[tuple[int, int]] = []
        flags: list[int] = []
        order: list[tuple[str, int]] = []
        for place, column in enumerate(encoder.columns):
            if column.kind in WORDS:
                made = len(column.levels) or BUCKETS
                order += [("words", len(words) + code) for code in range(made)]
                words += [(place, code) for code in range(made)]
            else:
                order.append(("numbers", len(numbers)))
                numbers.append(place)
                limit = float("inf") if column.limit is None else column.limit
                figures.append((column.fill, column.shift, column.spread, limit))
            if column.flagged:
                order.append(("flags", len(flags)))
                flags.append(place)
        starts = {"numbers": 0, "words": len(numbers), "flags": len(numbers) + len(words)}
        self._index("numbers", numbers)
        self._index("words", [place for place, _ in words])
        self._index("flags", flags)
        self._index("order", [starts[kind] + place for kind, place in order])
        self.register_buffer("codes", torch.tensor([float(code) for _, code in words]))
        columns = torch.tensor(figures, dtype=torch.float32).reshape(-1, 4)
        for place, name in enumerate(("fill", "shift", "spread", "limit")):
            self.register_buffer(name, columns[:, place].clone())

    def _index(self, name: str, places: list[int]) -> None:
        self.register_buffer(name, torch.tensor(places, dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        held = self.get_buffer
        numbers = inputs[:, held("numbers")]
        filled = torch.where(torch.isnan(numbers), held("fill"), numbers)
        scaled = (filled - held("shift")) / held("spread")
        limited = torch.maximum(torch.minimum(scaled, held("limit")), -held("limit"))
        words = (inputs[:, held("words")] == held("codes")).to(torch.float32)
        flags = torch.isnan(inputs[:, held("flags")]).to(torch.float32)
        return torch.cat([limited, words, flags], dim=1)[:, held("order")]


class _Own(nn.Module):
    """A client's own scale, feature by feature or channel by channel."""

    def __init__(self, scale: OwnScale, preparation: SamplePreparation) -> None:
        super().__init__()
        encoder = preparation.encoder
        if not scale.places:
            shape = (1, -1) + (1,) * (len(preparation.taken) - 1)
            shift, spread = (torch.tensor(v or (w,)) for v, w in
                             ((scale.shift, 0.0), (scale.spread, 1.0)))  # fmt: skip
            self.register_buffer("shift", shift.reshape(shape))
            self.register_buffer("spread", spread.reshape(shape))
            self.limited = False
            return
        self.limited = True
        width = len(encoder.outputs) if encoder else preparation.taken[0]
        figures = {"shift": torch.zeros(width), "spread": torch.ones(width),
                   "limit": torch.full((width,), float("inf"))}  # fmt: skip
        flag, has = torch.zeros(width, dtype=torch.int64), torch.zeros(width, dtype=torch.bool)
        for place, mark, centre, spread_of in zip(
            scale.places, scale.flags, scale.shift, scale.spread, strict=True
        ):
            figures["shift"][place], figures["spread"][place] = centre, spread_of
            figures["limit"][place] = FARTHEST
            if mark >= 0:
                flag[place], has[place] = mark, True
        for name, values in {**figures, "flag": flag, "has": has}.items():
            self.register_buffer(name, values)

    def forward(self, x: Tensor) -> Tensor:
        held = self.get_buffer
        scaled = (x - held("shift")) / held("spread")
        if not self.limited:
            return scaled
        limited = torch.maximum(torch.minimum(scaled, held("limit")), -held("limit"))
        gone = (x[:, held("flag")] > 0.5) & held("has")
        return torch.where(gone, torch.zeros_like(limited), limited)


def inputs_of(preparation: SamplePreparation) -> dict[str, Any]:
    """What a file expects, in plain values, for whoever uses it elsewhere."""
    encoder = preparation.encoder
    if encoder is not None:
        columns = [_column(column) for column in encoder.columns]
        return {"name": "inputs", "type": "float32", "shape": ["rows", len(columns)],
                "columns": columns, "missing": "NaN"}  # fmt: skip
    told = {"name": "inputs", "type": "float32", "shape": ["rows", *preparation.taken]}
    if preparation.image is not None or preparation.span is not None:
        told["values"] = "pixels of 0..1 (bytes divided by 255), channels first"
    return told


def onnx_inputs_of(preparation: SamplePreparation) -> dict[str, dict[str, Any]]:
    """The same for a graph that takes words as they are, in an input of their own."""
    whole = inputs_of(preparation)
    columns = whole["columns"]
    numbers = [column for column in columns if column["kind"] not in WORDS]
    words = [{"name": column["name"], "kind": column["kind"]}
             for column in columns if column["kind"] in WORDS]  # fmt: skip
    told = {
        "inputs": {**whole, "shape": ["rows", len(numbers)], "columns": numbers},
        "words": {"name": "words", "type": "string", "shape": ["rows", len(words)],
                  "columns": words, "missing": ""},
    }  # fmt: skip
    return {name: each for name, each in told.items() if each["columns"]}


def _column(column: Encoding) -> dict[str, Any]:
    told: dict[str, Any] = {"name": column.name, "kind": column.kind}
    if column.levels:
        told["words"] = {word: code for code, word in enumerate(column.levels)}
        told["another_word"] = -1
    elif column.kind in WORDS:
        told["words"] = HASHED
    elif column.kind == "date":
        told["unit"] = "days since 1970-01-01"
    elif column.kind == "boolean":
        told["unit"] = "1 for yes, 0 for no"
    return told


def outputs_of(preparation: SamplePreparation) -> dict[str, Any]:
    """What a file answers, in plain values."""
    problem, names = preparation.problem, list(preparation.class_names)
    if problem.kind == "regression":
        return {"name": "answers", "shape": ["rows"], "values": "in the units of the target"}
    of = "classes" if problem.classifies else "labels"
    return {"name": "answers", "shape": ["rows", len(names)], "values": "probabilities", of: names}


def made_up(preparation: SamplePreparation, rows: int) -> Tensor:
    """Inputs of the right form, of which some are missing or strange, to try a file with."""
    rng = np.random.default_rng(0)
    encoder = preparation.encoder
    if encoder is None:
        shape = (rows, *preparation.taken)
        return torch.from_numpy(rng.random(shape, dtype=np.float32))
    x = np.empty((rows, len(encoder.columns)), np.float32)
    for place, column in enumerate(encoder.columns):
        if column.kind in WORDS:
            # A strange word has the number -1; hashed, no word is strange.
            low, high = (-1, len(column.levels)) if column.levels else (0, BUCKETS)
            x[:, place] = rng.integers(low, high, rows)
        else:
            x[:, place] = column.fill + 3 * column.spread * rng.standard_normal(rows)
        x[rng.random(rows) < 0.1, place] = np.nan
    return torch.from_numpy(x)
