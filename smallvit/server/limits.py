"""What a server takes from strangers, and how it says no."""

from dataclasses import dataclass

from smallvit.data.images import MAX_PIXELS


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may cost.

    Attributes:
        upload: Bytes of an image file.
        pixels: Of an image, as its header promises; it is not decoded to find out.
        queue: Images at the model, the one it is looking at included.
        requests: Predictions at once, those still being sent included. Together with `upload` it
            bounds the memory that uploads take.
        seconds: From the beginning of a request to its answer.
    """

    upload: int = 10_000_000
    pixels: int = 50_000_000
    queue: int = 16
    requests: int = 64
    seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("upload", "pixels", "queue", "requests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: allowed is 1 or more")
        if self.pixels > MAX_PIXELS:
            raise ValueError(f"pixels is {self.pixels:,}: allowed are at most {MAX_PIXELS:,}")
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"seconds is {self.seconds}: allowed is any number above 0")


class RefusedError(Exception):
    """A request that gets no prediction.

    Attributes:
        status: Of the answer.
        sentence: What was expected, what came, what to do.
        retry: Seconds after which it may be worth another try; None if it is not.
    """

    def __init__(self, status: int, sentence: str, retry: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry = status, sentence, retry


def megabytes(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 1e6:,.3g} MB" if count >= 1e5 else f"{count:,} bytes"
