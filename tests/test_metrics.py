"""Every number against scikit-learn, a closed form, or its definition written out slowly."""

import math
import re
from collections.abc import Callable
from dataclasses import astuple

import hypothesis
import numpy as np
import pytest
import sklearn.metrics as reference
import torch
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import norm
from torch import Tensor

from uqgan import metrics, ranking
from uqgan.metrics import (
    auroc,
    auroc_interval,
    calibration_error,
    calibration_interval,
    fpr_at_tpr,
    mean_interval,
    ood_intervals,
    ood_scores,
    paired_bootstrap,
    reliability,
)

pytestmark = pytest.mark.filterwarnings("error")

Case = tuple[Tensor, Tensor]
Metric = Callable[[Tensor, Tensor], object]
TIED = st.integers(-3, 3).map(float)
CONTINUOUS = st.floats(-1e6, 1e6)
EIGHTHS = st.integers(-40, 40).map(lambda k: k / 8)  # coarse enough that monotone maps create no new ties
Z = norm.ppf(0.975)  # half width of a 95 % interval in standard deviations


def given(*strategies: st.SearchStrategy[object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Hypothesis without its deadline: a busy machine is no counter-example."""
    unhurried = hypothesis.settings(deadline=None, database=None)
    return lambda test: unhurried(hypothesis.given(*strategies)(test))


@st.composite
def scored(draw: st.DrawFn, *kinds: st.SearchStrategy[float]) -> Case:
    """Scores of one kind, by default heavily tied or continuous, and flags with both classes present."""
    flags = [True, False, *draw(st.lists(st.booleans(), max_size=40))]
    kind = draw(st.sampled_from(kinds or (TIED, CONTINUOUS)))
    score = draw(st.lists(kind, min_size=len(flags), max_size=len(flags)))
    order = draw(st.permutations(range(len(flags))))
    return torch.tensor(score, dtype=torch.float64), torch.tensor(flags)[order]


def gaussians(n: int, shift: float, seed: int) -> Case:
    """n in-distribution scores from N(0, 1), n OoD ones from N(shift, 1): AUROC = Phi(shift / sqrt 2)."""
    score = np.random.default_rng(seed).normal(size=2 * n)
    is_ood = np.arange(2 * n) >= n
    return torch.from_numpy(score + shift * is_ood), torch.from_numpy(is_ood)


def sklearn_aupr(positive: Tensor, score: Tensor) -> float:
    precision, recall, _ = reference.precision_recall_curve(positive, score)
    return float(reference.auc(recall, precision))


def slow_fpr_at_tpr(score: Tensor, positive: Tensor, tpr: float) -> float:
    inside, outside = score[positive].tolist(), score[~positive].tolist()
    reached = [t for t in score.tolist() if sum(s >= t for s in inside) / len(inside) >= tpr]
    return sum(s >= max(reached) for s in outside) / len(outside)


def slow_calibration_error(confidence: list[float], correct: list[bool], bins: int) -> float:
    total = 0.0
    for k in range(bins):
        low, high = k / bins, (k + 1) / bins
        held = [i for i, c in enumerate(confidence) if low < c <= high or (k == 0 and c == 0)]
        if held:
            hits = sum(correct[i] for i in held) / len(held)
            total += len(held) / len(confidence) * abs(hits - sum(confidence[i] for i in held) / len(held))
    return total


def delong_deviation(score: Tensor, positive: Tensor) -> float:
    """Standard deviation of the AUROC from its structural components (DeLong et al. 1988)."""
    s, flag = score.numpy(), positive.numpy()
    wins = np.heaviside(s[flag][:, None] - s[~flag][None, :], 0.5)
    rows, columns = wins.mean(1), wins.mean(0)
    return float(np.sqrt(rows.var(ddof=1) / len(rows) + columns.var(ddof=1) / len(columns)))


def assert_agrees_with_scikit_learn(score: Tensor, positive: Tensor) -> None:
    ours = [auroc, metrics.aupr, metrics.average_precision]
    theirs = [reference.roc_auc_score, sklearn_aupr, reference.average_precision_score]
    expected = [metric(positive, score) for metric in theirs]
    assert_allclose([metric(score, positive) for metric in ours], expected, rtol=0, atol=1e-12)


@given(scored())
def test_auroc_aupr_and_average_precision_are_those_of_scikit_learn(case: Case) -> None:
    assert_agrees_with_scikit_learn(*case)


@pytest.mark.parametrize("step", [0.0, 0.25])
def test_large_sets_agree_with_scikit_learn(step: float) -> None:
    score, positive = gaussians(20_000, 0.7, seed=0)
    assert_agrees_with_scikit_learn((score / step).round() if step else score, positive)


@given(scored())
def test_auroc_is_the_share_of_pairs_in_order_with_ties_counted_half(case: Case) -> None:
    score, positive = case
    pairs = [(p, n) for p in score[positive].tolist() for n in score[~positive].tolist()]
    assert auroc(score, positive) == sum((p > n) + 0.5 * (p == n) for p, n in pairs) / len(pairs)


@given(scored())
def test_negated_scores_have_the_complementary_auroc(case: Case) -> None:
    score, positive = case
    assert_allclose(auroc(-score, positive), 1 - auroc(score, positive), rtol=0, atol=1e-15)


@given(scored(EIGHTHS), st.sampled_from([torch.exp, torch.atan, lambda s: s**3, lambda s: 4 * s - 7]))
def test_monotone_maps_change_no_ranking_metric(case: Case, monotone: Callable[[Tensor], Tensor]) -> None:
    score, positive = case
    assert ood_scores(monotone(score), positive) == ood_scores(score, positive)


@given(scored(), st.sampled_from([0.05, 0.5, 0.8, 0.9, 0.95, 1.0]))
def test_fpr_at_tpr_is_its_definition_over_all_thresholds(case: Case, tpr: float) -> None:
    assert fpr_at_tpr(*case, tpr) == slow_fpr_at_tpr(*case, tpr)


def test_fpr_counts_down_to_the_lowest_positive_when_fewer_would_miss_the_tpr() -> None:
    score, positive = torch.tensor([0.1, 0.2, 0.3, 0.9]), torch.tensor([True, False, False, True])
    assert fpr_at_tpr(score, positive) == 1.0
    assert fpr_at_tpr(score, positive, tpr=0.5) == 0.0


@pytest.mark.parametrize("misses", [1, 3, 7, 1000])
def test_nineteen_positives_of_twenty_are_a_tpr_of_95_percent(misses: int) -> None:
    score = torch.cat([torch.ones(19 * misses), torch.zeros(1), -torch.ones(misses)])
    assert fpr_at_tpr(score, score != 0) == 0.0


@given(scored())
def test_ood_scores_are_the_single_metrics_with_the_positive_class_of_their_names(case: Case) -> None:
    score, is_ood = case
    expected = {
        "auroc": auroc(score, is_ood),
        "aupr_in": metrics.aupr(-score, ~is_ood),
        "aupr_out": metrics.aupr(score, is_ood),
        "ap_in": metrics.average_precision(-score, ~is_ood),
        "ap_out": metrics.average_precision(score, is_ood),
        "fpr95_id_positive": fpr_at_tpr(-score, ~is_ood),
        "fpr95_ood_positive": fpr_at_tpr(score, is_ood),
    }
    scores = ood_scores(score, is_ood)
    assert scores == pytest.approx(expected, rel=0, abs=1e-14)
    assert all(type(value) is float for value in scores.values())


def test_all_seven_scores_and_all_their_resamples_need_one_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    sort, calls = np.argsort, []
    monkeypatch.setattr(np, "argsort", lambda values: calls.append(len(values)) or sort(values))
    ood_scores(*gaussians(50, 1.0, seed=0))
    assert calls == [100]
    ood_intervals(*gaussians(50, 1.0, seed=0), resamples=20)
    assert calls == [100, 100]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_float_type_is_measured_as_its_float64_copy(dtype: torch.dtype) -> None:
    score, is_ood = gaussians(300, 1.0, seed=1)
    rounded = score.to(dtype)
    assert ood_scores(rounded.clone().requires_grad_(), is_ood) == ood_scores(rounded.double(), is_ood)


def test_infinite_scores_rank_as_the_extremes() -> None:
    score, is_ood = torch.tensor([-9.0, 0, 1, 9, 9]), torch.tensor([False, True, False, True, True])
    infinite = torch.where(score.abs() == 9, score * math.inf, score)
    assert ood_scores(infinite, is_ood) == ood_scores(score, is_ood)


@given(st.integers(1, 40), st.integers(2, 6), st.integers(0, 1000))
def test_accuracy_is_that_of_scikit_learn(n: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(n, classes, generator=generator).softmax(1)
    y = torch.randint(classes, (n,), generator=generator)
    assert metrics.accuracy(probs, y) == pytest.approx(reference.accuracy_score(y, probs.argmax(1)))


@given(st.data(), st.integers(1, 20))
def test_calibration_error_is_its_formula_on_and_between_the_edges(data: st.DataObject, bins: int) -> None:
    edges = st.integers(0, bins).map(lambda k: k / bins)
    pairs = data.draw(st.lists(st.tuples(edges | st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
    confidence, correct = [c for c, _ in pairs], [hit for _, hit in pairs]
    samples = torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct)
    expected = slow_calibration_error(confidence, correct, bins)
    assert_allclose(calibration_error(*samples, bins), expected, rtol=0, atol=1e-12)
    assert_allclose(calibration_interval(*samples, bins, 1).estimate, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bins", [1, 3, 7, 10, 15, 49])
def test_an_upper_edge_belongs_to_its_bin_and_zero_to_the_first(bins: int) -> None:
    edges = torch.arange(bins + 1, dtype=torch.float64) / bins
    above = torch.nextafter(edges[1:-1], torch.tensor(2.0, dtype=torch.float64))
    correct = torch.ones(bins, dtype=torch.bool)
    assert reliability(edges[1:], correct, bins).counts == (1,) * bins
    assert reliability(torch.cat([edges[:1], above]), correct, bins).counts == (1,) * bins


def test_reliability_holds_the_means_of_each_bin() -> None:
    confidence = torch.tensor([0.125, 0.25, 0.75, 1.0])
    diagram = reliability(confidence, torch.tensor([True, False, True, True]), bins=4)
    assert diagram.counts == (2, 0, 1, 1)
    assert_allclose(diagram.confidence, (0.1875, math.nan, 0.75, 1.0))
    assert_allclose(diagram.accuracy, (0.5, math.nan, 1.0, 1.0))
    assert diagram.calibration_error() == (2 * 0.3125 + 0.25 + 0.0) / 4


def test_a_confidence_that_rounding_carried_past_1_counts_as_1() -> None:
    past = torch.tensor([1.0, 1.0 + 5e-7], dtype=torch.float64)
    assert calibration_error(past, torch.tensor([True, True])) == 0


@given(scored(), st.data())
def test_a_resample_is_measured_as_if_it_were_the_whole_set(case: Case, data: st.DataObject) -> None:
    score, is_ood = case
    groups = score[is_ood], score[~is_ood]
    indices = [st.lists(st.integers(0, len(g) - 1), min_size=len(g), max_size=len(g)) for g in groups]
    draws = [np.array(data.draw(index)) for index in indices]
    resample = torch.cat([group[draw] for group, draw in zip(groups, draws, strict=True)])
    counts = [np.bincount(draw, minlength=len(group)) for group, draw in zip(groups, draws, strict=True)]
    measured = ranking.rank(score.numpy(), is_ood.numpy()).ood_scores(*counts)
    expected = ood_scores(resample, torch.arange(len(score)) < len(groups[0]))
    assert measured == pytest.approx(expected, rel=0, abs=1e-14)
    assert ranking.count_pairs(score.numpy(), is_ood.numpy()).auroc(*counts) == measured["auroc"] == expected["auroc"]


@given(scored())
def test_drawing_every_sample_once_gives_the_plain_metrics(case: Case) -> None:
    score, is_ood = (each.numpy() for each in case)
    once = [np.ones(flag.sum(), np.intp) for flag in (is_ood, ~is_ood)]
    assert ranking.rank(score, is_ood).ood_scores(*once) == ood_scores(*case)


SLOW: dict[str, Callable[[Tensor, Tensor], float]] = {
    "auroc": reference.roc_auc_score,
    "aupr_in": lambda is_ood, score: sklearn_aupr(~is_ood, -score),
    "aupr_out": sklearn_aupr,
    "ap_in": lambda is_ood, score: reference.average_precision_score(~is_ood, -score),
    "ap_out": reference.average_precision_score,
    "fpr95_id_positive": lambda is_ood, score: slow_fpr_at_tpr(-score, ~is_ood, 0.95),
    "fpr95_ood_positive": lambda is_ood, score: slow_fpr_at_tpr(score, is_ood, 0.95),
}


@pytest.mark.parametrize("decimals", [0, 9])
@pytest.mark.parametrize("name", SLOW)
def test_an_ood_interval_is_that_of_scikit_learn_on_the_same_draws(name: str, decimals: int) -> None:
    score, is_ood = gaussians(40, 1.0, seed=12)
    score, is_ood = score[17:].round(decimals=decimals), is_ood[17:]  # 23 known, 40 OoD

    def slow(*draw: np.ndarray) -> float:
        chosen = torch.cat([score[flag][index] for flag, index in zip((is_ood, ~is_ood), draw, strict=True)])
        return SLOW[name](torch.arange(len(chosen)) < len(draw[0]), chosen)

    expected = metrics.bootstrap_interval(slow, (40, 23), resamples=40, seed=3)
    found = ood_intervals(score, is_ood, resamples=40, seed=3)[name]
    assert_allclose(astuple(found), astuple(expected), rtol=0, atol=1e-13)


def test_the_auroc_of_a_second_score_is_found_on_the_same_resamples() -> None:
    (score, is_ood), (second, _) = gaussians(60, 1.0, seed=13), gaussians(60, 0.5, seed=14)
    alone = ood_intervals(score, is_ood, resamples=30)
    assert ood_intervals(score, is_ood, resamples=30, second_score=second) == alone | {
        "auroc_second": auroc_interval(second, is_ood, resamples=30)
    }


def test_each_stratum_is_drawn_with_replacement_at_its_own_size() -> None:
    calls: list[tuple[np.ndarray, ...]] = []
    metrics.bootstrap_interval(lambda *draw: float(len(calls.append(draw) or draw)), (5, 400), resamples=200)
    resampled = [draw for draw in calls if len(set(draw[1])) < 400]
    assert len(resampled) == 200
    for stratum, size in enumerate((5, 400)):
        assert {len(draw[stratum]) for draw in resampled} == {size}
        assert {index for draw in resampled for index in draw[stratum].tolist()} == set(range(size))
    held = np.mean([len(set(draw[1])) for draw in resampled]) / 400
    assert held == pytest.approx(1 - math.exp(-1), abs=0.01)  # the share of samples in a bootstrap resample


def test_a_single_positive_stays_in_every_resample() -> None:
    interval = auroc_interval(torch.arange(200.0), torch.arange(200) == 150, resamples=300)
    assert 0.6 < interval.low < interval.estimate == 150 / 199 < interval.high < 0.9


def test_the_interval_of_a_mean_is_the_normal_one_for_many_samples() -> None:
    interval = mean_interval(torch.arange(2000) % 5 != 0, resamples=4000)
    half = Z * math.sqrt(0.8 * 0.2 / 2000)
    assert interval.estimate == pytest.approx(0.8)
    assert_allclose([interval.low, interval.high], [0.8 - half, 0.8 + half], rtol=0, atol=0.1 * half)


@pytest.mark.parametrize("decimals", [0, 9])
def test_the_interval_of_the_auroc_is_as_wide_as_delong_says(decimals: int) -> None:
    score, positive = gaussians(400, 1.0, seed=2)
    score = score.round(decimals=decimals)
    interval = auroc_interval(score, positive, resamples=3000)
    area, half = auroc(score, positive), Z * delong_deviation(score, positive)
    assert interval.estimate == area
    assert_allclose([interval.low, interval.high], [area - half, area + half], rtol=0, atol=0.1 * half)


def test_every_ood_interval_holds_its_estimate_and_has_a_width() -> None:
    score, is_ood = gaussians(500, 1.0, seed=3)
    intervals = ood_intervals(score, is_ood, resamples=400)
    assert {name: interval.estimate for name, interval in intervals.items()} == ood_scores(score, is_ood)
    assert all(interval.low < interval.estimate < interval.high for interval in intervals.values())
    assert intervals["auroc"] == auroc_interval(score, is_ood, resamples=400)


def test_the_error_of_an_overconfident_classifier_is_as_uncertain_as_a_mean() -> None:
    generator = torch.Generator().manual_seed(4)
    confidence = torch.rand(2000, generator=generator)
    correct = torch.rand(2000, generator=generator) < confidence / 2
    interval = calibration_interval(confidence, correct, bins=10, resamples=1000)
    # Where every bin is overconfident the error is the mean gap between confidence and success.
    half = Z * float((confidence - correct.float()).std()) / math.sqrt(2000)
    assert interval.low < interval.estimate < interval.high
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.1)


def widths(n: int) -> list[float]:
    score, flag = gaussians(n, 1.0, seed=5)
    mean, area = mean_interval(flag, resamples=400), auroc_interval(score, flag, resamples=400)
    error = calibration_interval(score.sigmoid(), flag, resamples=400)
    return [interval.high - interval.low for interval in (mean, area, error)]


def test_intervals_shrink_with_the_root_of_the_number_of_samples() -> None:
    assert_allclose(np.divide(widths(3200), widths(200)), 1 / 4, rtol=0.3)


def test_intervals_repeat_with_their_seed_and_only_with_it() -> None:
    score, flag = gaussians(60, 1.0, seed=6)
    calls: list[Callable[[int], object]] = [
        lambda seed: mean_interval(score, 50, seed),
        lambda seed: auroc_interval(score, flag, 50, seed),
        lambda seed: ood_intervals(score, flag, 50, seed)["aupr_out"],
        lambda seed: calibration_interval(score.sigmoid(), flag, 15, 50, seed),
        lambda seed: paired_bootstrap(score, -score, flag, 50, seed).difference,
    ]
    assert [call(1) for call in calls] == [call(1) for call in calls]
    assert all(call(1) != call(2) for call in calls)


def test_an_auroc_interval_covers_the_true_auroc_about_95_times_in_100() -> None:
    truth = norm.cdf(1 / math.sqrt(2))
    intervals = [auroc_interval(*gaussians(50, 1.0, seed), resamples=200, seed=seed) for seed in range(150)]
    assert 0.89 < np.mean([interval.low <= truth <= interval.high for interval in intervals]) < 0.985


def test_a_method_does_not_differ_from_itself_nor_from_a_monotone_map_of_itself() -> None:
    score, is_ood = gaussians(80, 1.0, seed=7)
    nothing = metrics.Comparison(metrics.Interval(0.0, 0.0, 0.0), p_value=1.0)
    assert paired_bootstrap(score, score, is_ood, resamples=100) == nothing
    assert paired_bootstrap(score, score.exp(), is_ood, resamples=100) == nothing


def test_a_clearly_better_method_has_the_smallest_p_value_the_resamples_allow() -> None:
    (score, is_ood), (noise, _) = gaussians(300, 2.0, seed=8), gaussians(300, 0.0, seed=9)
    better, worse = (paired_bootstrap(*pair, is_ood, 199) for pair in ((score, noise), (noise, score)))
    assert better.difference.estimate == auroc(score, is_ood) - auroc(noise, is_ood)
    assert 0.3 < better.difference.low < better.difference.estimate < better.difference.high
    assert better.p_value == worse.p_value == 2 / 200
    assert worse.difference.high == pytest.approx(-better.difference.low)


def test_equally_good_methods_are_told_apart_about_5_times_in_100() -> None:
    cases = [(gaussians(40, 1.0, seed), gaussians(40, 1.0, seed + 1000)) for seed in range(150)]
    p_values = [paired_bootstrap(first, second, flag, 99).p_value for (first, flag), (second, _) in cases]
    assert 0.01 < np.mean(np.array(p_values) <= 0.05) < 0.11
    assert 0.4 < np.mean(p_values) < 0.6


def test_the_paired_interval_profits_from_what_the_methods_share() -> None:
    (score, is_ood), (noise, _) = gaussians(300, 1.0, seed=10), gaussians(300, 0.0, seed=11)
    paired = paired_bootstrap(score, score + 0.1 * noise, is_ood, resamples=300).difference
    alone = auroc_interval(score, is_ood, resamples=300)
    assert paired.high - paired.low < 0.3 * (alone.high - alone.low)


def test_p_values_of_all_ood_metrics_are_found_as_that_of_the_auroc_is() -> None:
    (score, is_ood), (noise, _) = gaussians(120, 1.0, seed=12), gaussians(120, 0.2, seed=13)
    found = metrics.paired_ood(score, score + 2 * noise, is_ood, 99)
    assert list(found) == list(ood_scores(score, is_ood))
    assert found["auroc"] == paired_bootstrap(score, score + 2 * noise, is_ood, 99).p_value
    assert set(metrics.paired_ood(score, score.exp(), is_ood, 99).values()) == {1.0}
    assert set(metrics.paired_ood(5 * is_ood + score, -score, is_ood, 99).values()) == {2 / 100}


def paired_with_itself(score: Tensor, flag: Tensor) -> object:
    return paired_bootstrap(score, score, flag)


SINGLE = [auroc, metrics.aupr, metrics.average_precision, fpr_at_tpr, ood_scores]
RANKED = [*SINGLE, auroc_interval, ood_intervals, paired_with_itself]
FLAGGED = [*RANKED, calibration_error, reliability, calibration_interval]


@pytest.mark.parametrize("metric", FLAGGED)
def test_nan_is_refused_with_its_number(metric: Metric) -> None:
    score = torch.linspace(0, 1, 100)
    score[[3, 50, 99]] = math.nan
    rule = r"^\w+ has 3 NaN of 100: every \w+ must be a number \(did training diverge\?\)$"
    with pytest.raises(ValueError, match=rule):
        metric(score, torch.arange(100) < 50)


@pytest.mark.parametrize("metric", FLAGGED)
def test_empty_matrix_mismatched_and_unflagged_input_is_refused(metric: Metric) -> None:
    score, flag = torch.linspace(0, 1, 6), torch.arange(6) < 3
    with pytest.raises(ValueError, match=r"has shape \(0,\): must be"):
        metric(score[:0], flag[:0])
    with pytest.raises(ValueError, match=r"has shape \(2, 3\): must be"):
        metric(score.reshape(2, 3), flag.reshape(2, 3))
    with pytest.raises(ValueError, match=r"of shape \(5,\): must be torch.bool of shape \(6,\)"):
        metric(score, flag[:5])
    with pytest.raises(ValueError, match=r"is torch.int64 of shape \(6,\): must be torch.bool"):
        metric(score, flag.long())


@pytest.mark.parametrize("metric", RANKED)
@pytest.mark.parametrize("only", [True, False])
def test_a_single_class_cannot_be_ranked(metric: Metric, only: bool) -> None:
    with pytest.raises(ValueError, match=rf"is {only} for all 4 samples: both classes must be present"):
        metric(torch.arange(4.0), torch.full((4,), only))


GOOD, BAD, FLAG = torch.linspace(0, 1, 4), torch.full((4,), math.nan), torch.arange(4) < 2
PROBS, Y = torch.full((4, 2), 0.5), torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_bootstrap(BAD, GOOD, FLAG), "first has 4 NaN of 4: every first must be a number"),
        (lambda: paired_bootstrap(GOOD, BAD, FLAG), "second has 4 NaN of 4: every second must be a number"),
        (
            lambda: ood_intervals(GOOD, FLAG, second_score=BAD),
            "second_score has 4 NaN of 4: every second_score",
        ),
        (lambda: ood_scores(GOOD, FLAG.byte()), "is_ood is torch.uint8 of shape (4,): must be torch.bool"),
        (lambda: mean_interval(BAD), "values has 4 NaN of 4: every values must be a number"),
        (lambda: metrics.accuracy(PROBS * math.nan, Y), "probs has 8 NaN of 8: every probs must be a number"),
        (lambda: metrics.accuracy(PROBS, Y[:3]), "probs has shape (4, 2) and y (3,): they must be"),
        (lambda: metrics.accuracy(PROBS[:0], Y[:0]), "probs has shape (0,): must be"),
        (lambda: calibration_error(GOOD * 7, FLAG), "confidence = 7.0: must be between 0 and 1"),
        (lambda: calibration_error(-GOOD, FLAG), "confidence = -1.0: must be between 0 and 1"),
        (lambda: calibration_error(GOOD, FLAG, bins=0), "bins = 0: must be at least 1"),
        (lambda: auroc_interval(GOOD, FLAG, resamples=0), "resamples = 0: must be at least 1"),
        (lambda: fpr_at_tpr(GOOD, FLAG, 0.0), "tpr = 0.0: must be above 0 and at most 1"),
        (lambda: fpr_at_tpr(GOOD, FLAG, 95), "tpr = 95: must be above 0 and at most 1"),
        (lambda: fpr_at_tpr(GOOD, FLAG, math.nan), "tpr = nan: must be above 0 and at most 1"),
    ],
)
def test_a_refusal_names_argument_value_and_rule(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        call()
