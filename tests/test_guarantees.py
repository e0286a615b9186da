"""The check of stated rates over raw scores, on made-up ones."""

import json
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch

from uqgan.evaluation import Outputs
from uqgan.uncertainty import Prediction

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "guarantees.py"


def load_benchmark() -> ModuleType:
    spec = spec_from_file_location("guarantees", BENCHMARK)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


guarantees = load_benchmark()


def outputs(n: int = 4000) -> Outputs:
    logits = 6 * torch.randn(n, 4)
    y = (logits / 2).softmax(1).multinomial(1)[:, 0]  # the classifier is too sure of itself, and guarantees hold anyway
    return Outputs(y, Prediction(logits.softmax(1), *torch.rand(3, n)), {})


def test_all_hold_on_scores_without_ties() -> None:
    means = guarantees.measure(outputs(), 50)
    assert guarantees.verdicts(means) == dict.fromkeys(guarantees.verdicts(means), True)


def test_flagging_nothing_and_sets_of_all_classes_do_not_pass() -> None:
    means = guarantees.measure(outputs(), 10)
    for name, value in (("flagged", 0.0), ("coverage of raw LAC", 1.0), ("coverage of randomised APS", 1.0)):
        assert not all(guarantees.verdicts(means | {name: value}).values())
    tied = outputs()
    same = guarantees.measure(replace(tied, test=replace(tied.test, epistemic=torch.zeros(4000))), 5)
    assert same["flagged"] == 0
    assert not all(guarantees.verdicts(same).values())


def test_figures_are_written_with_task_method_and_number_of_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mnist" / "uqgan" / "seed-0" / "raw_scores.npz"
    outputs(300).write(file)
    words = ["guarantees.py", str(file), "--splits", "3", "--results", str(tmp_path / "found.json")]
    monkeypatch.setattr(sys, "argv", words)
    guarantees.main()
    (row,) = json.loads((tmp_path / "found.json").read_text())["figures"]
    assert (row["task"], row["method"], row["n"], row["splits"]) == ("mnist", "uqgan", 300, 3)
    assert str(tmp_path) not in (tmp_path / "found.json").read_text()
