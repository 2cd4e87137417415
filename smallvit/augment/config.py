"""One description of everything that happens to a training image."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from smallvit.arguments import Between, Share, check, check_fields

Range = tuple[float, float]
Interpolation = Literal["nearest", "bilinear", "bicubic", "random", "shears"]
Per = Literal["batch", "pair"]
PolicyName = Literal["none", "rand", "trivial", "auto_cifar10", "auto_svhn", "auto_imagenet"]
Fill = Literal["mean", "grey", "black"]
EraseFill = Literal["const", "pixel", "raw"]
EraseShape = Literal["log", "uniform"]
Flavour = Literal["torchvision", "deepvoltaire"]
PresetName = Literal[
    "none",
    "spt_cifar",
    "spt_svhn",
    "spt_imagenet",
    "compact_cifar10",
    "compact_cifar100",
    "compact_flowers",
    "compact_imagenet",
    "drloc",
]


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """What happens to a training image, in this order; the defaults do nothing.

    Attributes:
        padding: Padded crop: black pixels added on each side before a random window is cut out.
        resized_crop: Random resized crop instead: least and largest area, as a fraction.
        aspect: Least and largest width over height of the resized crop.
        resize_interpolation: Of the resized crop; "random" draws bilinear or bicubic per image.
        flip: Probability of a horizontal flip.
        vertical_flip: Probability of a vertical flip.
        policy: "rand" is RandAugment, "trivial" TrivialAugment, "auto_…" AutoAugment.
        flavour: Whose AutoAugment: torchvision's, or "deepvoltaire", as in the SPT paper's code
            (bicubic shears, translations rounded, rotation anticlockwise only, solarize from 256).
        magnitude: Strength of RandAugment, from 0 to 10.
        magnitude_std: Standard deviation of that strength.
        layers: Operations that RandAugment chooses per image, each applied half the time.
        interpolation: Of the policy's shears, rotations and translations; "shears" is bicubic for
            shears and nearest for the others, as the flavour "deepvoltaire" always is.
        fill: Colour of what shears, rotations and translations leave empty.
        erasing: Probability of erasing a rectangle.
        erasing_area: Least and largest area of that rectangle, as a fraction.
        erasing_aspect: Its least width over height; the largest is one over it.
        erasing_shape: Whether the logarithm of that ratio is uniform ("log"), or height over width
            itself ("uniform", as in the SPT paper's code: three of four are taller than wide).
        erasing_fill: With the mean colour ("const"), normal noise ("pixel"), or the mean as it is
            before normalising, set after it ("raw", as in the SPT paper's code).
        erasing_last: Erase after mixing instead of before it, as timm's loader does.
        mixup: α of Mixup; 0 switches it off.
        cutmix: α of CutMix; 0 switches it off.
        mix_probability: How often a batch (or pair) is mixed.
        cutmix_share: How often that is CutMix where both are on.
        mix_per: Whether λ and the box are drawn once per batch or once per pair of images.
        mix_batch: Images that share what is drawn per batch, as those of one of several processes
            do in the papers' code; 0 for all of a step.
        mix_group: Size of the groups of neighbours inside which partners are drawn; the part of a
            batch that a process takes must be made of whole groups.
        even_box: CutMix's box has sides of 2 · (side // 2), as in the papers' code.
        smoothing: Label smoothing.
    """

    padding: Annotated[int, Between(0, 10_000)] = 0
    resized_crop: Range | None = None
    aspect: Range = (3 / 4, 4 / 3)
    resize_interpolation: Interpolation = "bilinear"
    flip: Share = 0.0
    vertical_flip: Share = 0.0
    policy: PolicyName = "none"
    flavour: Flavour = "torchvision"
    magnitude: Annotated[float, Between(0, 10)] = 9.0
    magnitude_std: Annotated[float, Between(0, 1_000)] = 0.5
    layers: Annotated[int, Between(1, 1_000)] = 2
    interpolation: Interpolation = "nearest"
    fill: Fill = "mean"
    erasing: Share = 0.0
    erasing_area: Range = (0.02, 1 / 3)
    erasing_aspect: Annotated[float, Between(0, 1, left_out=0)] = 0.3
    erasing_shape: EraseShape = "log"
    erasing_fill: EraseFill = "const"
    erasing_last: bool = False
    mixup: Annotated[float, Between(0, 1_000_000)] = 0.0
    cutmix: Annotated[float, Between(0, 1_000_000)] = 0.0
    mix_probability: Share = 1.0
    cutmix_share: Share = 0.5
    mix_per: Per = "batch"
    mix_batch: Annotated[int, Between(0, 1_000_000)] = 0
    mix_group: int = 8
    even_box: bool = False
    smoothing: Share = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.resize_interpolation in ("nearest", "shears"):
            raise ValueError(
                f"resize_interpolation is {self.resize_interpolation!r}: allowed are bilinear, "
                "bicubic, random"
            )
        for name in ("resized_crop", "erasing_area", "aspect"):
            value = getattr(self, name)
            if value is None and name == "resized_crop":
                continue
            check(name, value, Sequence[float])
            if len(value) != 2:
                raise ValueError(f"{name} is {value!r}: expected are the least and the largest")
            if name != "aspect" and not 0 < value[0] <= value[1] <= 1:
                raise ValueError(
                    f"{name} is {value}: give the least and largest area, between 0 and 1"
                )
        if not 0 < self.aspect[0] <= self.aspect[1]:
            raise ValueError(
                f"aspect is {self.aspect}: give the least and largest width over height"
            )
        if self.padding and self.resized_crop:
            raise ValueError(
                f"padding is {self.padding} and resized_crop {self.resized_crop}: choose one crop"
            )
        if self.mix_group < 2 or self.mix_group % 2:
            raise ValueError(f"mix_group is {self.mix_group}: give an even number, at least 2")

    @property
    def mixed(self) -> bool:
        """Whether images are mixed at all."""
        return self.mix_probability > 0 and (self.mixup > 0 or self.cutmix > 0)

    @property
    def group(self) -> int:
        """How many images have to stay together in a pass: those that may be mixed."""
        return self.mix_group if self.mixed else 1

    @property
    def policy_interpolation(self) -> Interpolation:
        """How the policy's maps interpolate; one flavour of AutoAugment decides it by itself."""
        theirs = self.flavour == "deepvoltaire" and self.policy.startswith("auto_")
        return "shears" if theirs else self.interpolation


_SPT = AugmentConfig(
    padding=4,
    flip=0.5,
    flavour="deepvoltaire",
    fill="grey",
    erasing=0.25,
    erasing_area=(0.02, 0.4),
    erasing_shape="uniform",
    erasing_fill="raw",
    mixup=1.0,
    cutmix=1.0,
    mix_probability=0.5,
    even_box=True,
    smoothing=0.1,
)
_COMPACT = AugmentConfig(
    resized_crop=(0.8, 1.0),
    resize_interpolation="random",
    flip=0.5,
    policy="rand",
    interpolation="random",
    erasing_fill="pixel",
    erasing_last=True,
    mixup=0.8,
    cutmix=1.0,
    even_box=True,
    smoothing=0.1,
)
_DRLOC = replace(
    _COMPACT,
    resized_crop=(0.08, 1.0),
    resize_interpolation="bicubic",
    interpolation="bicubic",
    erasing=0.25,
    erasing_last=False,
    mix_batch=128,
)

#: What the papers' released code does to images, as it is: it flips digits too (flip=0 does not).
PRESETS: dict[PresetName, AugmentConfig] = {
    "none": AugmentConfig(),
    "spt_cifar": replace(_SPT, policy="auto_cifar10"),
    "spt_svhn": replace(_SPT, policy="auto_svhn"),
    "spt_imagenet": replace(_SPT, policy="auto_imagenet"),
    "compact_cifar10": _COMPACT,
    "compact_cifar100": replace(_COMPACT, erasing=0.25),
    "compact_flowers": replace(_COMPACT, erasing=0.25),
    "compact_imagenet": replace(_COMPACT, resized_crop=(0.08, 1.0), erasing=0.25, mix_batch=128),
    "drloc": _DRLOC,
}
