"""What the commands for sets of runs share: their options, and how a set is worked on."""

import logging
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smallvit.cli.app import refusal
from smallvit.cli.options import RUN, Option, requested
from smallvit.cli.showing import renderables, showing
from smallvit.cli.terminal import say

if TYPE_CHECKING:
    from smallvit.experiments.cluster import Place
    from smallvit.experiments.sets import Member, Outcome, RunSet

logger = logging.getLogger("smallvit.cli")

#: What may be said of a set that goes on.
_ALWAYS = ("out", "on", "cores", "jobs", "result", "results")
#: And of one that names no rows: its data may lie elsewhere now.
_PLACES = ("data", "root", "download")
_MOVABLE = ("compare", "reproduce")

#: What all commands for sets have, besides the options of a config and their own.
OF_SETS: dict[str, Any] = {
    "out": Annotated[
        Path | None,
        typer.Option(
            help="The folder of all runs; by default runs/<data>-<command>-<n>. One that exists "
            "goes on: what is finished is not repeated.",
            rich_help_panel=RUN,
        ),
    ],
    "changes": Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Set one value of every run's config, such as optim.lr=3e-4.",
            rich_help_panel=RUN,
        ),
    ],
    "jobs": Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            help="Runs at a time on this machine, each in a process of its own; by default one.",
            rich_help_panel=RUN,
        ),
    ],
    "on": Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="ray[://HOST:PORT]",
            help="Train on a Ray cluster, several runs at a time: the one at that address or at "
            "RAY_ADDRESS, or one of this machine alone.",
            rich_help_panel=RUN,
        ),
    ],
    "cores": Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cores of each run with --on; by default a GPU's share of them, or without GPUs "
            "all of a machine.",
            rich_help_panel=RUN,
        ),
    ],
}


def settings_of(context: typer.Context, options: Sequence[Option]) -> dict[str, Any]:
    """What was typed as a partial config: some options, and above them what is --set."""
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


def work(
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


def end(folder: Path) -> None:
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
