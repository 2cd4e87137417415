"""Layers by number, for decaying learning rates and freezing; what weight decay leaves alone."""

import pytest
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

from smallvit.models import list_models
from smallvit.models.build import make_model
from smallvit.models.parameters import depths, frozen_below, undecayed
from smallvit.models.timm_names import localize
from tests.models.shrunk import FAMILIES, shrunk, small_size
from tests.models.timm_makers import MAKERS

ADDED = [name for name in list_models("*+*") if name.split("+")[0] in FAMILIES and "+" in name]


def order(model, images):
    """The modules with parameters of their own, in the order they run."""
    ran = []
    own = {part: name for name, part in model.named_modules() if list(part.parameters(False))}
    hooks = [part.register_forward_pre_hook(lambda part, _: ran.append(own[part])) for part in own]
    with torch.no_grad():
        model.eval()(images)
    for hook in hooks:
        hook.remove()
    return ran


@pytest.mark.parametrize("name", [*FAMILIES, *(n for n in ADDED if n.endswith(("+lsa", "+spt")))])
def test_layers_run_in_the_order_of_their_numbers(name):
    model = shrunk(name)
    layers, last = depths(model)
    assert set(layers) == {key for key, _ in model.named_parameters()}
    assert sorted(set(layers.values())) == list(range(last + 1))
    assert {layers["head.weight"], layers["head.bias"]} == {last}
    numbers = [
        layers[next(k for k in layers if k.startswith(f"{part}."))]
        for part in order(model, torch.randn(1, 3, *small_size(name)))
        if part not in ("positions", "pool")
    ]
    assert numbers == sorted(numbers)
    blocks = sum(len(stack) for stack in model.modules() if type(stack).__name__ == "Stack")
    assert last == blocks + 1


@pytest.mark.parametrize("name", ["vit_9_p4", "cait_24_p4", "pit_tiny_p2", "t2t_12"])
def test_positions_and_class_token_are_at_the_input(name):
    layers, _ = depths(shrunk(name))
    assert layers["positions.table"] == layers["pool.token"] == layers["tokenizer.proj.weight"] == 0


@pytest.mark.parametrize("kind", ["vit", "deit", "cait", "swin"])
def test_timms_are_grouped_as_timm_does(kind):
    model = localize(MAKERS[kind]())
    layers, last = depths(model)
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert scale[id(parameter)] == pytest.approx(0.5 ** (last - layers[name])), name
    assert layers["patch_embed.spt.proj.weight"] == layers["patch_embed.proj.weight"] == 0
    heads = [name for name in layers if name.startswith("head")]
    assert heads
    assert {layers[name] for name in heads} == {last}


@pytest.mark.parametrize(("name", "last"), [("cifar_resnet56", 28), ("resnet18", 9)])
def test_baselines(name, last):
    model = make_model(name, num_classes=3, image_size=32)
    layers, top = depths(model)
    assert top == last
    first = {"cifar_resnet56": "stem", "resnet18": "conv1"}[name]
    assert layers[f"{first}.weight"] == 0
    assert {n for n, depth in layers.items() if depth == last} == {
        name for name in layers if name.startswith(("head.", "fc."))
    }


def test_freezing():
    model = shrunk("vit_9_p4")
    layers, last = depths(model)
    assert frozen_below(model, 0) == set()
    assert frozen_below(model, 1) == {name for name, depth in layers.items() if depth == 0}
    assert set(layers) - frozen_below(model, last) == {
        *("norm.weight", "norm.bias", "head.weight", "head.bias")
    }
    with pytest.raises(ValueError, match=r"allowed is 0 \(none\) to 3"):
        frozen_below(model, last + 1)


def test_models_that_do_not_say_are_refused():
    for model in (nn.Linear(2, 2), MAKERS["pit"]()):
        with pytest.raises(ValueError, match="does not say which parameters form a layer"):
            depths(model)


@pytest.mark.parametrize("name", [*FAMILIES, *ADDED])
def test_what_weight_decay_leaves_alone(name):
    model = shrunk(name)
    free = undecayed(model)
    for key, parameter in model.named_parameters():
        matrix = key.rpartition(".")[2] in ("weight", "before", "after", "rows")
        assert (key in free) == (parameter.ndim == 1 or not matrix), key


@pytest.mark.parametrize("kind", MAKERS)
def test_what_timm_leaves_alone_stays_alone(kind):
    model = localize(MAKERS[kind]())
    free = undecayed(model)
    assert set(model.no_weight_decay()) & dict(model.named_parameters()).keys() <= free
    named = {"cls_token", "pos_embed", "relative_position_bias_table", "dist_token", "scale"}
    for key, parameter in model.named_parameters():
        assert (key in free) == (parameter.ndim == 1 or key.rpartition(".")[2] in named), key
