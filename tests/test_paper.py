"""The printed values are all there, and are those of the paper."""

import json
from importlib import resources

import pytest

from uqgan import paper
from uqgan.files import sha256
from uqgan.methods import METHODS
from uqgan.paper import BETTER, WITHIN, WORSE, Value

CONTENT = json.loads((resources.files("uqgan.paper") / paper.FILE).read_text())
EVERY = [(setting, method) for setting in paper.settings() for method in paper.methods(setting)]


def count(tree: object) -> int:
    return sum(map(count, tree.values())) if isinstance(tree, dict) else 1


def test_there_are_1368_values_and_no_digit_was_changed() -> None:
    assert count(CONTENT["settings"]) + count(CONTENT["detection"]) == 1368
    with resources.as_file(resources.files("uqgan.paper") / paper.FILE) as file:
        assert sha256(file) == "9e6144dcaa1f6218a8676cde8e6959c1e7acd6da367a3b61567716a70fe25796"


def test_its_rows_are_the_methods_of_the_paper_in_their_order() -> None:
    ours = [name for name in METHODS if name != "uqgan-ensemble"]
    assert all(list(paper.methods(setting)) == ours for setting in paper.settings())
    assert list(CONTENT["detection"]["cifar10"]) == ours


@pytest.mark.parametrize(("setting", "method"), EVERY)
def test_values_of_all_sets_together_are_the_means_over_the_samples_of_each(setting: str, method: str) -> None:
    sizes = paper.sizes(setting)
    for metric in paper.AVERAGED:
        per_set = {name: paper.ood_value(setting, method, metric, [name]) for name in sizes}
        together = paper.ood_value(setting, method, metric, sizes)
        assert together
        mean = paper.pooled({name: value.mean for name, value in per_set.items() if value}, sizes)
        assert abs(mean - together.mean) <= 0.06


@pytest.mark.parametrize(
    ("method", "metric", "mean"),
    [
        ("uqgan", "auroc", 88.46), ("uqgan", "fpr95_id_positive", 38.98),
        ("uqgan-mc", "auroc", 91.04), ("uqgan-mc", "fpr95_id_positive", 37.76),
    ],
)  # fmt: skip
def test_what_lacks_a_set_is_compared_with_the_paper_without_it(method: str, metric: str, mean: float) -> None:
    """Worked out by hand from the per-set tables of CIFAR10 0-4."""
    rest = [name for name in paper.sizes("cifar10") if name != "lsun"]
    value = paper.ood_value("cifar10", method, metric, rest)
    assert value
    assert abs(value.mean - mean) < 0.0051  # 88.455 may be rounded either way
    assert paper.ood_value("cifar10", method, "aupr_in", rest) is None
    assert paper.ood_value("cifar10", method, "aupr_out", rest) is None


def test_the_deviation_of_a_computed_mean_is_no_larger_than_that_of_sets_that_vary_together() -> None:
    for setting, method in EVERY:
        sizes = paper.sizes(setting)
        names = list(sizes)[:-1]
        value = paper.ood_value(setting, method, "auroc", names)
        each = {name: paper.ood_value(setting, method, "auroc", [name]) for name in names}
        assert value
        assert value.std <= paper.pooled({name: one.std for name, one in each.items() if one}, sizes) + 1e-9


def test_what_the_paper_does_not_have_is_none() -> None:
    assert paper.known_value("mnist", "uqgan-ensemble", "accuracy") is None
    assert paper.ood_value("mnist", "uqgan", "auroc", ["lsun"]) is None
    assert paper.ood_value("mnist", "uqgan", "auroc", []) is None
    assert paper.detection_value("mnist", "uqgan", "scores", "tp") is None
    assert str(paper.detection_value("cifar10", "uqgan", "scores", "fp")) == "40.88 ± 2.65"


@pytest.mark.parametrize(
    ("ours", "metric", "said"),
    [
        (90.0, "auroc", WITHIN), (91.0, "auroc", WITHIN), (91.01, "auroc", BETTER), (88.99, "auroc", WORSE),
        (91.004, "auroc", WITHIN), (91.2, "ece", WORSE), (88.0, "fpr95_id_positive", BETTER),
    ],
)  # fmt: skip
def test_a_value_is_within_two_deviations_or_better_or_worse(ours: float, metric: str, said: str) -> None:
    assert paper.verdict(ours, Value(90.0, 0.5), metric) == said


def test_equal_values_without_deviation_are_within() -> None:
    assert paper.verdict(99.997, Value(100.0, 0.0), "auroc") == WITHIN
    assert paper.verdict(99.99, Value(100.0, 0.0), "auroc") == WORSE
