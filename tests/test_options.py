"""One declaration per option: a field of a config and one line in the table are enough."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import pytest
import typer
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.cli.options import AUDIT, OPTIONS, Option, requested, with_options
from smallvit.config_io import field_at
from smallvit.losses.drloc import Mode
from smallvit.runs import Run
from smallvit.runs.changes import read_changes
from smallvit.runs.config import LoopConfig, LossConfig, RunConfig

DATA = Path(__file__).parent.parent / "smallvit" / "data"


def invoke(words, application=app):
    return CliRunner().invoke(application, list(map(str, words)), env={"COLUMNS": "300"})


@dataclass(frozen=True, kw_only=True)
class SparklingLoop(LoopConfig):
    """A loop with one more field.

    Attributes:
        sparkle: How much the images sparkle,
            from 0 to 1.
    """

    sparkle: float = 0.25


@dataclass(frozen=True, kw_only=True)
class SparklingConfig(RunConfig):
    """A config with one more field, deep in its tree."""

    loop: SparklingLoop = field(default_factory=SparklingLoop)


TABLE = (*OPTIONS, Option("--sparkle", "loop.sparkle", "Training"))


@pytest.fixture
def sparkling():
    """A command with one more option; it writes a config file, or compares itself with one."""
    application = typer.Typer(pretty_exceptions_enable=False)

    @application.command()
    @with_options(TABLE, SparklingConfig)
    def train(
        context: typer.Context,
        out: Annotated[Path, typer.Option()],
        resume: Annotated[bool, typer.Option("--resume")] = False,
        **_,
    ):
        settings = requested(context, TABLE)
        if resume:
            SparklingConfig.from_dict(read_changes(out)).refuse_changes(settings)
        else:
            out.write_text(SparklingConfig().changed(settings).to_yaml())

    return application


def test_a_new_option_is_a_field_and_a_line(sparkling, tmp_path):
    shown = invoke(["--help"], sparkling).output
    assert re.search(
        r"--sparkle\s+<float>\s+How much the images sparkle, from 0 to 1\.\s+\[default: 0\.25\]",
        shown,
    )
    out = tmp_path / "config.yaml"
    assert invoke(["photos", "--sparkle", 0.75, "--out", out], sparkling).exit_code == 0
    config = SparklingConfig.from_dict(read_changes(out))
    assert (config.loop.sparkle, config.data.source) == (0.75, "photos")
    assert invoke(["--resume", "--out", out], sparkling).exit_code == 0
    assert invoke(["--sparkle", 0.75, "--resume", "--out", out], sparkling).exit_code == 0
    refused = invoke(["--sparkle", 0.5, "--resume", "--out", out], sparkling)
    assert "loop.sparkle was 0.75 and is 0.5" in str(refused.exception)


def another_value(path):
    """A word on the command line that is not the default of a config field."""
    kind, default, _ = field_at(RunConfig, path)
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value != default)
    if get_origin(kind) is tuple:
        return "leaks,case"
    return "0.5" if float in (kind, *get_args(kind)) else "7"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_help_and_is_compared_on_resume(option, tmp_path):
    paths = option.paths.split()
    assert all(field_at(RunConfig, path).help for path in paths)
    folder = Run.create(tmp_path / "run", RunConfig(), {"status": "interrupted"}).folder
    words = [option.name] * option.name.startswith("-")
    if field_at(RunConfig, paths[0]).kind is not bool:
        words.append(another_value(paths[0]))
    refused = invoke(["train", "--resume", "--out", folder, *words])
    assert refused.exit_code != 0
    assert all(f"{path} was" in str(refused.exception) for path in paths)


def test_help_is_grouped_with_the_most_used_first():
    shown = invoke(["train", "--help"]).output
    panels = re.findall(r"─ (\w+) ─", shown)
    assert panels == ["Arguments", "Options", "Data", "Model", "Training", "Run"]
    listed = re.findall(r"(?m)^│ (--[\w-]+)", shown)
    assert listed[1:] == [
        *("--image-size", "--val", "--test", "--folds", "--allow", "--fit", "--root", "--download"),
        *("--model", "--pretrained", "--recipe", "--minutes", "--epochs", "--drloc"),
        *("--teacher", "--seed"),
        *("--out", "--resume", "--config", "--set", "--watch", "--device", "--deterministic"),
        *("--tensorboard", "--wandb"),
    ]


@pytest.mark.parametrize("command", ["report", "explain", "predict", "export"])
def test_what_is_written_is_named_by_o(command):
    assert re.search(r"--out +-o ", invoke([command, "--help"]).output)


def options_of(command):
    return set(re.findall(r"--[a-z][a-z-]*", invoke([command, "--help"]).output))


def test_messages_about_data_name_options_that_exist():
    text = "\n".join(path.read_text() for path in DATA.glob("*.py"))
    mentioned = re.findall(r"(?:smallvit (\w+) )?(--[a-z][a-z-]*)(?:[ ,])?", text)
    assert ("", "--allow") in mentioned
    for command, option in set(mentioned):
        for known in [command] if command else ["train", "audit"]:
            assert option in options_of(known), (known, option)


@pytest.mark.parametrize("words", [["--allow", "leaks,case"], ["--allow", "leaks", "--allow=case"]])
@pytest.mark.parametrize("table", [OPTIONS, AUDIT], ids=["train", "audit"])
def test_lists_are_separated_by_commas_or_repeated(words, table):
    application = typer.Typer()
    settings = {}

    @application.command()
    @with_options(table)
    def command(context: typer.Context, **_):
        settings.update(requested(context, table))

    assert invoke(words, application).exit_code == 0
    assert settings == {"data": {"allow": ["leaks", "case"]}}
    assert RunConfig().changed(settings).data.allow == ("leaks", "case")


@pytest.mark.parametrize("command", ["train", "audit"])
def test_the_old_spelling_names_the_new_one(command):
    done = invoke([command, "fashion-mini", "--allow-leaks"])
    assert done.exit_code == 2
    assert re.search(r"--allow\b(?!-)", done.output)


def test_the_modes_of_localization_are_those_of_its_loss():
    assert get_args(field_at(LossConfig, "drloc_mode").kind) == get_args(Mode)
