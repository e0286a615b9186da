"""What every method promises, checked on every one of them."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import uqgan
from uqgan.api import Run
from uqgan.config import load_config
from uqgan.data.tasks import Task
from uqgan.methods import METHODS
from uqgan.uncertainty import Prediction

SMALL = {
    "uqgan": {"iterations": 2, "batch_size": 16, "validate_every": 1},
    "one_vs_all": {"epochs": 1, "batch_size": 64},
    "cross_entropy": {"epochs": 1, "batch_size": 64},
    "confident": {"epochs": 1, "batch_size": 64},
    "gen": {"epochs": 1, "batch_size": 64, "autoencoder_steps": 1},
}
QUICK = {"moons": SMALL, "digits": SMALL | {"autoencoder": {"epochs": 1, "batch_size": 64, "dim": 4}}}


def small_task(name: str) -> Task:
    task = uqgan.load_task(name)
    few = torch.arange(200)
    ood = {key: x[:50] for key, x in task.ood.items()}
    train, validation, test = task.train[few], task.validation[few[:40]], task.test[few[:60]]
    return replace(task, train=train, validation=validation, test=test, ood=ood)


@pytest.fixture(scope="module", params=[(m, t) for m in METHODS for t in QUICK], ids="-".join)
def run(request: pytest.FixtureRequest) -> Run:
    method, task = request.param
    return uqgan.fit(method, small_task(task), config=load_config(task, overrides=QUICK[task]), device="cpu")


def same(a: Prediction, b: Prediction) -> bool:
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(Prediction)]
    return all((x is None and y is None) or torch.equal(x, y) for x, y in pairs)


def test_a_prediction_has_a_probability_for_each_class_and_one_score_a_sample(run: Run) -> None:
    x = run.task.test.x[:7]
    out = run.predict(x)
    assert out.probs.shape == (7, run.task.n_classes)
    assert_close(out.probs.sum(1), torch.ones(7))
    for score in (out.aleatoric, out.epistemic, out.foreignness):
        assert score.shape == (7,)
        assert score.isfinite().all()
        assert (score >= 0).all()
    assert out.aleatoric.amax() <= torch.log(torch.tensor(run.task.n_classes)) + 1e-5
    assert (out.spread is None) == (METHODS[run.record.plan.method].passes == 1)


def test_the_same_seed_repeats_a_prediction_bit_for_bit(run: Run) -> None:
    x = run.task.test.x[:7]
    assert same(run.predict(x, seed=3), run.predict(x, seed=3))


def test_only_stochastic_methods_change_with_the_seed(run: Run) -> None:
    x = run.task.test.x[:7]
    stochastic = METHODS[run.record.plan.method].passes > 1
    assert same(run.predict(x, seed=3), run.predict(x, seed=4)) != stochastic


def test_predicting_leaves_the_random_state_and_the_weights_alone(run: Run) -> None:
    state, weights = torch.get_rng_state(), {k: v.clone() for k, v in run.record.predictor.state_dict().items()}
    run.predict(run.task.test.x[:7], seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, weights[k]) for k, v in run.record.predictor.state_dict().items())


def test_bytes_and_pixels_in_0_to_1_read_alike(run: Run) -> None:
    x = run.task.test.x[:5]
    if x.dtype == torch.uint8:
        assert same(run.predict(x), run.predict(x.float() / 255))
    assert same(run.predict(x), run.predict(x.numpy()))


def test_an_input_of_another_shape_is_refused_with_a_sentence(run: Run) -> None:
    with pytest.raises(uqgan.errors.UsageError, match=r"x has shape .*: must be \(samples, "):
        run.predict(torch.zeros(3, 5))


def test_a_saved_run_comes_back_bit_for_bit(run: Run, tmp_path: Path) -> None:
    loaded = uqgan.load(run.save(tmp_path / "run"), device="cpu")
    x = run.task.test.x[:7]
    assert same(run.predict(x, seed=1), loaded.predict(x, seed=1))
    assert loaded.record.plan == run.record.plan
    assert loaded.record.log == run.record.log
    assert loaded.class_names == run.class_names


def test_the_prior_is_that_of_the_training_data(run: Run) -> None:
    y = run.task.train.y
    expected: Tensor = y.bincount().float() / len(y)
    assert_close(run.record.predictor.prior, expected)


def test_evaluation_gives_every_column_for_every_set(run: Run) -> None:
    found = run.evaluate(resamples=20)
    sets = set(run.task.ood) | ({"all"} if len(run.task.ood) > 1 else set())
    for key in ("sets", "foreignness"):
        assert set(found["scores"][key]) == sets
        for name, row in found["scores"][key].items():
            assert set(row) == {
                *("auroc", "aupr_in", "aupr_out", "ap_in", "ap_out"),
                *("fpr95_id_positive", "fpr95_ood_positive"),
            }
            assert all(0 <= value <= 1 for value in row.values())
            low, high = found["intervals"][key][name]["auroc"]
            assert low <= row["auroc"] <= high


def test_methods_with_a_shield_make_examples_and_others_say_that_they_do_not(run: Run) -> None:
    if not run.record.plan.method.startswith("uqgan"):
        with pytest.raises(uqgan.errors.UsageError, match="makes no examples"):
            run.generate(0)
        return
    made = run.generate(1, n=3, seed=5)
    assert made.shape == (3, *run.task.shape)
    assert torch.equal(made, run.generate(1, n=3, seed=5))
    assert not torch.equal(made, run.generate(0, n=3, seed=5))
    assert torch.equal(made, run.generate(run.class_names[1], n=3, seed=5))
    with pytest.raises(uqgan.errors.UsageError, match="class = 99: must be one of"):
        run.generate(99)


def test_every_readable_setting_is_kept_in_the_plan(run: Run) -> None:
    assert run.record.plan.config == load_config(run.task.name, overrides=QUICK[run.task.name])
