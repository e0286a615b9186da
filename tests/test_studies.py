"""The paper's studies: their grids, and how validation scores become curves and findings."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score
from torch import Tensor
from torch.testing import assert_close

import make_results
import make_studies
from uqgan.data.tasks import TASKS, parse_classes
from uqgan.errors import UsageError
from uqgan.evaluation import Outputs, balanced
from uqgan.grid.cells import Cell, config_of
from uqgan.methods.uqgan import JointTraining, networks
from uqgan.metrics import ood_scores
from uqgan.models.gan import Critic
from uqgan.paper import TITLES
from uqgan.paper.findings import CLAIMS, findings
from uqgan.paper.studies import STUDIES, Curve, Point, gather, study_cells, task_of_classes
from uqgan.paper.study_plots import sizes_in_words, study_figure
from uqgan.regulariser import REGULARISERS
from uqgan.report.plots import saved
from uqgan.uncertainty import Prediction


def prediction(epistemic: Tensor) -> Prediction:
    n = len(epistemic)
    return Prediction(torch.full((n, 2), 0.5), torch.zeros(n), epistemic.float(), torch.zeros(n))


def curve_of(study: str, auroc: Callable[[Any], float], task: str = "mnist", values: Any = None) -> Curve:
    """A curve with a given AUROC, all other scores 0.5."""
    points = [
        Point(value, "uqgan", 0, dict.fromkeys(TITLES, 0.5) | {"auroc": auroc(value)}, {}, {"known": 10, "a": 5}, 60.0)
        for value in values or STUDIES[study].values
    ]
    return Curve(study, task, {}, tuple(points), {"device": ["cpu"], "commit": ["a" * 40], "command": "uqgan study"})


# What the studies vary


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "n-classes"])
@pytest.mark.parametrize("task", ["mnist", "cifar10", "digits"])
def test_a_study_varies_its_setting_alone_and_sees_no_test_sets(name: str, task: str) -> None:
    study, cells = STUDIES[name], study_cells(name, task)
    assert list(cells) == list(study.values)
    trees = []
    for value, each in cells.items():
        assert [(cell.method, cell.seed, cell.validation) for cell in each] == [("uqgan", 0, True)]
        config = config_of(each[0])
        section, key = study.setting.split(".")
        tree = config.model_dump()
        assert tree[section].pop(key) == value
        trees.append(tree)
    assert all(tree == trees[0] for tree in trees)


@pytest.mark.parametrize(
    ("name", "task", "cl", "reg", "real", "dim"),
    [
        ("lambda-cl", "mnist", None, 16, 0.5, 16),
        ("lambda-cl", "cifar10", None, 0, 0.6, 128),
        ("lambda-real", "mnist", 1, 32, None, 16),
        ("lambda-real", "cifar10", 2, 0, None, 128),
        ("latent-dim", "mnist", 1, 32, 0.5, None),
        ("latent-dim", "cifar10", 4, 0, 0.6, None),
        ("lambda-reg", "mnist", 1, None, 0.5, 16),
        ("lambda-reg", "cifar10", 4, None, 0.6, 128),
    ],
)
def test_fixed_values_are_those_of_the_papers_captions(
    name: str, task: str, cl: float | None, reg: float | None, real: float | None, dim: int | None
) -> None:
    for cells in study_cells(name, task).values():
        config = config_of(cells[0])
        found = (config.uqgan.lambda_cl, config.uqgan.lambda_reg, config.uqgan.lambda_real, config.autoencoder.dim)
        assert all(want is None or want == have for want, have in zip((cl, reg, real, dim), found, strict=True))


def test_values_settings_methods_and_seeds_can_be_chosen() -> None:
    cells = study_cells("lambda-real", "mnist", ["uqgan", "one-vs-all"], [1, 2], ["0", "0.60"], {"uqgan.lambda_cl": 3})
    assert list(cells) == [0.0, 0.6]
    assert len(cells[0.0]) == 4
    assert {config_of(cell).uqgan.lambda_cl for cell in cells[0.6] if cell.method == "uqgan"} == {3}
    assert set(cells[0.0]) & set(cells[0.6]) == {Cell("mnist", "one-vs-all", seed, (), True) for seed in (1, 2)}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("lambda-reel", "mnist"), "study = lambda-reel: no such study; did you mean lambda-real?"),
        (("lambda-real", "mnist", (), (0,), ["1.5"]), "uqgan.lambda_real = '1.5': must be at most 1.0"),
        (("lambda-real", "mnist", ["entropy"]), "has no effect, none of the methods reads it"),
        (("lambda-cl", "digits", (), (0,), (), {"uqgan.lambda_cl": 3}), "the study varies it"),
        (("n-classes", "moons"), "task = moons: has no classes to choose from"),
        (("n-classes", "mnist", (), (0,), ["10"]), "--values = 10: must be from 2 to 9 known classes"),
        (("regulariser", "mnist", (), (0,), ["l3"]), "must be one of"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence.replace("(", r"\(")):
        study_cells(*arguments)


def test_the_first_classes_are_known_and_all_others_foreign() -> None:
    cells = study_cells("n-classes", "cifar100", ["uqgan"])
    assert list(cells) == [10, 20, 30, 40, 50]
    assert [each[0].task for each in cells.values()] == [
        "cifar100+0-9",
        "cifar100+0-19",
        "cifar100+0-29",
        "cifar100+0-39",
        "cifar100",
    ]
    assert list(study_cells("n-classes", "digits", ["uqgan"])) == [2, 3, 4, 5]
    for n in (2, 30, 60):
        classes = task_of_classes("cifar100", n).partition("+")[2]
        assert parse_classes(classes, TASKS["cifar100"].n_classes) == list(range(n))
    methods = {cell.method for cell in study_cells("n-classes", "cifar100")[10]}
    assert methods == {"uqgan", "uqgan-mc", "mc-dropout", "ensemble", "gen-sensoy"}


# The regulariser that a run uses


@pytest.mark.parametrize("kind", REGULARISERS)
def test_the_setting_chooses_the_regulariser(kind: str) -> None:
    config = config_of(Cell("gaussians", "uqgan", settings=(("uqgan.regulariser", kind),)))
    nets = networks((2,), 2, config, 0.0, None)
    training = JointTraining(nets, Critic(2, 2), torch.full((2,), 0.5), config, lambda _: None)
    y, z = torch.arange(12) % 2, torch.randn(12, 2)
    assert training.regulariser is REGULARISERS[kind]
    assert training.train_generator(z, y, z).isfinite()


# Every OoD set weighs the same


def test_weights_count_samples_as_often_as_repeating_them() -> None:
    score, is_ood = torch.randint(12, (40,)).double(), torch.arange(40) % 3 == 0
    weight = torch.randint(1, 6, (40,))
    repeated = ood_scores(score.repeat_interleave(weight), is_ood.repeat_interleave(weight))
    assert ood_scores(score, is_ood, 0.1 * weight) == pytest.approx(repeated)
    assert ood_scores(score, is_ood, torch.full((40,), 7.0)) == pytest.approx(ood_scores(score, is_ood))


def test_weighted_metrics_are_those_of_scikit_learn() -> None:
    score, is_ood, weight = torch.randn(300), torch.rand(300) < 0.4, torch.rand(300) + 0.1
    ours = ood_scores(score, is_ood, weight)
    assert ours["auroc"] == pytest.approx(roc_auc_score(is_ood, score, sample_weight=weight))
    precision, recall, _ = precision_recall_curve(is_ood, score, sample_weight=weight)
    assert ours["aupr_out"] == pytest.approx(auc(recall, precision))


@pytest.mark.parametrize("weight", [torch.zeros(4), torch.ones(3), torch.tensor([1.0, 1, float("nan"), 1])])
def test_weights_that_make_no_sense_are_refused(weight: Tensor) -> None:
    with pytest.raises(ValueError, match="weight"):
        ood_scores(torch.rand(4), torch.tensor([True, False, True, False]), weight)


def test_each_ood_set_weighs_the_same_however_large() -> None:
    known, far, near = torch.rand(50), torch.rand(30) + 0.5, torch.rand(7) + 0.1
    once = balanced(Outputs(torch.zeros(50).long(), prediction(known), {"a": prediction(far), "b": prediction(near)}))
    large = Outputs(torch.zeros(50).long(), prediction(known), {"a": prediction(far.repeat(40)), "b": prediction(near)})
    many = balanced(large)
    assert once["sizes"] == {"known": 50, "a": 30, "b": 7}
    assert {key: value for key, value in many.items() if key != "sizes"} == pytest.approx(
        {key: value for key, value in once.items() if key != "sizes"}
    )
    alone = [ood_scores(torch.cat([known, x]), torch.arange(50 + len(x)) >= 50) for x in (far, near)]
    for key in ("auroc", "fpr95_id_positive"):
        assert once[key] == pytest.approx(np.mean([each[key] for each in alone]))
    assert_close(torch.tensor(once["auroc"] < alone[0]["auroc"]), torch.tensor(True))


def test_without_ood_sets_only_the_number_of_known_samples_is_told() -> None:
    assert balanced(Outputs(torch.zeros(5).long(), prediction(torch.rand(5)), {})) == {"sizes": {"known": 5}}


# Curves


def record(auroc: float) -> dict[str, Any]:
    return {
        "scores": {
            "accuracy": 0.9,
            "auroc_sf": None,
            "ece": 0.1,
            "sets": {"all": {"auroc": 0.1}, "a": {"auroc": auroc}},
        },
        "balanced": {"auroc": auroc, "aupr_in": 0.2, "aupr_out": 0.3, "fpr95_id_positive": 0.4}
        | {"sizes": {"known": 9, "a": 4}},
        "seconds": 12.34,
        "device": "cpu",
        "commit": "f" * 40,
        "versions": {"torch": "2"},
        "raw_sha256": "0" * 64,
    }


def write_records(root: Path, cells: dict[Any, list[Cell]], auroc: Callable[[Any, Cell], float]) -> None:
    for value, each in cells.items():
        for cell in each:
            file = root / cell.name / cell.result
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(record(auroc(value, cell))))


def test_finished_cells_make_a_curve_and_missing_ones_a_gap(tmp_path: Path) -> None:
    cells = study_cells("lambda-real", "digits", ["uqgan"], [0, 1])
    write_records(tmp_path, dict(list(cells.items())[:4]), lambda value, cell: value + 0.1 * cell.seed)
    curve = gather("lambda-real", "digits", cells, {}, tmp_path, "uqgan study lambda-real --task digits")
    assert curve.values == (0.0, 0.1, 0.2, 0.3)
    assert curve.seeds == (0, 1)
    assert curve.means("auroc") == pytest.approx({value: value + 0.05 for value in curve.values})
    assert curve.means("auroc_sf") == {}
    assert curve.facts["commit"] == ["f" * 40]
    assert curve.points[0].auroc == {"a": 0.0}
    assert curve.points[0].raw_sha256 == "0" * 64
    assert sizes_in_words(curve) == ["known 9, a 4"]
    again = Curve.of_json(json.loads(json.dumps(curve.as_json())))
    assert again.as_json() == curve.as_json()
    assert again.means("auroc") == curve.means("auroc")


def test_a_result_without_scores_that_weigh_sets_alike_is_refused(tmp_path: Path) -> None:
    cells = study_cells("lambda-real", "digits", values=["0.5"])
    write_records(tmp_path, cells, lambda *_: 0.5)
    file = tmp_path / cells[0.5][0].name / cells[0.5][0].result
    file.write_text(json.dumps({key: part for key, part in record(0.5).items() if key != "balanced"}))
    with pytest.raises(UsageError, match="by an older version"):
        gather("lambda-real", "digits", cells, {}, tmp_path, "")


def test_own_pictures_without_ood_sets_have_a_curve_of_their_known_classes(tmp_path: Path) -> None:
    cells = study_cells("lambda-real", "digits", values=["0.5"])
    write_records(tmp_path, cells, lambda *_: 0.5)
    file, made = tmp_path / cells[0.5][0].name / cells[0.5][0].result, record(0.5)
    file.write_text(json.dumps(made | {"balanced": {"sizes": {"known": 9}}, "scores": made["scores"] | {"sets": {}}}))
    curve = gather("lambda-real", "digits", cells, {}, tmp_path, "")
    assert curve.means("accuracy") == {0.5: 0.9}
    assert curve.means("auroc") == {}
    assert study_figure(curve)


@pytest.mark.parametrize("name", STUDIES)
def test_a_figure_names_its_values_and_is_drawn_alike_twice(name: str) -> None:
    curve = curve_of(name, lambda _: 0.7, values=[2, 3, 4] if name == "n-classes" else None)
    figure = study_figure(curve)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == [value if isinstance(value, str) else f"{value:g}" for value in curve.values]
    assert figure.axes[0].get_xlabel() == STUDIES[name].title
    first, second = (saved(partial(study_figure, curve), "svg") for _ in range(2))
    assert first == second
    assert saved(partial(study_figure, curve), "png").startswith(b"\x89PNG")


def test_values_stand_in_their_order_with_0_left_of_the_smallest() -> None:
    for name in ("lambda-reg", "lambda-real", "latent-dim", "regulariser"):
        places = study_figure(curve_of(name, lambda _: 0.7)).axes[0].get_xticks()
        assert (np.diff(places) > 0).all()


def test_marks_of_names_stand_side_by_side() -> None:
    left, right = study_figure(curve_of("regulariser", lambda _: 0.5)).axes
    places = np.array([np.asarray(line.get_xdata(), float) for axes in (left, right) for line in axes.lines])
    assert [line.get_label() for axes in (left, right) for line in axes.lines] == ["accuracy", "AUROC", "FPR95"]
    assert (np.diff(places, axis=0) > 0.1).all()
    assert np.abs(places - left.get_xticks()).max() < 0.5, "each by its own name"


# Findings


def test_a_peak_at_the_papers_value_agrees_and_one_elsewhere_does_not() -> None:
    agreeing = {"lambda-cl": 2, "lambda-real": 0.55, "latent-dim": 32, "lambda-reg": 32}
    for name, peak in agreeing.items():
        for at, agrees in ((peak, True), (STUDIES[name].values[0], False)):
            best = findings(curve_of(name, lambda value, at=at: 0.9 - 0.04 * abs(float(value) - float(at)) ** 0.5))[0]  # type: ignore[misc]
            assert best.agrees is agrees, name
            assert f"{90 if at != 0.55 else 89.11:.2f}" in best.evidence


def test_both_ends_must_be_bad() -> None:
    hill = findings(curve_of("lambda-real", lambda value: 0.9 - (value - 0.5) ** 2, "digits"))
    assert [found.agrees for found in hill] == [True, True]
    slope = findings(curve_of("lambda-real", lambda value: 0.5 + 0.4 * value, "digits"))
    assert [found.agrees for found in slope] == [False, False]


def test_the_best_regulariser_is_named() -> None:
    scores = {"angle": 0.95, "cosine": 0.9, "l1": 0.96, "l2": 0.8, "linf": 0.7}
    (found,) = findings(curve_of("regulariser", lambda value: scores[value]))
    assert not found.agrees
    assert "l1 96.00" in found.evidence
    (found,) = findings(curve_of("regulariser", lambda value: scores[value], values=["angle", "l2"]))
    assert found.agrees


@pytest.mark.parametrize(
    ("study", "curve"),
    [
        ("regulariser", lambda value: 0.9 + 0.004 * (value == "angle")),
        ("regulariser", lambda value: 0.9 - 0.004 * (value == "angle")),
        ("lambda-cl", lambda value: 0.9 + 0.004 * (value == 2)),
        ("lambda-cl", lambda value: 0.9 - 0.004 * (value == 2)),
        ("n-classes", lambda value: 0.9 + 0.0001 * value),
    ],
)
def test_a_difference_that_seeds_make_is_none(
    study: str, curve: Callable[[Any], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = curve_of(study, curve, values=[2, 3, 4] if study == "n-classes" else None)
    found = findings(made)[0]
    assert found.verdict == "no difference larger than 0.5 points"
    monkeypatch.setattr(make_studies, "curves", lambda: {f"mnist-{study}": made})
    assert ". No difference larger than 0.5 points: " in make_studies.studies()


def test_trends_over_the_number_of_classes_are_told_per_method() -> None:
    def points(method: str, first: float, last: float) -> list[Point]:
        scores = [dict.fromkeys(TITLES, 0.5) | {"auroc": auroc, "accuracy": 1 - auroc} for auroc in (first, last)]
        return [Point(n, method, 0, each, {}, {"known": 4}, 1) for n, each in zip((10, 50), scores, strict=True)]

    made = (*points("uqgan", 0.7, 0.8), *points("uqgan-mc", 0.8, 0.9), *points("gen-sensoy", 0.6, 0.5))
    curve = Curve("n-classes", "cifar100", {}, made, {})
    rising, falling, best, accurate = findings(curve)
    assert not rising.agrees
    assert "gen-sensoy 60.00 → 50.00" in rising.evidence
    assert not falling.agrees
    assert best.agrees
    assert not accurate.agrees


def test_what_lacks_the_values_of_a_finding_is_not_judged() -> None:
    assert findings(curve_of("lambda-real", lambda _: 0.5, values=[0.2, 0.3, 0.4])) == []
    assert {claim.study for claim in CLAIMS} == set(STUDIES)


# The page


def test_curves_of_the_page_are_drawn_from_the_results() -> None:
    for file, picture in make_results.images().items():
        assert file.read_bytes() == picture, "run `make results`"
    assert set(make_studies.IMAGES.glob("*")) <= set(make_results.images())


def test_the_page_shows_a_curve_with_its_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = curve_of("lambda-real", lambda value: 0.9 - (value - 0.5) ** 2, "digits")
    monkeypatch.setattr(make_studies, "curves", lambda: {"digits-lambda-real": curve})
    page = make_studies.studies()
    assert "![λ_real on Digits](images/studies/digits-lambda-real.svg)" in page
    assert "Agrees: best AUROC 90.00 at 0.5" in page
    assert "known 10, a 5" in page
    assert "nothing of the paper's sets" in page
    assert "seed 0" in page
