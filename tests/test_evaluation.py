import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import joblib
import pytest
import torch
from sklearn.metrics import confusion_matrix, recall_score, roc_auc_score

from uqgan import evaluation, metrics
from uqgan.decisions import Decisions
from uqgan.evaluation import Outputs, evaluate, ranking, rates, set_names
from uqgan.ranking import Resampling
from uqgan.uncertainty import Prediction


def prediction(n: int, shift: float) -> Prediction:
    probs = torch.rand(n, 3).softmax(1)
    score = torch.rand(n) + shift
    return Prediction(probs, torch.rand(n), score, score.square())


def outputs() -> Outputs:
    test = prediction(80, 0.0)
    return Outputs(torch.randint(3, (80,)), test, {"near": prediction(30, 0.2), "far": prediction(50, 0.9)})


def test_all_sets_together_come_first_and_only_where_there_are_several() -> None:
    found = outputs()
    assert set_names(found) == ["all", "near", "far"]
    assert set_names(replace(found, ood={"near": found.ood["near"]})) == ["near"]
    assert set_names(replace(found, ood={})) == []


def test_every_column_is_of_the_right_score_and_samples() -> None:
    found = outputs()
    scores = evaluate(found, 0)["scores"]
    for name, sets in (("near", ["near"]), ("all", ["near", "far"])):
        score = torch.cat([found.test.epistemic, *(found.ood[each].epistemic for each in sets)])
        is_ood = torch.arange(len(score)) >= 80
        assert abs(scores["sets"][name]["auroc"] - roc_auc_score(is_ood, score)) < 1e-12
    wrong = found.test.probs.argmax(1) != found.y
    assert abs(scores["auroc_sf"] - roc_auc_score(wrong, found.test.aleatoric)) < 1e-12
    assert scores["accuracy"] == 1 - wrong.double().mean()


def test_intervals_of_both_scores_are_those_of_their_metrics() -> None:
    found = outputs()
    intervals = evaluate(found, 20)["intervals"]
    for name in set_names(found):
        expected = metrics.ood_intervals(*ranking(found, "epistemic", name), 20)
        assert intervals["sets"][name] == {metric: [each.low, each.high] for metric, each in expected.items()}
        auroc = metrics.auroc_interval(*ranking(found, "foreignness", name), 20)
        assert intervals["foreignness"][name] == {"auroc": [auroc.low, auroc.high]}


@pytest.mark.parametrize("killed", [False, True])
def test_intervals_do_not_depend_on_who_computes_them(killed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outputs()
    here = evaluate(found, 50)
    shares: list[object] = []

    def delayed(function: Any) -> Any:
        def call(*inputs: Any) -> Any:
            shares.append(inputs[-2:])
            return (os._exit, (1,), {}) if killed else (function, inputs, {})

        return call

    monkeypatch.setattr(joblib, "delayed", delayed)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    monkeypatch.setattr(evaluation, "PARALLEL_FROM", 1)
    assert evaluate(found, 50) == here
    assert shares == [(k, 3) for k in range(3)] * len(set_names(found))


def test_a_worker_that_resamples_imports_no_pytorch() -> None:
    script = f"import sys, joblib, {Resampling.__module__}; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_success_and_failure_need_both() -> None:
    found = outputs()
    right = replace(found, y=found.test.probs.argmax(1))
    evaluated = evaluate(right, 20)
    assert evaluated["scores"]["auroc_sf"] is None
    assert evaluated["intervals"]["auroc_sf"] is None
    assert evaluated["scores"]["accuracy"] == 1


def test_a_ranking_puts_known_samples_first() -> None:
    score, is_ood = ranking(outputs(), "epistemic", "far")
    assert is_ood.tolist() == [False] * 80 + [True] * 50
    assert len(score) == 130


def test_no_ood_set_leaves_the_scores_of_known_classes() -> None:
    evaluated = evaluate(replace(outputs(), ood={}), 20)
    assert evaluated["scores"]["sets"] == {}
    assert 0 <= evaluated["scores"]["ece"] <= 1


def test_the_digest_tells_other_answers_apart() -> None:
    found = outputs()
    other = replace(found, ood={"near": found.ood["near"], "far": prediction(50, 0.9)})
    digests = [evaluate(each, 0)["raw_sha256"] for each in (found, found, other)]
    assert digests[0] == digests[1] != digests[2]


def test_accuracy_per_class_and_confusion_are_those_of_scikit_learn() -> None:
    found = outputs()
    labels = found.test.probs.argmax(1)
    scores = evaluate(found, 0, ("a", "b", "c"))["scores"]
    assert scores["confusion"] == confusion_matrix(found.y, labels, labels=[0, 1, 2]).tolist()
    assert [row["class"] for row in scores["per_class"]] == ["a", "b", "c"]
    assert [row["n"] for row in scores["per_class"]] == found.y.bincount().tolist()
    recall = recall_score(found.y, labels, labels=[0, 1, 2], average=None)
    assert [row["accuracy"] for row in scores["per_class"]] == pytest.approx(recall.tolist())
    total = sum(row["n"] * row["accuracy"] for row in scores["per_class"])
    assert total / 80 == pytest.approx(scores["accuracy"])


def test_a_class_without_samples_has_no_accuracy() -> None:
    found = outputs()
    scores = evaluate(replace(found, y=found.y.clamp(max=1)), 0, ("a", "b", "c"))["scores"]
    assert scores["per_class"][2] == {"class": "c", "accuracy": None, "n": 0}
    assert scores["confusion"][2] == [0, 0, 0]


def test_without_names_of_classes_the_scores_are_the_papers_alone() -> None:
    assert set(evaluate(outputs(), 0)["scores"]) == {"accuracy", "auroc_sf", "ece", "sets", "foreignness"}


def thumb(prediction: Prediction) -> Decisions:
    """Decisions as a rule of thumb would make them."""
    flagged, sets = prediction.epistemic > 0.5, prediction.probs > 0.3
    pairs = zip(flagged, sets.sum(1), strict=True)
    words = tuple("unknown" if strange else "accept" if n == 1 else "ambiguous" for strange, n in pairs)
    return Decisions(1 - prediction.epistemic, flagged, words, ("",) * len(words), sets, sets, "")


def test_rates_are_shares_of_what_was_decided_per_set() -> None:
    found = outputs()
    rated = rates(found, thumb)
    assert list(rated["sets"]) == ["near", "far"]
    for row, prediction in ((rated["known"], found.test), *((rated["sets"][k], x) for k, x in found.ood.items())):
        assert row["n"] == len(prediction.probs)
        assert row["flagged"] == row["unknown"] == pytest.approx((prediction.epistemic > 0.5).double().mean())
        assert row["accept"] + row["ambiguous"] + row["unknown"] == pytest.approx(1)
        assert row["set_size"] == pytest.approx((prediction.probs > 0.3).double().sum(1).mean())
    hits = [bool(found.test.probs[k, y] > 0.3) for k, y in enumerate(found.y)]
    assert rated["known"]["coverage"] == pytest.approx(sum(hits) / 80)
    assert 0 < rated["known"]["flagged"] < rated["sets"]["far"]["flagged"]
