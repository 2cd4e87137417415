"""Torch and Flax side by side: same weights, same logits, same gradients."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from smallvit import flax as port
from smallvit.interop.flax import to_flax, to_torch
from smallvit.interop.references import load_reference
from smallvit.layers import Features, resample
from smallvit.losses import DRLoc
from smallvit.losses.drloc import RELEASED
from smallvit.models import create_model, list_models
from smallvit.models.build import make_config
from tests.golden import reference as golden

GOLDEN = [
    *("vit_32", "lsa_vit_32", "spt_vit_32", "spt_lsa_vit_32", "cct_2_3x2_32", "cct_7_3x1_32"),
    *("vit_2_4_32", "cvt_7_4_32"),
]
#: Gradients of the others are compared in the slow tests.
FAST = ["spt_lsa_vit_32", "cct_2_3x2_32"]
PORTED = [
    name for name in list_models("*+*") + list_models() if name.split("+")[0] in port.VARIANTS
]


def twins(entry):
    """The torch model with golden weights, and the Flax one of the same name."""
    name = golden.our_name(entry)
    ours = load_reference(golden.state_dict(entry), model=name, image_size=32).eval()
    return ours, port.from_name(name, num_classes=ours.config.num_classes, image_size=32)


def apply(model, variables, images):
    """Logits of the Flax model, compiled: so small a model is faster as a whole."""
    call = jax.jit(lambda v, x: model.apply(v, x, deterministic=True))
    return call(variables, channels_last(images))


def channels_last(images):
    return jnp.asarray(images.permute(0, 2, 3, 1).numpy())


def seeded(name, **options):
    """A small torch model whose every weight is random, in eval mode."""
    torch.manual_seed(0)
    model = create_model(name, num_classes=3, **options).eval()
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data.add_(0.1 * torch.randn_like(weight))
    return model


@pytest.mark.parametrize("entry", [entry for entry in GOLDEN if entry not in FAST])
def test_logits_agree_from_golden_weights(entry):
    ours, twin = twins(entry)
    images = golden.images(entry)
    found = apply(twin, to_flax(ours), images)
    np.testing.assert_allclose(found, ours(images).detach(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found, golden.logits(entry), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, marks=[] if entry in FAST else pytest.mark.slow) for entry in GOLDEN],
)
def test_logits_and_gradients_agree_from_golden_weights(entry):
    ours, twin = twins(entry)
    images = golden.images(entry)
    labels = torch.arange(len(images)) % 7
    logits = ours(images)
    F.cross_entropy(logits, labels).backward()
    expected = to_flax({name: weight.grad for name, weight in ours.named_parameters()})

    def loss(variables):
        logits = twin.apply(variables, channels_last(images), deterministic=True)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels.numpy())
        return losses.mean(), logits

    found, found_logits = jax.jit(jax.grad(loss, has_aux=True))(to_flax(ours))
    np.testing.assert_allclose(found_logits, logits.detach(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found_logits, golden.logits(entry), rtol=0, atol=1e-5)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, a), b in zip(
        jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", PORTED)
def test_every_name_means_the_same_model(name):
    config = make_config(name, image_size=112, num_classes=3)
    twin = port.from_name(name, num_classes=3, image_size=112)
    assert twin.heads == config.num_heads
    assert twin.mlp_dim == config.dim * config.mlp_ratio
    assert twin.start == config.init
    assert twin.lsa == config.masked == config.temperature
    assert (twin.size, twin.grid) == (config.image_size, config.grid)
    assert isinstance(twin, port.CCT) == bool(config.convs)
    fields = "dim depth pool position post_norm qkv_bias eps ramp spt shift directions"
    fields += " dropout attn_dropout drop_path in_channels"
    fields += " kernel convs conv_stride" if config.convs else " patch_size"
    for field in fields.split():
        assert getattr(twin, field) == getattr(config, field), field


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_9_p4+spt", {"image_size": (8, 12), "in_channels": 1}),
        ("vit_9_p4+spt", {"image_size": 8, "directions": "all", "shift": 0.25}),
        ("vit_9_p4", {"image_size": 8, "temperature": True}),
        ("vit_9_p4", {"image_size": 8, "masked": True, "position": "sine"}),
        ("vit_9_p4", {"image_size": 8, "qkv_bias": True, "eps": 1e-6}),
        ("compact_vit_2_p4+lsa", {"image_size": 8, "position": "none"}),
        ("cct_2_3x2+spt+lsa", {"image_size": (10, 13), "directions": "cardinal"}),
        ("vit_lite_2_p4", {"image_size": 8, "pool": "mean", "post_norm": False}),
    ],
)
def test_options_mean_the_same(name, options):
    sizes = {"dim": 16, "depth": 1}
    ours = seeded(name, num_heads=2, mlp_ratio=2, **sizes, **options)
    twin = port.from_name(name, num_classes=3, heads=2, mlp_dim=32, **sizes, **options)
    images = torch.randn(2, ours.config.in_channels, *ours.config.image_size)
    found = apply(twin, to_flax(ours), images)
    np.testing.assert_allclose(found, ours(images).detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", ["learned", "sine", "none"])
@pytest.mark.parametrize("name", ["vit_lite_2_p4+spt+lsa", "cct_2_3x2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_survive_both_ways_and_the_disk_exactly(tmp_path, name, position, dtype):
    ours = seeded(name, image_size=16, position=position).to(dtype)
    variables = to_flax(ours)
    port.save(variables, tmp_path / "flax.safetensors")
    for source in (variables, tmp_path / "flax.safetensors"):
        state = to_torch(source)
        assert state.keys() == ours.state_dict().keys()
        for key, value in ours.state_dict().items():
            assert state[key].dtype == value.dtype
            assert torch.equal(state[key], value), key
    new = create_model(name, num_classes=3, image_size=16, position=position)
    new.load_state_dict(to_torch(variables))


def test_the_page_shows_both_ways(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "flax.md"
    code = page.read_text().partition("## Weights both ways\n\n```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert (tmp_path / "flax.safetensors").exists()


def test_files_and_run_folders_are_read(tmp_path):
    ours = seeded("vit_lite_2_p4", image_size=16, position="sine")
    save_file(ours.state_dict(), tmp_path / "weights.safetensors")
    expected = to_flax(ours)
    assert "constants" in expected
    for source in (tmp_path, str(tmp_path / "weights.safetensors"), ours.state_dict()):
        found = to_flax(source)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_the_result_does_not_share_memory():
    ours = seeded("vit_lite_2_p4", image_size=16)
    before = to_flax(ours)
    copy = jax.tree.map(np.copy, before)
    for weight in ours.parameters():
        weight.data.zero_()
    jax.tree.map(np.testing.assert_array_equal, before, copy)


def test_the_flax_tree_is_the_one_the_module_makes():
    for name in ("vit_lite_2_p4+spt+lsa", "cct_2_3x2"):
        twin = port.from_name(name, num_classes=3, image_size=16)
        shapes = jax.eval_shape(twin.init, jax.random.PRNGKey(0), jnp.zeros((1, 16, 16, 3)))
        frozen = create_model(name, num_classes=3, image_size=16).requires_grad_(False)
        found = to_flax(frozen)
        assert jax.tree.map(np.shape, found) == jax.tree.map(lambda x: x.shape, shapes)


def test_what_flax_does_not_have_is_refused(tmp_path):
    cait = create_model("cait_24_p4", num_classes=3, image_size=16, depth=1, class_depth=1)
    with pytest.raises(ValueError, match="does not exist in smallvit"):
        to_flax(cait)
    for name in ("t2t_12", "pit_tiny_p2"):
        with pytest.raises(ValueError, match="does not exist in smallvit"):
            to_flax(create_model(name, num_classes=3, image_size=32))
    with pytest.raises(FileNotFoundError, match="a run's folder"):
        to_flax(tmp_path)


def test_positions_are_resampled_alike():
    table = torch.randn(1, 1 + 6 * 8, 4)
    for new in ((9, 8), (4, 5), (12, 16)):
        expected = resample(table, (6, 8), new, 1)
        found = port.resample(jnp.asarray(table.numpy()), (6, 8), new, 1)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="does not fit a grid"):
        port.resample(jnp.asarray(table.numpy()), (6, 6), (3, 3), 1)


@pytest.mark.parametrize("position", ["learned", "sine"])
def test_resized_models_agree(position):
    options = {"dim": 16, "depth": 1, "position": position}
    ours = seeded("vit_9_p4", image_size=16, num_heads=2, mlp_ratio=2, **options)
    twin = port.from_name("vit_9_p4", num_classes=3, image_size=16, heads=2, mlp_dim=32, **options)
    new, variables = port.resized(twin, to_flax(ours), (8, 12))
    images = torch.randn(2, 3, 8, 12)
    expected = ours.resized((8, 12)).eval()(images).detach()
    found = apply(new, variables, images)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["l1", "ce", "cbr"])
@pytest.mark.parametrize("grid", [(3, 5), (15, 14)])
@pytest.mark.parametrize("options", [{}, RELEASED], ids=["ours", "released"])
def test_drloc_agrees(mode, grid, options):
    torch.manual_seed(0)
    tokens = torch.randn(2, grid[0] * grid[1], 6)
    loss = DRLoc(6, grid, mode=mode, pairs=9, hidden=8, **options)
    pairs = loss.draw(2, torch.device("cpu"), torch.Generator().manual_seed(1))
    pooled = tokens.mean(1)
    expected = loss(Features(tokens, grid, pooled), torch.Generator().manual_seed(1)).item()
    features = port.Features(
        tokens=jnp.asarray(tokens.numpy()), pooled=jnp.asarray(pooled.numpy()), grid=grid
    )
    assert port.drloc.RELEASED == RELEASED
    twin = port.DRLoc(mode=mode, pairs=9, hidden=8, **options)
    key = jax.random.PRNGKey(0)
    found = jax.jit(twin.apply)(to_flax(loss), features, key, pairs.numpy())
    assert found == pytest.approx(expected, rel=1e-5)
