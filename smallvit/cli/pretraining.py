"""`smallvit pretrain`."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from smallvit.cli.app import NEIGHBOURS, STARTED, app, typed
from smallvit.cli.options import OPTIONS, RUN, requested, with_options
from smallvit.cli.terminal import say
from smallvit.cli.threads import leave_room

_LEFT_OUT = ("--folds", "--drloc", "--teacher")
SHOWN = tuple(option for option in OPTIONS if option.name not in _LEFT_OUT)


@app.command()
@with_options(SHOWN)
def pretrain(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run folder; by default runs/<data>-<model>-<n>.", rich_help_panel=RUN
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Set one value of the config, such as optim.lr=3e-4.",
            rich_help_panel=RUN,
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
    from smallvit.runs.config import changes_of, layered
    from smallvit.training import train

    settings = layered(requested(context, SHOWN), changes_of(changes or []))
    if choose_device(leaf(settings, "loop.device") or "auto").type == "cpu":
        leave_room(NEIGHBOURS, os.environ)
    planned = plan(changes=pretraining(settings), progress=sys.stderr.isatty())
    run = train(
        planned.config,
        out=out,
        dataset=planned.dataset,
        audited=planned.audit,
        command=typed(),
        started=STARTED,
    )
    folder = shlex.quote(str(run.folder))
    if not run.finished:
        raise typer.Exit(130)
    val = [line["loss"] for line in run.log() if line["kind"] == "val"]
    if val:
        say(f"error of hidden pixels on validation {val[0]:.3f} at first, {min(val):.3f} at best")
    say(f"run folder {run.folder}")
    say(f"go on with: smallvit train DATA --pretrained {folder}")
