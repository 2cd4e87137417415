"""`smallvit evaluate`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smallvit.cli.app import app

if TYPE_CHECKING:
    from smallvit.evaluation import Evaluation

_WORST, _CONFUSED = 5, 5

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
DeviceName = Annotated[
    Literal["auto", "cpu", "cuda", "mps"],
    typer.Option("--device", help="Where to compute; auto takes a GPU if there is one."),
]


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]", help="Other images of the same classes; the run's own if left out."
        ),
    ] = None,
    split: Annotated[Literal["train", "val", "test"], typer.Option(help="Which images.")] = "test",
    flip: Annotated[
        bool, typer.Option("--flip", help="Average with the mirror image of each image.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write all numbers to this file as JSON; - prints them.")
    ] = None,
    device: DeviceName = "auto",
) -> None:
    """Say how good a trained model is, and how sure that is.

    The plain test of the run's own data is also kept in the run folder, where the report finds it;
    anything else leaves the run as it is.
    """
    from smallvit.files import write_bytes
    from smallvit.inference.evaluate import evaluate as evaluate_run

    progress = sys.stderr.isatty()
    evaluation = evaluate_run(
        run, data, split=split, flip=flip, device=device, progress=progress, save=True
    )
    if json == Path("-"):
        typer.echo(evaluation.to_json(), nl=False)
        return
    if json is not None:
        write_bytes(json, evaluation.to_json().encode())
    typer.echo(describe(evaluation))


def describe(found: "Evaluation") -> str:
    """An evaluation for a terminal: headline numbers, the worst classes, the largest confusions."""
    from smallvit.evaluation.confusions import largest_confusions
    from smallvit.text import shown

    balanced, ece, loss = found.balanced_accuracy, found.ece, found.log_loss
    lines = [
        found.summary(),
        f"{'balanced':<10} {balanced.percent}  mean recall of the classes",
        f"{'log loss':<10} {loss.value:.3f} ({loss.low:.3f}–{loss.high:.3f})",
        f"{'ECE':<10} {ece.percent}  how far confidence is from accuracy",
    ]
    present = [row for row in found.per_class if row.support]
    worst = sorted(present, key=lambda row: (row.recall.value, -row.support))[:_WORST]
    if len(present) > 2:
        lines += ["", "worst classes (recall)"]
        lines += [
            f"  {row.recall.percent}  {shown(row.name)}, {row.support:,} images" for row in worst
        ]
    confused = largest_confusions(found, _CONFUSED)
    if confused:
        lines += ["", "largest confusions"]
        lines += [
            f"  {pair.images:,} of {pair.support:,} {shown(pair.truth)} taken for "
            f"{shown(pair.answer)}"
            for pair in confused
        ]
    return "\n".join(lines)
