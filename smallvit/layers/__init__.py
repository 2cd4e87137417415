"""The papers' parts, exactly one of each.

Shapes in signatures read with one legend: B batch, C channels, H W image, h w token grid,
N tokens, D width, M heads, E head width, K classes.
"""

from smallvit.layers.attention import LSA, Attention, TalkingHeads, attend
from smallvit.layers.blocks import Block, ChannelNorm, DropPath, LayerScale, Mlp, Stack
from smallvit.layers.convolutional import ConvAttention
from smallvit.layers.features import AttentionLayout, Features, Stage, token_range
from smallvit.layers.merging import PatchMerging, PiTPooling, SPTPooling
from smallvit.layers.pooling import ClassToken, MeanPool, SeqPool
from smallvit.layers.positions import Positions, resample, sinusoid
from smallvit.layers.residual import ResidualBlock
from smallvit.layers.soft_split import Performer, TokenTransformer, soft_split
from smallvit.layers.tokenizers import SPT, ConvTokenizer, PatchTokenizer, shifted_stack
from smallvit.layers.windows import WindowAttention

__all__ = [
    "LSA",
    "SPT",
    "Attention",
    "AttentionLayout",
    "Block",
    "ChannelNorm",
    "ClassToken",
    "ConvAttention",
    "ConvTokenizer",
    "DropPath",
    "Features",
    "LayerScale",
    "MeanPool",
    "Mlp",
    "PatchMerging",
    "PatchTokenizer",
    "Performer",
    "PiTPooling",
    "Positions",
    "ResidualBlock",
    "SPTPooling",
    "SeqPool",
    "Stack",
    "Stage",
    "TalkingHeads",
    "TokenTransformer",
    "WindowAttention",
    "attend",
    "resample",
    "shifted_stack",
    "sinusoid",
    "soft_split",
    "token_range",
]
