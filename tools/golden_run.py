"""Makes the golden run folder of the format that is written now, once, when a format is new.

    python tools/golden_run.py

Later versions must read it and give the logits in its expected.json; it is never made again.
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from smallvit.runs.config import RunConfig
from smallvit.runs.reading import FORMAT
from smallvit.training import train

TARGET = Path(__file__).parents[1] / "tests" / "golden" / "runs" / f"format_{FORMAT}"


def main() -> None:
    """Trains a small model for some steps on images of noise."""
    if TARGET.exists():
        raise SystemExit(f"{TARGET} exists: golden folders stay as they are")
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (60, 16, 16, 3)).astype(np.uint8)
    labels = np.array(["first", "second", "third"])[np.arange(60) % 3]
    split = np.array(["train", "train", "train", "val", "test"])[np.arange(60) // 3 % 5]
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "noise.npz"
        np.savez(source, images=images, labels=labels, split=split)
        config = RunConfig().changed(
            {
                "data": {"source": str(source)},
                "model": {
                    "name": "vit_9_p4+spt+lsa",
                    "options": {"dim": 16, "depth": 2, "num_heads": 2, "drop_path": 0.1},
                },
                "augment": {"flip": 0.5, "mixup": 0.8},
                "optim": {"lr": 1e-2, "ema": 0.5},
                "schedule": {"steps": 8},
                "loop": {"batch_size": 16, "every": 1, "device": "cpu"},
            }
        )
        run = train(config, out=Path(place) / "run", command="golden_run.py", shown=False)
        image = torch.tensor(
            np.random.RandomState(5).standard_normal((1, 3, 16, 16)), dtype=torch.float32
        )
        expected = {
            "classes": list(run.classes),
            "mean": list(run.card.mean),
            "std": list(run.card.std),
            "temperature": run.card.temperature,
            "kinds": [line["kind"] for line in run.log()],
        }
        with torch.inference_mode():
            for which in ("best", "last"):
                expected[which] = run.model(which)(image).tolist()  # type: ignore[arg-type]
        (run.folder / "expected.json").write_text(json.dumps(expected) + "\n")
        shutil.copytree(run.folder, TARGET)


if __name__ == "__main__":
    main()
