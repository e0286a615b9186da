import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch

import uqgan
from uqgan.cli import main
from uqgan.cli.scores import show_scores
from uqgan.config import load_config
from uqgan.decisions import Rule
from uqgan.metrics import calibration_error

ONE_STEP = {"uqgan": {"iterations": 2, "batch_size": 8}, "cross_entropy": {"epochs": 1, "batch_size": 2048}}


def calibrate(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the command in this process; gives its exit status."""
    monkeypatch.setattr(sys, "argv", ["uqgan", "calibrate", *words])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def trained(folder: Path, method: str) -> Path:
    uqgan.fit(method, "moons", config=load_config("moons", overrides=ONE_STEP), folder=folder, device="cpu")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("decide") / "run", "uqgan")


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("decide") / "entropy", "entropy")


def test_the_rule_is_kept_and_told_in_plain_words(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(monkeypatch, str(run), "--false-alarm", "0.02", "--coverage", "0.95") == 0
    out = capfd.readouterr().out
    for words in (
        "10,000 known pictures, which neither training nor validation has seen",
        "flagged: epistemic above ",
        "At most 2 % of known pictures are flagged.",
        "hold the true class of at least 95 % of known pictures",
        "on average, over calibration pictures and new ones together: not for each class or picture",
        "They are separate",
        "or flagged, with a usual foreignness, as a mixture of known classes has",
        "temperature",
        "calibration error",
    ):
        assert words in out, words
    assert json.loads((run / "decisions.json").read_text())["false_alarm"] == 0.02
    loaded = uqgan.load(run)
    assert (loaded.rule.false_alarm, loaded.rule.coverage) == (0.02, 0.95)
    share = float(loaded.decide(loaded.calibration.prediction).flagged.double().mean())
    assert share == pytest.approx(0.02, abs=0.001)


def test_thresholds_as_json_are_those_that_decide(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--score", "foreignness", "--per-label", "--sets", "aps", "--false-alarm", "0.1", "--json"]
    assert calibrate(monkeypatch, str(run), *options) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["rule"] == {
        "false_alarm": 0.1,
        "coverage": 0.9,
        "score": "foreignness",
        "per_label": True,
        "sets": "aps",
    }
    loaded = uqgan.load(run)
    prediction = loaded.predict(torch.randn(500, 2))
    limits = {row["label"]: row["above"] for row in found["thresholds"] if row["n"]}
    names = [loaded.class_names[k] for k in prediction.labels.tolist()]
    expected = [s > limits[name] for s, name in zip(prediction.foreignness.tolist(), names, strict=True)]
    assert loaded.decide(prediction).flagged.tolist() == expected
    assert sum(row["n"] for row in found["thresholds"]) == found["n"] == 10_000


def test_a_method_without_a_foreignness_says_what_that_means(
    baseline: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(monkeypatch, str(baseline)) == 0
    out = capfd.readouterr().out
    assert "unknown: flagged; this method has no foreignness of its own" in out
    assert "but not by foreignness" not in out


@pytest.mark.parametrize("name", ["--false-alarm", "--coverage"])
@pytest.mark.parametrize("value", ["0", "1", "-0.1", "nan", "2"])
def test_rates_that_are_none_are_one_sentence(
    name: str, value: str, run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = uqgan.load(run).rule
    assert calibrate(monkeypatch, str(run), f"{name}={value}") == 2
    err = capfd.readouterr().err
    assert f"{name.strip('-').replace('-', '_')} = {float(value)}: must be a number above 0 and below 1" in err
    assert err.count("\n") == 1
    assert uqgan.load(run).rule == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--false-alarm", "1e-6"], "false_alarm = 1e-06: needs 999,999 calibration samples, there are 10,000"),
        (["--score", "spread"], "score = spread: must be one of epistemic, foreignness, aleatoric"),
        (["--sets", "raps"], "sets = raps: must be one of lac, aps"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    words: list[str], sentence: str, run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(monkeypatch, str(run), *words) == 2
    err = capfd.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_a_temperature_that_helps_is_told_with_both_errors_and_stands_beside_the_scores(
    baseline: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    plain = uqgan.load(baseline).evaluate(resamples=0)
    known = uqgan.load(baseline).calibration
    replace(known, temperature=1 / math.pi).write(baseline / "calibration.npz")
    assert calibrate(monkeypatch, str(baseline)) == 0
    assert "temperature 0.318, fitted on validation pictures: calibration error " in capfd.readouterr().out
    run = uqgan.load(baseline)
    found, outputs = run.evaluate(resamples=0), run.outputs()
    softened = run.calibration.temper(outputs.test.probs).amax(1)
    error = calibration_error(softened, outputs.right)
    assert found["tempered"] == {"temperature": 1 / math.pi, "ece": error}
    assert (found["scores"], "tempered" in plain) == (plain["scores"], False)
    show_scores(found | {"intervals": run.evaluate(resamples=1)["intervals"]})
    assert f"ECE of probabilities at temperature 0.318: {100 * error:.2f}" in capfd.readouterr().out


def test_the_guide_can_be_followed_to_the_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parent.parent / "docs" / "decide.md").read_text()
    monkeypatch.chdir(tmp_path)
    config = load_config("digits", overrides={"cross_entropy": {"epochs": 1}})
    run = uqgan.fit("entropy", "digits", config=config, folder="runs/digits/uqgan/seed-0", quiet=True)
    ((command, code),) = re.findall(r"```\nuqgan calibrate (.*?)\n```\n```python\n(.*?)```", guide, re.S)
    assert calibrate(monkeypatch, *command.split()) == 0
    names = {"uqgan": uqgan, "images": run.task.test.x[:5]}
    exec(code, names)
    rule = Rule.read(Path("runs/digits/uqgan/seed-0/decisions.json"))
    assert (rule.false_alarm, rule.coverage) == (0.02, 0.95)
