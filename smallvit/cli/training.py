"""`smallvit train`, `smallvit demo` and `smallvit pretrain`."""

import os
import shlex
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smallvit.cli.app import NEIGHBOURS, STARTED, app, refusal, typed
from smallvit.cli.options import OPTIONS, RUN, Command, requested, with_options
from smallvit.cli.terminal import say
from smallvit.cli.threads import leave_room, take_as_many
from smallvit.cli.watching import watched

if TYPE_CHECKING:
    from smallvit.recipes import Plan
    from smallvit.runs import Run, RunConfig

_option = partial(typer.Option, rich_help_panel=RUN)
Out = Annotated[Path | None, _option(help="The run folder; by default runs/<data>-<model>-<n>.")]

_LEFT_OUT = ("--folds", "--drloc", "--teacher")
_PRETRAINING = tuple(option for option in OPTIONS if option.name not in _LEFT_OUT)


@app.command(cls=Command)
@with_options(OPTIONS)
def train(
    context: typer.Context,
    out: Out = None,
    resume: Annotated[
        bool, _option("--resume", help="Go on with the unfinished run in --out.")
    ] = False,
    config: Annotated[
        Path | None, _option("-c", "--config", help="A config file, whole or in part.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        _option("--set", metavar="PATH=VALUE", help="Set one value, such as optim.lr=3e-4."),
    ] = None,
    watch: Annotated[
        bool, _option("--watch", help="Show the run on a local page while it is trained.")
    ] = False,
    **_: Any,
) -> None:
    """Train a model on your images, and say honestly how good it is.

    On several GPUs: torchrun --nproc-per-node=N -m smallvit train ...
    """
    from smallvit.config_io import leaf
    from smallvit.data.cache import programs
    from smallvit.recipes import plan
    from smallvit.runs.changes import changes_of, layered, read_changes
    from smallvit.runs.config import LoopConfig, RunConfig
    from smallvit.training.compiling import load_compiler
    from smallvit.training.distributed import join_world

    # The compilers read these before they compile; their own choice may be emptied by a restart.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(programs()))
    os.environ.setdefault("TRITON_CACHE_DIR", str(programs() / "triton"))
    settings = layered(
        read_changes(config) if config is not None else {},
        requested(context),
        changes_of(changes or []),
    )
    with watched(out or Path("runs")) if watch and _is_first_process() else nullcontext():
        if resume:
            _resume(out, settings)
            return
        # Under torchrun the first process reads, audits and plans, for all.
        world = join_world(leaf(settings, "loop.device") or "auto")
        compiled, minutes = (leaf(settings, key) for key in ("loop.compiled", "schedule.minutes"))
        if isinstance(minutes, str):  # refused where it is read
            minutes = None
        load_compiler(LoopConfig(compiled=compiled).compiles(world.device.type, minutes))
        if world.device.type == "cpu":
            leave_room(NEIGHBOURS, os.environ)
        with world.first():
            planned = (
                plan(changes=settings, progress=sys.stderr.isatty(), started=STARTED)
                if world.leads
                else None
            )
        _run(planned, world.agree(planned.config if planned else RunConfig()), out)


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="The run folder; by default runs/fashion-mini-<model>-<n>.")
    ] = None,
) -> None:
    """Train on the images that come with smallvit: two minutes on two CPU cores."""
    from smallvit.recipes import plan
    from smallvit.reporting import report

    leave_room(NEIGHBOURS, os.environ)
    say("5,000 images of clothes, ten classes, 28×28 pixels: training a small transformer")
    planned = plan("fashion-mini", recipe="demo", started=STARTED)
    counts = {name: len(samples) for name, samples in planned.dataset.splits.items()}
    say(
        f"from scratch on {counts['train']:,} of them; {counts['val']:,} choose the weights, and "
        f"{counts['test']:,} that it never sees test it in the end"
    )
    for reason in planned.reasons.values():
        say(reason)
    run = _train(planned, planned.config, out)
    _show(run)
    say(f"report, for a browser: {report([run.folder])}")
    say("your own images, one folder per class: smallvit train FOLDER")


@app.command()
@with_options(_PRETRAINING)
def pretrain(
    context: typer.Context,
    out: Out = None,
    changes: Annotated[
        list[str] | None,
        _option(
            "--set",
            metavar="PATH=VALUE",
            help="Set one value of the config, such as optim.lr=3e-4.",
        ),
    ] = None,
    **_: Any,
) -> None:
    """Learn from images without their labels, for `smallvit train --pretrained RUN` to start from.

    The images may lie in class folders or not. Test images are left out, as in training.
    """
    from smallvit.config_io import leaf
    from smallvit.devices import choose_device
    from smallvit.recipes import plan
    from smallvit.recipes.recipes import pretraining
    from smallvit.runs.changes import changes_of, layered

    settings = layered(requested(context, _PRETRAINING), changes_of(changes or []))
    if choose_device(leaf(settings, "loop.device") or "auto").type == "cpu":
        leave_room(NEIGHBOURS, os.environ)
    planned = plan(changes=pretraining(settings), progress=sys.stderr.isatty(), started=STARTED)
    run = _train(planned, planned.config, out)
    if not run.finished:
        raise typer.Exit(130)
    val = [line["loss"] for line in run.log() if line["kind"] == "val"]
    if val:
        say(f"error of hidden pixels on validation {val[0]:.3f} at first, {min(val):.3f} at best")
    say(f"run folder {run.folder}")
    say(f"go on with: smallvit train DATA --pretrained {shlex.quote(str(run.folder))}")


def _run(planned: "Plan | None", config: "RunConfig", out: Path | None) -> None:
    """Trains what was planned, once or fold by fold; only the first process has the plan."""
    from smallvit.training.folds import train_folds

    for reason in planned.reasons.values() if planned else ():
        say(reason, err=True)
    if config.data.folds:
        _show_folds(train_folds(config, out=out, command=typed(), started=STARTED))
        return
    run = _train(planned, config, out)
    _show(run)
    if _is_first_process():
        say(f"see why: smallvit report {shlex.quote(str(run.folder))}")


def _train(planned: "Plan | None", config: "RunConfig", out: Path | None) -> "Run":
    from smallvit.training import train as run_training

    return run_training(
        config,
        out=out,
        dataset=planned.dataset if planned else None,
        audited=planned.audit if planned else None,
        command=typed(),
        started=STARTED,
    )


def _resume(out: Path | None, settings: dict[str, Any]) -> None:
    from smallvit.config_io import leaf
    from smallvit.runs import Run
    from smallvit.runs.places import INFO, is_run
    from smallvit.training import resume
    from smallvit.training.folds import config_of_folds, resume_folds

    if out is None:
        source = leaf(settings, "data.source")
        if source and is_run(Path(str(source))):
            given = shlex.quote(str(source))
            raise refusal(
                f"a run to go on with is given as --out: smallvit train --resume --out {given}"
            )
        runs = [Run.open(path.parent) for path in sorted(Path("runs").glob(f"*/{INFO}"))]
        names = [str(run.folder) for run in runs if not run.finished]
        hint = f"; unfinished are {', '.join(names)}" if names else ""
        raise refusal(f"which run? Give it with --out{hint}")
    download = leaf(settings, "data.download") is True
    folders = [out, *sorted(out.glob("fold-*"))]
    begun = [Run.open(folder) for folder in folders if (folder / INFO).exists()]
    unfinished = [run for run in begun if not run.finished]
    if unfinished:
        take_as_many(unfinished[0].info.get("threads"), os.environ)
    if folds := config_of_folds(out):
        folds.refuse_changes(settings)
        _show_folds(resume_folds(out, download=download))
    else:
        Run.open(out).config.refuse_changes(settings)
        _show(resume(out, download=download))


def _show(run: "Run") -> None:
    """How good the model is, what may help, and where it is."""
    from smallvit.reporting.narrative import advise
    from smallvit.training.objective import unlabelled

    if not run.finished:
        raise typer.Exit(130)
    if _is_first_process():
        evaluation = run.evaluation()
        if evaluation:
            say(evaluation.summary())
        elif not unlabelled(run.config, run.folder):
            say("there is no test split, so nothing was tested")
        if seen := run.info.get("seen_before"):
            say(f"The accuracy is too high: the start had learned from {seen:,} of these images.")
        say(advise(run))
        say(f"run folder {run.folder}")


def _show_folds(summary: dict[str, Any]) -> None:
    from smallvit.training.folds import tell_summary

    if "accuracy" not in summary:  # it was stopped
        raise typer.Exit(130)
    if not _is_first_process():
        return
    for line in tell_summary(summary):
        say(line)
    say(f"run folder {summary['folder']}, for predict, export, serve and the others")
    say(f"see why: smallvit report {shlex.quote(summary['folder'])}")


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
