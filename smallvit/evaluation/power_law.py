"""How the error falls with the number of training images, and what more of them would bring.

A power law, error = floor + factor · images^(−power), is fitted to the mean error at each number
of images, relative errors weighing the same. Its uncertainty is a bootstrap with two sources: test
images, drawn once for all numbers, since all were tested on the same ones; and seeds, whose
standard deviation, on the scale of log errors, is that of all numbers of images together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from smallvit.evaluation.intervals import REPLICATES, Estimate

_POWERS = np.geomspace(0.02, 2.0, 60)
_CHUNK = 100  # replicates at a time


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """A fitted law, with the laws of the bootstrap.

    Attributes:
        counts: The numbers of training images it was fitted to, ascending.
        floor: Where the law ends. It is an aid to follow the numbers that there are and somewhat
            beyond, and may be below 0; it is no forecast for very many images.
        factor: The error above the floor of a single image.
        power: How fast it falls.
        seeds: The most trainings at any number; with one, the uncertainty of seeds is missing.
        replicates: Floor, factor and power of each replicate, in three rows.
    """

    counts: tuple[int, ...]
    floor: float
    factor: float
    power: float
    seeds: int
    replicates: Float64[np.ndarray, "3 R"]

    def accuracy(self, images: float) -> Estimate:
        """The accuracy expected with that many images, with its 95 % interval."""
        return self._estimate(1 - _errors(self._laws, images))

    def gain(self, times: float = 2.0) -> Estimate:
        """What `times` as many images as there are would add to the accuracy."""
        most = self.counts[-1]
        return self._estimate(_errors(self._laws, most) - _errors(self._laws, times * most))

    @property
    def _laws(self) -> Float64[np.ndarray, "3 R1"]:
        fitted = np.array([[self.floor], [self.factor], [self.power]])
        return np.concatenate([fitted, self.replicates], 1)

    @staticmethod
    def _estimate(values: Float64[np.ndarray, " R1"]) -> Estimate:
        value, (low, high) = float(values[0]), np.percentile(values[1:], [2.5, 97.5])
        return Estimate(value=value, low=min(value, float(low)), high=max(value, float(high)))


def fit_power_law(
    hits: Mapping[int, Bool[np.ndarray, "_ N"]], *, replicates: int = REPLICATES, seed: int = 0
) -> PowerLaw:
    """Fits the law to what was trained on several numbers of images.

    Args:
        hits: By the number of training images: which test images (columns, always the same) each
            training (a row) predicts right.
        replicates: Of the bootstrap.
        seed: Of the bootstrap.

    Raises:
        ValueError: There are fewer than three numbers of images, or the test images differ.
    """
    counts = tuple(sorted(hits))
    tested = {part.shape[1] for part in hits.values()}
    if len(counts) < 3 or len(tested) > 1:
        raise ValueError(
            f"expected three or more numbers of training images and one of test images, and got "
            f"{len(counts)} and {sorted(tested)}"
        )
    misses = np.stack([1 - hits[count].mean(0) for count in counts], 1)  # mean over seeds
    generator = np.random.default_rng(seed)
    errors = [_bounded(misses.mean(0, keepdims=True), len(misses))]
    for start in range(0, replicates, _CHUNK):
        rows = min(_CHUNK, replicates - start)
        times = generator.multinomial(len(misses), np.full(len(misses), 1 / len(misses)), rows)
        errors.append(_bounded(times @ misses / len(misses), len(misses)))
    drawn = np.concatenate(errors[1:])
    trainings = np.array([len(hits[count]) for count in counts])
    deviation, freedom = _seed_noise([hits[count] for count in counts])
    if freedom:
        noise = generator.standard_t(freedom, drawn.shape)
        drawn = drawn * np.exp(deviation / np.sqrt(trainings) * noise)
    laws = _fit(np.array(counts, np.float64), np.concatenate([errors[0], drawn]))
    floor, factor, power = laws[:, 0].tolist()
    return PowerLaw(
        counts=counts,
        floor=floor,
        factor=factor,
        power=power,
        seeds=int(trainings.max()),
        replicates=laws[:, 1:],
    )


def _errors(laws: Float64[np.ndarray, "3 R"], images: float) -> Float64[np.ndarray, " R"]:
    floor, factor, power = laws
    errors: Float64[np.ndarray, " R"] = np.clip(floor + factor * images**-power, 0.0, 1.0)
    return errors


def _bounded(errors: Float64[np.ndarray, "R K"], images: int) -> Float64[np.ndarray, "R K"]:
    """Errors of at least half an image, so that they have a logarithm."""
    bounded: Float64[np.ndarray, "R K"] = np.maximum(errors, 0.5 / images)
    return bounded


def _seed_noise(parts: list[Bool[np.ndarray, "_ N"]]) -> tuple[float, int]:
    """The standard deviation of log errors over seeds, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for hits in parts:
        logs = np.log(_bounded(1 - hits.mean(1, keepdims=True), hits.shape[1]))
        squares += float(((logs - logs.mean()) ** 2).sum())
        freedom += len(hits) - 1
    return (squares / freedom) ** 0.5 if freedom else 0.0, freedom


def _fit(
    counts: Float64[np.ndarray, " K"], errors: Float64[np.ndarray, "R K"]
) -> Float64[np.ndarray, "3 R"]:
    """Floor, factor and power of the least relative squares; the factor is 0 or more.

    For each of many powers floor and factor are a linear problem in two unknowns. A floor that
    could not be below 0 would make forecasts too low where the true one is near 0.
    """
    best = np.full(len(errors), np.inf)
    laws = np.zeros((3, len(errors)))
    ones = 1 / errors  # the relative error of a constant
    for power in _POWERS:
        falls = counts**-power * ones
        aa, ab, bb = (ones**2).sum(1), (ones * falls).sum(1), (falls**2).sum(1)
        a, b = ones.sum(1), falls.sum(1)
        floor = (a * bb - b * ab) / np.maximum(aa * bb - ab**2, 1e-300)
        factor = (b * aa - a * ab) / np.maximum(aa * bb - ab**2, 1e-300)
        floor = np.where(factor < 0, a / aa, floor)
        factor = np.where(factor < 0, 0.0, factor)
        left = ((floor[:, None] * ones + factor[:, None] * falls - 1) ** 2).sum(1)
        better = left < best
        best = np.where(better, left, best)
        laws = np.where(better, np.stack([floor, factor, np.full_like(floor, power)]), laws)
    return laws
