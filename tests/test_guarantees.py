"""Do the stated rates hold? Over the raw scores of real runs, and made-up ones by which the check itself is checked."""

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
RECORD = guarantees.RESULTS / "decisions" / "guarantees.json"
FIGURES = json.loads(RECORD.read_text())["figures"]


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


def test_figures_are_written_with_what_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mnist" / "uqgan" / "seed-7.npz"
    outputs(300).write(file)
    words = ["guarantees.py", str(file), "--splits", "3", "--json", str(tmp_path / "found.json")]
    monkeypatch.setattr(sys, "argv", words)
    guarantees.main()
    found = json.loads((tmp_path / "found.json").read_text())
    (row,) = found["figures"]
    assert (row["task"], row["method"], row["seed"], row["n"], found["splits"]) == ("mnist", "uqgan", 7, 300, 3)
    assert str(tmp_path) not in (tmp_path / "found.json").read_text()


@pytest.mark.parametrize("file", guarantees.raw_scores(), ids=lambda file: "-".join(file.with_suffix("").parts[-3:]))
def test_the_stated_rates_hold_over_the_scores_of_a_real_run(file: Path) -> None:
    """And the figures that are shown are those of these scores."""
    found = guarantees.row(file, guarantees.SPLITS)
    assert guarantees.verdicts(found) == dict.fromkeys(guarantees.verdicts(found), True)
    place = ("task", "method", "seed")
    (shown,) = (row for row in FIGURES if all(row[key] == found[key] for key in place))
    assert shown == pytest.approx(found)


def test_the_figures_shown_are_of_mnist_and_cifar10_and_of_nothing_but_what_lies_there() -> None:
    there = {tuple(file.with_suffix("").parts[-3:]) for file in guarantees.raw_scores()}
    assert {(row["task"], row["method"], f"seed-{row['seed']}") for row in FIGURES} == there
    assert {task for task, *_ in there} == {"mnist", "cifar10"}
