"""Joint detection: the groups weigh the same, the trees are scikit-learn's, and what cannot be fitted is said."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.metrics import confusion_matrix, recall_score

import make_detection
import make_settings
import make_tables
import uqgan
from uqgan import detection, paper
from uqgan.cli import main
from uqgan.cli.detect import Prepared, show
from uqgan.config import load_config
from uqgan.detection import (
    GROUPS,
    KINDS,
    Job,
    Samples,
    check,
    detect,
    detect_all,
    features,
    fit_trees,
    holds,
    outcome,
    samples_of,
    score_columns,
    weights,
)
from uqgan.errors import UsageError
from uqgan.evaluation import Outputs
from uqgan.files import write_json
from uqgan.methods import METHODS
from uqgan.paper.detection_table import COLUMNS, Row, markdown, rows_of_methods, table_lines
from uqgan.run import Run
from uqgan.runs import DETECTION, RAW_SCORES, RAW_VALIDATION, Plan
from uqgan.uncertainty import Prediction

OVA, OVA_DRAWN = ("epistemic", "aleatoric"), ("epistemic", "mean_entropy", "spread")
PAPER = {
    "uqgan": OVA, "one-vs-all": OVA, "ova-oracle": OVA, "uqgan-mc": OVA_DRAWN, "uqgan-ensemble": OVA_DRAWN,
    "max-softmax": ("epistemic",), "entropy": ("epistemic",), "confident": ("epistemic",),
    "gen-sensoy": ("epistemic",), "entropy-oracle": ("epistemic",), "bayes": ("aleatoric", "epistemic"),
    "mc-dropout": ("epistemic", "spread"), "ensemble": ("epistemic", "spread"),
}  # fmt: skip


def prediction(n: int, shift: float) -> Prediction:
    scores = torch.rand(5, n) + shift
    return Prediction((2 * torch.randn(n, 3)).softmax(1), scores[0], scores[1], scores[2], scores[3], scores[4])


def outputs(known: int = 90, sets: tuple[int, ...] = (40, 80)) -> Outputs:
    ood = {f"set {k}": prediction(n, 0.3 * (k + 1)) for k, n in enumerate(sets)}
    return Outputs(torch.randint(3, (known,)), prediction(known, 0.0), ood)


def test_scores_are_those_of_the_paper() -> None:
    assert {name: score_columns(method) for name, method in METHODS.items()} == PAPER


@pytest.mark.parametrize(("method", "width"), [("uqgan", 5), ("uqgan-mc", 6), ("max-softmax", 3), ("entropy", 4)])
def test_probabilities_come_first_and_alone_for_max_softmax(method: str, width: int) -> None:
    found = prediction(7, 0.0)
    x = features(found, METHODS[method], "scores_and_probs")
    assert x.shape == (7, width)
    assert np.array_equal(x[:, :3], found.probs.double().numpy())


def test_groups_weigh_the_same_and_so_do_the_sets_within_ood() -> None:
    part = np.repeat([0, 1, 2, 4], [70, 5, 400, 20])  # the second set is empty
    found = weights(part)
    totals = np.array([found[part == k].sum() for k in (0, 1, 2, 4)])
    np.testing.assert_allclose(totals, [1, 1, 0.5, 0.5])


def test_the_trees_are_those_of_scikit_learn_with_the_inverse_sizes_as_weights() -> None:
    samples = samples_of(outputs(sets=(60,)), METHODS["uqgan"], "scores")
    inverse = (1 / np.bincount(samples.group))[samples.group]
    reference = GradientBoostingClassifier(n_estimators=100, max_depth=5, random_state=0)
    theirs = reference.fit(samples.x, samples.group, sample_weight=inverse).predict_proba(samples.x)
    np.testing.assert_allclose(fit_trees(samples, False).predict_proba(samples.x), theirs, atol=1e-6)


def test_a_set_counts_the_same_however_many_samples_it_has() -> None:
    one = samples_of(outputs(60, (40, 30)), METHODS["entropy"], "scores")
    again = np.flatnonzero(one.part == 3).repeat(3)
    more = Samples(np.concatenate([one.x, one.x[again]]), np.concatenate([one.part, one.part[again]]))
    both = [fit_trees(each, False).predict_proba(one.x) for each in (one, more)]
    np.testing.assert_allclose(*both, atol=1e-6)


def test_outcomes_are_those_of_scikit_learn() -> None:
    tested = samples_of(outputs(), METHODS["uqgan"], "scores")
    found = np.random.default_rng(0).integers(3, size=len(tested.part))
    result = outcome(found, tested, ["set 0", "set 1"])
    assert result["confusion"] == confusion_matrix(tested.group, found).tolist()
    np.testing.assert_allclose(list(result["per_class"].values()), recall_score(tested.group, found, average=None))
    for k, name in enumerate(result["sets"], 2):
        share = (found[tested.part == k] == 2).mean()
        assert result["sets"][name]["ood"] == pytest.approx(share)
    assert result["ood_mean"] == pytest.approx(np.mean([row["ood"] for row in result["sets"].values()]))


def test_a_test_without_mistakes_has_no_accuracy_on_them() -> None:
    whole = outputs()
    right = replace(whole, y=whole.test.labels)
    found = detect(Job("uqgan", "scores", whole, right, quick=True))
    assert found["per_class"]["fp"] is None
    assert found["confusion"][1] == [0, 0, 0]


@pytest.mark.parametrize("quick", [False, True])
def test_groups_that_lie_apart_are_found(quick: bool) -> None:
    y, truth = torch.arange(200) % 2, torch.eye(2)
    wrong = torch.arange(200) >= 160
    labels = torch.where(wrong, 1 - y, y)
    score = wrong.float()

    def of(n: int, value: torch.Tensor) -> Prediction:
        return Prediction(truth[labels[:n]] * 0.8 + 0.1, value, value, value)

    both = Outputs(y, of(200, score + 0.1 * torch.rand(200)), {"far": of(100, 5 + torch.rand(100))})
    found = detect_all([Job("entropy", kind, both, both, quick) for kind in KINDS])
    least = 0.97 if quick else 1.0  # a bin of the quick ones may hold neighbours of two groups
    assert all(recall >= least for row in found for recall in row["per_class"].values())


def test_what_cannot_be_fitted_is_said_in_a_sentence() -> None:
    whole = outputs()
    with pytest.raises(UsageError, match="90 known samples none is classified wrongly"):
        check(replace(whole, y=whole.test.labels))
    with pytest.raises(UsageError, match="all are classified wrongly"):
        check(replace(whole, y=(whole.test.labels + 1) % 3))
    with pytest.raises(UsageError, match="has no OoD samples"):
        check(replace(whole, ood={}))


def test_raw_scores_of_older_versions_lack_a_score_of_uqgan_mc() -> None:
    whole = outputs()
    older = replace(whole, test=replace(whole.test, mean_entropy=None))
    assert holds(whole, METHODS["uqgan-mc"])
    assert not holds(older, METHODS["uqgan-mc"])
    assert holds(older, METHODS["uqgan"])


def test_the_mean_entropy_is_below_that_of_the_mean() -> None:
    logits, prior = torch.randn(6, 20, 4), torch.full((4,), 0.25)
    found = METHODS["uqgan-mc"].reading(logits, prior)
    assert found.mean_entropy is not None
    assert bool((found.mean_entropy <= found.aleatoric + 1e-6).all())
    single = torch.stack([METHODS["uqgan"].reading(draw[None], prior).aleatoric for draw in logits])
    torch.testing.assert_close(found.mean_entropy, single.mean(0))


def record(method: str, seed: int, sets: list[str], share: float) -> dict[str, Any]:
    row = {"per_class": dict.fromkeys(GROUPS, share), "confusion": [[1, 1, 2], [1, 1, 0], [0, 0, 0]]}
    return {"method": method, "seed": seed, "tested_on": {"ood": dict.fromkeys(sets, 1)}} | dict.fromkeys(KINDS, row)


def test_a_table_has_the_paper_ours_and_the_difference_and_a_verdict_for_equal_sets_only() -> None:
    sets = list(paper.sizes("cifar10"))
    for chosen, verdicts in ((sets, {"better", "worse"}), (sets[:2], {""})):
        records = [record("uqgan", seed, chosen, 0.5) for seed in (0, 1)]
        first, ours, difference = table_lines("cifar10", [Row("uqgan", "UQGAN", tuple(records))])
        assert first.cells[0].words == "78.32 ± 1.20"
        assert (ours.seeds, ours.cells[0].words) == ("2", "50.00 ± 0.00")
        assert difference.cells[0].words == ("-28.32 ▼" if chosen == sets else "-28.32")
        assert {cell.verdict for cell in difference.cells} == verdicts


def test_the_table_lists_every_method_of_the_paper() -> None:
    rows = rows_of_methods("cifar10", [])
    assert [row.method for row in rows] == list(paper.methods("cifar10"))
    assert markdown("cifar10", rows).count("\n") == 1 + len(rows)
    assert rows_of_methods("digits", []) == []


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes take longer to start than the little that is fitted here."""
    monkeypatch.setattr(detection, "PARALLEL_FROM", 10**9)


ONE_STEP = {"cross_entropy": {"epochs": 1, "batch_size": 512}}


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["uqgan", "detect", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("detect") / "run"
    uqgan.fit("entropy", "moons-noisy", config=load_config("moons-noisy", overrides=ONE_STEP), folder=place, quiet=True)
    return place


def test_the_command_keeps_what_it_found_and_reads_validation_scores_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, folder, "--quick", "--json", "-o", tmp_path / "all.json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "all.json").read_text()) == json.loads((folder / DETECTION).read_text())
    assert found["command"].startswith("uqgan detect ")
    (row,) = found["runs"]
    assert row["fitted_on"]["ood"] == {"uniform": 10_000}
    assert set(COLUMNS) == {(kind, group) for kind in KINDS for group in row[kind]["per_class"]}
    run = uqgan.load(folder)
    (folder / RAW_SCORES).unlink(missing_ok=True)
    run.outputs().write(folder / RAW_SCORES)
    monkeypatch.setattr(Run, "outputs", None)  # nothing is predicted any more
    assert command(monkeypatch, folder, "--quick", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"] == found["runs"]


def test_the_command_shows_a_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, folder, "--quick", "-q") == 0
    out = capsys.readouterr().out
    assert "moons-noisy: accuracy on each kind" in out
    assert "entropy" in out


def test_no_number_is_cut_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    plans = [Plan("cifar10", "uqgan-mc", seed, (3, 32, 32), ("a", "b"), load_config("cifar10")) for seed in (0, 1)]
    found = [record("uqgan-mc", seed, list(paper.sizes("cifar10")), 0.5 + 0.1 * seed) for seed in (0, 1)]
    show([Prepared(Path(), plan, [], one) for plan, one in zip(plans, found, strict=True)])
    out = capsys.readouterr().out
    for line in table_lines("cifar10", [Row("uqgan-mc", "uqgan-mc", tuple(found))]):
        words = " ".join(text.words.replace(" ", "") for text in line.cells)
        assert words in " ".join(out.split())


def test_other_weights_make_its_findings_void(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(monkeypatch, folder, "--quick", "-q") == 0
    run = uqgan.load(folder)
    run.save(folder)
    assert (folder / RAW_VALIDATION).exists()
    with torch.no_grad():
        next(iter(run.record.predictor.parameters())).add_(1)
    run.save(folder)
    assert not (folder / RAW_VALIDATION).exists()
    assert not (folder / DETECTION).exists()


def test_bad_words_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, folder, "-o", tmp_path / "all.csv") == 2
    assert "must end in .json" in capsys.readouterr().err
    assert command(monkeypatch, tmp_path / "none") == 2
    whole = Run.outputs

    def without_mistakes(run: Run, validation: bool = False) -> Outputs:
        found = whole(run, validation)
        return replace(found, y=found.test.labels)

    (folder / RAW_VALIDATION).unlink(missing_ok=True)
    monkeypatch.setattr(Run, "outputs", without_mistakes)
    assert command(monkeypatch, folder) == 2
    assert "left out; validation: of 10,000 known samples none is" in capsys.readouterr().err.replace("\n", " ")
    (folder / RAW_VALIDATION).unlink()


def test_the_page_shows_records_of_runs_in_its_tables_only_and_refuses_those_without_origin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = make_settings.reproduction("cifar10")
    row = next(row for row in found.rows if row.method == "uqgan")
    runs = [
        record("uqgan", result.seed, list(found.sets), 0.5) | {"raw_sha256": result.record["raw_sha256"]}
        for result in row.results
    ]
    runs[-1]["raw_sha256"] = "another run's"
    kept = {"command": "uqgan detect RUN", "commit": "1" * 40, "seconds": 1.0, "device": "cpu", "runs": runs}
    kept |= {"versions": {"scikit-learn": "1"}, "model": {"name": "Trees", "trees": 100, "depth": 5}}
    monkeypatch.setattr(make_detection, "record", lambda _: kept)
    text = make_detection.detection(found)
    assert f"|  | ours | {len(runs) - 1} | 50.00" in text
    assert "`uqgan detect RUN`" in text
    assert "uqgan," not in text.partition("Not run yet:")[2].partition("uqgan-mc")[0]
    assert "Ours without LSUN" in text
    assert "| TP | 25.00 | 25.00 | 50.00 |" in text
    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    (tmp_path / "cifar10").mkdir()
    write_json(tmp_path / "cifar10" / DETECTION, kept | {"command": None})
    with pytest.raises(UsageError, match="has no command"):
        make_tables.record(f"cifar10/{DETECTION}")
