"""What may end a training early: a promise about time, and a signal.

How many steps fit into the time is thought over again every few seconds. After Ctrl-C or SIGTERM
the step is finished and the run saved.
"""

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SLOWER = 3.0  # times that the end may take as long as expected, and still be in time
_LATE = 0.035  # of the time, by which it may then be late; 0.05 is promised
_LEAST = 0.1  # of the test, which is then not cut
_CUT = 0.02  # of the time, after which the test is cut short
_MARGIN = 0.015  # of the time, for what was not measured
_SECONDS = 2.5  # between two plans, at most
_SHARE = 0.08  # of the time left, if that is shorter
_MANY = 8  # times between two questions, of which one can be told to be a pause of the machine
_LASTING = 0.15  # of the time, after which a machine slower than that is what is planned with
_SAME = 0.02  # plans that differ by less are the same


@dataclass
class Pace:
    """What is known of the speed, and what fits into the time that is left.

    All seconds grow and shrink together when a machine gets slower or faster, so those of a
    validation and of the end are kept in units of a step.

    Attributes:
        started: When the time began, on the clock.
        seconds: All the time there is.
        step_seconds: Of one step, as last measured.
        validation: Of one validation, in steps.
        end: Of everything after the last step but the test, in steps.
        test: Of calibration and test, in steps; they are cut short where the time is over.
        every: Steps between validations.
        waits: Whether a step has been computed when it returns, as on a CPU: only then can a pause
            of the machine be told from slow steps.
        clock: Seconds; only their differences count.
        fastest: The least seconds of a step so far.
    """

    started: float
    seconds: float
    step_seconds: float
    validation: float
    end: float
    test: float
    every: int
    clock: Callable[[], float]
    waits: bool = True

    def __post_init__(self) -> None:
        self.step_seconds = max(self.step_seconds, 1e-9)
        self.fastest, self._slow_since = self.step_seconds, math.inf
        self.begin(0)

    @property
    def reserve(self) -> float:
        """Seconds that are kept for the end: more than it needs, in case it becomes slower."""
        slowed = _SLOWER * (self.end + _LEAST * self.test) * self.fastest - _LATE * self.seconds
        return max((self.end + self.test) * self.step_seconds, slowed)

    def begin(self, step: int) -> None:
        """The clock of the steps starts here."""
        self._step, self._since, self._validated = step, self.clock(), 0.0
        self._last, self._longest, self._asked = self._since, 0.0, 0

    def validated(self, seconds: float) -> None:
        """A validation took that long."""
        self._validated += seconds
        self._last = self.clock()
        self.validation = seconds / self.step_seconds

    def affordable(self, step: int = 0) -> int:
        """Steps after this one that fit into the time that is left; below 1 if none does."""
        until = self.started + (1 - _MARGIN) * self.seconds - self.reserve
        left = (until - self.clock()) / self.step_seconds  # in steps
        about = left / (1 + self.validation / self.every)
        # Validations between now and then; there is none a moment before the end.
        between = int(step + max(about, 0) - self.every / 3) // self.every - step // self.every
        return int(left - max(between, 0) * self.validation)

    @property
    def over(self) -> bool:
        """Whether the last step has to be the last."""
        end = (self.end + self.test) * self.step_seconds
        return self.clock() >= self.started + self.seconds - end

    @property
    def late(self) -> bool:
        """Whether the test has to do with the images it has had."""
        return self.clock() >= self.started + (1 + _CUT) * self.seconds

    def due(self, step: int, steps: int) -> bool:
        """Whether it is time to think again; is asked after every step, or every few.

        It is after a part of the steps that were left, too: they may be few because the machine was
        slow for a moment, and over before the seconds are.
        """
        now = self.clock()
        self._last, self._longest = now, max(self._longest, now - self._last)
        self._asked += 1
        left = self.started + self.seconds - self.reserve - self.clock()
        passed = self.clock() - self._since - self._validated
        enough = passed >= max(0.0, min(_SECONDS, _SHARE * left))
        return step > self._step and (enough or step - self._step >= _SHARE * (steps - self._step))

    def plan(self, step: int, steps: int) -> int:
        """How many steps in all, from what the steps since the last plan took."""
        seconds, taken = self.clock() - self._since - self._validated, step - self._step
        share = 1.0  # of the steps that count
        if self.waits and self._asked >= _MANY and self._longest > seconds / 2:
            seconds, share = seconds - self._longest, 1 - 1 / self._asked
        if seconds > 0:
            # The seconds of a step alone change here: validation and end are counted in steps.
            self.step_seconds = self._believed(seconds / max(share * taken, 1))
            self.fastest = min(self.fastest, self.step_seconds)
        self.begin(step)
        left = steps - step
        new = max(self.affordable(step), 1)
        return steps if abs(new - left) <= max(_SAME * left, 1) else step + new

    def _believed(self, measured: float) -> float:
        """Seconds of a step, as the next plan has them.

        A machine that is very slow for a moment would end the run at once, and for good. So that is
        believed once it has lasted.
        """
        slowest = _SLOWER * self.fastest
        self._slow_since = min(self._slow_since, self._since) if measured > slowest else math.inf
        lasts = self.clock() - self._slow_since >= _LASTING * self.seconds
        return measured if lasts else min(measured, slowest)


@dataclass
class Stop:
    """Whether a signal has requested a stop."""

    requested: bool = False


class Interrupt:
    """A handler of signals that interrupts, until a stop was heard: what ends is left to end.

    Attributes:
        heard: Whether it was; `stopping` notes it.
    """

    def __init__(self) -> None:
        self.heard = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Called with each signal."""
        if not self.heard:
            raise KeyboardInterrupt


@contextmanager
def stopping() -> Iterator[Stop]:
    """While entered, a first signal only sets `requested`; a second Ctrl-C interrupts at once."""
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        if stop.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.requested = True

    main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {number: signal.signal(number, note) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            if isinstance(handler, Interrupt):
                handler.heard = handler.heard or stop.requested
            signal.signal(number, handler)
