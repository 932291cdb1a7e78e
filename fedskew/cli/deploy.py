"""``fedskew adapt``, ``predict``, ``generate`` and ``drift``: use a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.options import AllowCode

FinishedRun = Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")]
SampleFile = Annotated[
    Path,
    typer.Argument(
        help="An npz (x, and y if labels are known), a CSV or Parquet file, or a folder of "
        "images; in the shape and scale of the dataset as stored.",
        metavar="SAMPLES",
    ),
]
OutFolder = Annotated[Path, typer.Option(help="Folder for the results.", metavar="DIR")]
ClientName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Take this client's own model instead of the global one.",
        show_default=False,
    ),
]
Accuracy = Annotated[
    float,
    typer.Option(
        help="How often answered samples should be right, if the threshold is chosen on the "
        "run's validation data."
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        help="The column of labels in a CSV or Parquet file, if it is not called as in the run's.",
        metavar="COLUMN",
        show_default=False,
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id",
        help="A column (or an array of an npz) that names the samples: carried along, never a "
        "feature.",
        metavar="COLUMN",
        show_default=False,
    ),
]
AdaptedParts = Annotated[
    list[str] | None,
    typer.Option(
        help="A part of the model that adapts, like head or encoder, or all; may be given "
        "several times. The others stay frozen.",
        metavar="PART",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder of datasets, if the run's data are needed; FEDSKEW_DATA, ./data and the "
        "cache are searched too.",
        show_default=False,
    ),
]


def adapt(
    run: FinishedRun,
    samples: SampleFile,
    out: OutFolder,
    client: ClientName = None,
    shots: Annotated[
        int | None,
        typer.Option(help="Samples of every class to draw; by default all are used.", metavar="K"),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Epochs to adapt, if not as the run or its method says.", metavar="N"),
    ] = None,
    part: AdaptedParts = None,
    lr: Annotated[float | None, typer.Option(help="The learning rate, if not the run's.")] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Choose the epochs on held-out shots: stop after N checks without a smaller loss.",
            metavar="N",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the shots and batches, if not the run's.")
    ] = None,
    accuracy: Accuracy = 0.95,
    label: LabelColumn = None,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Make a new client's own model from a run and the client's few labelled samples.

    SAMPLES: an npz (x, y), a CSV or Parquet file, or a folder of images by class, as stored.

    It starts from the run's own model. The folder it writes is all that predict needs.
    """
    from fedskew.deploy.adapt import adapt as adapt_model

    parts = part[0] if part and len(part) == 1 else part
    made = adapt_model(
        run,
        samples,
        out=out,
        client=client,
        shots=shots,
        epochs=epochs,
        part=parts,
        lr=lr,
        patience=patience,
        seed=seed,
        accuracy=accuracy,
        label=label,
        data_dir=data_dir,
        allow_code=allow_code,
    )
    typer.echo(f"{made}\n\nThe model and about.json are in {out}.")


def predict(
    model: Annotated[
        Path,
        typer.Argument(
            help="The folder of a finished run, or of an adapted model.", metavar="MODEL"
        ),
    ],
    samples: SampleFile,
    client: ClientName = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Ask for a label below this probability; by default chosen on the run's "
            "validation data.",
            metavar="T",
        ),
    ] = None,
    accuracy: Accuracy = 0.95,
    out: Annotated[
        Path | None, typer.Option(help="A CSV or Parquet file for all answers.", metavar="FILE")
    ] = None,
    label: LabelColumn = None,
    id_column: IdColumn = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="Also the probability of every class.")
    ] = False,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Label samples, each with its probability, and say which labels to ask for instead.

    MODEL: the folder of a finished run, or one written by adapt or export.

    SAMPLES: an npz (x), a CSV or Parquet file, or a folder of images, as stored.

    Columns are found by name; others are carried along. If the samples have labels, it also says
    how often the answers are right. Rows that hold what no training row held are marked.
    """
    from fedskew.deploy.predict import predict as predict_labels
    from fedskew.deploy.prediction import check_out

    if out is not None:
        check_out(out)
    found = predict_labels(
        model,
        samples,
        client=client,
        threshold=threshold,
        accuracy=accuracy,
        label=label,
        id_column=id_column,
        proba=proba,
        data_dir=data_dir,
        allow_code=allow_code,
    )
    if out is not None:
        found.save(out)
    typer.echo(f"{found}{f'{chr(10) * 2}All answers are in {out}.' if out else ''}")


def generate(
    run: FinishedRun,
    count: Annotated[int, typer.Option(help="How many samples.", metavar="N")],
    out: OutFolder,
    client: ClientName = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Drop samples whose label is less probable; by default what the model reaches on "
            "half of the run's validation samples, or 0.9.",
            metavar="T",
            show_default=False,
        ),
    ] = None,
    balanced: Annotated[
        bool,
        typer.Option("--balanced/--as-drawn", help="The same number of every class, or as drawn."),
    ] = True,
    spread: Annotated[
        float, typer.Option(help="Standard deviation of the codes that are drawn.")
    ] = 1.0,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Compare them with the run's real data: are they useful for training, are they "
            "copies?",
        ),
    ] = True,
    seed: Annotated[int | None, typer.Option(help="Seed of the codes, if not the run's.")] = None,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Make synthetic labelled samples with a run's decoder and classifier.

    Writes samples.npz, report.json and, for images, samples.png.
    """
    from fedskew.deploy.generate import generate as generate_samples

    made = generate_samples(
        run,
        count,
        client=client,
        threshold=threshold,
        balanced=balanced,
        spread=spread,
        check=check,
        seed=seed,
        out=out,
        data_dir=data_dir,
        allow_code=allow_code,
    )
    typer.echo(f"{made}\n\nSamples and report are in {out}.")


def drift(
    run: FinishedRun,
    out: OutFolder,
    client: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The client whose images turn; by default the first unseen one.",
            show_default=False,
        ),
    ] = None,
    shots: Annotated[int, typer.Option(help="Labels of every class it asks for.", metavar="K")] = 2,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="It is unsure below this probability; by default chosen on validation data.",
            metavar="T",
        ),
    ] = None,
    accuracy: Accuracy = 0.95,
    window: Annotated[
        int | None,
        typer.Option(help="Test samples it answers at each angle; by default all.", metavar="N"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the windows and shots.")] = 0,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Turn a client's images step by step: it notices, asks for labels and adapts again."""
    from fedskew.deploy.drift import drift as let_drift

    report = let_drift(
        run,
        out,
        client=client,
        shots=shots,
        threshold=threshold,
        accuracy=accuracy,
        window=window,
        seed=seed,
        data_dir=data_dir,
        allow_code=allow_code,
    )
    typer.echo(f"{report}\n\nThe table and the picture are in {out}.")
