"""`smallvit compare`, `ablate`, `curve` and `reproduce`: many runs, one answer."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from smallvit.cli.app import app, refusal, typed
from smallvit.cli.options import OPTIONS, RUN, with_options
from smallvit.cli.sets import OF_SETS, end, settings_of, work
from smallvit.cli.showing import columns_that_fit
from smallvit.cli.terminal import say
from smallvit.config_io import leaf, nested, overlaid

#: What all runs of a set share.
_NAMES = (
    *("DATA", "--image-size", "--val", "--test", "--allow", "--fit", "--root", "--download"),
    *("--recipe", "--minutes", "--epochs", "--seed", "--device", "--deterministic"),
)
_MINUTES = "Minutes for each run instead of epochs: as many steps as fit are planned."
ABLATED = tuple(
    replace(option, help=_MINUTES) if option.name == "--minutes" else option
    for option in OPTIONS
    if option.name in (*_NAMES, "--model")
)
SHARED = tuple(option for option in ABLATED if option.name != "--model")
REPRODUCED = tuple(
    option
    for option in OPTIONS
    if option.name in ("--root", "--download", "--device", "--deterministic")
)

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--models",
        metavar="A,B,C",
        help="Names of `smallvit models`, baselines, timm/NAME or auto, each with +drloc or "
        "+drloc-released if wanted; pretrained:SOURCE starts from a run folder or a name of timm.",
    ),
]
Seeds = Annotated[int, typer.Option(help="Trainings of each.")]


@app.command()
@with_options(SHARED, more=OF_SETS)
def compare(
    context: typer.Context,
    models: Models = None,
    seeds: Seeds = 3,
    **_: Any,
) -> None:
    """Say which of several models is best on your images, or that this cannot be told.

    Every model is trained with the same data, splits and budget.
    """
    from smallvit.experiments import compare_set
    from smallvit.experiments.folder import SET

    settings = settings_of(context, SHARED)
    wanted = None
    out = context.params["out"]
    goes_on = not models and out is not None and (out / SET).is_file()
    if leaf(settings, "data.source") and not goes_on:
        wanted = compare_set(settings, models or [], seeds=seeds, command=typed())
    end(work(context, settings, wanted))


@app.command()
@with_options(ABLATED, more=OF_SETS)
def ablate(
    context: typer.Context,
    seeds: Seeds = 3,
    **_: Any,
) -> None:
    """Say what SPT, LSA and DRLoc each add to a model on your images, and together."""
    from smallvit.experiments import ablate_set

    settings = settings_of(context, ABLATED)
    wanted = None
    if leaf(settings, "data.source"):
        wanted, impossible = ablate_set(settings, seeds=seeds, command=typed())
        for row, reason in impossible.items():
            say(f"{row} is left out: {reason}", err=True)
    end(work(context, settings, wanted))


@app.command()
@with_options(SHARED, more=OF_SETS)
def curve(
    context: typer.Context,
    models: Models = None,
    shares: Annotated[
        str | None,
        typer.Option(
            metavar="S,S,S",
            help="Shares of the training images; by default doublings up to all of them.",
        ),
    ] = None,
    seeds: Seeds = 3,
    result: Annotated[
        Path | None,
        typer.Option(
            help="Also keep the curves in this JSON file, such as results/curves/cifar10.json.",
            rich_help_panel=RUN,
        ),
    ] = None,
    **_: Any,
) -> None:
    """Say whether more images would help: accuracy against their number, and a forecast."""
    from smallvit.experiments import curve_set

    settings = settings_of(context, SHARED)
    wanted = None
    if leaf(settings, "data.source"):
        wanted = curve_set(
            settings, models or [], shares=_numbers(shares), seeds=seeds, command=typed()
        )
    folder = work(context, settings, wanted)
    if result is not None:
        from smallvit.experiments import read_outcomes
        from smallvit.experiments.curve import make_curves, result_of
        from smallvit.experiments.folder import read_set
        from smallvit.experiments.results import write_curve

        runs = read_set(folder)
        curves = make_curves(runs, read_outcomes(folder))
        write_curve(result, result_of(result.stem, runs, curves))
        say(f"result {result}")
    end(folder)


@app.command()
@with_options(REPRODUCED, more=OF_SETS)
def reproduce(
    context: typer.Context,
    row: Annotated[
        str | None, typer.Argument(metavar="[ROW]", help="Such as cifar100/sl-vit.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List all rows, and what has been run of them.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Trainings.")] = 1,
    best_of_epochs: Annotated[
        bool,
        typer.Option(
            "--best-of-epochs",
            help="Also log the accuracy on the test split at every validation, as papers choose "
            "by it; nothing is chosen by it here.",
        ),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            help="The row's dataset as a folder or file; with --out alone, where it lies now."
        ),
    ] = None,
    results: Annotated[
        Path,
        typer.Option(help="The folder that keeps results as JSON files."),
    ] = Path("results"),
    **_: Any,
) -> None:
    """Train a row of the papers' tables, and show ours beside the published number."""
    from smallvit.experiments import read_outcomes, reproduce_set
    from smallvit.experiments.folder import read_set
    from smallvit.experiments.reproduce import result_of
    from smallvit.experiments.results import write_result

    if listed:
        _list_rows(results)
        return
    settings = settings_of(context, REPRODUCED)
    if data is not None:
        settings = overlaid(settings, nested("data.source", data))
    wanted = usual = None
    if row is not None:
        wanted = reproduce_set(
            row, settings, seeds=seeds, best_of_epochs=best_of_epochs, command=typed()
        )
        usual = Path("runs") / "reproduce" / row.replace("/", "-")

    def keep(folder: Path) -> Path | None:
        outcomes = read_outcomes(folder)
        if not any(each.state == "finished" for each in outcomes):
            return None
        return write_result(results, result_of(read_set(folder), outcomes))

    folder = work(context, settings, wanted, usual, keep)
    if kept := keep(folder):
        say(f"result {kept}")
    end(folder)


def _numbers(text: str | None) -> list[float]:
    try:
        return [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise refusal(f"--shares is {text!r}: expected numbers such as 0.1,0.5,1") from None


def _list_rows(results: Path) -> None:
    """Every row of the papers, with what has been run."""
    from rich.console import Console

    from smallvit.experiments.reproduce import overview

    headings = ("row", "published", "ours", "seeds", "model", "recipe", "images seen", "paper")
    rows = []
    for row, result in overview(results):
        ours, seeds = "not run", ""
        if result is not None:
            mark = "" if result.as_published else " *"
            ours, seeds = result.spread() + mark, str(len(result.trainings))
        seen = f"{row.images_seen:,}" if row.images_seen else "–"
        rows.append((row.key, row.percent, ours, seeds, row.model, row.recipe, seen, row.paper))
    console = Console()
    if not console.is_terminal:
        console.width = 160  # whole lines for whoever reads them next
    console.print(columns_that_fit(headings, rows, console.width))
    if any(ours.endswith("*") for _, _, ours, *_ in rows):
        say(f"* not the row as it is published: the notes of its file in {results} say why")
