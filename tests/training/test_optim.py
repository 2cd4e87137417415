"""What decays, how fast each layer learns, and what is frozen."""

import pytest

from smallvit.losses import DRLoc
from smallvit.models.build import make_model
from smallvit.runs.config import OptimConfig
from smallvit.training.optim import freeze, make_optimiser, parameter_groups, set_learning_rate
from tests.models.shrunk import FAMILIES, shrunk

NAMES = [*FAMILIES, "vit_9_p4+spt+lsa", "swin_tiny_p2+spt+lsa", "cifar_resnet56"]


def build(name):
    if name == "cifar_resnet56":
        return make_model("cifar_resnet56", num_classes=3, image_size=(32, 32), in_channels=3)
    return shrunk(name)


def decays(model, config, *extra):
    """The weight decay and learning-rate share of each parameter, by name."""
    groups = parameter_groups(model, config, *extra)
    options = {id(p): (g["weight_decay"], g["scale"]) for g in groups for p in g["params"]}
    assert len(options) == sum(len(g["params"]) for g in groups), "a parameter stands in two groups"
    parts = [*model.named_parameters()]
    for part in extra:
        parts += part.named_parameters(prefix="extra")
    assert len(options) == sum(p.requires_grad for _, p in parts), "a parameter was left out"
    return {name: options[id(p)] for name, p in parts if p.requires_grad}


def is_matrix(name, parameter):
    """Restated: weights of linear layers and convolutions, and what mixes heads."""
    mixing = ".talking." in name
    return parameter.ndim > 1 and (name.endswith("weight") or mixing)


@pytest.mark.parametrize("name", NAMES)
def test_matrices_decay_and_nothing_else(name):
    model = build(name)
    groups = decays(model, OptimConfig(weight_decay=0.3))
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    wanted = {n: (0.3 if is_matrix(n, p) else 0.0, 1.0) for n, p in trained}
    assert groups == wanted
    assert {decay for decay, _ in groups.values()} == {0.0, 0.3}


@pytest.mark.parametrize("name", ["vit_9_p4+spt+lsa", "swin_tiny_p2", "cifar_resnet56"])
def test_all_decays_the_papers_way(name):
    groups = decays(build(name), OptimConfig(weight_decay=0.3, decay="all"))
    assert set(groups.values()) == {(0.3, 1.0)}


def test_temperatures_positions_and_class_tokens_do_not_decay():
    groups = decays(shrunk("vit_9_p4+spt+lsa"), OptimConfig())
    still = {name for name, (decay, _) in groups.items() if not decay}
    assert any(name.endswith("attention.scale") for name in still)
    assert {"positions.table", "pool.token"} <= still


def test_what_is_trained_beside_the_model():
    head = DRLoc(32, (4, 4))
    groups = decays(shrunk("vit_9_p4"), OptimConfig(weight_decay=0.3, layer_decay=0.5), head)
    for name, parameter in head.named_parameters(prefix="extra"):
        assert groups[name] == (0.3 if parameter.ndim > 1 else 0.0, 1.0)


@pytest.mark.parametrize("name", ["vit_9_p4", "swin_tiny_p2", "cifar_resnet56"])
def test_layers_learn_more_slowly_the_lower_they_are(name):
    model = build(name)
    groups = decays(model, OptimConfig(layer_decay=0.5))
    scales = {name: scale for name, (_, scale) in groups.items()}
    assert all(scales[name] == 1.0 for name in scales if name.startswith("head."))
    first = next(iter(name for name in scales if name.startswith(("tokenizer.", "stem."))))
    assert scales[first] == min(scales.values())
    steps = sorted(set(scales.values()))
    assert steps == [0.5**power for power in range(len(steps))][::-1]
    if name == "vit_9_p4":
        assert len(steps) == 4  # tokenizer, two blocks, head
        assert {scales[name] for name in scales if name.startswith("blocks.1.")} == {0.5}


def test_the_learning_rate_of_each_group():
    optimiser = make_optimiser(
        parameter_groups(shrunk("vit_9_p4"), OptimConfig(layer_decay=0.5)), OptimConfig()
    )
    set_learning_rate(optimiser, 0.8)
    assert {group["lr"] for group in optimiser.param_groups} == {0.8, 0.4, 0.2, 0.1}


def test_frozen_layers_get_no_group_and_no_gradient():
    model = shrunk("vit_9_p4")
    left = freeze(model, 2)
    still = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert any(name.startswith("blocks.0.") for name in still)
    assert not any(name.startswith(("blocks.1.", "head.")) for name in still)
    assert left == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert not still & decays(model, OptimConfig()).keys()


def test_everything_but_the_head_can_be_frozen_and_no_more():
    model = shrunk("vit_9_p4")
    freeze(model, 3)
    trained = {name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert "head" in trained
    assert "blocks" not in trained
    with pytest.raises(ValueError, match=r"allowed is 0 \(none\) to 3"):
        freeze(shrunk("vit_9_p4"), 4)


def test_axes_leave_out_what_has_one_axis_alone():
    model = shrunk("cct_7_3x1")
    shares = decays(model, OptimConfig(weight_decay=0.06, decay="axes"))
    for name, parameter in model.named_parameters():
        assert shares[name][0] == (0.06 if parameter.ndim > 1 else 0.0), name
    assert shares["positions.table"][0] == 0.06


def test_drloc_leaves_out_what_its_released_code_does():
    """There the norms of CvT have four axes; batch norms and biases have one."""
    still = {}
    for name in ("swin_t", "t2t_14", "cvt_13"):
        shares = decays(shrunk(name), OptimConfig(weight_decay=0.06, decay="drloc"))
        still[name] = {parameter for parameter, (decay, _) in shares.items() if not decay}
        assert {decay for decay, _ in shares.values()} == {0.0, 0.06}
    assert "stages.0.0.attention.bias_table" in still["swin_t"]
    assert {"norm.weight", "head.bias"} <= still["swin_t"] & still["t2t_14"]
    assert "pool.token" not in still["t2t_14"]
    assert {"stages.0.0.attention.q.norm.weight", "head.bias"} <= still["cvt_13"]
    norms = {
        f"{part}.{name}"
        for part in ("stages.0.0.norm1", "embeddings.0.norm")
        for name in ("weight", "bias")
    }
    assert norms <= decays(shrunk("cvt_13"), OptimConfig()).keys()
    assert not norms & still["cvt_13"]
