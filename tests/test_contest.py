"""Methods side by side: curves are scikit-learn's, and the leaderboard says what the runs say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, roc_curve

import uqgan
from pages import Page, chapter, small
from uqgan.evaluation import Outputs, evaluate, ranking
from uqgan.metrics import auroc, paired_bootstrap
from uqgan.report import contest
from uqgan.report import page as report
from uqgan.report.contest import Contestant, compare, curve_figure, p_against
from uqgan.report.galleries import SHOWN, extremes
from uqgan.report.page import Chapter, contestants, describe_group, render
from uqgan.report.tradeoffs import mean_curve, risk_coverage, roc
from uqgan.run import kept_scores, save_scores
from uqgan.uncertainty import Prediction


def prediction(n: int, shift: float) -> Prediction:
    scores = (torch.randn(3, n) + shift).round(decimals=1)
    return Prediction((2 * torch.randn(n, 3)).softmax(1), *scores)


def contestant(title: str, seeds: tuple[int, ...], shift: float, sees_ood: bool = False) -> Contestant:
    y = torch.arange(300) % 3
    ood = [{"near": prediction(100, shift), "far": prediction(100, 2 * shift)} for _ in seeds]
    outputs = tuple(Outputs(y, prediction(300, 0.0), sets) for sets in ood)
    return Contestant(title, seeds, outputs, tuple(evaluate(each, 20) for each in outputs), sees_ood)


def test_a_roc_curve_is_that_of_scikit_learn() -> None:
    score, positive = torch.randn(500).round(decimals=1), torch.rand(500) < 0.3
    fpr, tpr = roc(score, positive)
    theirs = roc_curve(positive, score, drop_intermediate=False)
    np.testing.assert_allclose(fpr, theirs[0])
    np.testing.assert_allclose(tpr, theirs[1])
    assert auc(fpr, tpr) == pytest.approx(auroc(score, positive), abs=1e-12)


def test_the_risk_is_the_share_of_wrong_ones_among_those_kept() -> None:
    score, right = torch.randn(200).round(decimals=1), torch.rand(200) < 0.7
    coverage, risk = risk_coverage(score, right)
    for limit, share, wrong in zip(score.unique(), coverage, risk, strict=True):
        kept = score <= limit
        assert share == pytest.approx(float(kept.float().mean()))
        assert wrong == pytest.approx(float((~right[kept]).float().mean()))
    assert (coverage[-1], risk[-1]) == (1, pytest.approx(float((~right).float().mean())))


def test_curves_of_several_runs_are_averaged_over_their_axis() -> None:
    ends = np.array([0.0, 1.0])
    grid, mean = mean_curve([(ends, ends), (ends, np.array([1.0, 1.0]))])
    np.testing.assert_allclose(mean, (grid + 1) / 2)


def test_the_best_stand_first_with_their_means_and_oracles_are_not_the_best() -> None:
    worse, better, oracle = contestant("a", (0, 1), 0.5), contestant("b", (0, 1), 2.0), contestant("o", (0,), 6.0, True)
    found = compare([worse, better, oracle])
    assert [row["title"] for row in found["rows"]] == ["o", "b", "a"]
    assert (found["best"], found["bold"]["auroc"]) == ("b", ["b"])
    values = [each["scores"]["sets"]["all"]["auroc"] for each in worse.found]
    cell = found["rows"][2]["cells"]["auroc"]
    assert (cell["mean"], cell["std"]) == (pytest.approx(np.mean(values)), pytest.approx(np.std(values, ddof=1)))
    assert found["rows"][0]["cells"]["auroc"]["interval"] == oracle.found[0]["intervals"]["sets"]["all"]["auroc"]
    assert found["rows"][1]["p"] is None
    assert found["rows"][2]["p"] < 0.05
    assert found["sets"] == ["all", "near", "far"]
    assert dict(found["heat"])["a"][1] == pytest.approx(worse.mean(("sets", "near", "auroc")))


def test_the_paired_test_takes_runs_with_the_same_seed_and_the_largest_p_value() -> None:
    first, second = contestant("a", (0, 1), 0.5), contestant("b", (1, 2), 2.0)
    (a, is_ood), (b, _) = ranking(second.outputs[0], "epistemic", "all"), ranking(first.outputs[1], "epistemic", "all")
    assert p_against(first, second, "all") == paired_bootstrap(a, b, is_ood, contest.RESAMPLES).p_value
    assert p_against(first, replace(second, seeds=(5, 6)), "all") is None
    assert p_against(first, first, "all") == 1


def test_figures_of_many_methods_name_them_all() -> None:
    line = np.linspace(0, 1, 5)
    svg = curve_figure([f"method {k}" for k in range(13)], [(line, line)] * 13, "x", "y")
    assert all(f"method {k}" in svg for k in range(13))


def test_a_page_of_several_methods_begins_with_their_curves_and_has_a_leaderboard() -> None:
    task = small("digits")
    group = [chapter("one-vs-all", task), chapter("entropy", task), chapter("entropy", task, seed=1)]
    html = render(group, "compared")
    page = Page(html)
    assert html.index("ROC: the share") < html.index("<table")
    assert {"Side by side", "At the extremes", "Confidently wrong", "Most foreign"} <= set(page.headings)
    assert sum(row[:2] == ["entropy", "2"] for row in page.rows) == 1
    assert "Leaderboard" in page.words
    single = render(group[:1], "alone")
    assert "Leaderboard" not in single


def test_of_many_runs_one_of_each_method_is_shown_in_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MANY", 4)
    task = small("digits", 20)
    group = [chapter(method, task, seed, resamples=5) for method in ("entropy", "one-vs-all") for seed in (0, 1)]
    found = describe_group(group)
    assert [run["chapter"].record.plan.method for run in found["runs"]] == ["entropy", "one-vs-all"]
    assert (len(found["titles"]), found["left_out"], found["differences"]) == (4, 2, [])
    assert [len(members) for members in contestants(group).values()] == [2, 2]
    monkeypatch.setattr(report, "describe_group", lambda _: found)
    words = Page(render(group, "many")).words
    assert "2 more runs of digits stand in the tables" in words
    assert "different samples" not in words


def test_runs_are_compared_with_the_best_that_saw_no_outliers() -> None:
    task = small("digits", 20)
    found = describe_group([chapter("entropy-oracle", task, resamples=5), chapter("entropy", task, resamples=5)])
    assert found["first"] == found["contest"]["best"] == "entropy"
    assert {title for title, *_ in found["differences"]} == {"entropy-oracle"}
    assert found["titles"] == [row["title"] for row in found["contest"]["rows"]]


def test_extremes_are_those_with_the_largest_scores() -> None:
    one = chapter("one-vs-all", small("digits"))
    found = extremes(one.task, one.outputs, {})
    test, foreign = one.outputs.test, Prediction.join(list(one.outputs.ood.values()))
    for key, column in (("uncertain", "aleatoric"), ("foreign", "foreignness")):
        for side, each in (("known", test), ("foreign", foreign)):
            order = (-getattr(each, column)).argsort(stable=True)[:SHOWN]
            assert [p["epistemic"] for p in found[key][side]["pictures"]] == each.epistemic[order].tolist()
    wrong = ~one.outputs.right
    assert found["confident"]["known"]["n"] == int(wrong.sum())
    pictures = found["confident"]["known"]["pictures"]
    assert all(picture["wrong"] for picture in pictures)
    assert pictures[0]["probability"] == float(test.probs.amax(1)[wrong].max())


def test_scores_in_a_folder_are_taken_if_they_belong_together_and_to_the_task(tmp_path: Path) -> None:
    one: Chapter = chapter("entropy", small("moons"))
    run = uqgan.Run(one.record, one.task)
    assert kept_scores(tmp_path, run) is None
    found = run.evaluate(20)
    save_scores(tmp_path, run, found, one.outputs)
    kept = kept_scores(tmp_path, run)
    assert kept
    assert kept[1]["scores"] == found["scores"]
    assert torch.equal(kept[0].test.probs, one.outputs.test.probs)
    assert kept_scores(tmp_path, uqgan.Run(one.record, small("moons", 50))) is None
    other = replace(one.outputs, test=replace(one.outputs.test, epistemic=one.outputs.test.epistemic + 1))
    other.write(tmp_path / "raw_scores.npz")
    assert kept_scores(tmp_path, run) is None
