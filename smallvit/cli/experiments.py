"""`smallvit compare`, `ablate`, `curve` and `reproduce`: many runs, one answer."""

import contextlib
import logging
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smallvit.cli.app import app, refusal
from smallvit.cli.options import OPTIONS, RUN, requested, with_options
from smallvit.cli.terminal import legible, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from smallvit.experiments.cluster import Place
    from smallvit.experiments.engine import Member, Outcome, RunSet
    from smallvit.reporting.sheet import Sheet, Table

logger = logging.getLogger("smallvit.cli")

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
        help="Names of `smallvit models`, baselines, timm/NAME or auto, each with +drloc if "
        "wanted; pretrained:SOURCE starts from a run folder or a name of timm.",
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


@app.command()
@with_options(SHARED)
def compare(
    context: typer.Context,
    models: Models = None,
    seeds: Seeds = 3,
    out: Out = None,
    changes: Changes = None,
    on: On = None,
    cores: Cores = None,
    **_: Any,
) -> None:
    """Say which of several models is best on your images, or that this cannot be told.

    Every model is trained with the same data, splits and budget, one run after the other.
    """
    from smallvit.experiments import compare_set

    settings = _settings(context, SHARED, changes)
    wanted = None
    if settings.get("data", {}).get("source"):
        wanted = compare_set(settings, models or [], seeds=seeds, command=_command())
    _end(_work("compare", wanted, out, on=on, cores=cores))


@app.command()
@with_options(ABLATED)
def ablate(
    context: typer.Context,
    seeds: Seeds = 3,
    out: Out = None,
    changes: Changes = None,
    on: On = None,
    cores: Cores = None,
    **_: Any,
) -> None:
    """Say what SPT, LSA and DRLoc each add to a model on your images, and together."""
    from smallvit.experiments import ablate_set

    settings = _settings(context, ABLATED, changes)
    wanted = None
    if settings.get("data", {}).get("source"):
        wanted, impossible = ablate_set(settings, seeds=seeds, command=_command())
        for row, reason in impossible.items():
            say(f"{row} is left out: {reason}", err=True)
    _end(_work("ablate", wanted, out, on=on, cores=cores))


@app.command()
@with_options(SHARED)
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
    out: Out = None,
    changes: Changes = None,
    on: On = None,
    cores: Cores = None,
    **_: Any,
) -> None:
    """Say whether more images would help: accuracy against their number, and a forecast."""
    from smallvit.experiments import curve_set

    settings = _settings(context, SHARED, changes)
    wanted = None
    if settings.get("data", {}).get("source"):
        wanted = curve_set(
            settings, models or [], shares=_numbers(shares), seeds=seeds, command=_command()
        )
    folder = _work("curve", wanted, out, on=on, cores=cores)
    if result is not None:
        from smallvit.experiments import read_outcomes
        from smallvit.experiments.curve import make_curves, result_of
        from smallvit.experiments.engine import read_set
        from smallvit.experiments.results import write_curve

        runs = read_set(folder)
        curves = make_curves(runs, read_outcomes(folder))
        write_curve(result, result_of(result.stem, runs, curves))
        say(f"result {result}")
    _end(folder)


@app.command()
@with_options(REPRODUCED)
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
        typer.Option(help="The row's dataset as a folder or file."),
    ] = None,
    results: Annotated[
        Path,
        typer.Option(help="The folder that keeps results as JSON files."),
    ] = Path("results"),
    out: Out = None,
    changes: Changes = None,
    on: On = None,
    cores: Cores = None,
    **_: Any,
) -> None:
    """Train a row of the papers' tables, and show ours beside the published number."""
    from smallvit.config_io import nested, overlaid
    from smallvit.experiments import read_outcomes, reproduce_set
    from smallvit.experiments.engine import read_set
    from smallvit.experiments.reproduce import result_of
    from smallvit.experiments.results import write_result

    if listed:
        _list_rows(results)
        return
    settings = _settings(context, REPRODUCED, changes)
    if data is not None:
        settings = overlaid(settings, nested("data.source", data))
    wanted = None
    if row is not None:
        wanted = reproduce_set(
            row, settings, seeds=seeds, best_of_epochs=best_of_epochs, command=_command()
        )
        out = out or Path("runs") / "reproduce" / row.replace("/", "-")
    folder = _work("reproduce", wanted, out, on=on, cores=cores)
    outcomes = read_outcomes(folder)
    if any(each.state == "finished" for each in outcomes):
        kept = write_result(results, result_of(read_set(folder), outcomes))
        say(f"result {kept}")
    _end(folder)


def _settings(
    context: typer.Context, options: tuple[Any, ...], changes: list[str] | None
) -> dict[str, Any]:
    from smallvit.runs.config import changes_of, layered

    return layered(requested(context, options), changes_of(changes or []))


def _numbers(text: str | None) -> list[float]:
    try:
        return [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise refusal(f"--shares is {text!r}: expected numbers such as 0.1,0.5,1") from None


def _command() -> str:
    return shlex.join(["smallvit", *sys.argv[1:]])


def _work(
    kind: str,
    wanted: "RunSet | None",
    out: Path | None,
    *,
    on: str | None,
    cores: int | None,
) -> Path:
    """Trains what is missing of a set, and says what it shows; its folder."""
    from rich.console import Console

    from smallvit.experiments import begin, conclude
    from smallvit.runs.folder import new_folder

    if wanted is None and out is None:
        what = "which row? Name one, or see --list" if kind == "reproduce" else "which data?"
        raise refusal(f"{what}; or give the folder of an unfinished set with --out")
    if out is None:
        assert wanted is not None
        out = new_folder(Path(str(wanted.facts.get("data", "data"))).name, kind)
    runs = begin(out, wanted)
    if runs.kind != kind:
        raise refusal(f"{out} is a set for `smallvit {runs.kind}`")
    done = _conduct(out, on, cores)
    sheet = conclude(out)
    if not done:
        on = shlex.join(["smallvit", kind, "--out", str(out)])
        say(f"stopped; go on with: {on}", err=True)
        raise typer.Exit(130)
    console = Console()
    for part in renderables(sheet, console.width):
        console.print(part)
    return out


def _end(folder: Path) -> None:
    """Says where the page is, and whether something failed."""
    from smallvit.experiments import read_outcomes
    from smallvit.experiments.conclusions import FIGURE, PAGE

    for name in (FIGURE, PAGE):
        if (folder / name).is_file():
            say(f"{name.partition('.')[0]} {folder / name}")
    if any(each.state == "failed" for each in read_outcomes(folder)):
        raise typer.Exit(1)


def _conduct(folder: Path, on: str | None, cores: int | None) -> bool:
    """Trains what is missing, here or on a cluster; whether all of it was tried."""
    from smallvit.experiments import conduct
    from smallvit.experiments.cluster import address_of, conduct_on_ray

    if on is None:
        if cores is not None:
            raise refusal("--cores is for --on ray: one run after the other takes all of them")
        with _showing(folder) as show:
            return conduct(folder, started=show.started, ended=show.ended)
    address = address_of(on)
    with _showing(folder) as show:

        def started(member: "Member", place: "Place") -> None:
            show.started(member)
            logger.info("%s: on %s, process %d", member.name, place.host, place.pid)

        return conduct_on_ray(folder, address, cores=cores, started=started, ended=show.ended)


def renderables(sheet: "Sheet", width: int) -> "Iterator[RenderableType]":
    """A sheet for a terminal: tables first, and the answer last, where it is seen."""
    from rich.text import Text

    yield _table(sheet.tables[0], width)
    for name, text in sheet.failures.items():
        yield Text(legible(f"failed: {name}: {text}"), style="red")
    for sentence in sheet.notes:
        yield Text(legible(sentence), style="dim")
    for sentence in sheet.lead:
        yield Text(legible(sentence), style="bold")


def _table(table: "Table", width: int) -> "RenderableType":
    """As many columns, from the left, as fit beside each other; the page has all."""
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False)
    lengths = [
        max(
            cell_len(legible(text)) for text in [heading, *(row[number].text for row in table.rows)]
        )
        for number, heading in enumerate(table.columns)
    ]
    fitting = [n for n in range(len(lengths)) if not n or sum(lengths[: n + 1]) + 2 * n <= width]
    for number in fitting:
        justify: Literal["left", "right"] = "right" if number else "left"
        shown.add_column(legible(table.columns[number]), justify=justify, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(legible(row[number].text)) for number in fitting))
    return shown


class Show:
    """Says what happens: a line per run, and a table of the whole set for a terminal."""

    def __init__(self, folder: Path) -> None:
        from smallvit.experiments import read_outcomes

        self.folder = folder
        self.running: dict[str, Member] = {}
        # Read once: a table that is drawn every other second must not keep the training waiting.
        outcomes = read_outcomes(folder)
        self.rows = {each.member.name: each.member.row for each in outcomes}
        self.states = {each.member.name: self._state(each) for each in outcomes}

    @staticmethod
    def _state(outcome: "Outcome") -> tuple[str, float | None]:
        if outcome.state != "finished" or outcome.run is None:
            return outcome.state, None
        evaluation = outcome.run.evaluation()
        return "finished", evaluation.accuracy.value if evaluation else None

    def started(self, member: "Member") -> None:
        """A member is now being trained."""
        self.running[member.name] = member

    def ended(self, outcome: "Outcome") -> None:
        """A member is finished, or has failed."""
        self.running.pop(outcome.member.name, None)
        self.states[outcome.member.name] = state, accuracy = self._state(outcome)
        done = sum(state in ("finished", "failed") for state, _ in self.states.values())
        said = outcome.error if state == "failed" else "no test split"
        if accuracy is not None:
            said = f"{100 * accuracy:.1f} %"
        logger.info("%d of %d: %s: %s", done, len(self.states), outcome.member.name, said)

    def __rich__(self) -> "RenderableType":
        """The table of a running set."""
        from rich.table import Table as RichTable

        shown = RichTable("row", "done", "accuracy", "now", box=None, pad_edge=False)
        for row in dict.fromkeys(self.rows.values()):
            states = [state for name, state in self.states.items() if self.rows[name] == row]
            found = [accuracy for _, accuracy in states if accuracy is not None]
            done = sum(state == "finished" for state, _ in states)
            failed = sum(state == "failed" for state, _ in states)
            now = f"{failed} failed" if failed else ""
            if running := [each for each in self.running.values() if each.row == row]:
                now = ", ".join(
                    f"seed {each.seed}: {progress(self.folder / each.folder)}" for each in running
                )
            mean = f"{100 * sum(found) / len(found):.1f} %" if found else "–"
            shown.add_row(row, f"{done} of {len(states)}", mean, now)
        return shown


def progress(folder: Path) -> str:
    """How far a run is, by what its folder holds."""
    from smallvit.runs.folder import INFO, Run

    if not (folder / INFO).is_file():
        return "reading data"
    run = Run.open(folder)
    log = run.log()
    step = max((int(line["step"]) for line in log), default=0)
    val = [line["accuracy"] for line in log if line["kind"] == "val" and "accuracy" in line]
    share = f"{100 * step / max(run.config.schedule.steps or 1, 1):.0f} %"
    return f"{share}, val {100 * val[-1]:.1f} %" if val else share


@contextlib.contextmanager
def _showing(folder: Path) -> "Iterator[Show]":
    """On a terminal a live table; warnings appear above it."""
    show = Show(folder)
    if not sys.stderr.isatty():
        yield show
        return
    from rich.console import Console
    from rich.live import Live

    console: Console = Console(stderr=True)
    with Live(
        console=console, refresh_per_second=0.5, transient=True, get_renderable=show.__rich__
    ):
        handlers = [
            handler
            for handler in logging.getLogger().handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.__stderr__
        ]
        for handler in handlers:
            handler.setStream(sys.stderr)  # rich's, which writes above the table
        try:
            yield show
        finally:
            for handler in handlers:
                handler.setStream(sys.__stderr__)


def _list_rows(results: Path) -> None:
    """Every row of the papers, with what has been run."""
    from rich.console import Console
    from rich.table import Table as RichTable

    from smallvit.experiments.reproduce import overview

    shown = RichTable(
        *("row", "paper", "model", "recipe", "images seen", "published", "ours", "seeds"),
        box=None,
        pad_edge=False,
    )
    for row, result in overview(results):
        seen = f"{row.images_seen:,}" if row.images_seen else "–"
        ours, seeds = ("not run", "") if result is None else (result.spread(), "")
        if result is not None:
            seeds = str(len(result.trainings))
        about = (row.key, row.paper, row.model, row.recipe, seen, f"{row.accuracy:g}")
        shown.add_row(*map(legible, (*about, ours, seeds)))
    Console().print(shown)
