"""Images per second of whole training recipes on the CPU: ours, torchvision v2 and Pillow.

    python benchmarks/augment.py --size 32 64 --batch 128 --images 512

Peers go image by image, as a data loader's worker does (torchvision's v2 transforms draw once
for a whole batch, so a batch cannot be given to them); every pipeline ends with a normalised,
mixed batch and soft targets. Rounds of all pipelines alternate in one process, and each reports
its best round, so that a noisy machine disturbs all alike.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from smallvit.augment import PRESETS, Augmentation

MEAN, STD, CLASSES = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262), 10
Batch = tuple[Tensor, Tensor]
Pipeline = Callable[[int], Batch]


def ours(preset: str, images: Tensor, labels: Tensor, batch: int, *, compiled: bool) -> Pipeline:
    size = (images.shape[2], images.shape[3])
    augment = Augmentation(
        PRESETS[preset], image_size=size, mean=MEAN, std=STD, num_classes=CLASSES
    )
    call = torch.compile(augment, fullgraph=True) if compiled else augment
    positions = torch.arange(batch)

    def run(start: int) -> Batch:
        part = slice(start, start + batch)
        return call(images[part], labels[part], torch.tensor(start), positions)

    return run


def per_sample(
    transform: Callable[..., Tensor], mix: Callable[..., Batch], images, labels, batch: int
) -> Pipeline:
    def run(start: int) -> Batch:
        part = slice(start, start + batch)
        return mix(torch.stack([transform(image) for image in images[part]]), labels[part])

    return run


def torchvision_v2(preset: str, images: Tensor, labels: Tensor, batch: int) -> Pipeline:
    from torchvision.transforms import v2

    size = list(images.shape[2:])
    finish = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    if preset.startswith("spt"):
        first = [v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip()]
        policy = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10, fill=[128.0] * 3)
        erasing = v2.RandomErasing(0.25, (0.02, 0.4), (0.3, 1 / 0.3))
        mix = v2.RandomApply([_v2_mix(v2, 1.0)], 0.5)
    else:
        linear, cubic = v2.InterpolationMode.BILINEAR, v2.InterpolationMode.BICUBIC
        crops = [v2.RandomResizedCrop(size, (0.8, 1.0), interpolation=i) for i in (linear, cubic)]
        first = [v2.RandomChoice(crops), v2.RandomHorizontalFlip()]
        # One of two layers, each applied half the time as timm's are; 27 of 30 is its level 9.
        layer = v2.RandomApply([v2.RandAugment(1, 27, interpolation=linear, fill=[128.0] * 3)])
        policy = v2.Compose([layer, layer])
        erasing = v2.RandomErasing(0.25, (0.02, 1 / 3), (0.3, 1 / 0.3), value="random")
        mix = _v2_mix(v2, 0.8)
    transform = v2.Compose([*first, policy, *finish, erasing])
    return per_sample(transform, mix, images, labels, batch)


def _v2_mix(v2, alpha: float):
    kinds = [v2.MixUp(alpha=alpha, num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)]
    return v2.RandomChoice(kinds)


def pillow(preset: str, images: Tensor, labels: Tensor, batch: int) -> Pipeline:
    from PIL import Image
    from timm.data.auto_augment import posterize, rand_augment_transform
    from timm.data.mixup import Mixup
    from timm.data.random_erasing import RandomErasing
    from timm.data.transforms import RandomResizedCropAndInterpolation
    from torchvision import transforms

    size = list(images.shape[2:])
    finish = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    if preset.startswith("spt"):
        first = transforms.RandomCrop(size, padding=4)
        cifar = transforms.AutoAugmentPolicy.CIFAR10
        policy = transforms.AutoAugment(cifar, fill=[128] * 3)
        erasing = RandomErasing(0.25, 0.02, 0.4, 0.3, device="cpu")
        mix = Mixup(1.0, 1.0, prob=0.5, num_classes=CLASSES)
    else:
        first = RandomResizedCropAndInterpolation(size, (0.8, 1.0), interpolation="random")
        policy = rand_augment_transform("rand-m9-mstd0.5-inc1")
        for op in policy.ops:  # recent versions of Pillow refuse to keep no bits, which timm draws
            if op.name == "PosterizeIncreasing":
                op.aug_fn = lambda drawn, bits, **_: posterize(drawn, max(bits, 1))
        erasing = RandomErasing(0.25, 0.02, 1 / 3, 0.3, mode="pixel", device="cpu")
        mix = Mixup(0.8, 1.0, num_classes=CLASSES)
    flip = transforms.RandomHorizontalFlip()
    transform = transforms.Compose([first, flip, policy, *finish, erasing])
    decoded = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    return per_sample(transform, mix, decoded, labels, batch)


def measure(pipelines: dict[str, Pipeline], images: int, batch: int, rounds: int) -> dict:
    best = dict.fromkeys(pipelines, float("inf"))
    for pipeline in pipelines.values():
        pipeline(0)
    for _ in range(rounds):
        for name, pipeline in pipelines.items():
            start = time.perf_counter()
            for first in range(0, images, batch):
                pipeline(first)
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: images / seconds for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Augmentation: images per second, side by side.")
    parser.add_argument("--size", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="ours with torch.compile, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    images = options.images // options.batch * options.batch
    print(f"torch {torch.__version__}, {options.threads} thread(s), batch {options.batch}")
    print(f"{'recipe':18}{'size':>5}  {'pipeline':16}{'images/s':>10}{'ours / it':>11}")
    for preset in ("spt_cifar", "compact_cifar100"):
        for size in options.size:
            data = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8)
            labels = torch.randint(0, CLASSES, (images,))
            pipelines = {
                "ours": ours(preset, data, labels, options.batch, compiled=False),
                "torchvision v2": torchvision_v2(preset, data, labels, options.batch),
                "Pillow": pillow(preset, data, labels, options.batch),
            }
            if options.compiled:
                compiled = ours(preset, data, labels, options.batch, compiled=True)
                pipelines["ours, compiled"] = compiled
            rates = measure(pipelines, images, options.batch, options.rounds)
            for name, rate in rates.items():
                ratio = f"{rates['ours'] / rate:.1f}×"
                print(f"{preset:18}{size:>5}  {name:16}{rate:>10,.0f}{ratio:>11}")


if __name__ == "__main__":
    main()
