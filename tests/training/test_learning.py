"""What a training learns: the loss curve, the chosen weights, the same again with the same seed."""

import functools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from smallvit.data import cache, load_data
from smallvit.evaluation.calibration import softmax
from smallvit.evaluation.measure import logits_of
from smallvit.evaluation.metrics import log_loss
from smallvit.inference import Predictor
from smallvit.layers import Block
from smallvit.losses import balanced_weights
from smallvit.models.vit import ViT
from smallvit.runs.config import ModelConfig, RunConfig
from smallvit.training import train
from smallvit.training.budget import trained_on
from tests.training.makers import (
    RANDOM,
    arrays,
    assemble,
    assert_same_run,
    evaluation,
    folder_of_images,
    losses,
    make_images,
    tiny,
    untimed,
    weights,
)

CURVE = Path(__file__).parent.parent / "golden" / "loss_curve.json"


def test_overfits_32_images(tmp_path):
    data = arrays(tmp_path / "a.npz", train=32, val=0, test=0, classes=4)
    still = [f"model.options.{name}=0.0" for name in ("attn_dropout", "dropout", "drop_path")]
    changes = (*still, "model.name=compact_vit_2_p4", "model.options.dim=64", "loop.every=10")
    config = tiny(data, *changes, "data.val=0", "data.test=0", "optim.lr=3e-3", steps=80)
    run = train(config, out=tmp_path / "run", shown=False)
    assert run.log()[-1]["accuracy"] == 1.0
    assert run.log()[-1]["loss"] < 0.1
    assert not (run.folder / "evaluation.json").exists()


def curve_config(source):
    return tiny(
        source,
        *RANDOM,
        "augment.policy=rand",
        "augment.erasing=0.25",
        "optim.ema=0.95",
        "model.options.attn_dropout=0.0",
        "model.options.dropout=0.0",
        "schedule.mixed=0.8",
        "schedule.cooldown=0.1",
        "loop.every=1",
        steps=40,
    )


def draws_as_recorded():
    """Whether a seed gives the starting weights of the torch that the curve was recorded with."""
    torch.manual_seed(0)
    first = nn.init.trunc_normal_(torch.empty(3))
    return torch.allclose(first, torch.tensor([1.5410, -0.2934, -1.3986]), atol=1e-3)


@pytest.mark.skipif(not draws_as_recorded(), reason="older torch draws other starting weights")
def test_golden_loss_curve(source, tmp_path):
    """Recorded by this test where the file is missing; it changes only with a reason."""
    run = train(curve_config(source), out=tmp_path / "run", shown=False)
    curves = {kind: losses(run, kind) for kind in ("train", "val")}
    if not CURVE.exists():
        CURVE.write_text(json.dumps(curves, indent=1) + "\n")
        pytest.fail(f"{CURVE} was missing and is recorded now: commit it")
    golden = json.loads(CURVE.read_text())
    assert len(curves["train"]) == len(curves["val"]) == 40
    for kind, curve in golden.items():
        np.testing.assert_allclose(curves[kind], curve, rtol=1e-3)
    assert golden["val"][-1] < golden["val"][0]


@pytest.mark.parametrize("passes", [2, 4])
def test_passes_of_a_step_add_up_to_the_whole(source, tmp_path, passes):
    """LayerNorm throughout: a pass does not see the others."""
    runs = [
        train(
            tiny(
                source,
                *RANDOM,
                "model.options.attn_dropout=0.0",
                "model.options.dropout=0.0",
                "loop.every=1",
                f"loop.accumulation={number}",
                "loss.balanced=true",
                "loss.drloc=0.1",
            ),
            out=tmp_path / f"{number}",
            shown=False,
        )
        for number in (1, passes)
    ]
    np.testing.assert_allclose(losses(runs[0]), losses(runs[1]), atol=1e-5, rtol=0)
    whole, parts = (weights(run, "last") for run in runs)
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], atol=1e-5, rtol=0)
    assert any(not torch.equal(whole[name], parts[name]) for name in whole)


def test_the_same_seed_and_another(source, tmp_path):
    everything = (*RANDOM, "optim.ema=0.9", "model.options.attn_dropout=0.1", "loop.every=2")
    runs = [
        train(tiny(source, *everything, f"seed={seed}"), out=tmp_path / f"{i}", shown=False)
        for i, seed in enumerate((5, 5, 6))
    ]
    assert_same_run(runs[0], runs[1])
    assert untimed(runs[0]) != untimed(runs[2])


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1])
def test_any_seed(source, tmp_path, seed):
    run = train(tiny(source, f"seed={seed}", steps=1), out=tmp_path / "run", shown=False)
    assert run.config.seed == seed


def test_what_ran_before_makes_no_difference(source, tmp_path):
    config = tiny(source, "model.options.attn_dropout=0.1", steps=3)
    first = train(config, out=tmp_path / "a", shown=False)
    torch.manual_seed(12345)
    torch.rand(99)
    assert_same_run(first, train(config, out=tmp_path / "b", shown=False))


def test_the_config_in_the_folder_makes_the_same_run_again(source, tmp_path):
    config = tiny(source, *RANDOM, "schedule.epochs=3").changed({"schedule": {"steps": None}})
    first = train(config, out=tmp_path / "a", shown=False)
    assert first.config.schedule.steps == 6
    text = (first.folder / "config.yaml").read_text()
    again = train(RunConfig.from_yaml(text), out=tmp_path / "b", shown=False)
    assert_same_run(first, again)
    assert (again.folder / "config.yaml").read_text() == text


def overtrained(source, *more):
    """Validation is best early: the learning rate is far too high later."""
    return tiny(source, "loop.every=2", "optim.lr=1e-1", "schedule.warmup=0.8", *more, steps=30)


def test_best_and_last_are_kept_apart_and_chosen_on_validation(source, tmp_path):
    run = train(overtrained(source), out=tmp_path / "run", shown=False)
    validations = [line for line in run.log() if line["kind"] == "val"]
    best = max(validations, key=lambda line: (line["accuracy"], -line["loss"]))
    assert run.info["best_step"] == best["step"] < 30
    dataset = run.dataset()
    mean, std = (torch.tensor(x).view(1, -1, 1, 1) for x in (run.card.mean, run.card.std))
    images = (torch.from_numpy(dataset.pixels("val").copy()) / 255 - mean) / std
    labels = torch.from_numpy(dataset.labels("val").copy())
    for which, line in (("best", best), ("last", validations[-1])):
        with torch.inference_mode():
            logits = run.model(which)(images)
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        assert loss == pytest.approx(line["loss"], rel=1e-4)
    assert best["loss"] != pytest.approx(validations[-1]["loss"], rel=1e-2)


def test_the_test_labels_do_not_choose(source, tmp_path):
    with np.load(source) as stored:
        parts = dict(stored)
    test = parts["split"] == "test"
    parts["labels"][test] = (parts["labels"][test] + 1) % 3
    np.savez(tmp_path / "other.npz", **parts)
    ours = train(overtrained(source), out=tmp_path / "a", shown=False)
    theirs = train(overtrained(tmp_path / "other.npz"), out=tmp_path / "b", shown=False)
    assert ours.info["best_step"] == theirs.info["best_step"]
    for name in ("weights", "last"):
        first, second = weights(ours, name), weights(theirs, name)
        assert all(torch.equal(first[key], second[key]) for key in first)
    accuracies = [evaluation(run)["accuracy"] for run in (ours, theirs)]
    assert accuracies[0] != accuracies[1]


def test_patience(source, tmp_path):
    config = overtrained(source, "schedule.patience=2").with_steps(200)
    run = train(config, out=tmp_path / "run", shown=False)
    assert run.info["ended"] == "patience"
    assert run.info["status"] == "finished"
    assert run.info["steps"] == run.info["best_step"] + 2 * 2 < 200


def test_the_ema_is_what_is_validated_and_saved(source, tmp_path):
    steps = 6
    run = train(tiny(source, "optim.ema=0.9", "loop.every=1"), out=tmp_path / "a", shown=False)
    plain = train(tiny(source, "loop.every=1"), out=tmp_path / "b", shown=False)
    assert losses(run) == losses(plain)
    assert losses(run, "val") != losses(plain, "val")
    # The weights after each step, by stopping plain runs that keep the schedule; here: the first.
    first = train(
        tiny(source, "schedule.warmup=0", "optim.ema=0.9", steps=1), out=tmp_path / "c", shown=False
    )
    fast = train(tiny(source, "schedule.warmup=0", steps=1), out=tmp_path / "d", shown=False)
    start = train(tiny(source, "optim.lr=0", steps=1), out=tmp_path / "e", shown=False)
    slow, new, old = (weights(one, "last") for one in (first, fast, start))
    for name in slow:
        torch.testing.assert_close(slow[name], 0.1 * old[name] + 0.9 * new[name])
    assert steps == run.info["steps"]


def test_the_evaluation_is_that_of_the_saved_weights(source, tmp_path):
    """Also where BatchNorm's statistics went on after the best step, and the EMA is saved."""
    config = overtrained(source, "optim.ema=0.9", "schedule.patience=4")
    config = replace(config, model=ModelConfig(name="cifar_resnet56"))
    run = train(config, out=tmp_path / "run", shown=False)
    assert run.info["best_step"] < run.info["steps"]
    logits = logits_of(
        run.model(), run.dataset().pixels("test"), mean=run.card.mean, std=run.card.std
    )
    loss = log_loss(softmax(logits, run.card.temperature), run.dataset().labels("test"))
    assert evaluation(run)["log_loss"]["value"] == pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize("name", ["vit", "resnet18", "swin_tiny_p2"])
def test_drloc_trains_with_any_backbone_and_leaves_no_head(tmp_path, name):
    data = arrays(tmp_path / "a.npz", train=16, val=0, test=4, size=16)
    changes = ["loss.drloc=0.5", "loss.pairs=8", "data.val=0", "loop.every=1"]
    if name != "vit":
        changes.append(f"model.name={name}")
    config = tiny(data, *changes, steps=2, batch=8)
    if name != "vit":
        config = config.changed({"model": {"options": {}}})
        options = {"dim": 16, "depths": [1, 1], "num_heads": [1, 2], "window": 2}
        options = options if name.startswith("swin") else {}
        config = RunConfig.from_dict(
            {**config.to_dict(), "model": {"name": name, "options": options}}
        )
    run = train(config, out=tmp_path / "run", shown=False)
    without = config.changed({"loss": {"drloc": 0.0}})
    plain = train(without, out=tmp_path / "plain", shown=False)
    assert weights(run).keys() == weights(plain).keys() == run.model().state_dict().keys()
    assert losses(run)[0] > losses(plain)[0]
    assert run.info["parameters"] == plain.info["parameters"]


def unequal(path):
    """Thirty images of one class and six of the other."""
    images, _ = make_images(36, classes=2, seed=4)
    np.savez(path, images=images, labels=np.array([0] * 30 + [1] * 6))
    return path


def test_balanced_loss_and_sampling(tmp_path):
    data = unequal(tmp_path / "a.npz")
    changes = ("data.val=0", "data.test=0", "loop.every=1", "optim.lr=0")
    changes += ("model.options.dropout=0", "model.options.attn_dropout=0")
    plain, loss, sampling = (
        train(tiny(data, *changes, *more, steps=4, batch=36), out=tmp_path / f"{i}", shown=False)
        for i, more in enumerate(((), ("loss.balanced=on",), ("loop.balanced=on",)))
    )
    # With the weights at rest: the mean over classes, and over as many of each class.
    model = plain.model()
    dataset = plain.dataset()
    mean, std = (torch.tensor(x).view(1, -1, 1, 1) for x in (plain.card.mean, plain.card.std))
    images = (torch.from_numpy(dataset.pixels("train").copy()) / 255 - mean) / std
    labels = torch.from_numpy(dataset.labels("train").copy())
    with torch.inference_mode():
        each = torch.nn.functional.cross_entropy(model.eval()(images), labels, reduction="none")
    by_class = torch.stack([each[labels == label].mean() for label in (0, 1)])
    assert losses(plain)[0] == pytest.approx(each.mean().item(), rel=1e-3)
    weights = balanced_weights(dataset.labels("train"), 2)[labels]
    assert losses(loss)[0] == pytest.approx((weights * each).mean().item(), rel=1e-3)
    assert losses(loss)[0] != pytest.approx(losses(plain)[0], rel=3e-3)
    assert np.mean(losses(sampling)) == pytest.approx(by_class.mean().item(), rel=0.05)


def test_bf16_on_a_cpu(source, tmp_path):
    exact = train(tiny(source, steps=2), out=tmp_path / "a", shown=False)
    run = train(tiny(source, "loop.precision=bf16", steps=2), out=tmp_path / "b", shown=False)
    assert losses(run) != losses(exact)
    assert losses(run) == pytest.approx(losses(exact), rel=0.05)
    assert {tensor.dtype for tensor in weights(run).values()} == {torch.float32}


@pytest.mark.parametrize("able", [False, True])
def test_auto_is_bf16_where_the_cpu_has_it(source, monkeypatch, able):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: able, raising=False)
    _, _, stepper = assemble(tiny(source, "loop.precision=auto"))
    assert stepper.objective.precision == ("bf16" if able else "fp32")
    _, _, stepper = assemble(tiny(source))
    assert stepper.objective.precision == "fp32"


def test_fp16_on_a_cpu_is_refused(source, tmp_path):
    with pytest.raises(ValueError, match="precision is 'fp16': a CPU has fp32 and bf16"):
        train(tiny(source, "loop.precision=fp16"), out=tmp_path / "run", shown=False)
    assert not (tmp_path / "run").exists()


def test_a_compiler_that_fails_is_done_without(source, tmp_path, monkeypatch, logged):
    def broken(*args, **kwargs):
        def call(*inputs, **named):
            raise RuntimeError("no compiler here\nand more")

        return call

    plain = train(tiny(source, *RANDOM, steps=3), out=tmp_path / "a", shown=False)
    monkeypatch.setattr(torch, "compile", broken)
    config = tiny(source, *RANDOM, "loop.compiled=on", steps=3)
    run = train(config, out=tmp_path / "b", shown=False)
    assert "could not compile (no compiler here); going on without" in logged()
    assert_same_run(plain, run)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")  # Dynamo's advice on graph breaks
def test_blocks_that_are_alike_are_compiled_once(source, monkeypatch):
    """Whatever their number and their rates of stochastic depth; the losses are the plain ones.

    The two steps of the augmentation policy, of different operations, are one graph as well.
    """
    real, graphs, means = torch.compile, {}, {}
    policy = "augment.policy=auto_cifar10"
    for depth in (3, 5):
        seen = []

        def compiler(graph, _, seen=seen):  # which runs what it is given as it is
            seen.append({str(node.target) for node in graph.graph.nodes})
            return graph.forward

        monkeypatch.setattr(torch, "compile", functools.partial(real, backend=compiler))
        for regional in (False, True):
            torch._dynamo.reset()
            options = [*RANDOM, f"model.options.depth={depth}", f"loop.compiled={regional}"]
            config = tiny(source, *options, policy, f"loop.regional={regional}")
            _, loader, stepper = assemble(config)
            for step in range(2):
                stepper(loader.batch(step), step, lr=1e-3, mixed=True)
            means[depth, regional] = stepper.take_means()["loss"]
            assert stepper.compiled is regional
        graphs[depth] = len(seen)
        assert means[depth, True] == pytest.approx(means[depth, False], rel=1e-6)
    assert graphs[3] == graphs[5]
    assert sum("scatter_add" in targets for targets in seen) == 1  # of equalize


@pytest.mark.parametrize("narrow", [False, True])
def test_tokens_between_blocks_are_narrow_on_request(source, narrow):
    config = tiny(source, "loop.precision=bf16", f"loop.narrow={narrow}")
    _, loader, stepper = assemble(config)
    blocks = [part for part in stepper.objective.modules() if isinstance(part, Block)]
    seen = set()
    for block in blocks:
        block.register_forward_hook(lambda _, args, y: seen.add(y.dtype))
    stepper(loader.batch(0), 0, lr=1e-3, mixed=False)
    assert seen == {torch.bfloat16 if narrow else torch.float32}
    assert math.isfinite(stepper.take_means()["loss"])


def test_repeats_show_each_image_more_than_once_and_differently(source, tmp_path):
    config = tiny(source, "augment.padding=4", "loop.repeats=4", "loop.every=1", steps=2)
    _, loader, stepper = assemble(config)
    batch = loader.batch(0)
    shown, counts = batch.images.flatten(1).unique(dim=0, return_counts=True)
    assert (len(shown), counts.tolist()) == (8, [4] * 8)
    x, _ = stepper.objective.plain(batch.images, batch.labels, torch.tensor(0), batch.positions)
    assert len(x.flatten(1).unique(dim=0)) > 24
    run = train(config, out=tmp_path / "four", shown=False)
    once = config.changed({"loop": {"repeats": 1}})
    assert losses(run) != losses(train(once, out=tmp_path / "once", shown=False))


def test_images_are_decoded_with_a_bar_and_before_a_model_is_built(tmp_path, monkeypatch, capsys):
    """Also those of a dataset that is open already, as the command's is."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    real, decoded = ViT.__init__, []

    def init(model, config):
        decoded.append(sorted(entry.about["split"] for entry in cache.entries()))
        real(model, config)

    monkeypatch.setattr(ViT, "__init__", init)
    folder = folder_of_images(tmp_path / "data")
    config, dataset = tiny(folder, steps=1, batch=8), load_data(folder)
    train(config, out=tmp_path / "run", dataset=dataset)
    assert decoded == [["test", "train", "val"]]
    shown = capsys.readouterr().err
    assert all(f"decoding {split}" in shown for split in dataset.splits)
    cache.clear()
    train(config, out=tmp_path / "quiet", dataset=dataset, shown=False)
    assert "decoding" not in capsys.readouterr().err


def test_the_test_split_is_logged_only_on_request_and_decides_nothing(source, tmp_path):
    changes = ("loop.every=2", "optim.ema=0.9", "schedule.patience=2")
    plain = train(tiny(source, *changes), out=tmp_path / "plain", shown=False)
    watched = train(tiny(source, *changes, "loop.log_test=true"), out=tmp_path / "b", shown=False)
    kinds = [line["kind"] for line in plain.log()]
    assert "test" not in kinds
    lines = [line for line in watched.log() if line["kind"] == "test"]
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert all({"loss", "accuracy"} <= line.keys() for line in lines)
    assert [line for line in untimed(watched) if line["kind"] != "test"] == untimed(plain)
    for name in ("weights.safetensors", "last.safetensors", "evaluation.json"):
        assert (plain.folder / name).read_bytes() == (watched.folder / name).read_bytes()
    assert plain.info["best_step"] == watched.info["best_step"]


def test_crops_may_come_from_smaller_images_than_the_model_takes(source, tmp_path):
    """Images of 16 pixels; a model for 32, tested on the middle of them enlarged to 36."""
    changes = ("data.image_size=32", "data.fit=imagenet", "augment.resized_crop=[0.5,1.0]")
    run = train(tiny(source, *changes), out=tmp_path / "run", shown=False)
    assert run.card.fit == "imagenet"
    pixels = run.dataset().pixels("test")
    assert pixels.shape[2:] == (32, 32)
    read = run.dataset().split("test").read(0, 3)
    assert (
        Predictor.open(run.folder, "cpu").card.prepare(read).transpose(2, 0, 1) == pixels[0]
    ).all()


def test_without_crops_such_a_training_sees_what_its_test_sees(source, tmp_path):
    config = tiny(source, "data.image_size=32", "data.fit=imagenet", "augment.flip=0.5")
    run = train(config, out=tmp_path / "run", shown=False)
    assert run.finished
    assert trained_on(config, run.dataset()).image_size == (32, 32)
