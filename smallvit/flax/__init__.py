"""The small-dataset ViT in JAX: the papers' parts as Linen modules, without PyTorch.

Images are (B, H, W, C). A module called with `deterministic=True` drops nothing and needs no
rngs; otherwise the rates that are not zero draw from the rngs "dropout" (everything inside the
blocks) and "emb_dropout" (after the positions). Shapes in signatures read with the legend of
`smallvit.layers`: B batch, C channels, H W image, h w token grid, N tokens, D width, M heads,
E head width, K classes.
"""

from smallvit.flax.blocks import LSA, Attention, Block, Mlp
from smallvit.flax.drloc import DRLoc
from smallvit.flax.models import CCT, Features, ViT, resized
from smallvit.flax.pooling import ClassToken, MeanPool, SeqPool
from smallvit.flax.positions import Positions, resample, sinusoid
from smallvit.flax.tokenizers import SPT, ConvTokenizer, PatchTokenizer, shifted_stack
from smallvit.flax.variants import VARIANTS, from_name
from smallvit.flax.weights import load, save

__all__ = [
    "CCT",
    "LSA",
    "SPT",
    "VARIANTS",
    "Attention",
    "Block",
    "ClassToken",
    "ConvTokenizer",
    "DRLoc",
    "Features",
    "MeanPool",
    "Mlp",
    "PatchTokenizer",
    "Positions",
    "SeqPool",
    "ViT",
    "from_name",
    "load",
    "resample",
    "resized",
    "save",
    "shifted_stack",
    "sinusoid",
]
