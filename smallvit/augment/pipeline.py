"""All of augmentation: bytes and labels in, normalised images and soft targets out."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from smallvit.arguments import Between, Seed, checked, described
from smallvit.augment.boxes import BOX_DRAWS, draw_box, erase
from smallvit.augment.config import AugmentConfig
from smallvit.augment.geometry import crop, draw_resized_crop, resized_crop
from smallvit.augment.mixing import (
    MIX_DRAWS,
    beta_quantiles,
    draw_mix,
    mix_images,
    mix_targets,
    soft_targets,
)
from smallvit.augment.operations import operate, operate_by_groups
from smallvit.augment.policies import Drawn, PolicyTable, draw_policy, make_policy, policy_table
from smallvit.augment.randomness import normal, uniform, whole, written
from smallvit.sizes import Size, as_size

# The position whose numbers the whole batch shares (parts of it count down from there), and the
# step that the noise is drawn for; no image has either.
_EVERYONE = 2**32 - 1
_BEFORE = 2**63 - 1
_NOISES = 2**18


def normalise(
    images: UInt8[Tensor, "B C H W"], mean: Float[Tensor, " C"], std: Float[Tensor, " C"]
) -> Float[Tensor, "B C H W"]:
    """Bytes to numbers of mean 0 and standard deviation 1, from both on a scale of 0 to 1."""
    mean, std = mean[:, None, None], std[:, None, None]
    return images.float().mul_(1 / (255 * std)).sub_(mean / std)


class Draws(NamedTuple):
    """The uniform numbers per image, by purpose.

    Every purpose has its own columns whether it is used or not, so that switching one off does not
    change what the others draw.
    """

    flip: Float[Tensor, "B 2"]
    crop: Float[Tensor, "B boxes"]
    erasing: Float[Tensor, "B holes"]
    mixing: Float[Tensor, "B mixes"]
    policy: Float[Tensor, "B choices"]


class Augmentation(nn.Module):
    """Augments batches on its device; compiles to one graph without a host sync.

    Its random numbers are a function of (seed, step, position in the global batch): how the batch
    is split over processes or passes changes nothing. It has no parameters and nothing to save.

    Args:
        config: What to do.
        image_size: Height and width of the augmented images.
        mean: The training data's mean per channel, on a scale of 0 to 1.
        std: Its standard deviation per channel.
        num_classes: Width of the targets.
        seed: The run's seed.

    Attributes:
        alike: Has every step of the policy compute all operations of any step, so that they are one
            program to a compiler that sees each by itself; the images stay the same.
    """

    alike: bool = False
    mean: Tensor
    std: Tensor
    fill: Tensor
    seed: Tensor
    noise: Tensor | None
    mixup_quantiles: Tensor | None
    cutmix_quantiles: Tensor | None

    @checked
    def __init__(
        self,
        config: AugmentConfig,
        *,
        image_size: Size,
        mean: Sequence[float],
        std: Sequence[float],
        num_classes: Annotated[int, Between(1, 1_000_000)],
        seed: Seed = 0,
    ) -> None:
        super().__init__()
        image_size = as_size(image_size)
        if not len(mean) or len(mean) != len(std) or not all(value > 0 for value in std):
            raise ValueError(
                f"mean is {tuple(mean)} and std {tuple(std)}: give one of each per channel, "
                "and no standard deviation of 0"
            )
        self.config, self.image_size, self.num_classes = config, image_size, num_classes
        self.policy = make_policy(config, image_size)
        fills = {"mean": [255 * value for value in mean], "grey": [128.0] * len(mean)}
        fill = torch.tensor(fills.get(config.fill, [0.0] * len(mean)))
        numbers = len(mean) * image_size[0] * image_size[1]
        noisy = config.erasing > 0 and config.erasing_fill == "pixel"
        constants = {
            "mean": torch.tensor(tuple(mean)),
            "std": torch.tensor(tuple(std)),
            "fill": fill.round().clamp(0, 255).to(torch.uint8),
            "seed": torch.tensor(seed),
            "noise": _make_noise(seed, numbers) if noisy else None,
            "mixup_quantiles": beta_quantiles(config.mixup) if config.mixup else None,
            "cutmix_quantiles": beta_quantiles(config.cutmix) if config.cutmix else None,
        }
        if self.policy:
            constants |= policy_table(self.policy)._asdict()
        for name, constant in constants.items():
            self.register_buffer(name, constant, persistent=False)

    def forward(
        self,
        images: UInt8[Tensor, "B C H W"],
        labels: Int64[Tensor, " B"],
        step: Int64[Tensor, ""],
        positions: Int64[Tensor, " B"],
    ) -> tuple[Float[Tensor, "B C h w"], Float[Tensor, "B K"]]:
        """Augments one batch, or one process's part of it.

        Args:
            step: Number of the training step; a tensor, so that it is not compiled in.
            positions: Each image's position in the global batch: consecutive, and with mixing of
                whole groups, so that the first is a multiple of `mix_group`.
        """
        config = self.config
        for name, tensor, kind, sides in (
            ("images", images, torch.uint8, 4),
            ("labels", labels, torch.int64, 1),
            ("step", step, torch.int64, 0),
            ("positions", positions, torch.int64, 1),
        ):
            if not isinstance(tensor, Tensor) or tensor.dtype != kind or tensor.ndim != sides:
                raise TypeError(
                    f"{name} is {described(tensor)}: expected is a tensor of {kind} with {sides} "
                    "axes"
                )
        if not len(images) == len(labels) == len(positions):
            raise ValueError(
                f"there are {len(images)} images, {len(labels)} labels and {len(positions)} "
                "positions: expected is one of each per image"
            )
        draws, shared = self.draw(step, positions)
        x = normalise(self._transform(images, draws), self.mean, self.std)
        x = x if config.mixed and config.erasing_last else self._erase(x, draws)
        targets = soft_targets(labels, self.num_classes, config.smoothing)
        if not config.mixed:
            return x, targets
        mix = draw_mix(
            draws.mixing,
            shared.mixing,
            positions,
            self.image_size,
            (self.mixup_quantiles, self.cutmix_quantiles),
            probability=config.mix_probability,
            cutmix_share=config.cutmix_share,
            per=config.mix_per,
            group=config.mix_group,
            even_box=config.even_box,
        )
        x = mix_images(written(x), mix)
        x = self._erase(x, draws) if config.erasing_last else x
        return x, mix_targets(targets, mix)

    def transform(
        self,
        images: UInt8[Tensor, "B C H W"],
        step: Int64[Tensor, ""],
        positions: Int64[Tensor, " B"],
    ) -> UInt8[Tensor, "B C h w"]:
        """Crop, flip and policy without erasing and mixing, as previews show them."""
        return self._transform(images, self.draw(step, positions)[0])

    def draw(self, step: Int64[Tensor, ""], positions: Int64[Tensor, " B"]) -> tuple[Draws, Draws]:
        """All random numbers of a step: a row per image, and a row that images share.

        With `mix_batch` the latter is there for each image, the same for all of its part.
        """
        columns = [2, BOX_DRAWS + 1, BOX_DRAWS + 2, MIX_DRAWS]
        columns.append(self.policy.draws if self.policy else 0)
        share = self.config.mix_batch
        shared = _EVERYONE - (positions // share if share else torch.zeros_like(positions[:1]))
        uniforms = uniform(self.seed, step, torch.cat([positions, shared]), sum(columns))
        parts, count = torch.split(uniforms, columns, 1), len(positions)
        return Draws(*(part[:count] for part in parts)), Draws(*(part[count:] for part in parts))

    @property
    def among(self) -> tuple[frozenset[str], ...]:
        """For each step of the policy: the operations that are computed."""
        steps = self.policy.among if self.policy else ()
        return (frozenset().union(*steps),) * len(steps) if self.alike else steps

    def _transform(self, images: Tensor, draws: Draws) -> Tensor:
        """Crop, flip and policy."""
        x = self._frame(images, draws)
        if self.policy is None:
            return x
        table = PolicyTable(*(getattr(self, name) for name in PolicyTable._fields))
        return self.apply_policy(x, draw_policy(self.policy, table, draws.policy))

    def apply_policy(self, x: UInt8[Tensor, "B C h w"], drawn: Drawn) -> UInt8[Tensor, "B C h w"]:
        """The drawn operations, one after the other."""
        grouped = x.device.type == "cpu" and not (self.alike or torch.compiler.is_compiling())
        apply = operate_by_groups if grouped else operate
        for layer, among in enumerate(self.among):
            x = apply(
                x,
                drawn.ops[:, layer],
                drawn.arguments[:, layer],
                self.fill,
                among=among,
                interpolation=self.config.policy_interpolation,
                cubic=drawn.cubic[:, layer],
            )
        return x

    def _frame(self, images: Tensor, draws: Draws) -> Tensor:
        """Crops and flips in one step."""
        config, new = self.config, self.image_size
        old = (images.shape[2], images.shape[3])
        channels = len(self.mean)
        if images.shape[1] != channels:
            raise ValueError(
                f"expected images of {channels} channels, as the mean has, and got a batch of "
                f"shape {tuple(images.shape)}"
            )
        flips = {
            "mirrored": draws.flip[:, 0] < config.flip,
            "upturned": draws.flip[:, 1] < config.vertical_flip,
        }
        if config.resized_crop:
            share = {"bilinear": 0.0, "bicubic": 1.0, "random": 0.5}[config.resize_interpolation]
            box = draw_resized_crop(draws.crop[:, 1:], old, config.resized_crop, config.aspect)
            return resized_crop(images, box, new, cubic=draws.crop[:, 0] < share, **flips)
        room = [side + 2 * config.padding - target for side, target in zip(old, new, strict=True)]
        if min(room) < 0 or (old != new and not config.padding):
            raise ValueError(
                f"images of {old[0]}×{old[1]} with padding {config.padding} do not give windows "
                f"of {new[0]}×{new[1]}: pad more, use resized_crop, or resize them before"
            )
        top, left = (whole(draws.crop[:, i], room[i] + 1) - config.padding for i in range(2))
        return crop(images, top, left, new, **flips)

    def _erase(self, x: Tensor, draws: Draws) -> Tensor:
        """Erases a rectangle of some images."""
        config = self.config
        if not config.erasing:
            return x
        aspect = (config.erasing_aspect, 1 / config.erasing_aspect)
        box = draw_box(
            draws.erasing[:, 2:],
            self.image_size,
            config.erasing_area,
            aspect,
            smaller=True,
            shape=config.erasing_shape,
        )
        box = box._replace(height=torch.where(draws.erasing[:, 0] < config.erasing, box.height, 0))
        if config.erasing_fill == "raw":
            return erase(x, box, self.mean[None, :, None, None])
        if self.noise is None:
            return erase(x, box, torch.zeros_like(x[:1, :1, :1, :1]))
        windows = self.noise.unfold(0, x[0].numel(), 1)
        return erase(x, box, windows[whole(draws.erasing[:, 1], _NOISES)].view_as(x))


def _make_noise(seed: int, count: int) -> Float[Tensor, " length"]:
    """A long row of normal noise; each erased image gets a window of `count` numbers."""
    position = torch.zeros(1, dtype=torch.int64)
    draws = uniform(torch.tensor(seed), torch.tensor(_BEFORE), position, _NOISES + count)
    return normal(draws[0])
