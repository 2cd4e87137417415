"""`smallvit train` and `smallvit demo`."""

import os
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from smallvit.cli.app import app, refusal

if TYPE_CHECKING:
    from smallvit.recipes.plan import Plan
    from smallvit.runs import Run, RunConfig

_STARTED = time.monotonic()

#: Where an option stands in a config, for those that a resumed run must not change.
_PLACES = {
    "data": "data.source",
    "image_size": "data.image_size",
    "fit": "data.fit",
    "val": "data.val",
    "test": "data.test",
    "root": "data.root",
    "download": "data.download",
    "folds": "data.folds",
    "model": "model.name",
    "pretrained": "model.pretrained",
    "drloc": "loss.drloc",
    "epochs": "schedule.epochs",
    "minutes": "schedule.minutes",
    "device": "loop.device",
    "deterministic": "loop.deterministic",
    "recipe": "recipe",
    "seed": "seed",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}


class _Train(TyperCommand):
    """Lets `--drloc` stand alone or be followed by λ."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts in the word that stands for the usual λ."""
        new = []
        for place, word in enumerate(args):
            new.append(word)
            if word == "--drloc" and not _is_number(args[place + 1 : place + 2]):
                new.append("usual")
        return super().parse_args(ctx, new)


def _is_number(words: list[str]) -> bool:
    try:
        return bool(words) and float(words[0]) >= 0
    except ValueError:
        return False


@app.command(cls=_Train)
def train(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="A folder of class folders (alone or below train/ val/ test/), a .csv, .parquet "
            "or .npz file, or a name such as fashion-mini or cifar10.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="A name of `smallvit models`, a baseline, timm/NAME, or auto.")
    ] = "auto",
    recipe: Annotated[
        Literal["auto", "spt-lsa", "compact", "drloc"],
        typer.Option(help="Who decides what is not said: the data, or a paper."),
    ] = "auto",
    epochs: Annotated[float | None, typer.Option(help="Passes over the training images.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Time for the whole command, instead of epochs.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images the model sees.")
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(help="Start from a run folder, a checkpoint, or a model of timm (timm/NAME)."),
    ] = None,
    drloc: Annotated[
        str | None,
        typer.Option(
            metavar="[λ]", help="Add dense relative localization, with this weight or the usual."
        ),
    ] = None,
    folds: Annotated[int, typer.Option(help="Cross-validate: train this many models.")] = 0,
    seed: Annotated[int, typer.Option(help="Of weights, order, augmentation and splits.")] = 0,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to train.")
    ] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="The run folder; by default runs/<data>-<model>-<n>.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="A config file, whole or in part.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="Change one value, such as optim.lr=3e-4."
        ),
    ] = None,
    fit: Annotated[
        Literal["letterbox", "stretch", "crop"],
        typer.Option(help="How images of other shapes come to that size."),
    ] = "letterbox",
    val: Annotated[float | None, typer.Option(help="Share held out for validation.")] = None,
    test: Annotated[float | None, typer.Option(help="Share held out for the test.")] = None,
    root: Annotated[Path | None, typer.Option(help="Where named datasets lie.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch a named dataset that is missing.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="An audit error to go on with: leaks, conflicts, unreadable, case."),
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same numbers again on a GPU, more slowly.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files into the run folder.")
    ] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases.")] = False,
) -> None:
    """Train a model on your images, and say honestly how good it is.

    On several GPUs: torchrun --nproc-per-node=N -m smallvit train ...
    """
    from smallvit.config_io import overlaid
    from smallvit.recipes.plan import plan
    from smallvit.runs.config import DataConfig, RunConfig, changes_of, read_changes
    from smallvit.training.distributed import join_world

    asked = changes_of(changes or [])
    if config is not None:
        asked = overlaid(read_changes(config), asked)
    if resume:
        _resume(out, overlaid(asked, _said(context)))
        return
    source = data or (asked.get("data") or {}).get("source")
    if not source:
        raise refusal("what shall be trained on? Give DATA, or data.source in a config file")
    for name, on in (("tensorboard", tensorboard), ("wandb", wandb)):
        if on:
            asked[name] = True
    if deterministic:
        asked = overlaid(asked, {"loop": {"deterministic": True}})
    make = partial(
        plan,
        str(source),
        recipe=recipe,
        model=model,
        epochs=epochs,
        minutes=minutes,
        pretrained=pretrained,
        drloc=_weight(drloc),
        seed=seed,
        options=DataConfig(
            image_size=image_size,
            fit=fit,
            val=val,
            test=test,
            seed=seed,
            root=str(root) if root else None,
            download=download,
            allow=tuple(allow or ()),
            folds=folds,
        ),
        device=device,
        changes=asked,
        progress=sys.stderr.isatty(),
    )
    # Under torchrun the first process reads, audits and plans, for all.
    world = join_world((asked.get("loop") or {}).get("device", device))
    with world.first():
        made = make() if world.leads else None
    _run(made, world.agree(made.config if made else RunConfig()), out)


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="The run folder; by default runs/fashion-mini-<model>-<n>.")
    ] = None,
) -> None:
    """Train on the images that come with smallvit: two minutes on two CPU cores."""
    from smallvit.recipes.recipes import demo as demo_config
    from smallvit.reporting import report
    from smallvit.training import train as run_training

    typer.echo("5,000 images of clothes, ten classes, 28×28 pixels: training a small transformer")
    run = run_training(demo_config(), out=out, command="smallvit demo", started=_STARTED)
    _tell(run, reported=True)
    typer.echo(f"report {report([run.folder])}")


def _run(made: "Plan | None", config: "RunConfig", out: Path | None) -> None:
    """Trains what was planned, once or a fold at a time."""
    from smallvit.training import train as run_training
    from smallvit.training.folds import tell_summary, train_folds

    if made is not None:
        for reason in made.reasons:
            typer.echo(reason, err=True)
    command = _command()
    if config.data.folds:
        summary = train_folds(config, out=out, command=command)
        if "accuracy" not in summary:
            raise typer.Exit(130)
        _tell_folds(tell_summary(summary), summary["folder"])
        return
    run = run_training(
        config,
        out=out,
        dataset=made.dataset if made else None,
        audited=made.found if made else None,
        command=command,
        started=_STARTED,
    )
    _tell(run)


def _said(context: typer.Context) -> dict[str, Any]:
    """The options that were given on the command line, as parts of a config."""
    from smallvit.config_io import overlaid

    said: dict[str, Any] = {}
    for name, path in _PLACES.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[name]
            value = _weight(value) if name == "drloc" else str(value) if name == "root" else value
            section, _, key = path.partition(".")
            said = overlaid(said, {section: {key: value} if key else value})
    return said


def _resume(out: Path | None, asked: dict[str, Any]) -> None:
    from smallvit.runs import Run
    from smallvit.runs.folder import INFO
    from smallvit.training.folds import resume_folds, tell_summary
    from smallvit.training.train import resume as go_on

    if out is None:
        waiting = [p.parent for p in sorted(Path("runs").glob(f"*/{INFO}"))]
        names = [str(p) for p in waiting if not Run.open(p).finished]
        told = f"; unfinished are {', '.join(names)}" if names else ""
        raise refusal(f"which run? Give it with --out{told}")
    if (out / "fold-0" / INFO).is_file():
        summary = resume_folds(out)
        if "accuracy" not in summary:
            raise typer.Exit(130)
        _tell_folds(tell_summary(summary), str(out))
        return
    wanted = Run.open(out).config.changed(asked) if asked else None
    _tell(go_on(out, config=wanted))


def _tell(run: "Run", *, reported: bool = False) -> None:
    """How good the model is, and where it lies."""
    from smallvit.evaluation.results import Evaluation
    from smallvit.runs.folder import EVALUATION

    if not run.finished:
        raise typer.Exit(130)
    if not _leads():
        return
    path = run.folder / EVALUATION
    if path.exists():
        typer.echo(Evaluation.from_json(path.read_text(encoding="utf-8")).summary())
    else:
        typer.echo("there is no test split, so nothing was tested")
    typer.echo(f"run folder {run.folder}")
    if not reported:
        typer.echo(f"see why: smallvit report {shlex.quote(str(run.folder))}")


def _tell_folds(lines: list[str], folder: str) -> None:
    for line in lines:
        typer.echo(line)
    typer.echo(f"run folders in {folder}")


def _weight(drloc: str | None) -> float | bool:
    if drloc is None:
        return False
    return True if drloc == "usual" else float(drloc)


def _leads() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _command() -> str:
    return shlex.join(["smallvit", *sys.argv[1:]])
