"""Augmentation as pure functions of (key, batch): random for each image, safe under jit.

What moves in or is erased is zero: crop before normalising and it is black, erase after it and it
is the mean colour.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

#: The share of each pixel that is kept; the rest comes from the partner.
Share = Float[Array, "B H W 1"]


def flip(key: Array, images: Float[Array, "B H W C"], prob: float = 0.5) -> Float[Array, "B H W C"]:
    """Mirrors some images left to right."""
    flipped = jax.random.bernoulli(key, prob, (len(images), 1, 1, 1))
    return jnp.where(flipped, images[:, :, ::-1], images)


def crop(key: Array, images: Float[Array, "B H W C"], padding: int = 4) -> Float[Array, "B H W C"]:
    """Cuts each image, padded on all sides, back to its size at a random position."""
    batch, height, width, _ = images.shape
    sides = (padding, padding)
    padded = jnp.pad(images, ((0, 0), sides, sides, (0, 0)))
    top, left = jax.random.randint(key, (2, batch), 0, 2 * padding + 1)
    rows = top[:, None] + jnp.arange(height)
    columns = left[:, None] + jnp.arange(width)
    return padded[jnp.arange(batch)[:, None, None], rows[:, :, None], columns[:, None]]


def erase(
    key: Array,
    images: Float[Array, "B H W C"],
    prob: float = 0.25,
    area: tuple[float, float] = (0.02, 1 / 3),
    aspect: float = 0.3,
) -> Float[Array, "B H W C"]:
    """Blanks a rectangle of some images.

    Args:
        prob: Probability that an image is changed.
        area: The smallest and largest share of an image that is erased.
        aspect: Height over width, between this and its inverse, log-uniform; a side longer than
            the image is cut to it.
    """
    batch, height, width, _ = images.shape
    chosen_key, area_key, aspect_key, corner_key = jax.random.split(key, 4)
    pixels = height * width * jax.random.uniform(area_key, (batch,), minval=area[0], maxval=area[1])
    bound = -jnp.log(aspect)
    ratio = jnp.exp(jax.random.uniform(aspect_key, (batch,), minval=-bound, maxval=bound))
    tall = jnp.clip(jnp.round(jnp.sqrt(pixels * ratio)), 1, height).astype(int)
    wide = jnp.clip(jnp.round(jnp.sqrt(pixels / ratio)), 1, width).astype(int)
    row, column = jax.random.uniform(corner_key, (2, batch))
    top = (row * (height - tall + 1)).astype(int)
    left = (column * (width - wide + 1)).astype(int)
    box = _box(images, top, top + tall, left, left + wide)
    chosen = jax.random.bernoulli(chosen_key, prob, (batch, 1, 1, 1))
    return jnp.where(box & chosen, 0, images)


def mixup(key: Array, images: Float[Array, "B H W C"], alpha: float = 1.0) -> Share:
    """Mixup's share: one number per image, Beta(alpha, alpha)."""
    kept = _beta(key, alpha, (len(images), 1, 1, 1))
    return jnp.broadcast_to(kept, (*images.shape[:3], 1))


def cutmix(key: Array, images: Float[Array, "B H W C"], alpha: float = 1.0) -> Share:
    """CutMix's share: 0 in a rectangle of area 1 − Beta(alpha, alpha), cut at the border."""
    batch, height, width, _ = images.shape
    kept_key, corner_key = jax.random.split(key)
    side = jnp.sqrt(1 - _beta(kept_key, alpha, (batch,)))
    tall, wide = (side * height).astype(int), (side * width).astype(int)
    row, column = jax.random.uniform(corner_key, (2, batch))
    top = (row * height).astype(int) - tall // 2
    left = (column * width).astype(int) - wide // 2
    return 1.0 - _box(images, top, top + tall, left, left + wide)


def blend(
    key: Array,
    images: Float[Array, "B H W C"],
    targets: Float[Array, "B K"],
    share: Share,
) -> tuple[Float[Array, "B H W C"], Float[Array, "B K"]]:
    """Mixes each image with another of the batch, and its target by the same share."""
    partner = jax.random.permutation(key, len(images))
    share = share.astype(images.dtype)
    kept = share.mean((1, 2))
    return (
        share * images + (1 - share) * images[partner],
        kept * targets + (1 - kept) * targets[partner],
    )


def mix(
    key: Array,
    images: Float[Array, "B H W C"],
    targets: Float[Array, "B K"],
    prob: float = 0.5,
    mixup_alpha: float = 1.0,
    cutmix_alpha: float = 1.0,
) -> tuple[Float[Array, "B H W C"], Float[Array, "B K"]]:
    """Mixup or CutMix, half and half, on some images; soft targets."""
    choice_key, mixup_key, cutmix_key, blend_key = jax.random.split(key, 4)
    choice = jax.random.uniform(choice_key, (len(images), 1, 1, 1))
    mixed = jnp.where(
        choice < prob / 2,
        mixup(mixup_key, images, mixup_alpha),
        cutmix(cutmix_key, images, cutmix_alpha),
    )
    return blend(blend_key, images, targets, jnp.where(choice < prob, mixed, 1.0))


def _beta(key: Array, alpha: float, shape: tuple[int, ...]) -> Array:
    """Beta(alpha, alpha); that of 1 is uniform, which is far cheaper to draw."""
    if alpha == 1:
        return jax.random.uniform(key, shape)
    return jax.random.beta(key, alpha, alpha, shape)


def _box(
    images: Float[Array, "B H W C"],
    top: Int[Array, " B"],
    bottom: Int[Array, " B"],
    left: Int[Array, " B"],
    right: Int[Array, " B"],
) -> Bool[Array, "B H W 1"]:
    """True inside a rectangle of each image."""
    _, height, width, _ = images.shape
    row, column = jnp.arange(height), jnp.arange(width)
    rows = (row >= top[:, None]) & (row < bottom[:, None])
    columns = (column >= left[:, None]) & (column < right[:, None])
    return (rows[:, :, None] & columns[:, None])[..., None]
