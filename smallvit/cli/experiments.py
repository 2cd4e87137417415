"""`smallvit compare`, `ablate`, `curve` and `reproduce`: many runs, one answer."""

import logging
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smallvit.cli.app import app, refusal, typed
from smallvit.cli.options import OPTIONS, RUN, requested, with_options
from smallvit.cli.showing import columns_that_fit, renderables, showing
from smallvit.cli.terminal import say
from smallvit.config_io import leaf, nested, overlaid

if TYPE_CHECKING:
    from smallvit.experiments.cluster import Place
    from smallvit.experiments.sets import Member, Outcome, RunSet

logger = logging.getLogger("smallvit.cli")

#: What all runs of a set share.
_NAMES = (
    *("DATA", "--image-size", "--val", "--test", "--allow", "--fit", "--root", "--download"),
    *("--recipe", "--minutes", "--epochs", "--seed", "--device", "--deterministic"),
)
#: What may be said of a set that goes on.
_ALWAYS = ("out", "on", "cores", "jobs", "result", "results")
#: And of one that names no rows: its data may lie elsewhere now.
_PLACES = ("data", "root", "download")
_MOVABLE = ("compare", "reproduce")
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
Out = Annotated[
    Path | None,
    typer.Option(
        help="The folder of all runs; by default runs/<data>-<command>-<n>. One that exists goes "
        "on: what is finished is not repeated.",
        rich_help_panel=RUN,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set one value of every run's config, such as optim.lr=3e-4.",
        rich_help_panel=RUN,
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ray[://HOST:PORT]",
        help="Train on a Ray cluster, several runs at a time: the one at that address or at "
        "RAY_ADDRESS, or one of this machine alone.",
        rich_help_panel=RUN,
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Cores of each run with --on; by default a GPU's share of them, or without GPUs all "
        "of a machine.",
        rich_help_panel=RUN,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        help="Runs at a time on this machine, each in a process of its own; by default one.",
        rich_help_panel=RUN,
    ),
]

#: What all commands for sets have, besides the options of a config and their own.
OF_SETS = {"out": Out, "changes": Changes, "jobs": Jobs, "on": On, "cores": Cores}


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

    settings = _settings(context, SHARED)
    wanted = None
    out = context.params["out"]
    goes_on = not models and out is not None and (out / SET).is_file()
    if leaf(settings, "data.source") and not goes_on:
        wanted = compare_set(settings, models or [], seeds=seeds, command=typed())
    _end(_work(context, settings, wanted))


@app.command()
@with_options(ABLATED, more=OF_SETS)
def ablate(
    context: typer.Context,
    seeds: Seeds = 3,
    **_: Any,
) -> None:
    """Say what SPT, LSA and DRLoc each add to a model on your images, and together."""
    from smallvit.experiments import ablate_set

    settings = _settings(context, ABLATED)
    wanted = None
    if leaf(settings, "data.source"):
        wanted, impossible = ablate_set(settings, seeds=seeds, command=typed())
        for row, reason in impossible.items():
            say(f"{row} is left out: {reason}", err=True)
    _end(_work(context, settings, wanted))


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

    settings = _settings(context, SHARED)
    wanted = None
    if leaf(settings, "data.source"):
        wanted = curve_set(
            settings, models or [], shares=_numbers(shares), seeds=seeds, command=typed()
        )
    folder = _work(context, settings, wanted)
    if result is not None:
        from smallvit.experiments import read_outcomes
        from smallvit.experiments.curve import make_curves, result_of
        from smallvit.experiments.folder import read_set
        from smallvit.experiments.results import write_curve

        runs = read_set(folder)
        curves = make_curves(runs, read_outcomes(folder))
        write_curve(result, result_of(result.stem, runs, curves))
        say(f"result {result}")
    _end(folder)


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
    settings = _settings(context, REPRODUCED)
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

    folder = _work(context, settings, wanted, usual, keep)
    if kept := keep(folder):
        say(f"result {kept}")
    _end(folder)


def _settings(context: typer.Context, options: tuple[Any, ...]) -> dict[str, Any]:
    from smallvit.runs.changes import changes_of, layered

    return layered(requested(context, options), changes_of(context.params["changes"] or []))


def _refuse_settings(context: typer.Context) -> None:
    """Refuses what says how to train where nothing says on what: a set goes on as it began."""
    allowed = (*_ALWAYS, *(_PLACES if context.command.name in _MOVABLE else ()))
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in allowed
        and (source := context.get_parameter_source(parameter.name or "")) is not None
        and source.name == "COMMANDLINE"
    ]
    if given:
        what = "ROW" if context.command.name == "reproduce" else "DATA"
        raise refusal(
            f"{', '.join(given)}: a set goes on with what it began with; leave that out, or "
            f"give {what} too to add runs to it"
        )


def _numbers(text: str | None) -> list[float]:
    try:
        return [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise refusal(f"--shares is {text!r}: expected numbers such as 0.1,0.5,1") from None


def _work(
    context: typer.Context,
    settings: dict[str, Any],
    wanted: "RunSet | None",
    usual: Path | None = None,
    keep: Callable[[Path], object] = lambda folder: None,
) -> Path:
    """Trains what is missing of a set, the wanted one or that in --out, and says what it shows.

    Args:
        context: What was typed.
        settings: Of it, those of a config.
        wanted: The set, if settings name one.
        usual: Its folder without --out.
        keep: Called after every run that has ended: what comes after it may be stopped.

    Returns:
        Its folder.
    """
    from rich.console import Console

    from smallvit.experiments import begin, conclude
    from smallvit.experiments.cluster import address_of
    from smallvit.experiments.folder import SET, read_set, relocate
    from smallvit.experiments.jobs import check_jobs
    from smallvit.runs.places import new_folder

    kind, out = str(context.command.name), context.params["out"] or usual
    if wanted is None and out is None:
        what = "which row? Name one, or see --list" if kind == "reproduce" else "which data?"
        raise refusal(f"{what}; or give the folder of an unfinished set with --out")
    if wanted is None:
        _refuse_settings(context)
    jobs, on, cores = (context.params[name] for name in ("jobs", "on", "cores"))
    if on is not None and jobs is not None:
        raise refusal("--jobs is for this machine: with --on the cluster says how many runs fit")
    if on is None and cores is not None:
        raise refusal("--cores is for --on ray: here OMP_NUM_THREADS says how many")
    if on is not None:
        address_of(on)
    if wanted is not None:
        check_jobs(jobs or 1, wanted.members)
    if out is None:
        assert wanted is not None
        out = new_folder(Path(str(wanted.facts.get("data", "data"))).name, kind)
    if (out / SET).is_file() and (found := read_set(out).kind) != kind:
        raise refusal(f"{out} is a set for `smallvit {found}`")
    if wanted is None and (place := {k: v for k, v in settings.get("data", {}).items() if v}):
        relocate(out, place)
    begin(out, wanted)
    done = _conduct(out, jobs or 1, on, cores, keep)
    sheet = conclude(out)
    if not done:
        how = {"--out": out, "--jobs": jobs, "--on": on, "--cores": cores}
        words = [str(word) for pair in how.items() if pair[1] is not None for word in pair]
        command = shlex.join(["smallvit", kind, *words])
        say(f"stopped; go on with: {command}", err=True)
        raise typer.Exit(130)
    console = Console()
    for part in renderables(sheet, console.width):
        console.print(part)
    return out


def _end(folder: Path) -> None:
    """Says where the page is, and whether something failed."""
    from smallvit.experiments import FIGURE, PAGE, read_outcomes

    for name in (FIGURE, PAGE):
        if (folder / name).is_file():
            say(f"{name.partition('.')[0]} {folder / name}")
    if any(each.state == "failed" for each in read_outcomes(folder)):
        raise typer.Exit(1)


def _conduct(
    folder: Path,
    jobs: int,
    on: str | None,
    cores: int | None,
    keep: Callable[[Path], object],
) -> bool:
    """Trains what is missing, here or on a cluster; whether all of it was tried."""
    from smallvit.experiments import conduct
    from smallvit.experiments.cluster import address_of, conduct_on_ray
    from smallvit.experiments.jobs import conduct_jobs

    with showing(folder) as show:

        def ended(outcome: "Outcome") -> None:
            show.ended(outcome)
            try:
                keep(folder)
            except (ValueError, OSError) as error:  # said again in the end, after all are trained
                logger.warning("%s", error)

        if on is None and jobs > 1:
            return conduct_jobs(folder, jobs, started=show.started, ended=ended)
        if on is None:
            return conduct(folder, started=show.started, ended=ended)

        def started(member: "Member", place: "Place") -> None:
            show.started(member)
            logger.info("%s: on %s, process %d", member.name, place.host, place.pid)

        return conduct_on_ray(folder, address_of(on), cores=cores, started=started, ended=ended)


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
        published = f"{row.accuracy:g}"
        rows.append((row.key, published, ours, seeds, row.model, row.recipe, seen, row.paper))
    console = Console()
    if not console.is_terminal:
        console.width = 160  # whole lines for whoever reads them next
    console.print(columns_that_fit(headings, rows, console.width))
    if any(ours.endswith("*") for _, _, ours, *_ in rows):
        say(f"* not the row as it is published: the notes of its file in {results} say why")
