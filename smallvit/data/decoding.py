"""Decoded images of one size and number of channels: all of a split, or how long that takes."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import __version__ as pillow

from smallvit.data import cache
from smallvit.data.fit import FILL, fit_image
from smallvit.data.images import UnreadableError
from smallvit.data.parallel import spread
from smallvit.data.samples import Samples
from smallvit.files import hash_bytes
from smallvit.sizes import Fit, Size
from smallvit.text import counted, shown, some

_VERSION = 2
_TRIED, _TRIAL = 8, 0.1  # images at the least, and seconds, that tell how long decoding takes


class Decoder(NamedTuple):
    """Brings images of any shape to one.

    Attributes:
        size: Height and width of every decoded image.
        channels: Its channels.
        fit: How images of other shapes come to that size.
    """

    size: Size
    channels: int
    fit: Fit

    def is_ready(self, samples: Samples) -> bool:
        """Whether images are pixels of that shape already."""
        shape = (*self.size, self.channels)
        return not isinstance(samples.images, tuple) and samples.images.shape[1:] == shape

    def entry(self, samples: Samples) -> tuple[str, tuple[int, ...]]:
        """The key of images in the cache, and the shape of all of them."""
        key = f"{_VERSION} {pillow} {self.size} {self.fit} {FILL} {self.channels} "
        if not isinstance(samples.images, tuple):
            key += f"{samples.images.shape[1:]} "  # the digest of pixels leaves it out
        shape = (len(samples), self.channels, *self.size)
        return hash_bytes(key.encode() + samples.survey.digests.tobytes()), shape

    def decode(self, samples: Samples, index: int) -> np.ndarray | str:
        """An image, or why it cannot be read."""
        try:
            return fit_image(samples.read(index, self.channels), self.size, self.fit)
        except UnreadableError as error:
            return f"{shown(samples.names[index])} ({error})"

    def decode_all(
        self, samples: Samples, split: str, progress: bool
    ) -> Iterator[UInt8[np.ndarray, "C H W"]]:
        """The images of a split one by one.

        Raises:
            ValueError: Some cannot be read; all of them are named, after the last image.
        """
        failed = []
        for result in spread(
            partial(self.decode, samples),
            range(len(samples)),
            description=f"decoding {split}",
            progress=progress,
        ):
            if isinstance(result, str):
                failed.append(result)
            else:
                yield result.transpose(2, 0, 1)
        if failed:
            raise ValueError(
                f"{counted(len(failed), 'image')} of the {split} split cannot be read: "
                f"{some(failed)}. Replace or remove them; `smallvit train --allow unreadable` and "
                "Dataset.readable() leave them out"
            )

    def seconds(self, splits: Iterable[Samples], clock: Callable[[], float]) -> float:
        """About how many seconds decoding takes here; see `Dataset.decoding`."""
        waiting = [
            (samples, int(index))
            for samples in splits
            if not self.is_ready(samples) and not cache.holds(*self.entry(samples))
            for index in np.flatnonzero(samples.survey.readable)
        ]
        seconds, tried = 0.0, waiting[:0]
        # Twice as many each time, so that starting threads does not count.
        while seconds < _TRIAL and len(tried) < len(waiting):
            count = min(max(2 * len(tried), _TRIED), len(waiting))
            tried = waiting[:: len(waiting) // count][:count]
            started = clock()
            for _ in spread(lambda each: self.decode(*each), tried, description="", size=1):
                pass
            seconds = clock() - started
        return seconds * _pixels(waiting) / max(_pixels(tried), 1)


def _pixels(images: Iterable[tuple[Samples, int]]) -> int:
    """Of all of them together, as their files have them."""
    return sum(int(samples.survey.sizes[index].prod()) for samples, index in images)
