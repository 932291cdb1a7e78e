"""Exports: the same answers from smaller files, and files that load again without pickle."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as parse
from safetensors.torch import load_file
from torch import Tensor, nn

from fedskew.api import run as run_experiment
from fedskew.deploy.export import (
    export,
    load_export,
    pruned,
)
from fedskew.deploy.export_report import ExportReport
from fedskew.deploy.int8 import in_int8, load_plain, plain_tensors, quantised, weights
from fedskew.deploy.measured import Variant
from fedskew.deploy.model import without_decoder
from fedskew.deploy.preparation import run_federation
from fedskew.errors import ConfigError, FedskewError, RunError
from fedskew.models import build
from fedskew.runs.experiment import Run
from fedskew.runs.preparation import load_preparation
from fedskew.store import read_json


def finished(folder: Path, **changes: Any) -> Run:
    settings = {
        "model": {"name": "mlp", "hidden": [32]},
        "federation": {"clients": 4},
        "train": {"rounds": 3, "epochs": 3},
        **changes,
    }
    return run_experiment(settings, out=folder, draw=False)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def civae(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(
        tmp_path_factory.mktemp("civae"),
        model="conv-civae",
        method={"name": "fedreptile-civae", "eta": 1.0},
        federation={"clients": 4, "normalise": "unit"},
        train={"rounds": 5, "epochs": 6, "optimiser": "adam", "lr": 0.003},
    )


@pytest.fixture(scope="module")
def personal(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(tmp_path_factory.mktemp("personal"), method="fedper")


def by_name(report: ExportReport) -> dict[str, Variant]:
    return {variant.name: variant for variant in report.variants}


def mean_accuracy(run: Run, model: str) -> float:
    (found,) = [
        score["mean"]
        for score in run.result["scores"]
        if (score["at"], score["on"], score["split"]) == ("selected", "seen", "test")
        and (score["model"], score["metric"], score["adapted"]) == (model, "accuracy", "none")
    ]
    return float(found)


def test_the_float_file_is_the_model_of_the_run_and_as_good(
    classifier: Run, tmp_path: Path
) -> None:
    report = export(classifier, tmp_path, int8=False)
    (only,) = report.variants
    x = run_federation(classifier).x[:50]
    with torch.no_grad():
        assert torch.equal(load_export(tmp_path / "float32.safetensors")(x), classifier.model()(x))
    assert only.accuracy == pytest.approx(mean_accuracy(classifier, "global"), abs=1e-6)
    assert only.agrees == 1.0
    assert only.parameters == 64 * 32 + 32 + 32 * 10 + 10
    assert only.bytes == (tmp_path / "float32.safetensors").stat().st_size


def test_int8_weights_are_whole_numbers_of_a_step_per_channel(
    classifier: Run, tmp_path: Path
) -> None:
    """A step is the channel's largest weight over 127.5, and no weight is off by over half one."""
    export(classifier, tmp_path)
    stored = load_file(tmp_path / "int8.safetensors")
    truth = classifier.model().state_dict()
    for layer in ("body.1", "head"):
        weight = truth[f"{layer}.weight"].numpy()
        whole, step = stored[f"{layer}.weight"], stored[f"{layer}.weight_scale"].numpy()
        assert whole.dtype == torch.int8
        np.testing.assert_allclose(step, np.abs(weight).max(axis=1) / 127.5, rtol=1e-5)
        off = np.abs(whole.numpy() * step[:, None] - weight)
        assert (off <= step[:, None] * 0.501).all()
        assert torch.equal(stored[f"{layer}.bias"], truth[f"{layer}.bias"])


def test_an_int8_file_is_a_third_of_the_float_file_and_answers_alike(
    classifier: Run, tmp_path: Path
) -> None:
    report = export(classifier, tmp_path)
    exact, small = by_name(report)["float32"], by_name(report)["int8"]
    assert small.bytes < 0.45 * exact.bytes
    assert small.parameters == exact.parameters
    assert exact.accuracy > 0.6
    assert small.agrees > 0.95
    assert abs(small.accuracy - exact.accuracy) < 0.03
    assert report.notes == ()


def test_pruning_takes_the_smallest_weights_of_all_layers_together(classifier: Run) -> None:
    before, after = classifier.model(), pruned(classifier.model(), 0.6)
    names = ("body.1.weight", "head.weight")
    old = np.concatenate([before.state_dict()[n].numpy().ravel() for n in names])
    new = np.concatenate([after.state_dict()[n].numpy().ravel() for n in names])
    gone = new == 0
    assert gone.sum() == round(0.6 * old.size)
    assert np.abs(old[gone]).max() <= np.abs(old[~gone]).min()
    assert (new[~gone] == old[~gone]).all()
    assert after.state_dict().keys() == before.state_dict().keys()
    assert torch.equal(after.state_dict()["head.bias"], before.state_dict()["head.bias"])


def test_zeros_save_nothing_until_a_file_is_compressed(classifier: Run, tmp_path: Path) -> None:
    report = export(classifier, tmp_path, prune=0.8)
    found = by_name(report)
    assert list(found) == ["float32", "pruned 80%", "int8", "pruned 80% int8"]
    exact, sparse, both = found["float32"], found["pruned 80%"], found["pruned 80% int8"]
    assert sparse.bytes == pytest.approx(exact.bytes, abs=64)
    assert sparse.gzipped < 0.45 * exact.gzipped
    assert both.gzipped < 0.6 * min(sparse.gzipped, found["int8"].gzipped)
    for variant in (sparse, both):
        file = tmp_path / str(variant.file)
        assert file.stat().st_size == variant.gzipped
        assert len(gzip.decompress(file.read_bytes())) == variant.bytes
    # Rounding to whole numbers makes more zeros, and never fewer.
    assert sparse.zeros == round(0.8 * (64 * 32 + 32 * 10))
    assert both.zeros >= sparse.zeros


def test_a_device_gets_no_decoder(civae: Run, tmp_path: Path) -> None:
    report = export(civae, tmp_path)
    found = by_name(report)
    assert list(found) == ["as trained", "float32", "int8"]
    module = civae.model()
    parts = {n: sum(p.numel() for p in m.parameters()) for n, m in module.named_children()}
    assert found["as trained"].parameters == sum(parts.values())
    assert found["float32"].parameters == parts["encoder"] + parts["classifier"]
    assert found["float32"].agrees == found["as trained"].agrees == 1.0
    assert found["as trained"].file is None
    for name in ("float32", "int8"):
        stored = load_file(tmp_path / f"{name}.safetensors")
        assert {entry.split(".")[0].split("_")[0] for entry in stored} <= {
            "encoder", "classifier", "",
        }  # fmt: skip
    x = run_federation(civae).x[:50]
    with torch.no_grad():
        assert torch.equal(load_export(tmp_path / "float32.safetensors")(x), module(x))


def test_convolutions_compute_in_int8_too(civae: Run, tmp_path: Path) -> None:
    report = export(civae, tmp_path)
    stored = load_file(tmp_path / "int8.safetensors")
    layers = [n for n, t in stored.items() if t.ndim > 1]
    assert layers == [
        "classifier.weight", "encoder.0.weight", "encoder.3.weight", "encoder.7.weight",
        "encoder.9.weight",
    ]  # fmt: skip
    assert all(stored[n].dtype == torch.int8 for n in layers)
    # Near-ties of a model that has learnt little would fall either way.
    assert by_name(report)["float32"].accuracy > 0.75
    assert by_name(report)["int8"].agrees > 0.95


class Branching(nn.Module):
    """Does what tracing cannot follow: it looks at the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 3, 3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).mean(dim=(2, 3))
        logits: Tensor = self.head(features if bool(x.sum() > 0) else -features)
        return logits


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("femnist-cnn", (1, 28, 28), "static"),
        ("conv-civae", (1, 28, 28), "static"),
        ("dense-civae", (144,), "static"),
        ("cnn-groupnorm", (1, 16, 16), "static"),
        ("cnn-bn", (1, 28, 28), "dynamic"),
        ("branching", (1, 8, 8), "dynamic"),
    ],
)
def test_int8_models_come_back_bit_for_bit_from_plain_tensors(
    name: str, shape: tuple[int, ...], kind: str
) -> None:
    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = Branching() if name == "branching" else build(name, shape, 10)
        return model.eval()

    x = torch.rand(40, *shape)
    original = made(1)
    small, found, why = in_int8(original, x)
    assert found == kind
    assert (why is None) is (kind == "static")
    again = quantised(made(2), found, torch.zeros(2, *shape))
    plain = plain_tensors(small)
    assert not any(t.is_quantized for t in plain.values())
    load_plain(again, plain)
    with torch.no_grad():
        assert torch.equal(again(x), small(x))
        close = (small(x) - original(x)).abs().max() / original(x).abs().max()
    assert 0 < float(close) < 0.1
    assert any(t.dtype == torch.int8 for t in weights(small))


@pytest.mark.parametrize("engine", ["qnnpack", "x86"])
def test_a_file_loads_on_phones_and_desks_alike(
    classifier: Run, tmp_path: Path, engine: str
) -> None:
    if engine not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch was built without it")
    export(classifier, tmp_path)
    x = run_federation(classifier).x[:200]
    before = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = engine
        with torch.no_grad():
            found = load_export(tmp_path / "int8.safetensors")(x).argmax(dim=1)
            agrees = (found == classifier.model()(x).argmax(dim=1)).float().mean()
    finally:
        torch.backends.quantized.engine = before
    assert float(agrees) > 0.95


def test_a_client_with_a_model_of_its_own_gets_that_one(personal: Run, tmp_path: Path) -> None:
    federation = run_federation(personal)
    client = federation.clients[1]
    report = export(personal, tmp_path, client=client.name)
    with torch.no_grad():
        answers = personal.model(client.name)(federation.x[client.test]).argmax(dim=1)
    right = float((answers == federation.y[client.test]).float().mean())
    assert by_name(report)["float32"].accuracy == pytest.approx(right)
    assert report.tested == len(client.test)


def test_a_client_without_one_gets_the_global_model_tested_on_its_data(
    classifier: Run, tmp_path: Path
) -> None:
    federation = run_federation(classifier)
    client = federation.clients[2]
    report = export(classifier, tmp_path, client=client.name, int8=False)
    with torch.no_grad():
        answers = classifier.model()(federation.x[client.test]).argmax(dim=1)
    right = float((answers == federation.y[client.test]).float().mean())
    assert by_name(report)["float32"].accuracy == pytest.approx(right)


def test_the_table_and_the_folder_tell_the_same(classifier: Run, tmp_path: Path) -> None:
    report = export(classifier, tmp_path, prune=0.5)
    kept = read_json(tmp_path / "export.json")
    assert [v["bytes"] for v in kept["variants"]] == [v.bytes for v in report.variants]
    assert kept["from"] == "global"
    assert load_preparation(tmp_path).class_names == run_federation(classifier).class_names
    lines = str(report).splitlines()
    assert lines[0].split() == [
        "variant", "parameters", "zeros", "bytes", "gzipped", "accuracy", "as", "float", "ms",
        "file",
    ]  # fmt: skip
    assert lines[1].startswith("float32")
    assert f"{report.variants[0].bytes:,}" in lines[1]
    assert sorted(p.name for p in tmp_path.glob("*.safetensors*")) == sorted(
        str(v.file) for v in report.variants
    )


def test_a_file_holds_numbers_and_names_only(classifier: Run, tmp_path: Path) -> None:
    export(classifier, tmp_path, prune=0.5)
    for path in tmp_path.glob("*.safetensors*"):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        assert all(isinstance(t, Tensor) for t in parse(content).values())
        assert str(tmp_path.parent).encode() not in content


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_a_share_outside_0_and_1_is_refused(classifier: Run, tmp_path: Path, share: float) -> None:
    with pytest.raises(ConfigError, match="prune must lie between 0 and 1"):
        export(classifier, tmp_path, prune=share)


def test_what_cannot_be_exported_gets_one_sentence(
    classifier: Run, personal: Run, tmp_path: Path
) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("unknown client 'nobody'", {"run": classifier, "out": tmp_path, "client": "nobody"}),
        ("is not a run folder", {"run": tmp_path / "nowhere", "out": tmp_path}),
        ("is the folder of a run", {"run": classifier, "out": classifier.path}),
        ("no global model", {"run": personal, "out": tmp_path}),
        ("model of its own", {"run": personal, "out": tmp_path, "client": "nobody"}),
    ]
    for says, arguments in cases:
        with pytest.raises(FedskewError, match=says):
            export(**arguments)


def test_a_model_that_predicts_nothing_is_not_exported(tmp_path: Path) -> None:
    vae = finished(
        tmp_path / "runs", model="beta-vae", method="vae", train={"rounds": 1},
        federation={"clients": 4, "normalise": "unit"},
    )  # fmt: skip
    with pytest.raises(RunError, match="has no classifier"):
        export(vae, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b broken", b"not a model", b"\xff" * 64])
def test_other_files_are_not_loaded(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(RunError, match="is not a file that fedskew exported"):
        load_export(path)


def test_a_torch_without_quantisation_says_so(
    classifier: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.ao.quantization.quantize_fx", None)
    with pytest.raises(ConfigError, match="export without int8"):
        export(classifier, tmp_path)
    assert len(export(classifier, tmp_path, int8=False).variants) == 1


def test_a_device_needs_a_quarter_of_the_thesis_model() -> None:
    """Conv 5x5x16+16 and 16x9x32+32, dense 1568x32+32 and 32x14+14, classifier 7x10+10."""
    whole = build("conv-civae", (1, 28, 28), 10)
    assert sum(p.numel() for p in whole.parameters()) == 228_863
    slim = without_decoder(whole)
    assert sum(p.numel() for p in slim.parameters()) == 416 + 4_640 + 50_208 + 462 + 80 == 55_806
    assert hasattr(whole, "decoder")


@pytest.mark.real_data
def test_int8_handwriting_models_are_as_good_as_the_float_ones(
    data_dir: Path, tmp_path: Path
) -> None:
    settings = {
        "federation": {
            "dataset": "femnist", "options": {"digits_only": True}, "partition": "owner",
            "clients": 6, "normalise": "unit",
        },
        "model": "femnist-cnn",
        "train": {"rounds": 3, "epochs": 10, "optimiser": "adam", "lr": 0.002},
        "evaluate": {"every": 3},
    }  # fmt: skip
    done = run_experiment(settings, out=tmp_path / "runs", data_dir=data_dir, draw=False)
    found = by_name(export(done, tmp_path / "out", prune=0.5, data_dir=data_dir))
    # A model that has learnt nothing would keep its accuracy through anything.
    assert found["float32"].accuracy > 0.6
    assert found["float32"].accuracy == pytest.approx(mean_accuracy(done, "global"), abs=1e-6)
    assert found["int8"].bytes < 0.26 * found["float32"].bytes
    assert found["int8"].accuracy > found["float32"].accuracy - 0.03
    assert found["int8"].agrees > 0.95
    assert found["pruned 50% int8"].gzipped < 0.75 * found["int8"].gzipped
