"""The rows of an experiment's table: all seeds of one model together, and against the first.

`verdicts` says in sentences what can be concluded from them.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from smallvit.config_io import leaf
from smallvit.evaluation import Estimate, Evaluation
from smallvit.evaluation.paired import LEVEL, holm, same_images
from smallvit.evaluation.seeds import Versus, deviation, hits_of, mean_accuracy, versus
from smallvit.experiments.sets import Outcome
from smallvit.reporting.comparing import points
from smallvit.runs.folder import Run

Verdict = Literal["better", "worse", "cannot tell"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """All trainings of one row of the table.

    Attributes:
        name: Of the row.
        outcomes: Its members.
        accuracies: On the test split, of the finished trainings that were tested on the same
            images: a test is cut short where time is over.
        seeds: Of these trainings.
        accuracy: Their mean, with the 95 % interval over seeds and test images.
        deviation: Their standard deviation; None for one.
        versus: Against the first row; None for that itself, or where images differ.
        p: Of that comparison, corrected after Holm for the number of rows.
        parameters: Of the model.
        flops: Floating-point operations of a forward pass of one image.
        images_per_second: Of training, the median over the log.
        minutes: Of training, the mean over seeds.
        images_seen: In training, by each.
    """

    name: str
    outcomes: tuple[Outcome, ...]
    accuracies: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    accuracy: Estimate | None = None
    deviation: float | None = None
    versus: Versus | None = None
    p: float | None = None
    parameters: int | None = None
    flops: int | None = None
    images_per_second: float | None = None
    minutes: float | None = None
    images_seen: int | None = None

    @property
    def verdict(self) -> Verdict | None:
        """Against the first row; with one seed each nothing can be told of the models."""
        if self.versus is None or self.p is None:
            return None
        if self.versus.seeds < 2 or self.p >= LEVEL:
            return "cannot tell"
        return "better" if self.versus.difference.value > 0 else "worse"

    @property
    def tested(self) -> Estimate:
        """The accuracy of a row that has one."""
        assert self.accuracy is not None
        return self.accuracy

    @property
    def runs(self) -> list[Run]:
        """The finished ones."""
        return [each.run for each in self.outcomes if each.run and each.state == "finished"]

    @property
    def errors(self) -> dict[str, str]:
        """Why members failed, by their name."""
        return {o.member.name: o.error for o in self.outcomes if o.state == "failed"}

    def to_plain(self) -> dict[str, Any]:
        """Its numbers, as JSON holds them."""
        numbers = (
            *("name", "seeds", "accuracies", "deviation", "p", "verdict", "parameters", "flops"),
            *("images_per_second", "minutes", "images_seen", "errors"),
        )
        plain: dict[str, Any] = {name: getattr(self, name) for name in numbers}
        plain["accuracy"] = None if self.accuracy is None else vars(self.accuracy)
        plain["difference"] = None if self.versus is None else vars(self.versus.difference)
        return plain


def make_rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """One row for each name, compared with the first that has an accuracy."""
    names = dict.fromkeys(each.member.row for each in outcomes)
    rows = [_row(name, [o for o in outcomes if o.member.row == name]) for name in names]
    base = next((row for row in rows if row.accuracy is not None), None)
    if base is None:
        return rows
    reference = _tested(base)
    compared: dict[str, Versus] = {}
    for row in rows:
        tested = _tested(row)
        if row is not base and tested and _alike(*reference[0], *tested[0]):
            both = ([each for _, each in evaluated] for evaluated in (reference, tested))
            compared[row.name] = versus(*map(hits_of, both))
    corrected = dict(zip(compared, holm([each.p for each in compared.values()]), strict=True))
    return [replace(row, versus=compared.get(row.name), p=corrected.get(row.name)) for row in rows]


def _row(name: str, outcomes: list[Outcome]) -> Row:
    row = Row(name=name, outcomes=tuple(outcomes))
    runs = row.runs
    if not runs:
        return row
    logs = [run.log() for run in runs]
    trained = [[line for line in log if line["kind"] == "train"] for log in logs]
    # The first half is left out: compiling and warming up are in it.
    speeds = [line["images_per_second"] for log in trained for line in log[len(log) // 2 :]]
    seconds = [sum(float(line.get("seconds", 0)) for line in log) for log in logs]
    row = replace(
        row,
        parameters=runs[0].info.get("parameters"),
        flops=count_flops(runs[0]),
        images_per_second=statistics.median(speeds) if speeds else None,
        minutes=statistics.mean(seconds) / 60,
        images_seen=round(
            statistics.mean(r.info["steps"] * r.config.loop.batch_size for r in runs)
        ),
    )
    evaluations = evaluations_of(row)
    if not evaluations:
        return row
    hits = hits_of(list(evaluations.values()))
    return replace(
        row,
        accuracies=tuple(hits.mean(1).tolist()),
        seeds=tuple(evaluations),
        accuracy=mean_accuracy(hits),
        deviation=deviation(hits),
    )


def evaluations_of(row: Row) -> dict[int, Evaluation]:
    """By seed, if all finished runs have one: those on the same images, where some lacked time."""
    finished = [o for o in row.outcomes if o.state == "finished"]
    seeds = {o.run.folder: o.member.seed for o in finished if o.run}
    return {seeds[run.folder]: evaluation for run, evaluation in _tested(row)}


def _tested(row: Row) -> list[tuple[Run, Evaluation]]:
    """The runs and evaluations of `evaluations_of`, all with the same names of images."""
    found = [(run, each) for run in row.runs if (each := run.evaluation()) is not None]
    if len(found) < len(row.runs) or not found:
        return []
    whole = max(found, key=lambda pair: pair[1].count)
    alike = [(run, each) for run, each in found if _alike(*whole, run, each)]
    names = whole[1].predictions.names if whole[1].predictions else ()
    return [
        (run, replace(each, predictions=replace(each.predictions, names=names)))
        for run, each in alike
        if each.predictions
    ]


def _alike(run: Run, tested: Evaluation, other: Run, others: Evaluation) -> bool:
    """Whether both were tested on the same images, whose names may tell of two machines."""
    prints = {each.info.get("data", {}).get("fingerprint", each) for each in (run, other)}
    whole = all(
        each.count == leaf(about.info, "data.counts.test")
        for about, each in ((run, tested), (other, others))
    )
    return same_images(tested, others) or (len(prints) == 1 and whole)


def verdicts(rows: Sequence[Row]) -> list[str]:
    """What can be concluded, a sentence each: first the whole, then each row against the first."""
    known = [row for row in rows if row.accuracy is not None]
    if not known:
        return ["Cannot tell: nothing has been tested yet."]
    base, others = known[0], [row for row in known[1:] if row.versus is not None]
    sentences = [_sentence(row, base) for row in others]
    failed = [row for row in rows if row.accuracy is None and row.errors]
    sentences += [f"{row.name}: cannot tell, all of its runs failed." for row in failed]
    return [*_overall(base, others), *sentences]


def seen_before(rows: Sequence[Row]) -> list[str]:
    """Which rows know test images: the weights that they start from had learned from them."""
    most = {
        row.name: max((r.info.get("seen_before", 0) for r in row.runs), default=0) for row in rows
    }
    return [
        f"The accuracy of {name} is too high: its start had learned from {count:,} of the test "
        "images."
        for name, count in most.items()
        if count
    ]


def _overall(base: Row, others: Sequence[Row]) -> list[str]:
    """The answer to "which one?", where there is one."""
    if not others:
        return []
    better = [row for row in others if row.verdict == "better"]
    if better:
        best = max(better, key=lambda row: row.tested.value)
        rivals = [row for row in better if row is not best]
        beside = f"; whether it beats {_names(rivals)} was not tested" if rivals else ""
        return [f"{best.name} is better than {base.name} here{beside}."]
    if all(row.verdict == "worse" for row in others):
        return [f"{base.name} is the best of these {len(others) + 1} here."]
    open_rows = [row for row in others if row.verdict == "cannot tell"]
    best = max((base, *open_rows), key=lambda row: row.tested.value)
    fastest = max((base, *open_rows), key=lambda row: row.images_per_second or 0.0)
    faster = (fastest.images_per_second or 0.0) > 1.2 * (best.images_per_second or 0.0)
    hint = f" Of these {fastest.name} trains fastest." if faster else ""
    return [
        f"Cannot tell which of {_names((base, *open_rows))} is best: the differences may be "
        f"chance.{hint}"
    ]


def _names(rows: Sequence[Row]) -> str:
    *most, last = names = [row.name for row in rows]
    if any("," in name for name in names):  # of ablate, such as "SPT, all directions"
        return "; ".join([*most, f"and {last}"]) if most else last
    return f"{', '.join(most)} and {last}" if most else last


def _sentence(row: Row, base: Row) -> str:
    assert row.versus is not None
    assert row.p is not None
    gap, seeds = row.versus.difference, row.versus.seeds
    numbers = f"{points(gap.value)} points ({points(gap.low)} to {points(gap.high)})"
    if seeds < 2:
        return (
            f"{row.name} against {base.name}: cannot tell. These two trained models differ by "
            f"{numbers} on other images, p {tell_p(row.p)}, but each was trained once, and another "
            "seed may turn that round: use --seeds 3."
        )
    if row.verdict == "cannot tell":
        reason = "the few test images" if row.versus.from_seeds < 0.5 else "the few seeds"
        return (
            f"{row.name} against {base.name}: cannot tell. The difference of {numbers} may be "
            f"chance, p {tell_p(row.p)}; most of the uncertainty comes from {reason}."
        )
    return f"{row.name} is {row.verdict} than {base.name}: {numbers}, p {tell_p(row.p)}."


def tell_p(p: float) -> str:
    """A p-value as people read it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def count_flops(run: Run) -> int | None:
    """Floating-point operations of one image's forward pass; an addition counts as one.

    None where the model cannot be built again from its description alone.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from smallvit.models.build import make_model
    from smallvit.models.features import evaluating

    about = run.info["model"]
    try:
        with torch.random.fork_rng([]):  # building draws numbers that nobody shall miss
            model = make_model(**about).requires_grad_(False)  # the counter expects it of some
        image = torch.zeros(1, about["in_channels"], *about["image_size"])
        # Not every torch knows what its own attention on a CPU costs; its plain one is products.
        plain = sdpa_kernel(SDPBackend.MATH)
        with evaluating(model), plain, FlopCounterMode(display=False) as counter:
            model(image)
    except (ValueError, TypeError, ImportError):
        return None
    return int(counter.get_total_flops())
