"""Several runs side by side: what differs, and whether it is more than luck."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from smallvit.evaluation.intervals import Estimate, wilson
from smallvit.evaluation.paired import LEVEL, Paired, compare, holm, same_images
from smallvit.evaluation.results import Evaluation
from smallvit.reporting.charts import Chart
from smallvit.reporting.facts import Facts
from smallvit.reporting.narrative import trained_seconds
from smallvit.reporting.plots import compared_curves
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One run against the first.

    Attributes:
        name: The run.
        sentence: What can be said.
        paired: The counts behind it; None where the images are not the same.
        p: Raised for the number of questions asked.
    """

    name: str
    sentence: str
    paired: Paired | None = None
    p: float | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that the page says.

    Attributes:
        names: Of the runs, all different.
        facts: Of the runs, in the same order.
        seconds: What each training took.
        differences: Settings that are not the same in all runs.
        verdicts: One for each run but the first; none for folds.
        charts: Curves together.
        classes: Empty where classes are not the same.
        folds: Whether these are the parts of one cross-validation.
        pooled: Accuracy over all folds, where every image is tested once.
        spread: Mean and standard deviation of the folds' accuracies.
    """

    names: tuple[str, ...]
    facts: tuple[Facts, ...]
    seconds: tuple[float, ...]
    differences: tuple[Difference, ...]
    verdicts: tuple[Verdict, ...]
    charts: tuple[Chart, ...]
    classes: tuple[ClassRow, ...]
    folds: bool = False
    pooled: Estimate | None = None
    spread: tuple[float, float] | None = None


def compare_runs(facts: Sequence[Facts], *, folds: bool = False) -> Comparison:
    """Looks at several runs together."""
    names = unique_names(facts)
    logs = {name: (each.run, each.log) for name, each in zip(names, facts, strict=True)}
    pooled, spread = _over_folds(facts) if folds else (None, None)
    return Comparison(
        names=names,
        facts=tuple(facts),
        seconds=tuple(trained_seconds(each) for each in facts),
        differences=config_differences([each.run.config.to_dict() for each in facts]),
        verdicts=() if folds else judge(names, facts),
        charts=tuple(compared_curves(logs)),
        classes=_class_rows(facts),
        folds=folds,
        pooled=pooled,
        spread=spread,
    )


def unique_names(facts: Sequence[Facts]) -> tuple[str, ...]:
    """Folder names, with as much of the path before them as tells them apart."""
    paths = [each.run.folder.resolve().parts for each in facts]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    return tuple(shown(name) for name in names)


def config_differences(configs: Sequence[Mapping[str, Any]]) -> tuple[Difference, ...]:
    """Settings that are not the same everywhere."""
    flat = [dict(_flat(config)) for config in configs]
    keys = dict.fromkeys(key for config in flat for key in config)
    rows = []
    for key in keys:
        values = [config.get(key, "—") for config in flat]
        if any(value != values[0] for value in values):
            rows.append(Difference(key, tuple(shown(_text(value)) for value in values)))
    return tuple(rows)


def _flat(tree: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        name = f"{path}.{key}" if path else str(key)
        pairs += _flat(value, name) if isinstance(value, Mapping) else [(name, value)]
    return pairs


def _text(value: Any) -> str:
    return "—" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def judge(names: Sequence[str], facts: Sequence[Facts]) -> tuple[Verdict, ...]:
    """Each run against the first, with p-values that allow for the number of questions."""
    first = facts[0].evaluation
    pairs: list[Paired | None] = []
    for each in facts[1:]:
        pairs.append(_paired(facts[0], each))
    raised = iter(holm([pair.p for pair in pairs if pair is not None]))
    verdicts = []
    for name, each, pair in zip(names[1:], facts[1:], pairs, strict=True):
        if pair is not None:
            p = next(raised)
            sentence = _sentence(name, names[0], pair, p)
            verdicts.append(Verdict(name=name, sentence=sentence, paired=pair, p=p))
        else:
            verdicts.append(Verdict(name=name, sentence=_unpaired(name, names[0], each, first)))
    return tuple(verdicts)


def _paired(one: Facts, two: Facts) -> Paired | None:
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
    if pair.gained == pair.lost:
        return (
            f"{name} has as many of the {pair.count:,} test images right as {first}, though not "
            f"all the same ones: {pair.gained:,} each only one of them has right."
            if pair.gained
            else f"{name} and {first} have the same of the {pair.count:,} test images right."
        )
    size = (
        f"{name} has {abs(pair.gained - pair.lost):,} {'more' if gap.value > 0 else 'fewer'} of "
        f"the {pair.count:,} test images right than {first}: {points(gap.value)} points (95 % "
        f"interval {points(gap.low)} to {points(gap.high)})"
    )
    counts = f"{pair.gained:,} only {name} has right, {pair.lost:,} only {first}"
    end = "these images do not show which of the two is better"
    if p < LEVEL:
        end = "it is larger than chance"
    return (
        f"{size}. {counts}. If both were equally good, luck alone would bring a difference this "
        f"large in {_odds(p)}: {end}."
    )


def points(value: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text[1:] == "0.0" else text


def _odds(p: float) -> str:
    if p < 0.001:
        return "less than one of 1,000 cases"
    return f"{100 * p:.2g} % of all cases" if p < 0.1 else f"{100 * p:.0f} % of all cases"


def _unpaired(name: str, first: str, each: Facts, base: Evaluation | None) -> str:
    if each.evaluation is None or base is None:
        missing = name if each.evaluation is None else first
        return f"{name} cannot be compared with {first}: {missing} has no evaluation."
    return (
        f"{name} and {first} were tested on different images, so that their answers cannot be "
        "compared one by one; what differs may be the images. Compare the intervals with care, "
        "or evaluate both on the same data."
    )


def _class_rows(facts: Sequence[Facts]) -> tuple[ClassRow, ...]:
    found = [each.evaluation for each in facts if each.evaluation is not None]
    if len(found) < len(facts) or any(each.classes != found[0].classes for each in found):
        return ()
    rows = []
    for number, name in enumerate(found[0].classes):
        own = [each.per_class[number] for each in found]
        recalls = tuple(row.recall for row in own)
        support = own[0].support
        rows.append(ClassRow(shown(name), support, recalls, recalls[-1].value - recalls[0].value))
    return tuple(rows)


def _over_folds(facts: Sequence[Facts]) -> tuple[Estimate | None, tuple[float, float] | None]:
    """Accuracy of all folds' images together, and mean and spread of the folds."""
    found = [each.evaluation for each in facts if each.evaluation is not None]
    if len(found) < len(facts):
        return None, None
    counts = np.array([each.count for each in found])
    values = np.array([each.accuracy.value for each in found])
    hits = np.array((values * counts).round().sum())
    low, high = wilson(hits, np.array(counts.sum()))
    pooled = Estimate(value=float(hits / counts.sum()), low=float(low), high=float(high))
    return pooled, (float(values.mean()), float(values.std(ddof=1)))
