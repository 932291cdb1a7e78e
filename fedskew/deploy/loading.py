"""How an exported file is loaded where there is no fedskew, in Python that is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedskew.deploy.onnx_words import places_of_words
from fedskew.deploy.standalone import HASHED, onnx_inputs_of
from fedskew.runs.preparation import SamplePreparation

LOADING = {
    "onnx": (
        "import onnxruntime",
        "session = onnxruntime.InferenceSession({path!r})",
        '(answers,) = session.run(None, {{"inputs": rows}})',
    ),
    "onnx of words": (
        "import onnxruntime",
        "session = onnxruntime.InferenceSession({path!r})",
        "(answers,) = session.run(None, {given})",
    ),
    "torch": (
        "import torch",
        "model = torch.jit.load({path!r})",
        "answers = model(torch.as_tensor(rows))",
    ),
    "torch of words": (
        "import json, torch",
        'about = {{"fedskew.json": ""}}; model = torch.jit.load({path!r}, _extra_files=about)',
        'columns = json.loads(about["fedskew.json"])["inputs"]["columns"]',
        'number = lambda c, v: c["words"].get(v, -1 if v else float("nan")) if "words" in c else v',
        "coded = [[number(c, v) for c, v in zip(columns, row)] for row in rows]",
        "answers = model(torch.tensor(coded, dtype=torch.float32))",
    ),
    "safetensors": (
        "import json; from safetensors import safe_open",
        'file = safe_open({path!r}, "np"); about = json.loads(file.metadata()["fedskew"])',
        "weights = {{name: file.get_tensor(name) for name in file.keys()}}",
    ),
    "int8": (
        "import json; from safetensors import safe_open",
        'file = safe_open({path!r}, "np"); names, get = set(file.keys()), file.get_tensor',
        'weights = {{n: get(n) * (get(n + "_scale").reshape(-1, *[1] * (get(n).ndim - 1)) '
        'if n + "_scale" in names else 1) for n in names}}',
    ),
}
"""The lines that load a file; what they are given is float32, and words as they are."""
MOST_NAMED = 8
Given = tuple[tuple[str, str], ...]
"""What the lines are given by name, and what that is."""


@dataclass(frozen=True)
class OneFile:
    """A file that was written; ``difference`` is by how much its answers differ from the model's
    at most, on made-up inputs (None: they could not be tried here). ``given`` names what
    the lines that load it are given, and says what that is.
    """

    path: Path
    form: str
    bytes: int
    difference: float | None = None
    given: Given = (("inputs", ""),)

    @property
    def lines(self) -> tuple[str, ...]:
        """Python that loads it where there is no fedskew."""
        told = [f"# {what}" for _, what in self.given if what]
        names = ", ".join(f'"{name}": {name}' for name, _ in self.given)
        lines = LOADING[self.form]
        return (*told, *(line.format(path=str(self.path), given=f"{{{names}}}") for line in lines))

    def __str__(self) -> str:
        tried = ""
        if self.difference is not None:
            tried = f", answers as the model's to {max(self.difference, 1e-9):.0e}"
        return "\n".join(
            [
                f"{self.path}: {self.bytes:,} bytes{tried}; load it with",
                *(f"    {line}" for line in self.lines),
            ]
        )


def _told(columns: Sequence[str]) -> str:
    """Columns by name, in one line; of many the first."""
    more = f" and {len(columns) - MOST_NAMED} more" if len(columns) > MOST_NAMED else ""
    return ", ".join(" ".join(name.split()) for name in columns[:MOST_NAMED]) + more


def given_to_onnx(preparation: SamplePreparation) -> Given:
    """The inputs of a graph of a table, and of which columns they are."""
    return tuple(
        (name, f"{name}: {told['type']} [rows, {told['shape'][1]}], the columns "
         f"{_told([column['name'] for column in told['columns']])}")
        for name, told in onnx_inputs_of(preparation).items()
    )  # fmt: skip


def given_to_torch(preparation: SamplePreparation) -> tuple[str, Given]:
    """Which lines load a program of torch, which has no words, and what they are given."""
    encoder = preparation.encoder
    words = [encoder.columns[place] for place in places_of_words(encoder)] if encoder else []
    if not encoder or not words:
        return "torch", (("rows", ""),)
    columns = f"the columns {_told([column.name for column in encoder.columns])}"
    if hashes := [column.name for column in words if not column.levels]:
        what = f"rows: float32, {columns}; words of {_told(hashes)} as their numbers: {HASHED}"
        return "torch", (("rows", what),)
    what = f"rows: lists of {columns}; words as they are, '' where there is none"
    return "torch of words", (("rows", what),)
