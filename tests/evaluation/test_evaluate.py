"""From runs to numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from smallvit.data import load_data
from smallvit.evaluation import Evaluation, logits_of, measure
from smallvit.inference.evaluate import evaluate
from smallvit.models import create_model
from smallvit.runs import Run, RunConfig

MODEL = {"num_classes": 4, "image_size": (16, 16), "in_channels": 3}
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def draw(folder: Path, names: tuple[str, ...], count: int, seed: int) -> Path:
    """Images of noise, brighter from class to class."""
    random = np.random.default_rng(seed)
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            noise = random.integers(50 * label, 50 * label + 100, (16, 16, 3), np.uint8)
            Image.fromarray(noise).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that was never trained, on the data beside it."""
    monkeypatch.setenv("SMALLVIT_CACHE", str(tmp_path / "cache"))
    source = draw(tmp_path / "data", ("ash", "elm", "fir", "oak"), 10, seed=0)
    dataset = load_data(source)
    info = {
        "data": dataset.record(),
        "mean": list(MEAN),
        "std": list(STD),
        "temperature": 0.5,
        "model": {"name": "cct_2_3x2", **MODEL, "options": {}},
    }
    config = RunConfig.from_dict({"data": {"source": str(source)}})
    made = Run.create(tmp_path / "run", config, info)
    torch.manual_seed(0)
    model = create_model("cct_2_3x2", **MODEL)
    save_file(model.state_dict(), made.folder / "weights.safetensors")
    return made


def test_a_run_on_its_own_data(run: Run) -> None:
    for split in ("test", "val"):
        dataset = run.dataset()
        found = evaluate(run.folder, split=split, device="cpu")
        logits = logits_of(run.model(), dataset.pixels(split), mean=MEAN, std=STD)
        names = dataset.split(split).names
        expected = measure(
            logits, dataset.labels(split), run.classes, split=split, temperature=0.5, names=names
        )
        assert found == expected
        assert Evaluation.from_json(found.to_json()) == found
    assert evaluate(run, flip=True, device="cpu").flip
    with pytest.raises(ValueError, match="split is 'validation': allowed are train, val, test"):
        evaluate(run, split="validation", device="cpu")


def test_what_is_kept_in_the_run_folder(run: Run, tmp_path: Path) -> None:
    other = draw(tmp_path / "other", ("elm", "oak"), 2, seed=1)
    evaluate(run, device="cpu")
    evaluate(run, split="val", device="cpu", save=True)
    evaluate(run, flip=True, device="cpu", save=True)
    evaluate(run, other, device="cpu", save=True)
    assert run.evaluation() is None
    assert evaluate(run, device="cpu", save=True) == run.evaluation()


def counts(evaluation: Evaluation) -> tuple[str, int]:
    return evaluation.split, evaluation.count


def test_a_run_on_other_data(run: Run, tmp_path: Path) -> None:
    plain = draw(tmp_path / "plain", ("elm", "oak"), 6, seed=1)
    found = evaluate(run, plain, device="cpu")
    assert counts(found) == ("all", 12)
    assert found.absent == ("ash", "fir")
    assert found.classes == run.classes
    assert counts(evaluate(run, plain, split="train", device="cpu")) == ("all", 12)

    divided = tmp_path / "divided"
    draw(divided / "train", ("elm", "oak"), 5, seed=2)
    draw(divided / "test", ("elm", "oak"), 2, seed=3)
    assert counts(evaluate(run, divided, device="cpu")) == ("test", 4)
    assert counts(evaluate(run, divided, split="train", device="cpu")) == ("train", 10)
    assert counts(evaluate(run, divided, split="val", device="cpu")) == ("all", 14)

    draw(tmp_path / "alone" / "test", ("fir",), 3, seed=4)
    assert counts(evaluate(run, tmp_path / "alone", device="cpu")) == ("test", 3)


def test_classes_the_model_does_not_know(run: Run, tmp_path: Path) -> None:
    other = draw(tmp_path / "other", ("elm", "yew"), 3, seed=1)
    with pytest.raises(ValueError, match=r"labels that are none of the 4 classes .*: yew"):
        evaluate(run, other, device="cpu")
