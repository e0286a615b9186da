"""Guarantees hold exactly for any finite set of scores: they are checked with each sample in turn as the new one."""

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from uqgan.data.toy import TOYS, Gaussians
from uqgan.decisions import (
    REASONS,
    WORDS,
    Calibration,
    Rule,
    aps_scores,
    aps_sets,
    check_rule,
    decide,
    lac_sets,
    lac_threshold,
    not_probs,
    p_value,
    thresholds,
)
from uqgan.errors import UsageError
from uqgan.uncertainty import Prediction, read_one_vs_all

RATES = st.sampled_from([0.05, 0.07, 0.1, 0.25, 1 / 3, 0.5, 0.9, 0.99])
TIED = st.lists(st.integers(0, 4), min_size=2, max_size=40)
DISTINCT = st.lists(st.integers(-(10**6), 10**6), min_size=2, max_size=40, unique=True)


def pictures(n: int, classes: int = 3, sharpness: float = 2.0) -> tuple[Prediction, Tensor]:
    """Predictions, and labels drawn from them: the classifier is calibrated."""
    probs = (sharpness * torch.randn(n, classes)).softmax(1)
    return Prediction(probs, *torch.rand(3, n)), probs.multinomial(1)[:, 0]


def calibration(n: int, classes: int = 3) -> Calibration:
    prediction, y = pictures(n, classes)
    return Calibration(y, prediction)


def one(probs: list[float], epistemic: float, foreignness: float) -> Prediction:
    return Prediction(torch.tensor([probs]), torch.zeros(1), torch.tensor([epistemic]), torch.tensor([foreignness]))


def leave_one_out(n: int) -> list[tuple[Tensor, Tensor]]:
    """Index of the sample that is new, and of those that calibrate."""
    return [(torch.tensor([i]), torch.arange(n) != i) for i in range(n)]


@given(TIED, TIED)
def test_a_p_value_is_the_share_of_at_least_as_strange_samples_counting_itself(
    new: list[int], known: list[int]
) -> None:
    counted = [(1 + sum(s >= each for s in known)) / (len(known) + 1) for each in new]
    assert p_value(torch.tensor(new).float(), torch.tensor(known).float()).tolist() == counted


@given(TIED, RATES)
def test_at_most_the_stated_share_of_any_scores_is_flagged_when_each_in_turn_is_new(
    values: list[int], rate: float
) -> None:
    scores = torch.tensor(values).float()
    flags = [bool(p_value(scores[new], scores[rest]) <= rate) for new, rest in leave_one_out(len(scores))]
    assert sum(flags) <= rate * len(flags) + 1e-9


@given(DISTINCT, RATES)
def test_without_ties_exactly_the_largest_such_share_is_flagged(values: list[int], rate: float) -> None:
    scores = torch.tensor(values).double()
    flags = [bool(p_value(scores[new], scores[rest]) <= rate) for new, rest in leave_one_out(len(scores))]
    assert sum(flags) == math.floor(rate * len(flags) + 1e-9)


def test_a_score_that_is_no_number_is_the_strangest_of_all() -> None:
    assert p_value(torch.tensor([math.nan, math.inf]), torch.arange(9.0)).tolist() == [0.1, 0.1]


@pytest.mark.parametrize("coverage", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("n", [10, 30, 57])
def test_lac_sets_hold_exactly_the_stated_share_of_classes_when_each_sample_in_turn_is_new(
    n: int, coverage: float
) -> None:
    prediction, y = pictures(n)
    held = 0
    for new, rest in leave_one_out(n):
        known = Calibration(y[rest], prediction.rows(rest))
        held += int(lac_sets(prediction.probs[new], known, coverage)[0, y[new]])
    assert held == math.ceil(coverage * n - 1e-9)


COLUMNS = ("probs", "aleatoric", "epistemic", "foreignness")


def test_randomised_aps_covers_as_stated_and_no_more() -> None:
    held = []
    for seed in range(40):
        new, y = pictures(2000)
        held.append(aps_sets(new.probs, calibration(500), 0.9, seed).gather(1, y[:, None]).double().mean())
    mean, error = float(torch.stack(held).mean()), float(torch.stack(held).std()) / len(held) ** 0.5
    assert abs(mean - 0.9) < 4 * error < 0.02


def test_aps_covers_confident_samples_as_stated_too() -> None:
    """Half of these have one class with probability 1 in float32."""
    held = []
    for seed in range(20):
        (new, y), (known, y_known) = pictures(2000, sharpness=25), pictures(500, sharpness=25)
        assert 0.3 < (new.probs == 1).any(1).double().mean() < 0.9
        held.append(aps_sets(new.probs, Calibration(y_known, known), 0.9, seed).gather(1, y[:, None]).double().mean())
    assert abs(float(torch.stack(held).mean()) - 0.9) < 0.015


def test_lac_tells_confident_samples_apart_that_a_subtraction_would_tie() -> None:
    probs = torch.tensor([[1.0, 1e-20], [1.0, 1e-10]])
    assert not_probs(probs)[0, 0] < not_probs(probs)[1, 0]
    assert_close(not_probs(probs)[:, 1], torch.ones(2).double())


def test_aps_draws_repeat_with_the_seed_only() -> None:
    known, new = calibration(100), pictures(500)[0].probs
    assert torch.equal(aps_sets(new, known, 0.9, 3), aps_sets(new, known, 0.9, 3))
    assert not torch.equal(aps_sets(new, known, 0.9, 3), aps_sets(new, known, 0.9, 4))
    assert not torch.equal(aps_sets(new, known, 0.9, None), aps_sets(new, known, 0.9, None))


@pytest.mark.parametrize("kind", ["lac", "aps"])
@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_sets_are_those_of_mapie(kind: str, coverage: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Told(ClassifierMixin, BaseEstimator):
        """Its inputs are the probabilities."""

        classes_, n_features_in_ = np.arange(4), 4

        def fit(self, x: np.ndarray, y: np.ndarray) -> "Told":
            return self

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(1)

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return x

        def __sklearn_is_fitted__(self) -> bool:
            return True

    seed = 5
    known, new = ((2 * torch.randn(n, 4).double()).softmax(1) for n in (211, 400))
    y = known.multinomial(1)[:, 0]
    told = SplitConformalClassifier(Told(), confidence_level=coverage, conformity_score=kind, random_state=seed)
    told.conformalize(known.numpy(), y.numpy())
    theirs = told.predict_set(new.numpy(), {"include_last_label": "randomized"} if kind == "aps" else None)[1][:, :, 0]
    # MAPIE draws from a fresh generator of this seed for the calibration samples, and from another for the new ones.
    found = Calibration(y, Prediction(known, *torch.zeros(3, 211)))
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.from_numpy(np.random.RandomState(seed).uniform(size=n)))
    ours = lac_sets(new, found, coverage) if kind == "lac" else aps_sets(new, found, coverage)
    assert 0 < ours.sum() < ours.numel()
    assert np.array_equal(ours.numpy(), theirs)


@pytest.mark.parametrize("per_label", [False, True])
def test_order_changes_nothing(per_label: bool) -> None:
    known, (new, _) = calibration(200), pictures(50)
    rule, shuffled, turned = Rule(per_label=per_label), torch.randperm(200), torch.randperm(50)
    other = Calibration(known.y[shuffled], known.prediction.rows(shuffled))
    first = decide(new, known, rule, True)
    second = decide(new.rows(turned), other, rule, True)
    assert torch.equal(first.p_value[turned], second.p_value)
    assert torch.equal(first.sets[turned], second.sets)
    assert tuple(first.words[i] for i in turned) == second.words


def test_per_label_is_deciding_among_the_samples_of_that_predicted_label() -> None:
    known, (new, _) = calibration(300), pictures(100)
    found = decide(new, known, Rule(per_label=True), True)
    for label in range(3):
        chosen, alike = new.labels == label, known.prediction.labels == label
        assert chosen.any()
        expected = p_value(new.epistemic[chosen], known.prediction.epistemic[alike])
        assert torch.equal(found.p_value[chosen], expected)
    assert not torch.equal(found.p_value, decide(new, known, Rule(), True).p_value)


def test_per_label_flags_each_label_at_the_rate_where_one_threshold_does_not() -> None:
    """Class 0 has larger scores than the others: together it takes all false alarms."""

    def uneven(n: int) -> tuple[Prediction, Tensor]:
        new, y = pictures(n)
        return replace(new, epistemic=new.epistemic + 2 * (new.labels == 0)), y

    new, _ = uneven(20_000)
    known = Calibration(*reversed(uneven(5000)))
    shares = {
        per_label: [
            float(decide(new, known, Rule(per_label=per_label), True).flagged[new.labels == k].double().mean())
            for k in range(3)
        ]
        for per_label in (False, True)
    }
    assert shares[False][0] > 0.1
    assert max(shares[False][1:]) == 0
    assert all(0.03 < share < 0.07 for share in shares[True])


def test_the_advice_for_rates_per_label_is_that_of_the_smallest_group() -> None:
    known = calibration(60)
    with pytest.raises(UsageError) as error:
        check_rule(known, Rule(per_label=True))
    (advised,) = re.findall(r"choose ([\d.]+) or more", str(error.value))
    check_rule(known, Rule(float(advised), per_label=True))


def test_a_larger_rate_flags_more_and_a_larger_coverage_gives_larger_sets() -> None:
    known, (new, _) = calibration(200), pictures(300)
    found = [decide(new, known, Rule(rate, 1 - rate), True) for rate in (0.4, 0.2, 0.1, 0.05, 0.01)]
    for looser, stricter in pairwise(found):
        assert (stricter.flagged <= looser.flagged).all()
        assert (stricter.sets >= looser.sets).all()
        assert stricter.flagged.sum() < looser.flagged.sum()
        assert stricter.sets.sum() > looser.sets.sum()


@pytest.mark.parametrize("score", ["epistemic", "foreignness", "aleatoric"])
@pytest.mark.parametrize("per_label", [False, True])
def test_thresholds_tell_what_is_flagged(score: str, per_label: bool) -> None:
    known, (new, _) = calibration(200), pictures(300)
    rule = Rule(0.1, score=score, per_label=per_label)
    limits = thresholds(known, rule)
    values, labels = getattr(new, score).tolist(), new.labels.tolist()
    expected = [value > limits[label if per_label else None][1] for value, label in zip(values, labels, strict=True)]
    assert decide(new, known, rule, True).flagged.tolist() == expected
    assert sum(n for n, _ in limits.values()) == 200


@pytest.mark.parametrize(
    ("n", "rule", "sentence"),
    [
        (18, Rule(), r"false_alarm = 0.05: needs 19 calibration samples, there are 18 \(choose 0.053 or more\)"),
        (98, Rule(0.01), r"false_alarm = 0.01: needs 99 calibration samples, there are 98 \(choose 0.011 or more\)"),
        (0, Rule(), r"needs 19 calibration samples, there are 0 \(train with more pictures\)"),
        (98, Rule(0.1, 0.99), r"coverage = 0.99: needs 99 calibration samples, there are 98 \(choose 0.989 or less\)"),
        (60, Rule(per_label=True), r"needs 19 calibration samples predicted to be \w+, there are \d+ .*per label\)"),
    ],
)
def test_too_few_calibration_samples_are_told_with_the_number_needed(n: int, rule: Rule, sentence: str) -> None:
    known = calibration(n)
    rare = torch.tensor([[0.8, 0.1, 0.1]]).repeat(n, 1)
    rare[:5] = torch.tensor([0.1, 0.1, 0.8])
    if rule.per_label:
        known = replace(known, prediction=replace(known.prediction, probs=rare[:, [0, 2, 1]]))
    with pytest.raises(UsageError, match=sentence):
        check_rule(known, rule, ("cat", "bird", "dog"))
    with pytest.raises(UsageError, match="needs"):
        decide(pictures(3)[0], known, rule, True)


@pytest.mark.parametrize(("rate", "n"), [(0.05, 19), (0.01, 99), (0.07, 14), (0.1, 9), (1 / 3, 2)])
def test_as_many_as_needed_are_enough_to_flag_and_one_less_is_not(rate: float, n: int) -> None:
    assert decide(one([1.0, 0.0, 0.0], 2.0, 0.0), calibration(n), Rule(rate, 0.5), True).flagged.all()
    with pytest.raises(UsageError, match=f"needs {n} calibration samples, there are {n - 1}"):
        check_rule(calibration(n - 1), Rule(rate, 0.5))


KNOWN = Calibration(
    torch.zeros(99, dtype=torch.long),
    # p̂ of the true class is 0.505 … 0.995, so a class is in the set from 0.55 on.
    Prediction(
        torch.stack([0.5 + torch.arange(1, 100) / 200, 0.5 - torch.arange(1, 100) / 200], 1),
        torch.zeros(99),
        torch.arange(99.0) / 100,
        torch.arange(99.0) / 100,
    ),
)


@pytest.mark.parametrize(
    ("epistemic", "foreignness", "probs", "own", "word"),
    [
        (0.5, 0.0, [0.9, 0.1], True, "accept"),
        (0.5, 0.0, [0.52, 0.48], True, "ambiguous"),  # no class is in the set
        (0.99, 0.5, [0.9, 0.1], True, "ambiguous"),  # flagged, but its foreignness is that of a known one
        (0.99, 0.99, [0.9, 0.1], True, "unknown"),
        (0.99, 0.99, [0.52, 0.48], True, "unknown"),
        (0.99, 0.5, [0.9, 0.1], False, "unknown"),
        (0.5, 0.99, [0.9, 0.1], True, "accept"),  # foreignness alone flags nothing
    ],
)
def test_the_word(epistemic: float, foreignness: float, probs: list[float], own: bool, word: str) -> None:
    found = decide(one(probs, epistemic, foreignness), KNOWN, Rule(), own)
    assert found.words == (word,)
    assert found.flagged.tolist() == [epistemic > 0.9]
    assert bool(found.why) != own


def test_several_classes_in_the_set_are_ambiguous_too() -> None:
    lenient = replace(KNOWN, prediction=replace(KNOWN.prediction, probs=KNOWN.prediction.probs.flip(1)))
    found = decide(one([0.52, 0.48], 0.5, 0.0), lenient, Rule(), True)
    assert found.sets.all()
    assert found.words == ("ambiguous",)


@given(st.integers(0, 2**31 - 1), st.booleans(), st.sampled_from(["lac", "aps"]))
def test_accept_is_said_if_and_only_if_not_flagged_with_one_class_in_the_lac_set(
    seed: int, own: bool, sets: str
) -> None:
    torch.manual_seed(seed)
    known, (new, _) = calibration(60), pictures(80)
    found, lac = decide(new, known, Rule(sets=sets), own), lac_sets(new.probs, known, 0.9)
    accepted = ~found.flagged & (lac.sum(1) == 1)
    assert [word == "accept" for word in found.words] == accepted.tolist()
    assert set(found.words) <= set(WORDS)
    for word, reason, flag, n in zip(found.words, found.reasons, found.flagged, lac.sum(1).tolist(), strict=True):
        expected = REASONS[1] if flag else REASONS[2] if n == 0 else REASONS[3]
        assert reason == (expected if word == "ambiguous" else "")
    assert own or all((word == "unknown") == flag for word, flag in zip(found.words, found.flagged, strict=True))


@pytest.mark.parametrize("sets", ["lac", "aps"])
def test_shown_sets_add_the_most_probable_class_and_nothing_else(sets: str) -> None:
    found = decide(new := pictures(500)[0], calibration(300), Rule(coverage=0.6, sets=sets), True)
    added = found.shown & ~found.sets
    assert (~found.sets.any(1)).any()
    assert torch.equal(added.any(1), ~found.sets.any(1))
    assert (added.nonzero()[:, 1] == new.labels[added.any(1)]).all()
    assert found.shown.gather(1, new.labels[:, None]).all()


def test_predictions_of_another_run_are_refused() -> None:
    with pytest.raises(UsageError, match="prediction: has 4 classes, calibration 3"):
        decide(pictures(5, 4)[0], calibration(50), Rule(), True)


@pytest.mark.parametrize("rate", [0.1, np.float32(0.1), np.float64(0.1), Fraction(1, 10)])
def test_rates_may_be_numbers_of_any_kind(rate: Any, tmp_path: Path) -> None:
    rule = Rule(rate, 0.9)
    rule.write(tmp_path / "decisions.json")
    assert Rule.read(tmp_path / "decisions.json") == rule == Rule(0.1, 0.9)


@pytest.mark.parametrize("name", ["false_alarm", "coverage"])
@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, math.nan, math.inf, "0.1", None, True])
def test_rates_that_are_none_are_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name} = .*: must be a number above 0 and below 1"):
        Rule(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("score", "spread"), ("sets", "raps"), ("per_label", "yes"), ("sets", [])])
def test_other_scores_and_sets_are_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name} = .*: must be one of"):
        Rule(**{name: value})  # type: ignore[arg-type]


def test_a_rule_comes_back_from_its_file_and_anything_else_is_damage(tmp_path: Path) -> None:
    rule, file = Rule(0.01, 0.8, "foreignness", True, "aps"), tmp_path / "decisions.json"
    rule.write(file)
    assert Rule.read(file) == rule
    for text in ("", "{", "[]", '{"coverage": 2}', '{"other": 1}', "3"):
        file.write_text(text)
        with pytest.raises(UsageError, match=r"decisions\.json: damaged, or no rule .*uqgan calibrate writes it anew"):
            Rule.read(file)


def test_calibration_comes_back_bit_for_bit_and_anything_else_is_damage(tmp_path: Path) -> None:
    known, file = replace(calibration(30), temperature=1.7), tmp_path / "calibration.npz"
    known.write(file)
    read = Calibration.read(file)
    assert torch.equal(read.y, known.y)
    assert all(torch.equal(getattr(read.prediction, c), getattr(known.prediction, c)) for c in COLUMNS)
    assert read.temperature == 1.7
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(UsageError, match=r"calibration\.npz: damaged, or no calibration scores"):
        Calibration.read(file)
    replace(known, y=known.y[:-1]).write(file)
    with pytest.raises(UsageError, match=r"calibration\.npz: damaged, or no calibration scores"):
        Calibration.read(file)


TOY = cast(Gaussians, TOYS["gaussians-overlap"])
LAMBDA_REAL, BOX = 0.6, 14.0


def shielded(x: Tensor) -> Prediction:
    """What Eq. 9's minimum says of the overlapping Gaussians, if generated examples fill a box around them evenly.

    C(i|x,y) = p(x|y) / (p(x|y) + λ_real Σ_y' p(x|y') + (1 - λ_real) p(x̃)), with two classes that are equally frequent.
    """
    distance = torch.cdist(x.double(), torch.tensor(TOY.means).double())
    density = torch.exp(-distance.square() / 2) / (2 * math.pi)
    logits = density.log() - (LAMBDA_REAL * density.flip(1) + (1 - LAMBDA_REAL) / BOX**2).log()
    return read_one_vs_all(logits.float()[None], torch.tensor([0.5, 0.5]))


def far_points() -> Tensor:
    points = BOX * (torch.rand(20_000, 2) - 0.5)
    return points[torch.cdist(points, torch.tensor(TOY.means, dtype=torch.float)).amin(1) > 5]


def test_where_classes_overlap_it_reads_ambiguous_and_far_away_unknown() -> None:
    known, fresh = (TOY.sample(n, torch.Generator().manual_seed(n)) for n in (5000, 20_000))
    found = Calibration(known.y, shielded(known.x))
    torn = shielded(fresh.x[fresh.x[:, 0].abs() < 0.25])
    words = decide(torn, found, Rule(), True).words
    assert words.count("ambiguous") >= 0.8 * len(words) > 100
    words = decide(shielded(far_points()), found, Rule(), True).words
    assert words.count("unknown") >= 0.95 * len(words) > 1000
    easy = decide(shielded(fresh.x[fresh.x[:, 0].abs() > 1.5]), found, Rule(), True).words
    assert easy.count("accept") >= 0.8 * len(easy)


def test_a_trained_classifier_was_found_to_do_the_same() -> None:
    """By benchmarks/decisions.py."""
    figures = json.loads((Path(__file__).parent.parent / "results/decisions/gaussians-overlap.json").read_text())
    for run in figures["runs"]:
        assert run["samples where |x₁| < 0.25"]["ambiguous"] >= 0.8
        far = [shares["unknown"] for name, shares in run.items() if name.startswith("points further than 5")]
        assert len(far) == 3
        assert min(far) >= 0.95


def test_with_the_true_posterior_the_sets_of_the_overlap_are_empty() -> None:
    """So `ambiguous` cannot wait for a set of two classes."""
    known, fresh = (TOY.sample(n, torch.Generator().manual_seed(n)) for n in (5000, 20_000))
    probs, torn = TOY.posterior(known.x), TOY.posterior(fresh.x[fresh.x[:, 0].abs() < 0.25])
    found = Calibration(known.y, Prediction(probs, *torch.zeros(3, 5000)))
    assert lac_threshold(found, 0.9) < 0.25
    assert not lac_sets(torn, found, 0.9).any()


def test_a_rule_is_plain_json(tmp_path: Path) -> None:
    Rule().write(tmp_path / "decisions.json")
    assert json.loads((tmp_path / "decisions.json").read_text()) == {
        "false_alarm": 0.05,
        "coverage": 0.9,
        "score": "epistemic",
        "per_label": False,
        "sets": "lac",
    }


def test_aps_scores_lie_between_the_sums_before_and_after_a_class() -> None:
    probs, u = torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([0.25], dtype=torch.double)
    assert_close(aps_scores(probs, u), torch.tensor([[0.95, 0.375, 0.725]]).double())
