"""`auto`: what fits the data, the device and the time there is."""

from dataclasses import dataclass, replace

from smallvit.augment.config import AugmentConfig
from smallvit.models.names import find_variant, parse_name
from smallvit.recipes.facts import SMALL, Choice, Facts, augment_reason, size_reason
from smallvit.recipes.speed import INFERENCE, cost, rate_of, tokens_along
from smallvit.runs.config import (
    DataConfig,
    LoopConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    ScheduleConfig,
)
from smallvit.sizes import Size

_IMBALANCE = 10
_TIME = {"cpu": 600.0}  # seconds of a run whose time is not given
_GPU_TIME = 300.0
_START = {"cpu": 10.0}  # seconds before the first step: imports, decoding, building
_GPU_START = {True: 60.0, False: 20.0}  # with and without compiling
_PREPARING = 8.0  # of them until all images are decoded, with CIFAR on a CPU
#: The share of a GPU's speed that is left where nothing is compiled: hct_l_p4 trained at 15,138
#: images per second instead of 32,443, hct_s_p4 at 25,970 instead of 70,116.
_UNCOMPILED = 0.45
_CEILING = 70_000.0  # images per second of a GPU, however small the model
_MOST = 200.0  # passes of a run whose time is not given
#: Seconds of a run below which a GPU gains by compiling blocks alone: 20 s sooner, 3 % slower.
_SHORT = 600.0

#: Our own families: the newer one where it was measured in equal minutes (docs/experiments.md).
_FAMILIES = {"cpu": "hct2"}
_GPU_FAMILY = "hct"
#: The least images seen, and passes, that a size of them needs to be better than the one before it.
_NEEDS = {"xs": (0, 0), "s": (12_000, 0), "m": (600_000, 40), "l": (3_000_000, 60)}
#: The least passes for images of this many pixels, where they are as large. HCT2 takes hardly
#: longer for 128 than for 64, since larger images get larger patches; a model that is requested
#: does not.
_SIDES = {"hct": {64: 0, 128: 60, 160: 400}, "hct2": {64: 0, 128: 6, 160: 200}}
#: Tokens along a side that a model which is requested should have, where the images allow it, and
#: the sides to try for that, besides its own.
_TOKENS, _LARGER = 8, (64, 128)
#: How often a run forgets: learning rate · decay · steps of Muon, which remembers for 1 / (rate ·
#: decay) steps. With 10 to 20 it learns most, with far more little (docs/experiments.md).
_FORGETTING = 16.0
#: Passes from which mirroring, crops, mixing and more pay: an image that is seen once is new.
_MIRRORING, _CROPPING, _MIXING, _STRONG = 2, 10, 25, 100


@dataclass(frozen=True)
class _Fit:
    """A model, and what can be done with it in the time.

    Attributes:
        name: The model.
        size: Of the images.
        images: Number of images that it can be trained on, one by one.
        rate: Images per second; None if that is unknown.
    """

    name: str
    size: Size
    images: float
    rate: float | None


def auto(facts: Facts) -> Choice:
    """Our own family, with Muon, in a size that the time allows.

    Thresholds come from the ablation of short budgets on CPU cores (docs/experiments.md); those of
    the sizes m and l, of images beyond 64 pixels and of strong augmentation are estimates.
    """
    if facts.steps is not None:
        seen = facts.steps * _batch(facts, facts.side)
        facts = replace(facts, epochs=seen / facts.images)
    fit = _fit(facts)
    epochs = facts.epochs or max(fit.images / facts.images, 0.01)
    if facts.epochs is None and facts.minutes is None:
        epochs = min(epochs, _MOST)
        # Whole passes where there are some: that reads better.
        epochs = float(round(epochs)) if epochs >= 10 else max(round(epochs, 2), 0.01)
    batch = _batch(facts, max(fit.size))
    steps = epochs * facts.images / batch
    # A run on a GPU that is so short that compiling less pays.
    short = epochs * facts.images < _SHORT * (fit.rate or _CEILING)
    regional = short and _compiles(facts) and _is_ours(fit.name)
    config = RunConfig(
        data=DataConfig(image_size=fit.size),
        model=ModelConfig(name=fit.name),
        augment=_augment(facts, fit.size, batch, epochs),
        loss=LossConfig(balanced=facts.imbalance >= _IMBALANCE),
        optim=_optim(fit.name, steps, batch),
        schedule=ScheduleConfig(epochs=epochs, warmup=0.1),
        loop=LoopConfig(batch_size=batch, regional=regional),
    )
    return Choice(config, _reasons(facts, fit, config))


def _fit(facts: Facts) -> _Fit:
    """The largest images for which there are passes enough, and then the largest model."""
    base = _base(facts)
    larger = facts.requested_size is None and base != facts.shared_size
    best = _sized(facts, base)
    for side, passes in _SIDES["hct" if facts.model else _family(facts)].items():
        if larger and max(base) < side <= facts.typical_side:
            fit = _sized(facts, (side, side))
            if fit.images / facts.images >= passes:
                best = fit
    return best


def _base(facts: Facts) -> Size:
    """The images' usual size; more where the requested model would have few tokens of them."""
    open_size = facts.requested_size is None and facts.size != facts.shared_size
    if facts.model is None or not open_size:
        return facts.size
    own = find_variant(facts.model).image_size if parse_name(facts.model).ours else 0
    for side in (*_LARGER, own):
        fits = facts.side <= side <= max(facts.typical_side, facts.side)
        if fits and tokens_along(facts.model, side) >= _TOKENS:
            return side, side
    return facts.size


def _sized(facts: Facts, size: Size) -> _Fit:
    """The largest model of those that can see enough of images of a size."""
    if facts.model is not None:
        return _in_time(facts, facts.model, size)
    family, side = _family(facts), max(size)
    # Pixels between tokens: about 8×8 of them in the last attention.
    patch = 4 if side <= SMALL else 8 if side < 96 else 16
    # The smallest is for machines that are too slow for the next one, not for few passes.
    best = _in_time(facts, f"{family}_{'xs' if facts.epochs is None else 's'}_p{patch}", size)
    for letter, (images, passes) in _NEEDS.items():
        fit = _in_time(facts, f"{family}_{letter}_p{patch}", size)
        if letter != "xs" and fit.images >= images and fit.images / facts.images >= passes:
            best = fit
    return best


def _family(facts: Facts) -> str:
    """Which of our own families fits the device."""
    return _FAMILIES.get(facts.device, _GPU_FAMILY)


def _is_ours(name: str) -> bool:
    """Whether a model is of our own families, for which all this was chosen."""
    return name.startswith(("hct_", "hct2_"))


def _in_time(facts: Facts, name: str, size: Size) -> _Fit:
    """How many images a model can be trained on in the time there is."""
    price = cost(name, max(size))
    price = price and price + facts.beside
    rate = None
    if facts.speed and price:
        side = max(size)
        rate = rate_of(facts.speed, price, side, _batch(facts, side), facts.device)
    if facts.epochs is not None:
        return _Fit(name, size, facts.epochs * facts.images, rate)
    if rate is None:  # about what two CPU cores can do, or a GPU
        rate = 300.0 if facts.device == "cpu" else 20_000.0
    if facts.device != "cpu":
        rate = min(rate, _CEILING)
    if facts.device == "cuda" and not _compiles(facts):
        rate *= _UNCOMPILED
    whole, start = _TIME.get(facts.device, _GPU_TIME), _start(facts)
    if facts.minutes:
        whole = 60 * facts.minutes
    start = min(start, max(0.3 * whole, facts.preparing if facts.minutes else 0.0))
    seconds = 0.96 * whole - start - facts.tested / (INFERENCE * rate)
    return _Fit(name, size, max(seconds, 0.0) * rate, rate)


def _compiles(facts: Facts) -> bool:
    return LoopConfig().compiles(facts.device, facts.minutes)


def _start(facts: Facts) -> float:
    """Seconds before the first step."""
    usual = _START.get(facts.device, _GPU_START[_compiles(facts)])
    return usual + max(facts.preparing - _PREPARING, 0.0)


def _batch(facts: Facts, side: int) -> int:
    """As requested; else smaller for few images, so that a pass has several steps."""
    if facts.batch is not None:
        return min(facts.batch, facts.images)
    batch = 128 if side <= SMALL else 64
    if facts.device != "cpu" and facts.images >= 20_000:
        batch *= 4
    # A step of 16 takes as long as one of 32, and teaches less (docs/experiments.md).
    while batch > 32 and facts.images < 10 * batch:
        batch //= 2
    return min(batch, max(facts.images // 8 * 8, 1))


def _optim(name: str, steps: float, batch: int) -> OptimConfig:
    """Muon for our own family, AdamW for the others, for which only that was measured."""
    ema = 0.999 if steps > 20_000 else 0.99
    if not _is_ours(name):
        return OptimConfig(lr=1e-3, weight_decay=0.05, clip=1.0, ema=ema)
    rate = 0.02 if steps < 1_000 else 0.014 if batch > 256 else 0.01
    return OptimConfig(
        optimizer="muon",
        muon_lr=rate,
        muon_decay=min(1.0, float(f"{_FORGETTING / (rate * max(steps, 1)):.2g}")),
        lr=3e-3,
        weight_decay=0.0,
        betas=(0.9, 0.99),
        ema=ema,
    )


def _augment(facts: Facts, size: Size, batch: int, passes: float) -> AugmentConfig:
    """Crops and mirroring; the more passes, the stronger, but gentle for grey thumbnails."""
    flip, side = 0.5 if facts.mirrored and passes >= _MIRRORING else 0.0, max(size)
    thumbnails = side <= SMALL and facts.channels == 1
    padding = max(1, side // (14 if thumbnails else 16 if passes < _MIXING else 8))
    plain = AugmentConfig(flip=flip, padding=padding if passes >= _CROPPING else 0, smoothing=0.1)
    if thumbnails or passes < _MIXING:
        return plain
    mixes, strong = batch % 8 == 0, passes >= _STRONG
    return AugmentConfig(
        padding=0 if strong and side > SMALL else plain.padding,
        resized_crop=(0.4, 1.0) if strong and side > SMALL else None,
        flip=flip,
        policy="trivial" if strong else "none",
        interpolation="bilinear",
        erasing=0.25 if strong else 0.0,
        mixup=0.8 if mixes else 0.0,
        cutmix=1.0 if mixes else 0.0,
        mix_probability=0.5,
        smoothing=0.1,
    )


def _reasons(facts: Facts, fit: _Fit, config: RunConfig) -> dict[str, str]:
    epochs, batch = config.schedule.epochs, config.loop.batch_size
    kind = "CPU" if facts.device == "cpu" else "GPU"
    larger = "" if fit.size == facts.size else "the images are larger, and there is time for that"
    if larger and fit.size == _base(facts):
        few = "would have too few tokens" if tokens_along(fit.name, facts.side) else "is impossible"
        larger = f"with {facts.side} pixels {fit.name} {few}"
    often = "once or less" if epochs < 1.5 else f"about {epochs:.0f} times"
    seen = f"; an image is seen {'only ' if epochs < _MIXING else ''}{often}"
    reasons = {
        **size_reason(facts, fit.size, larger),
        "model.name": f"model {fit.name}: our hybrid of convolutions and attention, in the size "
        f"that pays for images of {max(fit.size)} pixels in this time on this {kind}",
        "augment": augment_reason(config.augment, facts) + seen,
        "optim": "Muon for matrices and AdamW for the rest: more is learned in few steps"
        if config.optim.optimizer == "muon"
        else "AdamW: the usual choice for a model that is not of our own families",
    }
    if facts.minutes is None:
        takes = f" in each of {facts.trainings} trainings" if facts.trainings > 1 else ""
        if facts.speed and fit.rate:
            seconds = (epochs * facts.images + facts.tested / INFERENCE) / fit.rate + _start(facts)
            minutes = round(seconds * facts.trainings / 60)
            takes += ": about a minute" if minutes < 2 else f": about {minutes} minutes"
        reasons["schedule.epochs loop.batch_size"] = (
            f"{epochs:g} epochs of {facts.images:,} images in batches of {batch}{takes}"
        )
    if config.loss.balanced:
        reasons["loss.balanced"] = (
            f"balanced loss: the largest class has {facts.imbalance:.0f} times the images of the "
            "smallest"
        )
    return reasons
