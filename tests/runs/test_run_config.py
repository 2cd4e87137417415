"""Configs: YAML there and back, and sentences for what does not fit."""

import math
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallvit.augment import AugmentConfig
from smallvit.config_io import (
    differences,
    leaf,
    nested,
    overlaid,
    read_yaml,
    write_yaml,
)
from smallvit.runs.changes import changes_of, layered, read_changes, upgrade
from smallvit.runs.config import (
    DataConfig,
    LoopConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    ScheduleConfig,
)
from smallvit.runs.folder import Run

GOLDEN = Path(__file__).parent.parent / "golden" / "runs"

NUMBERS = {
    "3e-4": 3e-4,
    "1e3": 1000.0,
    "-1e-4": -1e-4,
    ".5": 0.5,
    "+.5E+2": 50.0,
    "1.": 1.0,
    "2.5e-1": 0.25,
    "1_000.5": 1000.5,
    "7": 7,
    "-7": -7,
    "0x10": 16,
    ".inf": math.inf,
    "-.inf": -math.inf,
}
WORDS = ["vit_9_p4", "e3", "1e", "1e3x", "--", ".", "1.2.3", "e", "5 e3", "infinity", "nan"]


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_numbers_are_numbers(text, value):
    read = read_yaml(f"a: {text}")["a"]
    assert read == value
    assert type(read) is type(value)


def test_not_a_number():
    assert math.isnan(read_yaml(".nan"))


@pytest.mark.parametrize("text", WORDS)
def test_words_are_words(text):
    assert read_yaml(f"a: {text}")["a"] == text.strip()


@pytest.mark.parametrize("text", ["3e-4", "1e3", "on", "off", "yes", "null", "12", ".5", "~", ""])
def test_quoted_words_stay_words(text):
    assert read_yaml(f"a: '{text}'") == {"a": text}


@pytest.mark.parametrize(
    "text", ["3e-4", "1e3", "on", "null", "12", "", "\x85", "a\u2028b\u2029", "\ufeff", "\r\n\t"]
)
def test_any_text_there_and_back(text):
    assert read_yaml(write_yaml({"a": text, "b": [text]})) == {"a": text, "b": [text]}
    assert RunConfig.from_yaml(RunConfig(recipe=text).to_yaml()).recipe == text


@pytest.mark.parametrize(("text", "value"), {"on": True, "off": False, "true": True}.items())
def test_switches(text, value):
    config = RunConfig().changed(changes_of([f"loss.balanced={text}"]))
    assert config.loss.balanced is value


text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
number_like = st.from_regex(r"[-+]?[0-9._]{0,3}(e[-+]?[0-9]{1,2})?", fullmatch=True)
free = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text | number_like,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
positive = st.floats(0, 1e6)
share = st.floats(0, 0.5)
configs = st.builds(
    RunConfig,
    recipe=text | number_like,
    seed=st.integers(0, 2**32 - 1),
    data=st.builds(
        DataConfig,
        source=text | number_like,
        image_size=st.none() | st.integers(1, 99) | st.tuples(st.integers(1, 9), st.integers(1, 9)),
        val=st.none() | share,
        allow=st.lists(st.sampled_from(["leaks", "case"]), max_size=2).map(tuple),
    ),
    model=st.builds(
        ModelConfig, name=text | number_like, options=st.dictionaries(text, free, max_size=3)
    ),
    augment=st.builds(
        AugmentConfig, mixup=positive, resized_crop=st.none() | st.just((0.1, 1.0)), flip=share
    ),
    loss=st.builds(LossConfig, drloc=positive | st.just("auto"), pairs=st.integers(1, 99)),
    optim=st.builds(
        OptimConfig, lr=positive, eps=positive, betas=st.tuples(share, share), ema=share
    ),
    schedule=st.builds(
        ScheduleConfig,
        epochs=positive.filter(bool),
        steps=st.none() | st.integers(1, 10**9),
        warmup=share,
        cooldown=share,
    ),
    loop=st.builds(LoopConfig, compiled=st.none() | st.booleans(), checkpoint_seconds=positive),
)


@given(configs)
@settings(max_examples=60, deadline=None)
def test_yaml_there_and_back(config):
    assert RunConfig.from_yaml(config.to_yaml()) == config
    assert RunConfig.from_dict(config.to_dict()) == config
    assert not differences(config.to_dict(), RunConfig.from_yaml(config.to_yaml()).to_dict())


def test_an_empty_file_is_the_default():
    assert RunConfig.from_yaml("") == RunConfig.from_yaml("# nothing\n") == RunConfig()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("optim: {learning_rate: 1}", "unknown key 'optim.learning_rate'"),
        ("optim: {weigth_decay: 1}", "did you mean 'weight_decay'?"),
        ("optm: {lr: 1}", "did you mean 'optim'?"),
        ("augment: {mix_up: 1}", "did you mean 'mixup'?"),
        ("schedule: {zzzzzzz: 1}", "known are epochs, steps"),
        ("optim: {lr: fast}", "optim.lr is 'fast': expected a number"),
        ("optim: {lr: true}", "optim.lr is True: expected a number"),
        ("optim: {betas: 0.9}", "optim.betas is 0.9: expected a list"),
        ("optim: {betas: [0.9]}", "expected a list of 2"),
        ("optim: {betas: [0.9, x]}", r"optim.betas\[1\] is 'x'"),
        ("optim: {decay: some}", "allowed are matrices"),
        ("optim: 3", "optim is 3: expected keys and values"),
        ("optim:", "optim is None: expected keys and values"),
        ("loop: {batch_size: 12.5}", "loop.batch_size is 12.5: expected a whole number"),
        ("loop: {batch_size: '12'}", "loop.batch_size is '12': expected a whole number"),
        ("loop: {batch_size: 0}", "batch_size is 0: allowed is 1 or more"),
        ("loop: {batch_size: 10, accumulation: 3}", "not a multiple of accumulation 3"),
        ("loop: {compiled: maybe}", "loop.compiled is 'maybe': expected true or false"),
        ("loop: {device: tpu}", "allowed are auto, cpu, cuda, mps"),
        ("model: {options: [1]}", "model.options is .*: expected keys and values"),
        ("model: {name: 3}", "model.name is 3: expected text"),
        ("data: {folds: 1}", "folds is 1"),
        ("data: {folds: 3, fold: 3}", "fold is 3: allowed is 0 to 2"),
        ("data: {image_size: [1, 2, 3]}", "expected a list of 2"),
        ("schedule: {warmup: 0.7, cooldown: 0.7}", "together at most 1"),
        ("schedule: {minutes: 0}", "minutes is 0.0: allowed is a number above 0"),
        ("schedule: {steps: 0}", "steps is 0: allowed is 1 or more"),
        ("schedule: {epochs: 0}", "epochs is 0.0: allowed is a number above 0"),
        ("schedule: {epochs: -1}", "epochs is -1.0: allowed is a number above 0"),
        ("schedule: {epochs: .nan}", "epochs is nan"),
        ("schedule: {epochs: .inf}", "epochs is inf"),
        ("schedule: {minutes: .inf}", "minutes is inf"),
        ("optim: {lr: .inf}", "lr is inf"),
        ("optim: {betas: [0.9, 1.0]}", "betas holds 1.0: allowed is 0 up to below 1"),
        ("optim: {betas: [.nan, 0.9]}", "betas holds nan: expected is a number"),
        ("data: {mean: [.nan], std: [0.2]}", "mean holds nan: expected is a number"),
        ("data: {mean: [.inf], std: [0.2]}", "mean holds inf: allowed is -1,000 to 1,000"),
        ("data: {mean: [0.5], std: [0]}", "std holds 0.0: allowed is a number above 0"),
        ("data: {channels: 0}", "channels is 0: allowed is 1 to 65,536"),
        ("data: {val: -0.1}", "val is -0.1: allowed is 0 up to below 1"),
        ("data: {test: 1}", "test is 1.0: allowed is 0 up to below 1"),
        ("data: {limit: 0}", "limit is 0.0: allowed is a number above 0"),
        ("data: {limit_seed: 1e30}", "limit_seed is 1e[+]30: allowed is"),
        ("data: {folds: -2}", "folds is -2: allowed is 0 or more"),
        ("schedule: {steps: 9, plans: [[0, -5], [1, 9]]}", "plans holds -5: allowed is 1"),
        ("seed: -1", "seed is -1: allowed is 0 to 4,294,967,295"),
        ("seed: 1e12", "seed is 1000000000000: allowed is 0 to"),
        ("optim: {ema: 1}", "ema is 1"),
        ("loss: {drloc: true}", "loss.drloc is True: expected a number or allowed is auto"),
        ("loss: {drloc: -1}", "drloc is -1.0: allowed is 0 or more"),
        ("optim: {lr: [", "not YAML"),
        ("seed: !!int ''", "not YAML"),
        ("optim: {lr: 1" + 400 * "0" + "}", "optim.lr has more than 300 digits"),
        ("- 1", "the config is .*: expected keys and values"),
        ("just words", "expected keys and values"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(text, told):
    with pytest.raises(ValueError, match=told) as caught:
        RunConfig.from_yaml(text)
    assert "\n" not in str(caught.value)


def test_assignments():
    assert changes_of(["optim.lr=3e-4"]) == {"optim": {"lr": 3e-4}}
    assert changes_of(["data.source=a=b"]) == {"data": {"source": "a=b"}}
    assert changes_of([" a . b = 1"]) != {}
    assert changes_of(["optim.lr=1", "optim.ema=.5", "optim.lr=2"]) == {
        "optim": {"lr": 2, "ema": 0.5}
    }
    config = RunConfig().changed(
        changes_of(["model.options.dim=64", "model.options.new.deep=[1, 2]", "loop.batch_size=1e3"])
    )
    assert config.model.options == {"dim": 64, "new": {"deep": [1, 2]}}
    config = config.changed(changes_of(["model.options.new.wide=3"]))
    assert config.model.options == {"dim": 64, "new": {"deep": [1, 2], "wide": 3}}
    assert config.loop.batch_size == 1000
    assert isinstance(config.loop.batch_size, int)


@pytest.mark.parametrize("text", ["optim.lr", "=3", "optim..lr=3", ".lr=3", ""])
def test_what_is_no_assignment(text):
    with pytest.raises(ValueError, match="write path=value"):
        changes_of([text])


def test_assignments_with_unknown_paths_name_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean 'warmup'"):
        RunConfig().changed(changes_of(["schedule.warm_up=0.1"]))
    with pytest.raises(ValueError, match=r"optim.lr is .*: expected a number"):
        RunConfig().changed(changes_of(["optim.lr.deeper=1"]))


def test_changes_leave_the_rest_alone():
    config = RunConfig(seed=3)
    changed = config.changed({"optim": {"lr": 1.0}})
    assert changed.seed == 3
    assert differences(config.to_dict(), changed.to_dict()) == ["optim.lr was 0.001 and is 1.0"]
    assert config.changed({}) == config


def test_files_of_changes(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("optim:\n  lr: 3e-4\n")
    assert read_changes(path) == {"optim": {"lr": 3e-4}}
    path.write_text("")
    assert read_changes(path) == {}
    path.write_text("- 1")
    with pytest.raises(ValueError, match=r"c\.yaml holds .*: expected keys and values"):
        read_changes(path)
    path.write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(ValueError, match=r"c\.yaml is not a text file"):
        read_changes(path)
    with pytest.raises(OSError, match="nowhere"):
        read_changes(tmp_path / "nowhere.yaml")


def test_paths_and_trees():
    tree = nested("optim.lr", 3)
    assert tree == {"optim": {"lr": 3}}
    assert (leaf(tree, "optim.lr"), leaf(tree, "optim"), leaf(tree, "loop.lr")) == (
        3,
        {"lr": 3},
        None,
    )
    assert leaf(tree, "optim.lr.deeper") is None
    assert nested("seed", 1) == {"seed": 1}
    joined = overlaid(tree, {"seed": 1})
    joined["optim"]["lr"] = 4
    assert tree == {"optim": {"lr": 3}}


def test_a_square_size_is_one_number():
    assert DataConfig(image_size=(28, 28)).image_size == 28
    assert DataConfig(image_size=(28, 32)).image_size == (28, 32)


def schedule(**values):
    return {"schedule": values}


def test_of_epochs_steps_and_minutes_the_last_one_counts():
    assert layered(schedule(steps=9), schedule(epochs=3)) == schedule(
        epochs=3, steps=None, minutes=None
    )
    assert layered(schedule(minutes=9), schedule(steps=3)) == schedule(steps=3, minutes=None)
    assert layered(schedule(epochs=3), {"seed": 1}, schedule(warmup=0.5)) == {
        "seed": 1,
        **schedule(epochs=3, steps=None, minutes=None, warmup=0.5),
    }
    whole = RunConfig().changed(schedule(minutes=9)).to_dict()
    assert layered(whole)["schedule"]["minutes"] == 9
    with pytest.raises(ValueError, match="epochs or minutes, not both"):
        layered(schedule(epochs=1, minutes=1))


@pytest.mark.parametrize(
    ("text", "difference"),
    [
        ("seed: 4", "seed was 3 and is 4"),
        ("data: {allow: [leaks]}", "data.allow was"),
        ("data: {allow: [case, leaks]}", "data.allow was"),
        ("loss: {drloc: 0.5}", "loss.drloc was 0.1 and is 0.5"),
        ("data: {image_size: 32}", "data.image_size was 28 and is 32"),
        ("{optim: {lr: 1}, seed: 4}", "seed was 3 and is 4; optim.lr was 0.001 and is 1.0"),
        ("optim: {lrr: 1}", "did you mean 'lr'"),
    ],
)
def test_a_run_goes_on_with_its_own_config(text, difference):
    config = RunConfig(
        seed=3,
        data=DataConfig(source="photos", allow=("leaks", "case"), image_size=28),
        loss=LossConfig(drloc=0.1),
        schedule=ScheduleConfig(steps=7),
        loop=LoopConfig(device="cpu"),
    )
    config.refuse_changes({})
    config.refuse_changes(config.to_dict())
    config.refuse_changes(
        RunConfig(loss=LossConfig(drloc="auto")).to_dict()
        | {"seed": 3, "data": {"allow": ["leaks", "case"], "image_size": [28, 28]}}
    )
    config.refuse_changes(nested("model.name", "auto"))
    config.refuse_changes(nested("data.source", "photos/"))
    with pytest.raises(ValueError, match=difference):
        config.refuse_changes(read_yaml(text))


def test_older_configs_are_read_in_todays_keys(tmp_path):
    golden = GOLDEN / "format_1"
    assert leaf(read_yaml((golden / "config.yaml").read_text()), "data.image_size") is None
    config = Run.open(golden).config
    assert (config.data.image_size, config.model.name) == (16, "vit_9_p4+spt+lsa")
    assert read_changes(golden / "config.yaml")["data"]["image_size"] is None

    recorded = {"data": {"image_size": [24, 32]}}
    assert upgrade({"seed": 1}, recorded) == {"seed": 1, "data": {"image_size": [24, 32]}}
    assert upgrade({"data": {"image_size": 8}}, recorded) == {"data": {"image_size": 8}}
    assert upgrade({"seed": 1}) == {"seed": 1}


def test_configs_are_frozen_and_keyword_only():
    for item in fields(RunConfig):
        with pytest.raises(AttributeError):
            setattr(RunConfig(), item.name, None)
    with pytest.raises(TypeError):
        RunConfig("auto")
