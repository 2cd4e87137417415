"""The Linen modules alone: oracles, dropout, precision, transformations."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import InvalidRngError

from smallvit.flax import LSA, SPT, SeqPool, ViT, from_name, load, save
from smallvit.flax.blocks import Block, Mlp

KEY = jax.random.PRNGKey(0)
# One shape for all tests: JAX compiles an operation once a shape.
SMALL = {"image_size": 16, "patch_size": 4, "num_classes": 5, "dim": 32, "depth": 1, "heads": 4}
IMAGES = jnp.asarray(np.random.RandomState(0).standard_normal((3, 16, 16, 3)), jnp.float32)


def small(**options):
    return ViT(**{**SMALL, "mlp_dim": 64, **options})


@pytest.fixture(scope="module")
def variables():
    return jax.jit(small().init)(KEY, IMAGES)


def apply(model, variables, **options):
    return model.apply(variables, IMAGES, deterministic=True, **options)


def test_spt_is_the_equation():
    """Every token, pixel by pixel: x[r, c] and the four diagonals half a patch away."""
    spt = SPT(dim=7, patch_size=4)
    variables = jax.tree.map(
        lambda x: x + 0.1 * np.random.RandomState(x.size).standard_normal(x.shape),
        spt.init(KEY, IMAGES),
    )
    found = spt.apply(variables, IMAGES)
    params, images = jax.tree.map(np.asarray, (variables["params"], IMAGES))
    for token, (b, top, left) in {3: (0, 0, 12), 5: (2, 4, 4), 12: (1, 12, 0)}.items():
        values = []
        for r in range(top, top + 4):
            for c in range(left, left + 4):
                for dr, dc in ((0, 0), (-2, -2), (-2, 2), (2, -2), (2, 2)):
                    inside = 0 <= r + dr < 16 and 0 <= c + dc < 16
                    values += list(images[b, r + dr, c + dc]) if inside else [0.0] * 3
        x = np.array(values)
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        x = x * params["norm"]["scale"] + params["norm"]["bias"]
        expected = x @ params["proj"]["kernel"] + params["proj"]["bias"]
        np.testing.assert_allclose(found[b, token], expected, atol=1e-5)


def test_lsa_is_the_equation():
    x = np.random.RandomState(1).standard_normal((2, 6, 8)).astype(np.float32)
    lsa = LSA(dim=8, heads=2)
    variables = lsa.init(KEY, jnp.asarray(x))
    np.testing.assert_allclose(variables["params"]["scale"], 4**-0.5)
    variables["params"]["scale"] = jnp.array([0.3, 0.9])
    found, sown = lsa.apply(
        variables, jnp.asarray(x), deterministic=True, mutable=["intermediates"]
    )
    params = jax.tree.map(np.asarray, variables["params"])
    for b in range(2):
        heads = []
        for head in range(2):
            q, k, v = (
                x[b] @ params["qkv"]["kernel"][:, part * 8 + head * 4 :][:, :4] for part in range(3)
            )
            scores = q @ k.T * params["scale"][head]
            np.fill_diagonal(scores, -np.inf)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            np.testing.assert_allclose(
                sown["intermediates"]["attention"][0][b, head], weights, atol=1e-6
            )
            heads.append(weights @ v)
        expected = np.concatenate(heads, 1) @ params["proj"]["kernel"] + params["proj"]["bias"]
        np.testing.assert_allclose(found[b], expected, atol=1e-5)


def test_a_lone_token_sees_itself():
    x = jnp.ones((1, 1, 8))
    lsa = LSA(dim=8, heads=2)
    assert jnp.isfinite(lsa.apply(lsa.init(KEY, x), x)).all()


def test_sequence_pooling_is_a_weighted_mean():
    x = np.random.RandomState(2).standard_normal((2, 5, 4)).astype(np.float32)
    pool = SeqPool()
    variables = pool.init(KEY, jnp.asarray(x))
    variables["params"]["score"]["kernel"] = jnp.arange(4.0)[:, None]
    scores = np.exp(x @ np.arange(4.0))
    expected = np.einsum("bn,bnd->bd", scores / scores.sum(1, keepdims=True), x)
    np.testing.assert_allclose(pool.apply(variables, jnp.asarray(x)), expected, atol=1e-5)


def test_deterministic_needs_no_rngs_and_drops_nothing(variables):
    wet = small(dropout=0.5, emb_dropout=0.5, attn_dropout=0.5, drop_path=0.5)
    np.testing.assert_array_equal(apply(wet, variables), apply(small(), variables))


@pytest.mark.parametrize(
    ("rate", "rng"),
    [
        ("dropout", "dropout"),
        ("emb_dropout", "emb_dropout"),
        ("attn_dropout", "dropout"),
        ("drop_path", "dropout"),
    ],
)
def test_each_dropout_draws_from_its_rng_and_fails_without(variables, rate, rng):
    wet = small(**{rate: 0.5})
    with pytest.raises(InvalidRngError):
        wet.apply(variables, IMAGES)
    draw = jax.jit(lambda key: wet.apply(variables, IMAGES, rngs={rng: key}))
    one, again, other = (draw(jax.random.PRNGKey(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, apply(wet, variables))


def test_stochastic_depth_drops_whole_branches():
    """With a branch of ones, an image's tokens are all 0, 1/keep, or twice that."""
    attention = LSA(4, 2, kernel_init=jax.nn.initializers.zeros)
    block = Block(attention, Mlp(8, kernel_init=jax.nn.initializers.zeros), drop_path=0.25)
    x = jnp.zeros((64, 3, 4))
    variables = block.init(KEY, x)
    for part in (variables["params"]["attention"]["proj"], variables["params"]["mlp"]["fc2"]):
        part["bias"] = jnp.ones(4)
    y = np.asarray(block.apply(variables, x, rngs={"dropout": KEY}))
    assert (y == y[:, :1, :1]).all()
    values, counts = np.unique(y[:, 0, 0].round(4), return_counts=True)
    np.testing.assert_allclose(values, [0, 4 / 3, 8 / 3], atol=1e-3)
    assert counts[2] > counts[0]


def test_every_parameter_gets_a_gradient(variables):
    def loss(variables):
        logits = small().apply(variables, IMAGES, deterministic=True)
        return (logits[:, 0] - logits[:, 1]).sum()

    gradients = jax.jit(jax.grad(loss))(variables)
    for path, gradient in jax.tree.leaves_with_path(gradients):
        assert jnp.abs(gradient).max() > 0, jax.tree_util.keystr(path)


def test_bfloat16_computes_in_it_and_stays_near(variables):
    model = small(dtype=jnp.bfloat16)
    logits = jax.jit(lambda v: apply(model, v))(variables)
    assert logits.dtype == jnp.bfloat16
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(variables))
    np.testing.assert_allclose(logits.astype(float), apply(small(), variables), atol=0.1)


def test_vmap_over_images_and_over_models(variables):
    model = small()
    batch = apply(model, variables)
    one = jax.jit(jax.vmap(lambda x: model.apply(variables, x[None], deterministic=True)[0]))
    np.testing.assert_allclose(one(IMAGES), batch, atol=1e-5)
    two = jax.tree.map(lambda x: np.stack([x, x]), variables)
    many = jax.jit(jax.vmap(lambda v: model.apply(v, IMAGES, deterministic=True)))
    np.testing.assert_allclose(many(two), np.stack([batch, batch]), atol=1e-5)


def test_features_feed_the_head(variables):
    model = small()
    features = apply(model, variables, method="features")
    assert features.tokens.shape == (3, 16, 32)
    assert features.grid == (4, 4)
    logits = model.apply(variables, features.pooled, method="classify")
    np.testing.assert_allclose(logits, apply(model, variables), atol=1e-6)


@pytest.mark.parametrize("start", ["xavier", "compact", "trunc"])
def test_weights_start_as_on_the_torch_side(start):
    @jax.jit
    def draw(key):
        params = small(spt=False, start=start).init(key, IMAGES)["params"]
        parts = "positions", "tokenizer", "pooling"
        return params["blocks_0"]["attention"]["qkv"], *(params[part] for part in parts)

    qkv, positions, tokenizer, pooling = draw(KEY)
    std = (2 / (32 + 3 * 32)) ** 0.5 if start == "xavier" else 0.02
    assert qkv["kernel"].std() == pytest.approx(std, rel=0.05)
    std = {"xavier": 1.0, "compact": 0.2, "trunc": 0.02}[start]
    assert positions["table"].std() == pytest.approx(std, rel=0.1)
    patches = tokenizer["proj"]
    assert (jnp.abs(patches["bias"]).max() > 0) == (start != "xavier")
    std = {"xavier": 2 / (48 + 32), "compact": 2 / 48, "trunc": 1 / (3 * 48)}[start] ** 0.5
    assert patches["kernel"].std() == pytest.approx(std, rel=0.08)
    assert (jnp.abs(pooling["token"]).max() > 0) == (start == "xavier")


def test_files_are_exact_and_say_what_does_not_fit(tmp_path, variables):
    tree = {"a": variables, "b": [jnp.ones(2, jnp.bfloat16), jnp.array(3, jnp.int32)]}
    save(tree, tmp_path / "tree.safetensors")
    again = load(tmp_path / "tree.safetensors", like=tree)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(tree), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    save(variables, tmp_path / "model.safetensors")
    assert jax.tree.structure(load(tmp_path / "model.safetensors")) == jax.tree.structure(variables)
    with pytest.raises(ValueError, match=r"blocks_0\.attention\.proj\.bias is missing"):
        load(tmp_path / "model.safetensors", like=tree)
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"junk\.safetensors is no safetensors file"):
        load(tmp_path / "junk.safetensors")


FAMILIES = ["vit_9_p4", "vit_9_p4+spt+lsa", "compact_vit_2_p4", "cct_2_3x2+spt+lsa"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_may_be_empty_or_of_any_number_in_one_export(name):
    model = from_name(name, num_classes=5, image_size=16, depth=1)
    variables = jax.jit(lambda: model.init(KEY, IMAGES, deterministic=True))()
    logits = jax.jit(lambda images: model.apply(variables, images, deterministic=True))
    assert logits(IMAGES[:0]).shape == (0, 5)
    (batch,) = jax.export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((batch, *IMAGES.shape[1:]), jnp.float32)
    exported = jax.export.deserialize(jax.export.export(logits)(shape).serialize())
    for images in (IMAGES, IMAGES[:1]):
        np.testing.assert_allclose(exported.call(images), logits(images), atol=1e-5)


def test_bytes_are_refused(variables):
    """As on the PyTorch side: they are not normalised. The checker of shapes writes u8."""
    with pytest.raises(TypeError, match=r"uint8|u8"):
        small().apply(variables, IMAGES.astype(jnp.uint8), deterministic=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: small(image_size=18), "multiples of the patch_size 4"),
        (lambda: small(image_size=0), "expected is one positive whole number"),
        (lambda: small(image_size=(16, 16, 3)), "expected is one positive whole number"),
        (lambda: small(image_size="16"), "expected is one positive whole number"),
        (lambda: small(pool="max"), "allowed are class, mean, seq"),
        (lambda: small(dropout=1.0), "0 up to below 1"),
        (lambda: from_name("vit_9", num_classes=2, image_size=32), "vit_9_p4"),
        (lambda: from_name("vit_9_p4+lsa+spt", num_classes=2, image_size=32), "in this order"),
        (lambda: from_name("vit_9_p4", num_classes=2, image_size=32, head=3), "'heads'"),
        (lambda: small(in_channels=1).init(KEY, IMAGES), "expected images of 16×16×1"),
        (lambda: SPT(dim=4, patch_size=4, shift=0.1).init(KEY, IMAGES), "less than one pixel"),
        (lambda: SPT(dim=4, patch_size=5).init(KEY, IMAGES), "do not divide"),
        (lambda: small(heads=5).init(KEY, IMAGES), "not a multiple of heads 5"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
