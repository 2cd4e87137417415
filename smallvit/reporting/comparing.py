"""Several runs side by side: what differs, and whether it is more than chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from smallvit.config_io import flattened
from smallvit.evaluation import Estimate, pooled
from smallvit.evaluation.paired import LEVEL, Paired, compare, holm, same_images
from smallvit.evaluation.results import Pooled
from smallvit.reporting.charts import Chart, compared_curves
from smallvit.reporting.facts import RunFacts
from smallvit.reporting.narrative import trained_seconds
from smallvit.runs.card import short_of_folds
from smallvit.runs.folder import Run
from smallvit.runs.places import FINAL, INFO
from smallvit.text import shown


class Difference(NamedTuple):
    """A setting, and its value in each run."""

    key: str
    values: tuple[str, ...]


class ClassRow(NamedTuple):
    """A class's recall in each run, and the last run's minus the first's."""

    name: str
    support: int
    recalls: tuple[Estimate, ...]
    change: float


class Verdict(NamedTuple):
    """One run against the first: what can be concluded, and the p-value if there is one."""

    sentence: str
    p: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What the comparison page shows.

    Attributes:
        names: Of the runs, all different.
        facts: Of the runs, in the same order.
        seconds: How long each training took.
        differences: Settings that are not the same in all runs.
        verdicts: One for each run but the first; none for folds.
        charts: Curves of all runs.
        classes: Empty where classes are not the same.
        folds: Whether these are the folds of one cross-validation.
        pooled: All folds together; None where some fold has no evaluation.
        final: The run that was trained on all images of the cross-validation, if it is finished.
    """

    names: tuple[str, ...]
    facts: tuple[RunFacts, ...]
    seconds: tuple[float, ...]
    differences: tuple[Difference, ...]
    verdicts: tuple[Verdict, ...]
    charts: tuple[Chart, ...]
    classes: tuple[ClassRow, ...]
    folds: bool = False
    pooled: Pooled | None = None
    final: Run | None = None

    @property
    def short(self) -> str:
        """A sentence if that run was trained clearly shorter than the folds; empty if not."""
        return short_of_folds(self.final.card.facts) if self.final else ""


def compare_runs(facts: Sequence[RunFacts], *, folds: bool = False) -> Comparison:
    """Compares several runs, or shows the folds of one cross-validation together."""
    names = unique_names(facts)
    logs = {name: (each.run, each.log) for name, each in zip(names, facts, strict=True)}
    evaluations = [each.evaluation for each in facts if each.evaluation is not None]
    return Comparison(
        names=names,
        facts=tuple(facts),
        seconds=tuple(trained_seconds(each) for each in facts),
        differences=config_differences([each.run.config.to_dict() for each in facts]),
        verdicts=() if folds else judge(names, facts),
        charts=tuple(compared_curves(logs)),
        classes=_class_rows(facts),
        folds=folds,
        pooled=pooled(evaluations) if folds and len(evaluations) == len(facts) else None,
        final=_final(facts[0].run.folder.parent) if folds else None,
    )


def _final(folder: Path) -> Run | None:
    """The model of a cross-validation, if it is trained."""
    present = (folder / FINAL / INFO).is_file()
    return run if present and (run := Run.open(folder / FINAL)).finished else None


def unique_names(facts: Sequence[RunFacts]) -> tuple[str, ...]:
    """Folder names, with as much of the path before them as makes them different."""
    paths = [each.run.folder.resolve().parts for each in facts]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    return tuple(shown(name) for name in names)


def config_differences(configs: Sequence[Mapping[str, Any]]) -> tuple[Difference, ...]:
    """Settings that are not the same everywhere; how a plan changed on the way is not a setting."""
    flat = [flattened(config) for config in configs]
    keys = dict.fromkeys(key for config in flat for key in config if key != "schedule.plans")
    rows = []
    for key in keys:
        values = [config.get(key, "—") for config in flat]
        if any(value != values[0] for value in values):
            rows.append(Difference(key, tuple(shown(_text(value)) for value in values)))
    return tuple(rows)


def _text(value: Any) -> str:
    return "—" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def judge(names: Sequence[str], facts: Sequence[RunFacts]) -> tuple[Verdict, ...]:
    """Each run against the first, with p-values corrected for the number of runs."""
    pairs = [_paired(facts[0], each) for each in facts[1:]]
    corrected = iter(holm([pair.p for pair in pairs if pair is not None]))
    verdicts = []
    for name, each, pair in zip(names[1:], facts[1:], pairs, strict=True):
        if pair is not None:
            p = next(corrected)
            verdicts.append(Verdict(_sentence(name, names[0], pair, p), p))
        else:
            verdicts.append(Verdict(_unpaired((name, each), (names[0], facts[0])), None))
    return tuple(verdicts)


def _paired(one: RunFacts, two: RunFacts) -> Paired | None:
    """The comparison image by image, where both were tested on the same ones."""
    if one.evaluation is None or two.evaluation is None:
        return None
    first, second = one.run.info["data"], two.run.info["data"]
    alike = first["fingerprint"] == second["fingerprint"] or first["source"] == second["source"]
    if not alike or one.evaluation.split != two.evaluation.split:
        return None
    if not same_images(one.evaluation, two.evaluation):
        return None
    return compare(one.evaluation, two.evaluation)


def _sentence(name: str, first: str, pair: Paired, p: float) -> str:
    gap = pair.difference
    if pair.gained == pair.lost == 0:
        return f"{name} and {first} predict the same of the {pair.count:,} test images right."
    if pair.gained == pair.lost:
        return (
            f"{name} predicts as many of the {pair.count:,} test images right as {first}, though "
            f"not the same ones: each predicts {pair.gained:,} right that the other does not."
        )
    end = (
        "the difference is larger than chance"
        if p < LEVEL
        else "these images do not show which of the two is better"
    )
    return (
        f"{name} predicts {abs(pair.gained - pair.lost):,} {'more' if gap.value > 0 else 'fewer'} "
        f"of the {pair.count:,} test images right than {first}: {points(gap.value)} points (95 % "
        f"confidence interval {points(gap.low)} to {points(gap.high)}). {pair.gained:,} are "
        f"predicted right by {name} alone, {pair.lost:,} by {first} alone. If both were "
        f"equally good, chance alone would bring a difference this large in {_odds(p)}: {end}."
    )


def points(value: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text[1:] == "0.0" else text


def _odds(p: float) -> str:
    if p < 0.001:
        return "less than one of 1,000 cases"
    return f"{100 * p:.2g} % of all cases" if p < 0.1 else f"{100 * p:.0f} % of all cases"


def _unpaired(run: tuple[str, RunFacts], base: tuple[str, RunFacts]) -> str:
    """Why there is no comparison image by image."""
    for name, facts in (run, base):
        if facts.evaluation is None:
            return f"{run[0]} cannot be compared with {base[0]}: {name} has no evaluation."
    return (
        f"{run[0]} and {base[0]} were tested on different images, so that their predictions cannot "
        "be compared one by one, and the images may be what makes the difference. Compare the "
        "confidence intervals with care, or evaluate both on the same data."
    )


def _class_rows(facts: Sequence[RunFacts]) -> tuple[ClassRow, ...]:
    evaluations = [each.evaluation for each in facts if each.evaluation is not None]
    if len(evaluations) < len(facts) or len({each.classes for each in evaluations}) > 1:
        return ()
    rows = []
    for results in zip(*(each.per_class for each in evaluations), strict=True):
        recalls = tuple(result.recall for result in results)
        change = recalls[-1].value - recalls[0].value
        rows.append(ClassRow(shown(results[0].name), results[0].support, recalls, change))
    return tuple(rows)
