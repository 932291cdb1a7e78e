"""Small files for small devices: a client's classifier in int8, pruned, or both."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save as pack
from torch import Tensor, nn
from torch.nn.utils import prune as pruning

from fedskew.data.federation import Client, Federation
from fedskew.deploy.int8 import Int8, in_int8, load_plain, plain_tensors, quantised, weights
from fedskew.deploy.model import AT_ONCE, finished_run, of_run, owners_of, run_model
from fedskew.deploy.preparation import preparation_of, run_federation
from fedskew.engine.torch_private import is_convolution
from fedskew.errors import DataError, RunError, unknown
from fedskew.federate.confidence import check_share
from fedskew.methods import find
from fedskew.models import seeded
from fedskew.runs.experiment import Run
from fedskew.store import make_folder, write_atomically, write_json
from fedskew.trust.consent import allow_code_in, code_named_in, found_in_file

CALIBRATION = 512
"""How many training samples are used to find the ranges of a model's activations."""
TIMED = 50
ABOUT = "fedskew"
AS_TRAINED, FLOAT = "as trained", "float32"


@dataclass(frozen=True)
class Variant:
    """One form of the model: how large it is, and what that does to its answers.

    ``bytes`` and ``gzipped`` are the sizes of its file before and after compression: only
    compression saves space for zeros. ``agrees`` is the share of test samples for which it gives
    the float model's answer, ``milliseconds`` the median time per sample on this machine.
    """

    name: str
    file: str | None
    parameters: int
    zeros: int
    bytes: int
    gzipped: int
    accuracy: float
    agrees: float
    milliseconds: float


@dataclass(frozen=True)
class ExportReport:
    """What was exported; printed as a table."""

    folder: Path
    client: str | None
    tested: int
    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        header = ("variant", "parameters", "zeros", "bytes", "gzipped", "accuracy",
                  "as float", "ms", "file")  # fmt: skip
        rows = [header] + [
            (v.name, f"{v.parameters:,}", f"{v.zeros / v.parameters:.0%}", f"{v.bytes:,}",
             f"{v.gzipped:,}", f"{v.accuracy:.4f}", f"{v.agrees:.4f}", f"{v.milliseconds:.2f}",
             v.file or "–")
            for v in self.variants
        ]  # fmt: skip
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        whom = f"client {self.client!r}" if self.client else "all clients, the mean of theirs"
        about = f"accuracy on {self.tested} test samples of {whom}; written to {self.folder}"
        return "\n".join([*lines, "", about, *(f"note: {note}" for note in self.notes)])


def export(
    run: str | Path | Run,
    out: str | Path,
    *,
    client: str | None = None,
    int8: bool = True,
    prune: float | None = None,
    data_dir: str | Path | None = None,
    allow_code: bool = False,
) -> ExportReport:
    """Write what a device needs to predict, in every form asked for, and measure each.

    It is the model of ``client`` if clients of the run have their own models, else the global
    one; with ``client`` it is calibrated and tested on that client's data alone. A decoder is left
    out. ``prune`` sets that share of the weights of all convolutions and linear layers to zero,
    the smallest first, without training afterwards; such files are gzipped, because zeros only
    save space when compressed. :func:`load_export` reads any of the files.
    """
    if prune is not None:
        check_share("prune", prune)
    finished = finished_run(run, allow_code=allow_code)
    directory = None if data_dir is None else Path(data_dir)
    folder = Path(out)
    if (folder / "config.json").exists():
        raise RunError(f"{folder} is the folder of a run: choose another one for the exports.")
    has_own = bool(owners_of(finished))
    whole = run_model(finished, client if has_own else None)
    preparation = preparation_of(finished, directory)
    about = of_run(finished, whole, preparation, client if has_own else None).about
    federation = run_federation(finished, directory)
    clients = _concerned(federation, client)
    samples, test = _calibration(federation, clients), HeldOut.of(federation, clients)
    make_folder(folder)
    (preparation.of_client(client) if client else preparation).save(folder)

    models, notes = _variants(without_decoder(whole), samples, int8, prune)
    expected = test.answers(whole)
    measured = []
    if hasattr(whole, "decoder"):
        # The model the run itself saved, to see what the decoder costs.
        measured.append(_measured(AS_TRAINED, None, whole, packed(whole, about), test, expected))
    for name, (model, kind) in models.items():
        content = packed(model, {**about, "variant": name, "int8": kind})
        path = _write(folder, name, content)
        # Measure what a device would load, not what was written.
        loaded = load_export(path)
        measured.append(_measured(name, path.name, loaded, content, test, expected))
    tested = sum(len(y) for y in test.y)
    report = ExportReport(folder, client, tested, tuple(measured), notes)
    variants = [asdict(variant) for variant in report.variants]
    write_json(folder / "export.json", {**about, "variants": variants, "notes": notes})
    return report


def _variants(
    slim: nn.Module, samples: Tensor, int8: bool, prune: float | None
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
    path = folder / f"{name.replace(' ', '-').replace('%', '')}.safetensors"
    if "pruned" in name:
        path = path.with_name(f"{path.name}.gz")
        content = gzip.compress(content, mtime=0)
    write_atomically(path, content)
    return path


def without_decoder(module: nn.Module) -> nn.Module:
    """The part that predicts: all of a classifier, or encoder and classifier of a CI-VAE."""
    if not hasattr(module, "decoder"):
        return module
    slim = copy.deepcopy(module)
    del slim.decoder
    return slim


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


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The test samples of some clients, client by client."""

    x: tuple[Tensor, ...]
    y: tuple[Tensor, ...]

    @classmethod
    def of(cls, federation: Federation, clients: Sequence[Client]) -> HeldOut:
        rows = [client.test for client in clients if len(client.test)]
        if not rows:
            raise DataError("there are no test samples to measure an export on.")
        return cls(tuple(federation.x[r] for r in rows), tuple(federation.y[r] for r in rows))

    def answers(self, module: nn.Module) -> tuple[Tensor, ...]:
        """The class that a model predicts for every sample."""
        with torch.no_grad():
            return tuple(
                torch.cat([module(part).argmax(dim=1) for part in torch.split(x, AT_ONCE)])
                for x in self.x
            )


def _measured(
    name: str,
    file: str | None,
    module: nn.Module,
    content: bytes,
    test: HeldOut,
    expected: Sequence[Tensor],
) -> Variant:
    """A variant's sizes, its answers, and how fast it gives them."""
    numbers = weights(module)
    found = test.answers(module)
    return Variant(
        name=name,
        file=file,
        parameters=sum(t.numel() for t in numbers),
        zeros=sum(int((t == 0).sum()) for t in numbers),
        bytes=len(content),
        gzipped=len(gzip.compress(content, mtime=0)),
        accuracy=_agreement(found, test.y),
        agrees=_agreement(found, expected),
        milliseconds=1e3 * _seconds(module, test.x[0][:1]),
    )


def _agreement(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The mean over clients of how often two lists of classes agree."""
    return fmean(float((a == b).float().mean()) for a, b in zip(ours, theirs, strict=True))


def _seconds(module: nn.Module, sample: Tensor) -> float:
    times = []
    with torch.no_grad():
        for _ in range(TIMED):
            begun = perf_counter()
            module(sample)
            times.append(perf_counter() - begun)
    return median(times)
