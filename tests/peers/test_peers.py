"""Well-known implementations with copied weights give the same numbers.

Peers that cannot coincide, and why:
- timm's CaiT class layers: the class token attends to itself too, over normalised patch tokens,
  and heads are not mixed; the SPT paper's class layers differ in all three.
- timm's PiT: its stem overlaps and it has no SPT paper size; its QKV projections have a bias.
- timm's T2T, CvT: do not exist.
- vit-pytorch's CaiT: its class token sees itself.
- vit-pytorch's CvT: divides by sqrt(var + eps) where the authors' divides by (std + eps).
- vit-pytorch's T2T: its token transformers are ordinary ones, without the skip from the values.
- vit-pytorch's ViT for small datasets: shifts by one pixel in the cardinal directions, one
  temperature per layer.
"""

import re

import pytest
import torch
from torch import nn

from smallvit import create_model, load_reference
from smallvit.layers import Attention, Block, WindowAttention
from tests.arrays import noise


def excite(module: nn.Module) -> nn.Module:
    """Random values everywhere, so that nothing agrees by being zero or one."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    return module.eval()


def assert_same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("position", ["learnable", "sine"])
def test_cct_of_vit_pytorch(position):
    from vit_pytorch.cct import CCT

    peer = CCT(
        img_size=(24, 32),
        embedding_dim=128,
        n_conv_layers=2,
        kernel_size=3,
        stride=1,
        padding=1,
        num_layers=2,
        num_heads=2,
        mlp_ratio=1.0,
        num_classes=7,
        positional_embedding=position,
    )
    fixed = peer.classifier.positional_emb.detach().clone()
    peer = excite(peer)
    if position == "sine":
        peer.classifier.positional_emb.data.copy_(fixed)
    # Its sinusoid puts sine and cosine in the same columns as ours, so the kind is recognised.
    ours = load_reference(peer.state_dict(), model="cct_2_3x2", image_size=(24, 32)).eval()
    x = noise(2, 3, 24, 32).float()
    assert_same(ours(x), peer(x))


def test_pre_norm_option_of_cct_is_timms_block():
    from timm.models.vision_transformer import Block as Peer

    model = create_model("cct_2_3x2", num_classes=3, image_size=32, post_norm=False).eval()
    ours = model.blocks[0]
    peer = excite(Peer(128, 2, mlp_ratio=1.0, qkv_bias=False))
    ours.load_state_dict(
        {k.replace("attn.", "attention."): v for k, v in peer.state_dict().items()}
    )
    x = noise(2, 9, 128).float()
    assert_same(ours(x), peer(x))


@pytest.mark.parametrize("image_size", [32, (32, 48)])
def test_vit_of_timm(image_size):
    from timm.models.vision_transformer import VisionTransformer

    peer = excite(
        VisionTransformer(
            img_size=image_size, patch_size=16, embed_dim=48, depth=2, num_heads=3, num_classes=5
        )
    )
    options = {"dim": 48, "depth": 2, "num_heads": 3}
    ours = load_reference(
        peer.state_dict(), model="vit_base_p16", image_size=image_size, **options
    ).eval()
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    x = noise(2, 3, *size).float()
    assert_same(ours(x), peer(x))


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("vit_base_p16", "vit_base_patch16_224"),
        ("vit_large_p16", "vit_large_patch16_224"),
        ("vit_huge_p14", "vit_huge_patch14_224"),
    ],
)
def test_timms_standard_sizes_have_the_same_tensors(name, peer):
    import timm

    from smallvit.interop.references import rename

    with torch.device("meta"):
        theirs, _ = rename(timm.create_model(peer, num_classes=1000).state_dict())
        ours = create_model(name, num_classes=1000, image_size=224).state_dict()
    assert {k: v.shape for k, v in theirs.items()} == {k: v.shape for k, v in ours.items()}


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("grid", [(8, 8), (4, 8), (4, 4)])
def test_swin_block_of_timm(shifted, grid):
    from timm.models.swin_transformer import SwinTransformerBlock

    peer = SwinTransformerBlock(
        16, grid, num_heads=2, window_size=4, shift_size=2 if shifted else 0, mlp_ratio=2
    )
    peer = excite(peer)
    ours = Block(WindowAttention(16, 2, grid=grid, window=4, shifted=shifted), 16, 2).eval()
    state = {
        key.replace("attn.relative_position_bias_table", "attention.bias_table").replace(
            "attn.", "attention."
        ): value
        for key, value in peer.state_dict().items()
        if not key.endswith(("relative_position_index", "attn_mask"))
    }
    ours.load_state_dict(state)
    x = noise(2, grid[0] * grid[1], 16).float()
    assert_same(ours(x), peer(x.view(2, *grid, 16)).flatten(1, 2))


def test_whole_swin_of_timm():
    from timm.models.swin_transformer import SwinTransformer

    peer = excite(
        SwinTransformer(
            img_size=(32, 64),
            patch_size=4,
            embed_dim=16,
            depths=(2, 2),
            num_heads=(1, 2),
            window_size=4,
            num_classes=5,
        )
    )
    state = {}
    for key, value in peer.state_dict().items():
        if key.startswith("layers.1.downsample"):  # which timm counts to the stage it leads into
            key = key.replace("layers.1", "layers.0")
        state[re.sub(r"^head\.fc", "head", key)] = value
    options = {"dim": 16, "depths": (2, 2), "num_heads": (1, 2), "window": 4}
    ours = load_reference(state, model="swin_t", image_size=(32, 64), **options).eval()
    x = noise(2, 3, 32, 64).float()
    assert_same(ours(x), peer(x))


def test_cait_patch_layer_of_timm():
    from timm.models.cait import LayerScaleBlock

    peer = excite(LayerScaleBlock(16, 4, mlp_ratio=2))
    nn.init.zeros_(peer.attn.proj_l.bias)  # the paper mixes heads without a bias
    nn.init.zeros_(peer.attn.proj_w.bias)
    attention = Attention(16, 4, talking=True)
    ours = Block(attention, 16, 2, layer_scale=0.1).eval()
    state = {}
    for key, value in peer.state_dict().items():
        if key.endswith(("proj_l.bias", "proj_w.bias")):
            continue
        if key.endswith(("proj_l.weight", "proj_w.weight")):
            value = value.T  # a linear layer maps old to new heads the other way round
        key = key.replace("attn.proj_l.weight", "attention.talking.before")
        key = key.replace("attn.proj_w.weight", "attention.talking.after")
        key = re.sub(r"^gamma_(\d)", r"scale\1.factor", key)
        state[key.replace("attn.", "attention.")] = value
    ours.load_state_dict(state)
    x = noise(2, 9, 16).float()
    assert_same(ours(x), peer(x))
