"""`smallvit audit` and `smallvit cache`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smallvit.augment.config import PresetName
from smallvit.cli.app import app, refusal
from smallvit.cli.options import AUDIT, requested, with_options
from smallvit.cli.terminal import legible, say
from smallvit.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType
    from torch import Tensor

    from smallvit.augment.config import AugmentConfig
    from smallvit.data import Audit, Dataset


@app.command()
@with_options(AUDIT)
def audit(
    context: typer.Context,
    json: Annotated[
        Path | None, typer.Option(help="Write the audit to this file as JSON; - prints it.")
    ] = None,
    preview: Annotated[
        Path | None,
        typer.Option(help="Write a PNG of what the model sees, fitted and augmented."),
    ] = None,
    augment: Annotated[
        PresetName | None,
        typer.Option(
            help="The recipe whose augmentation the preview shows; by default that of auto."
        ),
    ] = None,
    **_: Any,
) -> None:
    """Say what is wrong with a dataset before anything is trained on it.

    Exits with 1 if there are errors that would stop training.
    """
    from rich.console import Console

    from smallvit.data import audit as run_audit
    from smallvit.data import preview as draw_preview
    from smallvit.files import check_target
    from smallvit.runs.config import RunConfig
    from smallvit.runs.dataset import open_data

    config = RunConfig().changed(requested(context)).data
    if not config.source:
        raise refusal("which data? Give DATA")
    for target in (json, preview):
        if target is not None:
            check_target(target)
    # What is allowed is audited all the same.
    dataset = open_data(replace(config, allow=()), progress=sys.stderr.isatty())
    result = run_audit(dataset)
    if json == Path("-"):
        say(result.to_json())
    else:
        Console().print(_render(result))
        if json is not None:
            json.write_text(result.to_json() + "\n")
    if preview is not None:
        dataset, chosen = _as_trained(dataset, result)
        draw_preview(dataset, preview, augment=_augmenter(dataset, augment, chosen, result))
        say(f"wrote {preview}", err=True)
    if result.errors(config.allow):
        raise typer.Exit(1)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
) -> None:
    """List the decoded images kept on disk, or remove them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from smallvit.data import cache as store

    if clear:
        say(f"freed {store.clear() / 1e6:,.1f} MB in {store.directory()}")
        return
    entries = store.entries()
    table = Table("source", "split", "images", "size", "fit", "MB", box=None, pad_edge=False)
    for entry in entries:
        about = entry.about
        shape = about.get("shape")
        if not isinstance(shape, list) or len(shape) != 4:
            shape = ["?"] * 4
        count, _, height, width = shape
        cells = [about.get("source", "?"), about.get("split", "?"), count, f"{height}×{width}"]
        cells += [about.get("fit", "?"), f"{entry.size / 1e6:,.1f}"]
        table.add_row(*(Text(legible(str(cell))) for cell in cells))
    if entries:
        Console().print(table)
    say(f"{counted(len(entries), 'entry', 'entries')} in {store.directory()}")


def _as_trained(dataset: "Dataset", result: "Audit") -> "tuple[Dataset, AugmentConfig]":
    """The dataset at the requested size or that of the recipe auto, and its augmentation."""
    from smallvit.devices import choose_device
    from smallvit.recipes import RECIPES, Facts

    facts = Facts.of(dataset, result, choose_device("auto").type)
    config = RECIPES["auto"].choose(facts).config
    size = config.data.image_size
    return dataset if size is None else dataset.sized(size), config.augment


def _augmenter(
    dataset: "Dataset", preset: PresetName | None, chosen: "AugmentConfig", result: "Audit"
) -> "Callable[[Tensor, Tensor], Tensor] | None":
    """A recipe's crop, flip (where it is harmless) and policy."""
    if preset == "none":
        return None
    import torch

    from smallvit.augment import PRESETS, Augmentation

    config = PRESETS[preset] if preset else chosen
    if result.flips_matter:
        config = replace(config, flip=0.0)
    mean, std = dataset.readable().statistics
    classes = len(dataset.classes)
    augmentation = Augmentation(
        config, image_size=dataset.image_size, mean=mean, std=std, num_classes=classes
    )
    return lambda images, positions: augmentation.transform(images, torch.tensor(0), positions)


_ROWS = 40
_COLOURS = {"error": "bold red", "warning": "yellow", "hint": "cyan"}


def _render(audit: "Audit") -> "RenderableType":
    """The audit as tables for a terminal; names are shown literally, whatever they contain."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    counts = Table()
    counts.add_column("class")
    for split in audit.counts:
        counts.add_column(split, justify="right")
    names = list(next(iter(audit.counts.values()), {}))
    for name in names[:_ROWS]:
        counts.add_row(Text(legible(name)), *(f"{part[name]:,}" for part in audit.counts.values()))
    if len(names) > _ROWS:
        counts.add_row(f"and {len(names) - _ROWS:,} more", *("" for _ in audit.counts))
    counts.add_section()
    totals = (f"{sum(part.values()):,}" for part in audit.counts.values())
    counts.add_row(counted(len(names), "class", "classes"), *totals)

    lines = [
        f"{name}: {low:,.4g} to {high:,.4g}, median {middle:,.4g}"
        for name, (low, middle, high) in audit.sizes.items()
    ]
    findings = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    for finding in audit.findings:
        message = Text(legible(finding.message))
        findings.add_row(Text(finding.level, _COLOURS[finding.level]), message)
    if not audit.findings:
        findings.add_row(Text("nothing found", "green"))
    source, sizes = Text(legible(audit.source), "bold"), Text(legible(" · ".join(lines)))
    return Group(source, counts, sizes, Text(), findings)
