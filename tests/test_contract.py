"""What every method promises, checked on every one of them."""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import uqgan
from uqgan.acceleration import CapturedStep
from uqgan.config import load_config
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.methods import METHODS, Method
from uqgan.run import Run
from uqgan.uncertainty import Prediction

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SMALL = {
    "uqgan": {"iterations": 2, "batch_size": 16, "validate_every": 1},
    "one_vs_all": {"epochs": 1, "batch_size": 64},
    "cross_entropy": {"epochs": 1, "batch_size": 64},
    "mc_dropout": {"epochs": 1, "batch_size": 64},
    "bayes": {"epochs": 1, "batch_size": 64},
    "confident": {"epochs": 1, "batch_size": 64, "width": 16},
    "gen": {"epochs": 1, "batch_size": 64, "autoencoder_steps": 2},
    "oracle": {"epochs": 1, "batch_size": 64},
}
QUICK = {"moons": SMALL, "digits": SMALL | {"autoencoder": {"epochs": 1, "batch_size": 64, "dim": 4}}}


def small_task(name: str) -> Task:
    task = uqgan.load_task(name)
    few = torch.arange(200)
    ood = {key: x[:50] for key, x in task.ood.items()}
    outliers = {key: x[:50] for key, x in task.outliers.items()}
    train, validation, test = task.train[few], task.validation[few[:40]], task.test[few[:60]]
    known = task.calibration[few[:40]]
    return replace(task, train=train, validation=validation, calibration=known, test=test, ood=ood, outliers=outliers)


@pytest.fixture(scope="module", params=[(m, t) for m in METHODS for t in QUICK], ids="-".join)
def run(request: pytest.FixtureRequest) -> Run:
    method, task = request.param
    return uqgan.fit(method, small_task(task), config=load_config(task, overrides=QUICK[task]), device="cpu")


def method_of(run: Run) -> Method:
    return METHODS[run.record.plan.method]


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
    assert (out.spread is None) == (method_of(run).passes * method_of(run).members == 1)


def test_the_same_seed_repeats_a_prediction_bit_for_bit(run: Run) -> None:
    x = run.task.test.x[:7]
    assert same(run.predict(x, seed=3), run.predict(x, seed=3))


def test_only_stochastic_methods_change_with_the_seed(run: Run) -> None:
    x = run.task.test.x[:7]
    stochastic = method_of(run).passes > 1
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


@pytest.mark.parametrize("n", [1, 10_000])
def test_any_number_of_samples_is_read(run: Run, n: int) -> None:
    x = run.task.test.x[:50]
    out = run.predict(x.repeat(n // 50 + 1, *[1] * (x.ndim - 1))[:n])
    assert out.probs.shape == (n, run.task.n_classes)
    assert_close(out.probs.sum(1), torch.ones(n))


def monte_carlo_error(out: Prediction, run: Run) -> Tensor:
    """Standard error of the class probabilities over the draws: a bound for each of them."""
    assert out.spread is not None
    return out.spread / method_of(run).passes ** 0.5


def test_permuting_the_batch_permutes_the_answer(run: Run) -> None:
    x = run.task.test.x
    order = torch.randperm(len(x))
    out, permuted = run.predict(x, seed=3), run.predict(x[order], seed=3)
    if method_of(run).dropout:  # each row has masks of its own
        error = (permuted.probs - out.probs[order]).abs().amax(1)
        assert (error.mean() < 4 * monte_carlo_error(out, run).mean()).all()
        return
    for name in ("probs", "aleatoric", "epistemic", "foreignness"):
        assert_close(getattr(permuted, name), getattr(out, name)[order], atol=1e-4, rtol=1e-4)


def test_members_are_read_one_by_one(run: Run) -> None:
    x, n = run.task.test.x[:7], method_of(run).members
    alone = torch.stack([run.predict(x, seed=3, member=j).probs for j in range(n)])
    assert_close(alone.mean(0), run.predict(x, seed=3).probs)
    assert n == 1 or not torch.equal(alone[0], alone[1])
    with pytest.raises(uqgan.errors.UsageError, match=f"member = {n}: must be within 0 to {n - 1}"):
        run.predict(x, member=n)


def test_a_repeated_draw_reads_as_one_draw(run: Run) -> None:
    logits, prior = 3 * torch.randn(1, 9, run.task.n_classes), run.record.predictor.prior
    one, many = (method_of(run).reading(drawn, prior) for drawn in (logits, logits.repeat(7, 1, 1)))
    for name in ("probs", "aleatoric", "epistemic", "foreignness"):
        assert_close(getattr(one, name), getattr(many, name), atol=1e-6, rtol=1e-5)
    assert one.spread is None
    assert_close(many.spread, torch.zeros(9), atol=1e-6, rtol=0)


class Killed(BaseException):
    """Ends a training as a kill would: nothing tidies up."""


def test_a_killed_run_is_refused_and_goes_on_to_the_same_weights(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, task, folder = run.record.plan, run.task, tmp_path / "run"
    section = method_of(run).section
    longer = {section: dict(QUICK[task.name][section]) | ({} if section == "uqgan" else {"epochs": 2})}
    config = load_config(task.name, overrides=QUICK[task.name] | longer | {"fresh": True})
    whole = uqgan.fit(plan.method, task, config=config, device="cpu")
    write, last = Log.write, len(whole.record.log) - 1

    def killed_at_the_last(log: Log, row: dict[str, Any]) -> None:
        if len(log.rows) == last:
            raise Killed
        write(log, row)

    monkeypatch.setattr("uqgan.training.SAVE_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(Log, "write", killed_at_the_last)
        patch.setattr("uqgan.api.remove_run", lambda _: None)
        with pytest.raises(Killed):
            uqgan.fit(plan.method, task, config=config, device="cpu", folder=folder)
    with pytest.raises(uqgan.errors.UsageError, match="has not finished"):
        uqgan.load(folder)
    resumed = uqgan.fit(plan.method, task, config=config, device="cpu", folder=folder, resume=True)
    state, wanted = resumed.record.predictor.state_dict(), whole.record.predictor.state_dict()
    assert all(torch.equal(state[key], wanted[key]) for key in wanted)
    assert resumed.record.log == whole.record.log


class PlainNet(nn.Module):
    """A network such as users bring, for points and for pictures."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, n_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x))


def test_a_network_of_the_users_own_is_trained_saved_and_read(run: Run, tmp_path: Path) -> None:
    plan, task = run.record.plan, run.task
    net = PlainNet(task.shape, task.n_classes)
    own = uqgan.fit(plan.method, task, config=plan.config, device="cpu", classifier=net, folder=tmp_path / "run")
    x = task.test.x[:7]
    out = own.predict(x, seed=1)
    assert_close(out.probs.sum(1), torch.ones(7))
    assert same(out, uqgan.load(tmp_path / "run", device="cpu", classifier=net).predict(x, seed=1))


@on_gpu
def test_on_a_gpu_every_step_is_captured_as_a_graph(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[CapturedStep[Any]] = []
    capture = CapturedStep._capture
    monkeypatch.setattr(CapturedStep, "_capture", lambda step, x: (captured.append(step), capture(step, x)))
    plan, section = run.record.plan, method_of(run).section
    longer = {section: dict(QUICK[run.task.name][section]) | {"iterations" if section == "uqgan" else "epochs": 8}}
    config = load_config(run.task.name, overrides=QUICK[run.task.name] | longer | {"fresh": True})
    uqgan.fit(plan.method, run.task, config=config, device="cuda")
    assert len(captured) >= method_of(run).members
    assert all(step.graph is not None for step in captured)


@on_gpu
def test_cpu_and_gpu_agree(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    fp32 = run.record.plan.config.model_copy(update={"precision": "fp32"})
    run = uqgan.fit(run.record.plan.method, run.task, config=fp32, device="cpu", folder=tmp_path / "run")
    x = run.task.test.x
    on_gpu = uqgan.load(tmp_path / "run", device="cuda")
    out, other = run.predict(x, seed=3), on_gpu.predict(x, seed=3)
    assert same(other, on_gpu.predict(x, seed=3))
    if method_of(run).passes == 1:
        for name in ("probs", "aleatoric", "epistemic", "foreignness"):
            assert_close(getattr(other, name), getattr(out, name), atol=1e-3, rtol=1e-3)
        return
    error = monte_carlo_error(out, run)
    assert (other.probs - out.probs).mean(0).abs().amax() < 4 * 2**0.5 * error.mean()
    gap = (other.epistemic - out.epistemic).mean().abs()
    assert gap < 4 * 2**0.5 * error.mean() * math.log(run.task.n_classes)


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


def test_it_decides_by_what_it_says_of_the_calibration_samples(run: Run) -> None:
    known, x = run.task.calibration, run.task.test.x[:7]
    assert same(run.calibration.prediction, run.predict(known.x, run.record.plan.seed))
    assert torch.equal(run.calibration.y, known.y)
    found = run.decide(x, seed=3)
    assert found.words == run.decide(run.predict(x, seed=3)).words
    assert set(found.words) <= {"accept", "ambiguous", "unknown"}
    assert found.p_value.shape == found.flagged.shape == (7,)
    assert found.sets.shape == found.shown.shape == (7, run.task.n_classes)
    one_vs_all = method_of(run).reading.__name__ == "read_one_vs_all"
    assert bool(found.why) != one_vs_all
    repeats = torch.equal(run.predict(x, seed=3).foreignness, run.predict(x, seed=3).epistemic)
    assert repeats != one_vs_all, "methods without a foreignness of their own repeat another score"


def test_every_readable_setting_is_kept_in_the_plan(run: Run) -> None:
    assert run.record.plan.config == load_config(run.task.name, overrides=QUICK[run.task.name])
