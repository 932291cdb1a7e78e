"""Small files for small devices: a client's classifier in int8, pruned, or both."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save as pack
from torch import Tensor, nn
from torch.nn.utils import prune as pruning

from fedskew.data.federation import Client, Federation
from fedskew.deploy.export_report import ExportReport
from fedskew.deploy.files import KEY, metadata, write_onnx, write_onnx_int8, write_torch
from fedskew.deploy.int8 import Int8, in_int8, load_plain, plain_tensors, quantised
from fedskew.deploy.loading import OneFile
from fedskew.deploy.measured import HeldOut, measured
from fedskew.deploy.model import (
    EXPORTED,
    Deployed,
    finished_run,
    of_run,
    owners_of,
    run_model,
    with_usual,
    without_decoder,
)
from fedskew.deploy.preparation import preparation_of, run_federation
from fedskew.deploy.threshold import validation_threshold
from fedskew.engine.torch_private import is_convolution
from fedskew.errors import DataError, FedskewError, RunError, unknown
from fedskew.federate.confidence import check_share
from fedskew.methods import find
from fedskew.models import seeded
from fedskew.runs.experiment import Run
from fedskew.runs.preparation import SamplePreparation
from fedskew.store import make_folder, write_atomically, write_json
from fedskew.trust.consent import allow_code_in, code_named_in, found_in_file

CALIBRATION = 512
"""How many training samples are used to find the ranges of a model's activations."""
ABOUT = KEY
FORMS = ("onnx", "torch", "safetensors")
AS_TRAINED, FLOAT = "as trained", "float32"


def export(
    run: str | Path | Run,
    out: str | Path,
    *,
    form: str = "safetensors",
    client: str | None = None,
    int8: bool = True,
    prune: float | None = None,
    data_dir: str | Path | None = None,
    allow_code: bool = False,
) -> ExportReport:
    """Write what a device needs to predict, and say how it is loaded there.

    ``form`` "onnx" and "torch" are one file that takes raw numbers and answers, preparation
    included; "safetensors" are the numbers of the model in every variant asked for, each measured
    on test samples if the run's data are here. :func:`load_export` reads any of these.

    It is the model of ``client`` if clients of the run have their own models, else the global
    one; with ``client`` it is calibrated and tested on that client's data alone. A decoder is left
    out. ``prune`` sets that share of the weights of all convolutions and linear layers to zero,
    the smallest first, without training afterwards; such files are gzipped, because zeros only
    save space when compressed.
    """
    if form not in FORMS:
        raise unknown("format", form, FORMS)
    if prune is not None:
        check_share("prune", prune)
    finished = finished_run(run, allow_code=allow_code)
    folder = Path(out)
    if (folder / "config.json").exists():
        raise RunError(f"{folder} is the folder of a run: choose another one for the exports.")
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose a folder for the exports.")
    has_own = bool(owners_of(finished))
    whole = run_model(finished, client if has_own else None)
    directory = None if data_dir is None else Path(data_dir)
    preparation = preparation_of(finished, directory)
    _check_whose_scale(finished, preparation, client)
    made = of_run(finished, whole, preparation, client if has_own else None)
    mine = preparation.of_client(client) if client else preparation
    made = with_usual(replace(made, preparation=mine), finished, directory)
    federation, notes = _data(finished, directory)
    clients = () if federation is None else _concerned(federation, client)
    samples = None if federation is None else _calibration(federation, clients)
    models, why = _variants(without_decoder(whole), samples, int8, prune)
    make_folder(folder)
    notes = (*notes, *why)
    if form == "safetensors":
        test = None if federation is None else HeldOut.of(federation, clients)
        report = _in_variants(folder, client, made, models, test, notes)
    else:
        report = _in_one_file(folder, form, client, made, models, notes)
    made.save_inputs(folder)
    variants = [asdict(variant) for variant in report.variants]
    files = [file.path.name for file in report.files]
    threshold = None
    with suppress(FedskewError):  # few validation samples choose none
        threshold = vars(validation_threshold(finished.path))
    told = {"variants": variants, "files": files, "notes": notes, "threshold": threshold}
    about = {**made.about, **told}
    write_json(folder / EXPORTED, about)
    return report


def _check_whose_scale(run: Run, preparation: SamplePreparation, client: str | None) -> None:
    """A file holds one scale: where each client has its own, it must be said whose."""
    known = sorted({*preparation.own_scales, *preparation.clients})
    if not known:
        return
    if client is None:
        raise RunError(
            f"clients of {run.path} scale samples each by its own, and a file holds one scale: "
            f"name whose with --client, like {known[0]!r}; for a client that took no part, use "
            "'fedskew adapt', whose folder 'fedskew predict' takes."
        )
    if client not in known:
        raise unknown("client", client, known)


def _data(run: Run, directory: Path | None) -> tuple[Federation | None, tuple[str, ...]]:
    """The run's data, or a note on what cannot be done without them."""
    try:
        return run_federation(run, directory), ()
    except FedskewError as error:
        first = str(error).partition(":")[0]
        return None, (f"nothing was measured, for the run's data cannot be had here ({first})",)


def _in_variants(
    folder: Path,
    client: str | None,
    made: Deployed,
    models: Mapping[str, tuple[nn.Module, Int8 | None]],
    test: HeldOut | None,
    notes: tuple[str, ...],
) -> ExportReport:
    about, whole = {**made.about, **metadata(made.preparation, {})}, made.module
    rows, files = [], []
    if hasattr(whole, "decoder"):
        # The model the run itself saved, to see what the decoder costs.
        rows.append(measured(AS_TRAINED, None, whole, packed(whole, about), test, whole))
    for name, (model, kind) in models.items():
        content = packed(model, {**about, "variant": name, "int8": kind})
        path = _write(folder, name, content)
        # Measure what a device would load, not what was written.
        rows.append(measured(name, path.name, load_export(path), content, test, whole))
        if path.suffix != ".gz":
            files.append(OneFile(path, "int8" if kind else "safetensors", len(content)))
    tested = sum(len(y) for y in test.y) if test else 0
    return ExportReport(folder, client, tested, tuple(rows), notes, tuple(files))


def _in_one_file(
    folder: Path,
    form: str,
    client: str | None,
    made: Deployed,
    models: Mapping[str, tuple[nn.Module, Int8 | None]],
    notes: tuple[str, ...],
) -> ExportReport:
    write, suffix = {"onnx": (write_onnx, ".onnx"), "torch": (write_torch, ".pt")}[form]
    files: list[OneFile] = []
    for name, (model, kind) in models.items():
        stem = "model" if name == FLOAT else f"model-{_plain(name)}"
        path, about = folder / f"{stem}{suffix}", {**made.about, "variant": name}
        if kind is None or form == "torch":
            files.append(write(path, model, made.preparation, about))
            continue
        # torch's own int8 has no counterpart in ONNX: onnxruntime makes it of the graph.
        exact = next(file for file in files if file.path.stem == stem.removesuffix("-int8"))
        small = write_onnx_int8(exact, path, made.preparation)
        if small is None:
            notes = (*notes, "int8 of ONNX files is made by onnxruntime, which is not installed")
        else:
            files.append(small)
    return ExportReport(folder, client, 0, (), notes, tuple(files))


def _variants(
    slim: nn.Module, samples: Tensor | None, int8: bool, prune: float | None
) -> tuple[dict[str, tuple[nn.Module, Int8 | None]], tuple[str, ...]]:
    """The forms of a model by name, each with its kind of int8, and notes about them."""
    models: dict[str, tuple[nn.Module, Int8 | None]] = {FLOAT: (slim, None)}
    if prune is not None:
        models[f"pruned {100 * prune:g}%"] = (pruned(slim, prune), None)
    notes = []
    for name, (model, _) in list(models.items()) if int8 else ():
        small, kind, why = in_int8(model, samples)
        models["int8" if name == FLOAT else f"{name} int8"] = (small, kind)
        if why is not None:
            notes.append(f"{name}: only linear layers are in int8, for torch gave up ({why})")
    return models, tuple(notes)


def _write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / f"{_plain(name)}.safetensors"
    if "pruned" in name:
        path = path.with_name(f"{path.name}.gz")
        content = gzip.compress(content, mtime=0)
    write_atomically(path, content)
    return path


def _plain(name: str) -> str:
    return name.replace(" ", "-").replace("%", "")


def pruned(module: nn.Module, share: float) -> nn.Module:
    """A copy whose smallest weights, over all layers together, are zero."""
    module = copy.deepcopy(module)
    layers = [
        (layer, "weight")
        for layer in module.modules()
        if isinstance(layer, nn.Linear) or is_convolution(layer)
    ]
    pruning.global_unstructured(layers, pruning.L1Unstructured, amount=share)
    for layer, name in layers:
        pruning.remove(layer, name)  # type: ignore[no-untyped-call]
    return module


def packed(module: nn.Module, about: Mapping[str, Any]) -> bytes:
    """A model's file: the safetensors format, which holds numbers and names and runs nothing."""
    tensors = {name: t.contiguous() for name, t in plain_tensors(module).items()}
    return pack(tensors, metadata={ABOUT: json.dumps(about, sort_keys=True)})


def load_export(path: str | Path, *, allow_code: bool = False) -> nn.Module:
    """A model from one of the files :func:`export` wrote, ready to predict."""
    if allow_code:
        allow_code_in(path)
    try:
        content = Path(path).read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        plain = parse(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about = json.loads(header["__metadata__"][ABOUT])
        found_in_file(Path(path), code_named_in(about))
    except (OSError, EOFError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(f"{path} is not a file that fedskew exported: {error}.") from error
    shape = tuple(about["sample_shape"])
    module = seeded(about["model"]["name"], shape, about["classes"], seed=0,
                    **about["model"]["knobs"])  # fmt: skip
    extends = find(about["method"]["name"]).recipe(**about["method"]["knobs"]).extends
    module = without_decoder(extends(module) if extends else module)
    if about["int8"]:
        module = quantised(module, about["int8"], torch.zeros(2, *shape))
    load_plain(module, plain)
    return module.eval()


def _concerned(federation: Federation, client: str | None) -> Sequence[Client]:
    if client is None:
        return federation.clients
    if client not in federation.by_name:
        raise unknown("client", client, federation.by_name)
    return (federation.by_name[client],)


def _calibration(federation: Federation, clients: Sequence[Client]) -> Tensor:
    """Training samples of all these clients, evenly taken."""
    rows = np.concatenate([client.train for client in clients])
    if not len(rows):
        raise DataError(f"client {clients[0].name!r} has no training samples to calibrate with.")
    return federation.x[rows[:: -(-len(rows) // CALIBRATION)]]
