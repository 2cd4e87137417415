"""The benchmark of balanced weights: cells of a tiny dataset, written once, and the table."""

import json

import numpy as np
import pytest

from benchmarks.imbalance import class_counts, main, summarise
from tests.training.makers import TINY, arrays


def test_numbers_of_images():
    assert class_counts("1:10", 10, 500)[::9] == [500, 50]
    assert class_counts("1:100", 10, 500)[::9] == [500, 5]
    assert class_counts("one", 10, 500) == [500] * 8 + [1] * 2
    for kind in ("1:10", "1:100"):
        counts = class_counts(kind, 10, 500)
        assert counts == sorted(counts, reverse=True)
        np.testing.assert_allclose(np.diff(np.log(counts)), np.log(counts[1] / 500), atol=0.3)


def test_cells_are_trained_once_and_summed_up(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SMALLVIT_CACHE", str(tmp_path / "cache"))
    source = arrays(tmp_path / "noise.npz", train=96, val=0, test=30)
    settings = [word for each in (*TINY, "loop.batch_size=16") for word in ("--set", each)]
    out = ["--out", str(tmp_path / "cells")]
    common = [str(source), *out, "--steps", "2", "--device", "cpu", *settings]
    for weights in ("off", "on"):
        main([*common, "--cell", "1:10", "0", weights])
    written = {path.name: json.loads(path.read_text()) for path in (tmp_path / "cells").iterdir()}
    assert set(written) == {"1-10_seed-0_off.json", "1-10_seed-0_on.json"}
    on = written["1-10_seed-0_on.json"]
    assert sorted(on["counts"]) == [3, 10, 32]
    assert on["balanced_accuracy"] == pytest.approx(np.mean(on["recalls"]))
    assert on["accuracy"] == pytest.approx(np.average(on["recalls"], weights=on["counts"]))
    assert on["steps"] == 2
    assert written["1-10_seed-0_off.json"]["counts"] == on["counts"]
    (tmp_path / "cells" / "1-10_seed-0_on.json").write_text(json.dumps({**on, "steps": 99}))
    main([*common, "--cell", "1:10", "0", "on"])  # it is there, so nothing is trained
    capsys.readouterr()
    main([*out, "--json", str(tmp_path / "all.json")])
    assert capsys.readouterr().out.count("| 1:10 | 1 |") == 1
    together = json.loads((tmp_path / "all.json").read_text())
    assert {each["steps"] for each in together["cells"]} == {2, 99}


def test_pairs_of_seeds():
    def cell(seed, weights, accuracy):
        numbers = dict.fromkeys(("balanced_accuracy", "accuracy", "rarest_recall"), accuracy)
        return {"kind": "one", "seed": seed, "weights": weights, **numbers}

    cells = [cell(0, "off", 0.5), cell(0, "on", 0.6), cell(1, "off", 0.7), cell(1, "on", 0.7)]
    (row,) = summarise([*cells, cell(2, "on", 0.1)])  # a seed without its pair does not count
    assert row["seeds"] == [0, 1]
    assert row["accuracy"]["change"] == pytest.approx(0.05)
    assert row["accuracy"]["std"] == pytest.approx(np.std([0.1, 0.0], ddof=1))
