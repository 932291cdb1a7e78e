"""One file that answers without fedskew: ONNX, or a program of torch; and how it is loaded."""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.deploy.standalone import Standalone, inputs_of, made_up, outputs_of
from fedskew.engine.torch_private import loaded_program, saved_program, traced_program
from fedskew.errors import ConfigError, RunError
from fedskew.runs.preparation import SamplePreparation
from fedskew.store import write_atomically

TRIED = 33
CLOSE = 1e-5
KEY = "fedskew"
LOADING = {
    "onnx": (
        "import onnxruntime",
        "session = onnxruntime.InferenceSession({path!r})",
        '(answers,) = session.run(None, {{"inputs": rows}})',
    ),
    "torch": (
        "import torch",
        "model = torch.jit.load({path!r})",
        "answers = model(torch.as_tensor(rows))",
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
"""The three lines that load a file; ``rows`` are float32 as its metadata say."""


@dataclass(frozen=True)
class OneFile:
    """A file that was written; ``difference`` is by how much its answers differ from the model's
    at most, on made-up inputs (None: they could not be tried here).
    """

    path: Path
    form: str
    bytes: int
    difference: float | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """Python that loads it where there is no fedskew."""
        return tuple(line.format(path=str(self.path)) for line in LOADING[self.form])

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


def metadata(preparation: SamplePreparation, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of itself."""
    return {
        **about,
        "inputs": inputs_of(preparation),
        "outputs": outputs_of(preparation),
        "preparation": _figures(preparation),
    }


def _figures(preparation: SamplePreparation) -> dict[str, Any]:
    """What is done to inputs, without what is done to none and what concerns others."""
    usual = asdict(SamplePreparation("", (), (), (), ()))
    mine = asdict(replace(preparation, clients={}, own_scales={}, class_names=()))
    return {name: value for name, value in mine.items() if value != usual[name]}


def _standing(model: nn.Module, preparation: SamplePreparation) -> Standalone:
    """The model with its preparation, for answers only: nothing in the file wants a gradient."""
    return Standalone(copy.deepcopy(model), preparation).eval().requires_grad_(False)


def write_onnx(
    path: Path, model: nn.Module, preparation: SamplePreparation, about: Mapping[str, Any]
) -> OneFile:
    """An ONNX graph with the preparation inside."""
    onnx = _onnx()
    whole, example = _standing(model, preparation), made_up(preparation, TRIED)
    rows = torch.export.Dim("rows", min=1)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), _quiet():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                whole, (example,), dynamo=True, verbose=False, input_names=["inputs"],
                output_names=["answers"], dynamic_shapes=({0: rows},),
            )  # fmt: skip
        except Exception as error:  # as many ways as there are models
            raise RunError(f"torch cannot write this model as ONNX: {_first(error)}.") from error
    assert program is not None
    proto = program.model_proto
    told = metadata(preparation, about)
    for name, value in {KEY: told, "inputs": told["inputs"], "outputs": told["outputs"]}.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = name, json.dumps(value)
    onnx.checker.check_model(proto)
    content = proto.SerializeToString()
    answered = _with_onnxruntime(content)
    difference = None if answered is None else _checked(path, whole, preparation, answered)
    write_atomically(path, content)
    return OneFile(path, "onnx", len(content), difference)


def write_torch(
    path: Path, model: nn.Module, preparation: SamplePreparation, about: Mapping[str, Any]
) -> OneFile:
    """A program that torch.jit.load takes, with the preparation inside."""
    whole, example = _standing(model, preparation), made_up(preparation, TRIED)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            traced = traced_program(whole, example)
        except Exception as error:  # as many ways as there are models
            raise RunError(f"torch cannot trace this model: {_first(error)}.") from error
        extra = {f"{KEY}.json": json.dumps(metadata(preparation, about))}
        content = saved_program(traced, extra)
        loaded = loaded_program(content)
    difference = _checked(path, whole, preparation, loaded)
    write_atomically(path, content)
    return OneFile(path, "torch", len(content), difference)


def _checked(
    path: Path,
    whole: nn.Module,
    preparation: SamplePreparation,
    answered: Callable[[Tensor], Tensor],
) -> float:
    """By how much a file's answers differ from the model's, on other numbers of rows than that it
    was made with.
    """
    worst = 0.0
    for rows in (1, 2, TRIED):
        inputs = made_up(preparation, rows)
        with torch.no_grad():
            wanted, found = whole(inputs), answered(inputs)
        if wanted.shape != found.shape:
            raise RunError(f"{path.name} would answer {rows} rows otherwise than the model does.")
        scale = wanted.abs().clamp(min=1.0)
        worst = max(worst, float(((wanted - found).abs() / scale).max()))
    if not worst <= CLOSE:
        raise RunError(
            f"{path.name} would answer otherwise than the model does, by up to {worst:.1e}: its "
            "model cannot be written in this format."
        )
    return worst


def _with_onnxruntime(content: bytes) -> Callable[[Tensor], Tensor] | None:
    """Answers of a graph, if there is something here to compute them."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def answered(inputs: Tensor) -> Tensor:
        (found,) = session.run(None, {"inputs": inputs.numpy()})
        return torch.from_numpy(np.asarray(found))

    return answered


def _onnx() -> Any:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError("format onnx needs two packages: pip install 'fedskew[onnx]'.") from error
    return onnx


class _quiet:
    """torch's exporter logs what it skips, which nobody asked for."""

    def __enter__(self) -> None:
        self._before = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        logging.disable(self._before)


def _first(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0].rstrip(".")
