"""`smallvit train` as a person uses it, in one process for speed."""

import json
import logging
import os
import re
import shlex
import signal
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.cli.app import NEIGHBOURS
from smallvit.runs import Run, RunConfig
from smallvit.training.log import Log


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    random = np.random.default_rng(0)
    labels = np.arange(96) % 3
    images = random.integers(0, 100, (96, 16, 16, 3), dtype=np.uint8)
    images += (70 * labels[:, None, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "three.npz"
    np.savez(path, images=images, labels=labels)
    return path


TINY = "--set model.options.dim=32 --set model.options.num_heads=2 --set loop.batch_size=16"


def smallvit(line):
    logging.getLogger("smallvit").setLevel(logging.INFO)
    return CliRunner().invoke(app, shlex.split(line))


def test_one_command_trains_tests_and_says_where(source, tmp_path):
    out = tmp_path / "run"
    done = smallvit(f"train {source} --device cpu --set schedule.steps=3 {TINY} --out {out}")
    assert done.exit_code == 0, done.output
    assert "model hct2_" in done.output  # what it chose, and why
    assert "95 % confidence interval" in done.output
    assert f"run folder {out}" in done.output
    run = Run.open(out)
    assert run.finished
    assert run.config.schedule.steps == 3
    assert run.config.model.options == {"dim": 32, "num_heads": 2}
    accuracy = json.loads((out / "evaluation.json").read_text())["accuracy"]["value"]
    assert f"{100 * accuracy:.1f} %" in done.output
    again = smallvit(f"train -c {out}/config.yaml --out {tmp_path}/again")
    assert again.exit_code == 0, again.output
    weights = [path / "last.safetensors" for path in (out, tmp_path / "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    refused = smallvit(f"train {source} --out {out}")
    assert refused.exit_code != 0
    assert "nothing in it is overwritten" in str(refused.exception)


def test_compiled_programs_are_kept_in_our_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SMALLVIT_CACHE", str(tmp_path))
    folder = tmp_path / "smallvit-compiled-programs"
    ours = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder / "triton"}
    for name in ours:
        monkeypatch.setenv(name, "elsewhere")
    smallvit("train nowhere")
    assert all(os.environ[name] == "elsewhere" for name in ours)
    for name in ours:
        monkeypatch.delenv(name)
    smallvit("train nowhere")
    assert {name: os.environ[name] for name in ours} == {n: str(p) for n, p in ours.items()}


def test_the_run_folder_has_the_next_free_name(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        done = smallvit(f"train {source} --device cpu --set schedule.steps=1 {TINY}")
        assert done.exit_code == 0, done.output
        assert (tmp_path / f"runs/three-hct2_s_p4-{number}/run.json").is_file()


def test_folds(source, tmp_path):
    out = tmp_path / "cross"
    done = smallvit(
        f"train {source} --folds 3 --device cpu --set schedule.steps=1 {TINY} --out {out}"
    )
    assert done.exit_code == 0, done.output
    summary = json.loads((out / "folds.json").read_text())
    assert (summary["folds"], summary["tested"]) == (3, 96)
    assert "over all 96 images, each tested once" in done.output
    assert "±" in done.output
    counted = [
        json.loads((out / f"fold-{fold}/evaluation.json").read_text())["count"] for fold in range(3)
    ]
    assert sum(counted) == 96


class StopAfterAnInterval(logging.Handler):
    """Sends this process SIGTERM when the numbers of an interval are logged."""

    def emit(self, record):
        if "images/s" in record.getMessage():
            os.kill(os.getpid(), signal.SIGTERM)


def smallvit_stopped(line):
    handler = StopAfterAnInterval()
    logging.getLogger("smallvit").addHandler(handler)
    try:
        return smallvit(line)
    finally:
        logging.getLogger("smallvit").removeHandler(handler)


def test_stopping_and_going_on(source, tmp_path):
    out = tmp_path / "run"
    line = (
        f"train {source} --device cpu --drloc --allow leaks,case --set loop.every=2 "
        f"--set schedule.steps=4 {TINY}"
    )
    done = smallvit_stopped(f"{line} --out {out}")
    assert done.exit_code == 130
    assert Run.open(out).info["status"] == "interrupted"
    assert Run.open(out).config.loss.drloc == 0.1
    changed = smallvit(f"train --resume --out {out} --model cct_4_3x2 --set optim.lr=1")
    assert "model.name was 'hct2_s_p4' and is 'cct_4_3x2'" in str(changed.exception)
    assert "optim.lr was 0.003 and is 1.0" in str(changed.exception)
    for option in ("--allow leaks", "--drloc 0.3", "--folds 3", "--image-size 32"):
        refused = smallvit(f"train --resume --out {out} {option}")
        assert refused.exit_code != 0
        assert "a run resumes with the config it began with" in str(refused.exception)
    assert "which run" in smallvit("train --resume").output
    assert f"smallvit train --resume --out {out}" in smallvit(f"train {out} --resume").output
    on = smallvit(f"{line} --resume --out {out}")  # the same options, --drloc without a number
    assert on.exit_code == 0, on.output
    assert smallvit(f"{line} --out {tmp_path}/whole").exit_code == 0
    weights = [path / "last.safetensors" for path in (out, tmp_path / "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_beside_a_busy_process_and_going_on(source, tmp_path, monkeypatch):
    """A run leaves the busy core alone, and goes on with as many threads when it is free."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(NEIGHBOURS, "cores", {0, 1})
    monkeypatch.setattr(NEIGHBOURS, "busy", lambda: 1.0)
    before, out = torch.get_num_threads(), tmp_path / "run"
    line = f"train {source} --device cpu --set loop.every=2 --set schedule.steps=4 {TINY}"
    try:
        torch.set_num_threads(2)
        stopped = smallvit_stopped(f"{line} --out {out}")
        assert "other processes keep 1 of 2 cores busy: computing with 1 thread" in stopped.output
        assert Run.open(out).info["threads"] == 1
        torch.set_num_threads(2)
        monkeypatch.setattr(NEIGHBOURS, "busy", lambda: 0.0)
        on = smallvit(f"train --resume --out {out}")
        assert on.exit_code == 0, on.output
        assert "earlier" not in Run.open(out).info  # nothing changed
    finally:
        torch.set_num_threads(before)


def test_stopping_and_going_on_with_folds(source, tmp_path):
    out = tmp_path / "cross"
    line = (
        f"train {source} --folds 2 --val 0.2 --minutes 50 --device cpu --set loop.every=1 "
        f"--set schedule.steps=2 {TINY} --out {out}"
    )
    assert smallvit_stopped(line).exit_code == 130
    refused = smallvit(f"train --resume --out {out} --folds 3")
    assert "data.folds was 2 and is 3" in str(refused.exception)
    on = smallvit(f"{line} --resume")
    assert on.exit_code == 0, on.output
    assert json.loads((out / "folds.json").read_text())["tested"] == 96


def test_the_command_line_goes_before_a_file_and_set_before_both(source, tmp_path):
    out, file = tmp_path / "run", tmp_path / "config.yaml"
    file.write_text(f"seed: 1\nmodel: {{name: cct_4_3x2}}\ndata: {{source: {source}, val: 0}}\n")
    done = smallvit(
        f"train -c {file} --seed 2 --model cct_2_3x2 --epochs 9 --device cpu "
        f"--set schedule.steps=1 --set seed=3 {TINY} --out {out}"
    )
    assert done.exit_code == 0, done.output
    config = Run.open(out).config
    assert (config.seed, config.data.seed, config.model.name) == (3, 2, "cct_2_3x2")
    assert (config.schedule.steps, config.data.val) == (1, 0)
    assert config.data.image_size == 16
    assert "9 epochs" not in done.output
    assert "model hct" not in done.output


def test_images_of_several_sizes_get_the_planned_size(tmp_path):
    random = np.random.default_rng(0)
    for number in range(40):
        folder = tmp_path / "photos" / ("cats" if number % 2 else "dogs")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (20 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    out = tmp_path / "run"
    done = smallvit(
        f"train {tmp_path}/photos --device cpu --set schedule.steps=1 {TINY} --out {out} "
        "--model cct_2_3x2"
    )
    assert done.exit_code == 0, done.output
    assert "images of 64×64 pixels" in done.output
    run = Run.open(out)
    assert (run.config.data.image_size, run.image_size) == (64, (64, 64))
    assert run.dataset().pixels("test").shape[2:] == (64, 64)


def test_a_baseline_and_localization_through_the_same_command(source, tmp_path):
    out = tmp_path / "run"
    done = smallvit(
        f"train {source} --model cifar_resnet56 --drloc --device cpu --set loop.batch_size=16 "
        f"--set schedule.steps=1 --out {out}"
    )
    assert done.exit_code == 0, done.output
    run = Run.open(out)
    assert run.config.loss.drloc == 0.1
    assert not any("drloc" in name for name in run.model().state_dict())


def test_fine_tuning_a_run_of_ours_with_other_classes(source, tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    smallvit(f"train {source} --device cpu --set schedule.steps=2 {TINY} --out {first}")
    other = tmp_path / "five.npz"
    random = np.random.default_rng(1)
    images = random.integers(0, 255, (80, 20, 20, 1), dtype=np.uint8)
    np.savez(other, images=images, labels=np.arange(80) % 5)
    done = smallvit(
        f"train {other} --pretrained {first} --device cpu --set schedule.steps=2 --out {second}"
        " --set loop.batch_size=16"
    )
    assert done.exit_code == 0, done.output
    run = Run.open(second)
    assert (len(run.classes), run.card.channels, run.image_size) == (5, 1, (16, 16))
    assert run.config.optim.layer_decay < 1
    assert run.model()(torch.zeros(2, 1, 16, 16)).shape == (2, 5)
    monkeypatch.chdir(tmp_path)
    smallvit(f"train {other} --pretrained {first} --set schedule.steps=1 --set loop.batch_size=16")
    assert (tmp_path / "runs/five-first-1/run.json").is_file()
    frozen = smallvit(
        f"train {other} --pretrained {first} --device cpu --set schedule.steps=2 --out"
        f" {tmp_path}/third --set loop.batch_size=16 --set model.frozen=1"
    )
    assert frozen.exit_code == 0, frozen.output
    assert any("are trained" in note for note in Run.open(tmp_path / "third").info["notes"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's own
def test_event_files_if_asked_for(source, tmp_path):
    out = tmp_path / "run"
    done = smallvit(
        f"train {source} --tensorboard --device cpu --set schedule.steps=1 {TINY} --out {out}"
    )
    assert done.exit_code == 0, done.output
    assert list((out / "tensorboard").glob("events*"))


def test_what_is_not_installed_is_missed_before_anything_is_trained(source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "run"
    done = smallvit(
        f"train {source} --wandb --device cpu --set schedule.steps=1 {TINY} --out {out}"
    )
    assert "--wandb needs wandb: pip install wandb" in str(done.exception)
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "efficientnet_b0", "cifar_resnet110"])
def test_baselines_through_the_same_command(source, tmp_path, name):
    out = tmp_path / "run"
    done = smallvit(
        f"train {source} --model {name} --device cpu --set loop.batch_size=16 "
        f"--set schedule.steps=2 --out {out}"
    )
    assert done.exit_code == 0, done.output
    assert Run.open(out).model()(torch.zeros(1, 3, 16, 16)).shape == (1, 3)


@pytest.mark.parametrize(
    ("epoch", "shown"), [(18.9375, "18.9"), (0.125, "0.125"), (300.0, "300"), (1234.56, "1234.6")]
)
def test_epochs_are_shown_in_short(tmp_path, caplog, epoch, shown):
    caplog.set_level("INFO", "smallvit")
    log = Log(Run(tmp_path, RunConfig(), {}), steps=10)
    log.show_interval(epoch, {"loss": 1.0}, {}, 100.0, 12)
    log.close()
    assert f"epoch {shown} · loss 1.000" in caplog.text


def test_lines_stand_above_the_bar(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    log = Log(Run(tmp_path, RunConfig(), {}), steps=10)
    log.advance(5, 10)
    log.show_interval(1.0, {"loss": 1.0, "accuracy": 0.5}, {"accuracy": 0.4}, 100.0, 12)
    log.tell("a line")
    log.close()
    shown = capsys.readouterr().err
    assert "loss 1.000" in shown
    assert "a line" in shown


def test_a_terminal_gets_a_bar(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    line = f"train {source} --device cpu --set schedule.steps=2 {TINY} --out {tmp_path}/run"
    app(shlex.split(line), standalone_mode=False)
    shown = capsys.readouterr().err
    plain = re.sub(r"\x1b\[[\d;?]*\w", "", shown)
    assert re.search(r"training ━+ 100% \d:\d\d:\d\d loss \d\.\d\d\d", plain)


def test_time_and_numbers_fit_a_narrow_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    log = Log(Run(tmp_path, RunConfig(), {}), steps=10)
    log.advance(5, 10)
    log.show_interval(1.0, {"loss": 1.0, "accuracy": 0.5}, {"accuracy": 0.4}, 20.0, 12)
    log.close()
    plain = re.sub(r"\x1b\[[\d;?]*\w", "", capsys.readouterr().err)
    assert re.search(
        r"50% \S+ loss 1\.000 · accuracy 50\.0% · val 40\.0% · 20 images/s *[\r\n]", plain
    )
    assert "…" not in plain


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train", "what shall be trained on?"),
        ("train nowhere", "nowhere"),
        ("train {source}s", "did you mean '{source}'?"),
        ("train {source} --recipe autos", "autos"),
        ("train {source} --set optim.lr", "write path=value"),
        ("train {source} --epochs 1 --minutes 1", "not both"),
        ("train {source} --epochs 0", "epochs is 0.0: allowed is a number above 0"),
        ("train {source} --minutes 0", "minutes is 0.0: allowed is a number above 0"),
        ("train {source} --drloc=much", "loss.drloc is 'much'"),
        ("audit", "which data"),
        ("train {source} --set optm.lr=1", "did you mean 'optim'"),
        ("train {source} --model cct_7", "there is no model 'cct_7'"),
        ("train {source} --pretrained nowhere.pth", "nowhere.pth"),
        ("train {source} --allow leeks", "allow"),
        ("train {source} -c nowhere.yaml", "nowhere.yaml"),
        ("train {source} --folds 1", "folds is 1"),
    ],
)
def test_what_is_wrong_is_a_sentence(line, message, source):
    done = smallvit(line.format(source=source))
    assert done.exit_code != 0
    assert message.format(source=source) in done.output + str(done.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--lr 0.1", "--set optim.lr=VALUE"),
        ("--batch-size=8", "--set loop.batch_size=8"),
        ("--learning-rate 0.1", "--set optim.lr=VALUE"),
    ],
)
def test_a_setting_that_is_no_option_is_shown_as_one(words, said):
    refused = smallvit(f"train fashion-mini {words}")
    assert refused.exit_code == 2
    assert said in refused.output


def test_a_setting_without_its_section_is_found():
    refused = smallvit("train fashion-mini --set lr=1")
    assert "unknown key 'lr'; did you mean 'optim.lr'?" in str(refused.exception)


@pytest.mark.parametrize(("text", "size"), [("24x32", (24, 32)), ("24,32", (24, 32)), ("24", 24)])
def test_an_image_size_may_be_a_height_and_a_width(text, size, tmp_path):
    line = f"train fashion-mini --image-size {text} --set schedule.steps=1 {TINY}"
    assert smallvit(f"{line} --out {tmp_path}/run").exit_code == 0
    assert Run.open(tmp_path / "run").config.data.image_size == size
    refused = smallvit("train fashion-mini --image-size wide")
    assert "data.image_size is 'wide'" in str(refused.exception)
