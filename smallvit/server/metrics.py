"""Counts of what a server did, in Prometheus's text format."""

from bisect import bisect_left
from collections import Counter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends in seconds."""


class Metrics:
    """Changed and read in the event loop only.

    Attributes:
        in_flight: Requests that have no answer yet.
        images: Predictions made.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.images = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def add(self, path: str, status: int, seconds: float) -> None:
        """Counts an answered request; only predictions are timed."""
        self._requests[path, status] += 1
        if path == "/predict":
            self._buckets[bisect_left(BUCKETS, seconds)] += 1
            self._seconds += seconds

    def text(self) -> str:
        """All of it, as a page for Prometheus."""
        name = "smallvit_requests_total"
        lines = [f"# HELP {name} Answered requests.", f"# TYPE {name} counter"]
        lines += [
            f'{name}{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self._requests.items())
        ]
        name = "smallvit_predict_seconds"
        lines += [
            f"# HELP {name} Time from the beginning of a prediction's request to its answer.",
            f"# TYPE {name} histogram",
        ]
        total = 0
        for end, count in zip((*map(str, BUCKETS), "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{end}"}} {total}')
        lines += [f"{name}_sum {self._seconds}", f"{name}_count {total}"]
        for name, kind, help_, value in (
            ("smallvit_requests_in_flight", "gauge", "Requests without answer.", self.in_flight),
            ("smallvit_images_total", "counter", "Images predicted.", self.images),
        ):
            lines += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"
