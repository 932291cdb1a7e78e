"""Bad input gets one clear sentence, exit code 2, and leaves earlier results as they were."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskew.cli import main

QUICK = ["--set", "model=logistic", "--set", "train.rounds=2", "--set", "federation.clients=3"]
Refused = Callable[..., str]


def run_quick(out: Path, *settings: str, options: tuple[str, ...] = ()) -> int:
    chosen = [part for setting in settings for part in ("--set", setting)]
    return main(["run", "digits", *QUICK, *chosen, "--out", str(out), *options])


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, which no mistake may touch."""
    out = tmp_path_factory.mktemp("earlier") / "runs"
    assert run_quick(out) == 0
    return out


@pytest.fixture
def refused(earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Refused]:
    """Runs a command with a mistake in it and returns the sentence it printed."""
    before, folders = contents(earlier), sorted(earlier.iterdir())
    capsys.readouterr()

    def attempt(*settings: str, options: tuple[str, ...] = (), told: str = "") -> str:
        code = run_quick(earlier, *settings, options=options)
        printed = capsys.readouterr()
        lines = printed.err.splitlines()
        assert code == 2, printed.err
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        assert lines[0][-1] in ".?"
        assert printed.out == told
        return lines[0]

    yield attempt
    assert contents(earlier) == before
    assert sorted(earlier.iterdir()) == folders


def write_npz(path: Path, **arrays: Any) -> str:
    """Sixty samples of three classes, changed where the test says so."""
    x = np.random.default_rng(0).random((60, 4), dtype=np.float32)
    np.savez(path, **{"x": x, "y": np.arange(60) % 3, **arrays})
    return f"federation.dataset={path}"


def test_unknown_setting_is_answered_with_the_nearest(refused: Refused) -> None:
    assert "'train.roundz': did you mean 'train.rounds'?" in refused("train.roundz=3")


def test_unknown_method_is_answered_with_the_nearest(refused: Refused) -> None:
    assert "method 'fedprx': did you mean 'fedprox'?" in refused("method=fedprx")


def test_unknown_setting_of_a_method_is_answered_with_its_settings(refused: Refused) -> None:
    assert "did you mean 'mu'?" in refused("method=fedprox", "method.muu=0.1")


def test_unknown_dataset_is_answered_with_the_nearest(refused: Refused) -> None:
    assert "did you mean 'mnist'?" in refused("federation.dataset=mnst")


def test_unknown_partition_is_answered_with_the_nearest(refused: Refused) -> None:
    assert "did you mean 'dirichlet'?" in refused("federation.partition=dirichle")


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_more_clients_than_samples(refused: Refused, partition: str) -> None:
    sentence = refused(
        "federation.samples=20", "federation.clients=50", f"federation.partition={partition}"
    )
    assert "50 clients cannot share 20 samples" in sentence


def test_dirichlet_that_cannot_give_everybody_the_minimum(refused: Refused) -> None:
    sentence = refused("federation.partition.alpha=0.001", "federation.clients=40")
    assert "'dirichlet' could not give each of 40 clients min_size=10" in sentence
    assert "raise alpha" in sentence


@pytest.mark.parametrize("rounds", [0, -3])
def test_no_rounds_or_fewer(refused: Refused, rounds: int) -> None:
    sentence = refused(f"train.rounds={rounds}")
    assert "train.rounds" in sentence
    assert "greater than or equal to 1" in sentence
    assert f"given: {rounds}" in sentence


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["vae", "model=mlp"], "'vae' needs a model with an encoder and a decoder, which 'mlp' is"),
        (["fedavg", "model=beta-vae"], "needs a model with a body and a head, which 'beta-vae' is"),
        (
            ["latent-weights", "model=logistic"],
            "choose from beta-vae, conv-civae, conv-vae, dense-civae.",
        ),
        (["vae", "method.beta=-1"], "beta of method 'vae' must be a number of at least 0, not -1."),
        (
            ["vae", "method.beta=nan"],
            "beta of method 'vae' must be a number of at least 0, not nan.",
        ),
        (
            ["vae", "method.eval_beta=-0.5"],
            "eval_beta of method 'vae' must be a number of at least 0, not -0.5.",
        ),
        (["vae", "method.reconstruction=median"], "must be 'sum' or 'mean', not 'median'"),
        (["vae", "method.kl=max"], "kl of method 'vae' must be 'sum' or 'mean', not 'max'."),
        (
            ["vae", "method.weights=x"],
            "weights of method 'vae' must be 'samples', 'batches', 'uniform', "
            "'loss' or none, not 'x'.",
        ),
        (["vae", "method.shared_start=false"], "shared_start = false needs sync = false"),
        (["vae", "method.base=fedrep"], "base = 'fedrep' is made for classifiers"),
        (
            ["vae", "method.base=5"],
            "base of method 'vae' must be a name or a table like {name = …}, not 5.",
        ),
        (["vae", "method.base=fedavgg"], "did you mean 'fedavg'?"),
        (
            ["vae", "method.base=local", "method.weights=uniform"],
            "computes no weighted mean, so leave",
        ),
        (
            ["vae", "method.base=local", "method.sync=false"],
            "base = 'local' does more than average",
        ),
        (["vae", "method.base=local", "method.server_lr=0.5"], "shares nothing, so leave out"),
        (
            ["vae", "method.server_lr=0"],
            "server_lr of method 'vae' must be a number above 0 or none, not 0.",
        ),
        (
            ["latent-weights", "method.encoded=x"],
            "encoded of method 'latent-weights' must be 'sample' or 'mean', not 'x'.",
        ),
        (
            ["latent-weights", "method.control=x"],
            "control of method 'latent-weights' must be 'none', 'best', 'random' "
            "or 'labels', not 'x'.",
        ),
        (
            ["latent-weights", "method.alpha=-0.1"],
            "alpha of method 'latent-weights' must be a number of at least 0, not -0.1.",
        ),
        (
            ["latent-weights", "method.all_zero=x"],
            "all_zero of method 'latent-weights' must be 'size' or 'best', not 'x'.",
        ),
        (
            ["latent-weights-online", "method.every=0"],
            "every of method 'latent-weights-online' must be a whole number of at least 1, not 0.",
        ),
        (
            ["distilled-vae", "method.components=-1"],
            "components of method 'distilled-vae' must be a whole number of at least 0, not -1.",
        ),
        (
            ["distilled-vae", "method.local_rounds=0"],
            "local_rounds of method 'distilled-vae' must be a whole number of at "
            "least 1 or none, not 0.",
        ),
        (
            ["distilled-vae", "method.samples=0"],
            "samples of method 'distilled-vae' must be a whole number of at least "
            "1 or none, not 0.",
        ),
        (["vae", "model=conv-vae"], "images of at least 12x12 pixels, but these are 8x8"),
        (
            ["vae", "model.latent=0"],
            "latent of model 'beta-vae' must be a whole number of at least 1, not 0.",
        ),
        (
            ["vae", "evaluate.fine_tune_epochs=1", "evaluate.fine_tune_part=head"],
            "the model has no part 'head'; it has encoder, decoder",
        ),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_settings_of_generative_methods_that_cannot_work(
    refused: Refused, settings: list[str], says: str
) -> None:
    name, *others = settings
    assert says in refused(f"method={name}", "model=beta-vae", *others)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("features.tpo=3", "unknown setting of features 'tpo': did you mean 'top'?"),
        ("features.top=0", "top of features must be at least 1, not 0"),
        ("features.top=5", "top of features is 5, but flat has only 4 features"),
        ("features.scale=row", "unknown scale of features 'row': choose from client, feature."),
        ("features=4", "federation.features: input should be a valid dictionary (given: 4)"),
        ("by_segment=maybe", "federation.by_segment: input should be a valid boolean"),
    ],
)
def test_settings_of_features_that_cannot_work(
    refused: Refused, tmp_path: Path, setting: str, says: str
) -> None:
    own = write_npz(tmp_path / "flat.npz")
    assert says in refused(own, "federation.partition=iid", f"federation.{setting}")


def test_images_have_no_features_to_choose_from(refused: Refused) -> None:
    sentence = refused("federation.features.top=4")
    assert "samples that are lists of features, but a sample of digits has shape" in sentence


def test_odd_clients_without_an_angle(refused: Refused) -> None:
    sentence = refused('federation.skew=[{name = "rotation", odd = 1}]')
    assert "odd of skew 'rotation' needs odd_angle" in sentence


def test_a_convolutional_vae_wants_images(refused: Refused, tmp_path: Path) -> None:
    setting = write_npz(tmp_path / "flat.npz")
    # Of data of one's own it is said what is learned, before the model is looked at.
    told = "'y' is one of 3 classes: it holds whole numbers.\n"
    settings = (setting, "federation.partition=iid", "method=vae", "model=conv-vae")
    sentence = refused(*settings, told=told)
    assert "'conv-vae' needs images of shape (channels, height, width)" in sentence
    assert "choose from beta-vae." in sentence


@pytest.mark.parametrize(
    ("arrays", "options", "says"),
    [
        ({"x": np.zeros((4, 9, 9), np.uint8)}, [], "shape [1, 9, 9], but the run takes [1, 8, 8]"),
        ({"y": np.array([0, 1, 2, 10])}, [], "label 10 of sample 3 is none of the run's classes"),
        ({"x": np.zeros((0, 8, 8), np.uint8), "y": np.zeros(0, int)}, [], "no samples"),
        ({"x": np.full((4, 8, 8), 16.0)}, [], "pixels span 16 to 16, but those of the run 0 to 1"),
        ({}, ["--shots", "2"], "there are 1 of class '1': ask for fewer"),
        ({}, ["--client", "zoe"], "has a global model only: leave the client out"),
        ({}, ["--part", "neck"], "the model has no part 'neck'; it has body, head"),
    ],
)
def test_samples_and_settings_nobody_can_adapt_to(
    earlier: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arrays: dict[str, Any],
    options: list[str],
    says: str,
) -> None:
    (folder,) = earlier.iterdir()
    given = {"x": np.zeros((4, 8, 8), np.uint8), "y": np.array([0, 0, 1, 2]), **arrays}
    np.savez(tmp_path / "few.npz", **given)
    out = tmp_path / "mine"
    assert main(["adapt", str(folder), str(tmp_path / "few.npz"), "--out", str(out), *options]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert says in sentence
    assert not out.exists()


def test_a_truncated_file_of_samples(
    earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = earlier.iterdir()
    path = tmp_path / "half.npz"
    np.savez(path, x=np.zeros((4, 8, 8), np.uint8))
    path.write_bytes(path.read_bytes()[:100])
    assert main(["predict", str(folder), str(path), "--threshold", "0.5"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "half.npz is not a complete npz file" in sentence


def test_truncated_gz(refused: Refused, tmp_path: Path) -> None:
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for half in ("train", "t10k"):
        for kind, shape in (("images-idx3", (40, 28, 28)), ("labels-idx1", (40,))):
            header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
            whole = gzip.compress(header + bytes(int(np.prod(shape))))
            (folder / f"{half}-{kind}-ubyte.gz").write_bytes(whole[:-12])
    sentence = refused("federation.dataset=mnist", options=("--data-dir", str(tmp_path)))
    assert "train-images-idx3-ubyte.gz" in sentence
    assert "truncated" in sentence


def test_truncated_npz(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "half.npz"
    setting = write_npz(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    sentence = refused(setting)
    assert "half.npz" in sentence
    assert "truncated" in sentence


def test_object_arrays_in_npz_are_refused(refused: Refused, tmp_path: Path) -> None:
    objects = np.array([[{}]] * 60, dtype=object)
    assert "object array" in refused(write_npz(tmp_path / "objects.npz", x=objects))


def test_nan_pixels(refused: Refused, tmp_path: Path) -> None:
    x = np.zeros((60, 4), dtype=np.float32)
    x[7, 2] = np.nan
    assert "sample 7 holds a NaN" in refused(write_npz(tmp_path / "nan.npz", x=x))


@pytest.mark.parametrize("label", [7, -1])
def test_labels_out_of_range(refused: Refused, tmp_path: Path, label: int) -> None:
    y = np.arange(60) % 3
    y[59] = label
    names = np.array(["a", "b", "c"])
    sentence = refused(write_npz(tmp_path / "labels.npz", y=y, class_names=names))
    assert f"label {label} of sample 59 is outside 0..2" in sentence


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ("f,g\n1,2\n", "no label column 'label'"),
        ("f,label\n1,x\n", "differ in column 'g'"),
        ("f,g,label\n", "no rows"),
    ],
)
def test_csv_without_its_label_a_feature_or_any_row(
    refused: Refused, tmp_path: Path, second: str, complaint: str
) -> None:
    (tmp_path / "a.csv").write_text("f,g,label\n1,2,x\n3,4,y\n")
    (tmp_path / "b.csv").write_text(second)
    sentence = refused(f"federation.dataset={tmp_path}", "federation.partition=owner")
    assert "b.csv" in sentence
    assert complaint in sentence


def test_an_empty_client(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_federation.py").write_text(
        "import numpy, torch\n"
        "from fedskew import Client, Federation\n"
        "def make():\n"
        "    rows = numpy.arange(4)\n"
        "    clients = (Client('ann', rows), Client('bob', rows[:0]))\n"
        "    y = torch.tensor([0, 1, 0, 1])\n"
        "    return Federation('own', torch.zeros(4, 2), y, ('a', 'b'), clients)\n"
    )
    monkeypatch.chdir(tmp_path)
    sentence = refused("federation.dataset=own_federation:make")
    assert "client 'bob' has no training samples" in sentence


def test_a_data_folder_that_is_not_there(refused: Refused, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    sentence = refused("federation.dataset=mnist", options=("--data-dir", str(missing)))
    assert f"{missing} is not a readable folder" in sentence


@pytest.mark.parametrize("own", [True, False])
def test_an_unreadable_folder(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    listing = os.listdir

    def forbidden(path: Any = ".") -> list[str]:
        # Permissions do not stop an administrator, so the refusal is acted out.
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr("os.listdir", forbidden)
    dataset = str(tmp_path) if own else "mnist"
    sentence = refused(f"federation.dataset={dataset}", options=("--data-dir", str(tmp_path)))
    assert str(tmp_path) in sentence
    assert "permission" in sentence


def test_a_config_that_is_not_there_or_not_toml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tmp_path / "none.toml")]) == 2
    (tmp_path / "broken.toml").write_text("[train\n")
    assert main(["run", str(tmp_path / "broken.toml")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "could not read" in first
    assert "not valid TOML" in second


def checkpoints(out: Path) -> dict[str, Any]:
    (book,) = out.glob("*/checkpoint.json")
    found: dict[str, Any] = json.loads(book.read_text())
    return found


@pytest.mark.parametrize("lost_call", [8, 9, 13])
def test_full_disk_leaves_the_last_round_to_resume_from(
    earlier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lost_call: int,
) -> None:
    """File 1 is the config, 2 and 3 tell of its inputs, 4-8 make up round 1 and 9-13 round 2, the
    last of each its book."""
    flush, calls = os.fsync, 0

    def full(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= lost_call:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(file)

    monkeypatch.setattr("fedskew.views.figures.draw_run", lambda run, load: run.path)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert run_quick(tmp_path) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "the disk is full" in sentence
    assert "repeat the command" in sentence
    if lost_call > 8:
        assert checkpoints(tmp_path)["stages"]["main"]["last"]["round"] == 1
    assert run_quick(tmp_path) == 0
    (one,), (other,) = tmp_path.iterdir(), earlier.iterdir()
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    model = "models/last/global.safetensors"
    assert (one / model).read_bytes() == (other / model).read_bytes()


def test_a_fault_of_ours_is_code_1_and_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: Any, **named: Any) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.delenv("FEDSKEW_DEBUG", raising=False)
    monkeypatch.setattr("fedskew.comparisons.runner.make_federation", broken)
    assert run_quick(tmp_path) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("internal error: ZeroDivisionError: division by zero")
    assert "FEDSKEW_DEBUG=1" in sentence
    monkeypatch.setenv("FEDSKEW_DEBUG", "1")
    assert run_quick(tmp_path) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_run_begun_with_other_data_is_left_alone_and_another_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.npz"
    setting = write_npz(path)
    settings = (setting, "federation.partition=iid")
    monkeypatch.setattr("fedskew.views.figures.draw_run", lambda run, load: run.path)
    assert run_quick(tmp_path / "runs", *settings) == 0
    (run,) = (tmp_path / "runs").iterdir()
    (run / "result.json").unlink()
    before = contents(run)
    write_npz(path, y=np.arange(60) % 2)
    capsys.readouterr()
    assert run_quick(tmp_path / "runs", *settings) == 0
    (new,) = set((tmp_path / "runs").iterdir()) - {run}
    learned, told, *_ = capsys.readouterr().out.splitlines()
    assert learned.startswith("'y' is one of two classes")
    assert told == f"the data changed since {run.name}; running again in {new}"
    assert contents(run) == before
