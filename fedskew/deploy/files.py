"""One file that answers without fedskew: ONNX, or a program of torch."""

from __future__ import annotations

import copy
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.data.tables.encoder import TableEncoder
from fedskew.deploy.loading import OneFile, given_to_onnx, given_to_torch
from fedskew.deploy.onnx_words import as_words, places_of_words, taking_words
from fedskew.deploy.standalone import (
    Standalone,
    inputs_of,
    made_up,
    onnx_inputs_of,
    outputs_of,
)
from fedskew.engine.torch_private import loaded_program, saved_program, traced_program
from fedskew.errors import ConfigError, RunError
from fedskew.runs.preparation import SamplePreparation
from fedskew.store import write_atomically

TRIED = 33
CLOSE = 1e-5
KEY = "fedskew"


def metadata(
    preparation: SamplePreparation, about: Mapping[str, Any], words: bool = False
) -> dict[str, Any]:
    """What a file says of itself; ``words`` are an input of their own, if it takes any."""
    inputs = inputs_of(preparation)
    told: dict[str, Any] = onnx_inputs_of(preparation) if words else {"inputs": inputs}
    return {
        **about,
        **told,
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
    words = bool(preparation.encoder and places_of_words(preparation.encoder))
    if words and preparation.encoder:
        proto = taking_words(proto, preparation.encoder)
    told = metadata(preparation, about, words)
    parts: dict[str, Any] = {
        name: told[name] for name in ("inputs", "words", "outputs") if name in told
    }
    parts[KEY] = told
    for name, value in parts.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = name, json.dumps(value)
    onnx.checker.check_model(proto)
    content = proto.SerializeToString()
    answered = _with_onnxruntime(content, preparation.encoder if words else None)
    difference = None if answered is None else _checked(path, whole, preparation, answered)
    write_atomically(path, content)
    given = given_to_onnx(preparation) if words else (("inputs", ""),)
    return OneFile(path, "onnx of words" if words else "onnx", len(content), difference, given)


def write_onnx_int8(file: OneFile, path: Path, preparation: SamplePreparation) -> OneFile | None:
    """The same graph with weights of eight bits, by onnxruntime; none where that is not here."""
    try:
        from onnxruntime.quantization import quantize_dynamic  # type: ignore[import-untyped]
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder, _quiet():
        made = Path(folder, "int8.onnx")
        proto = _onnx().load(file.path)
        del proto.graph.value_info[:]  # shapes of weights that are turned over on the way
        quantize_dynamic(proto, made)
        content = made.read_bytes()
    exact, small = (
        _with_onnxruntime(each, preparation.encoder if "words" in file.form else None)
        for each in (file.path.read_bytes(), content)
    )
    inputs = made_up(preparation, TRIED)
    difference = None
    if exact and small:
        difference = _difference(exact(inputs), small(inputs))
    write_atomically(path, content)
    return replace(file, path=path, bytes=len(content), difference=difference)


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
    kind, given = given_to_torch(preparation)
    return OneFile(path, kind, len(content), difference, given)


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
        worst = max(worst, _difference(wanted, found))
    if not worst <= CLOSE:
        raise RunError(
            f"{path.name} would answer otherwise than the model does, by up to {worst:.1e}: its "
            "model cannot be written in this format."
        )
    return worst


def _difference(wanted: Tensor, found: Tensor) -> float:
    """By how much answers differ at most, as a share where they are large."""
    return float(((wanted - found).abs() / wanted.abs().clamp(min=1.0)).max())


def _with_onnxruntime(
    content: bytes, words: TableEncoder | None = None
) -> Callable[[Tensor], Tensor] | None:
    """Answers of a graph, which may take words, if there is something here to compute them."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def answered(inputs: Tensor) -> Tensor:
        given = as_words(words, inputs.numpy()) if words else {"inputs": inputs.numpy()}
        (found,) = session.run(None, given)
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
