"""The contract holds for kinds of methods beyond those in the table: ensembles, oracles, weight draws, other GANs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uqgan
from uqgan.checkpoint import Stopped
from uqgan.config import Config, load_config
from uqgan.data.tasks import Task
from uqgan.errors import UsageError
from uqgan.log import Log
from uqgan.losses import cross_entropy_loss
from uqgan.methods import METHODS, Method, cross_entropy
from uqgan.methods import uqgan as uqgan_recipe
from uqgan.networks import Networks, classifier_only
from uqgan.shapes import DrawnLogits, Images, Labels, Scalar
from uqgan.training import SupervisedBatch, fit_supervised
from uqgan.uncertainty import read_entropy, read_one_vs_all

QUICK = load_config(
    "moons",
    overrides={
        "cross_entropy": {"epochs": 2, "batch_size": 64},
        "one_vs_all": {"epochs": 2, "batch_size": 64},
        "oracle": {"epochs": 2, "batch_size": 64},
        "uqgan": {"iterations": 3, "batch_size": 16, "validate_every": 1},
    },
)


@pytest.fixture(scope="module")
def task() -> Task:
    moons = uqgan.load_task("moons")
    few = torch.arange(200)
    outliers = {"uniform": moons.outliers["uniform"][:100]}
    return replace(moons, train=moons.train[few], validation=moons.validation[few[:40]], outliers=outliers)


@pytest.fixture(autouse=True)
def _fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UQGAN_CACHE", str(tmp_path / "cache"))


def recipe(fit: Any, networks: Any = classifier_only, uses: tuple[str, ...] = ()) -> Any:
    """A made-up recipe with the settings of the softmax classifiers."""
    return SimpleNamespace(SETTINGS=("cross_entropy",), USES=uses, networks=networks, fit=fit)


def weights(net: nn.Module) -> list[Tensor]:
    return list(net.state_dict().values())


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


@pytest.mark.parametrize(("trained_by", "seed"), [(cross_entropy, 0), (cross_entropy, 3), (uqgan_recipe, 0)])
def test_members_with_a_folder_differ_and_are_the_runs_of_seeds_5k_to_5k_plus_4(
    trained_by: Any, seed: int, task: Task, tmp_path: Path
) -> None:
    ensemble = Method("Ensemble", trained_by, read_entropy, members=2)
    log = Log(tmp_path / "run", seed=seed)
    members = ensemble.fit(task, QUICK, log).networks
    assert not same(members[0], members[1])
    fresh = QUICK.model_copy(update={"fresh": True})
    for j, member in enumerate(members):
        single = Method("Single", trained_by, read_entropy).fit(task, fresh, Log(seed=5 * seed + j))
        assert same(member, single.networks[0])
    assert {row["member"] for row in log.rows} == {0, 1}
    files = sorted(file.name for file in (tmp_path / "run" / "resume").iterdir())
    assert files == [f"{ensemble.section}.member-{j}.safetensors" for j in (0, 1)]
    assert set(log.seconds) == {f"{ensemble.section}.member-{j}" for j in (0, 1)}


def test_an_ensemble_goes_on_where_it_was_killed(task: Task, tmp_path: Path) -> None:
    ensemble = Method("Ensemble", cross_entropy, read_entropy, members=2)
    fresh = QUICK.model_copy(update={"fresh": True})
    whole = ensemble.fit(task, fresh, whole_log := Log())
    ensemble.fit(task, fresh, Log(tmp_path / "run"))
    second = tmp_path / "run" / "resume" / "cross_entropy.member-1.safetensors"
    second.unlink()
    resumed = ensemble.fit(task, fresh, log := Log(tmp_path / "run", resume=True))
    assert same(whole, resumed)
    assert log.rows == whole_log.rows


def test_a_single_member_keeps_its_seed_and_the_keys_of_its_log(task: Task) -> None:
    log = Log(seed=4)
    METHODS["entropy"].fit(task, QUICK, log)
    assert all(set(row) == {"stage", "step", "classifier", "accuracy"} for row in log.rows)
    assert list(log.seconds) == ["cross_entropy"]


def test_methods_of_the_same_recipe_and_switches_train_once(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []

    def counted(nets: Networks, task: Task, config: Config, log: Log, outliers: Sequence[Tensor]) -> None:
        trained.append(log.seed)
        real(nets, task, config, log, outliers)

    real = cross_entropy.fit
    monkeypatch.setattr(cross_entropy, "fit", counted)
    first = METHODS["max-softmax"].fit(task, QUICK, one := Log(seed=0))
    second = METHODS["entropy"].fit(task, QUICK, two := Log(seed=0))
    assert trained == [0]
    assert same(first, second)
    assert one.rows == two.rows
    assert two.reused == ["cross_entropy"]
    Method("Ensemble", cross_entropy, read_entropy, members=3).fit(task, QUICK, Log(seed=0))
    assert trained == [0, 1, 2], "member 0 of seed 0 is the run that is there"
    METHODS["entropy"].fit(task, QUICK.model_copy(update={"fresh": True}), Log(seed=0))
    assert trained[3:] == [0]


def test_a_network_that_was_stopped_early_is_not_shared(task: Task) -> None:
    METHODS["uqgan"].fit(task, QUICK, stopped := Log(max_minutes=1e-9))
    assert stopped.stopped
    METHODS["uqgan"].fit(task, QUICK, log := Log())
    assert log.reused == []
    assert log.rows[-1]["step"] == 3


@pytest.mark.parametrize(("oracle", "plain"), [("entropy-oracle", "entropy"), ("ova-oracle", "one-vs-all")])
def test_an_oracle_trains_on_the_outliers_and_its_weights_follow_them(oracle: str, plain: str, task: Task) -> None:
    first = METHODS[oracle].fit(task, QUICK, Log())
    moved = replace(task, outliers={"uniform": task.outliers["uniform"] + 1})
    assert not same(first, METHODS[oracle].fit(moved, QUICK, Log()))
    assert not same(first, METHODS[plain].fit(task, QUICK, Log()))
    with pytest.raises(UsageError, match=f"has no outliers to train {METHODS[oracle].title} on"):
        METHODS[oracle].fit(replace(task, outliers={}), QUICK, Log())


def test_half_of_an_oracles_batch_are_outliers_shared_equally_between_their_sets(task: Task) -> None:
    seen: list[Tensor] = []

    def objective(nets: Networks, batch: SupervisedBatch) -> Scalar:
        assert batch.outliers is not None
        seen.append(batch.outliers)
        assert len(batch.x) == len(batch.outliers)
        return cross_entropy_loss(nets.classifier(batch.x), batch.y)

    def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Sequence[Tensor]) -> None:
        fit_supervised(nets, task, config, log, "cross_entropy", objective, lambda logits: logits.softmax(-1), outliers)

    sets = {"ones": torch.full((7, 2), 1.0), "twos": torch.full((90, 2), 2.0)}
    oracle = Method("Oracle", recipe(fit, uses=("outliers",)), read_entropy, sees_ood=True)
    oracle.fit(replace(task, outliers=sets), QUICK, Log())
    assert [len(each) for each in seen] == [32, 32, 32, 32, 32, 32, 8] * 2
    for each in seen:  # the last, smaller batch of an epoch too
        assert (each[:, 0] == 1).sum() == (each[:, 0] == 2).sum() == len(each) / 2


def networks_and_objective(
    method: str, task: Task, monkeypatch: pytest.MonkeyPatch, config: Config = QUICK
) -> tuple[Networks, Any]:
    """A method's networks, and what its recipe hands to the supervised loop to minimise."""
    nets, handed = METHODS[method].assemble((2,), 2, QUICK).networks[0], []
    monkeypatch.setattr(METHODS[method].recipe, "fit_supervised", lambda *arguments: handed.append(arguments[5]))
    METHODS[method].recipe.fit(nets, task, config, Log(), [])
    return nets, handed[0]


@pytest.mark.parametrize("oracle", ["entropy-oracle", "ova-oracle"])
def test_an_oracles_objective_is_that_of_its_description(
    oracle: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Softmax: NLL + KL(U‖p). One-vs-all: in-class + 0.6 · other classes + 0.4 · mean over outliers and heads."""
    nets, objective = networks_and_objective(oracle, task, monkeypatch)
    x, y, outliers = torch.randn(8, 2), torch.arange(8) % 2, torch.randn(8, 2)
    rows, prior = torch.arange(8), task.train.class_frequencies(2)
    known, foreign = nets.classifier(x), nets.classifier(outliers)
    if oracle == "entropy-oracle":
        uniform = 0.5 * (0.5 / foreign.softmax(1)).log()
        wanted = -known.softmax(1)[rows, y].log().mean() + uniform.sum(1).mean()
    else:
        C, other = known.sigmoid(), 1 - y
        weighed = prior[other] / prior[y] * -(1 - C[rows, other]).log()
        wanted = -C[rows, y].log().mean() + 0.6 * weighed.mean() - 0.4 * (1 - foreign.sigmoid()).log().mean()
    torch.testing.assert_close(objective(nets, SupervisedBatch(x, y, torch.tensor(0), outliers)), wanted)


def test_the_objective_of_bayes_is_a_summed_likelihood_and_the_batchs_share_of_the_kl(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("moons", overrides={"bayes": {"batch_size": 64, "kl_factor": 1e-5}})  # both terms count
    nets, objective = networks_and_objective("bayes", task, monkeypatch, config)
    settings, net = config.bayes, nets.classifier
    n_batches = task.train.steps_per_epoch(settings.batch_size, drop_last=False)
    x, y = torch.randn(8, 2), torch.arange(8) % 2
    torch.manual_seed(1)
    noise, scales = net.noise(), net.scales()
    weights = net.weights(noise, scales)
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.tensor([settings.prior_share, 1 - settings.prior_share])),
        torch.distributions.Normal(torch.zeros(2), torch.tensor([settings.prior_wide, settings.prior_narrow])),
    )
    kl = (torch.distributions.Normal(net.means(), scales).log_prob(weights) - mixture.log_prob(weights)).sum()
    likelihood = -net.run(x, weights).log_softmax(1)[torch.arange(8), y].sum()
    for position in range(min(n_batches, 3)):
        share = 2.0 ** (n_batches - position - 1) / (2.0**n_batches - 1)
        torch.manual_seed(1)
        found = objective(nets, SupervisedBatch(x, y, torch.tensor(position)))
        torch.testing.assert_close(found, likelihood + settings.kl_factor * share * kl, rtol=1e-4, atol=0)


def test_a_method_takes_the_settings_of_its_own_section(task: Task) -> None:
    both = {"cross_entropy": {"epochs": 1, "batch_size": 64}, "oracle": {"epochs": 3, "batch_size": 100}}
    config = load_config("moons", overrides=both)
    METHODS["entropy-oracle"].fit(task, config, log := Log())
    assert [row["step"] for row in log.rows] == [4, 8, 12]
    METHODS["entropy"].fit(task, config, log := Log())
    assert [row["step"] for row in log.rows] == [4]


def test_an_ensemble_of_identical_members_reads_as_one_and_of_different_ones_does_not(task: Task) -> None:
    predictor = METHODS["ensemble"].fit(task, QUICK, Log())
    x = task.test.x[:9]
    out, alone = predictor.predict(x), [predictor.member(j).predict(x) for j in range(5)]
    torch.testing.assert_close(out.probs, torch.stack([each.probs for each in alone]).mean(0))
    assert not torch.equal(out.epistemic, alone[0].epistemic)
    for net in predictor.networks:
        net.load_state_dict(predictor.networks[0].state_dict())
    torch.testing.assert_close(predictor.predict(x).epistemic, alone[0].epistemic)
    torch.testing.assert_close(predictor.predict(x).spread, torch.zeros(9), atol=1e-6, rtol=0)


def test_members_trained_side_by_side_are_those_trained_one_after_another(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = Method("Ensemble", cross_entropy, read_entropy, members=3)
    fresh = QUICK.model_copy(update={"fresh": True})
    in_turn = ensemble.fit(task, fresh, one := Log())
    monkeypatch.setattr("uqgan.methods.method.PARALLEL_FROM_SECONDS", 0.0)
    monkeypatch.setattr("joblib.cpu_count", lambda: 2)
    together = ensemble.fit(task, QUICK, two := Log(tmp_path / "run"))
    assert same(in_turn, together)
    assert one.rows == two.rows
    assert two.reused == [f"cross_entropy.member-{j}" for j in (1, 2)]
    assert not any((tmp_path / "cache" / "unfinished").iterdir())


def test_members_side_by_side_that_run_out_of_time_go_on_later(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = Method("Ensemble", cross_entropy, read_entropy, members=3)
    monkeypatch.setattr("uqgan.methods.method.PARALLEL_FROM_SECONDS", 0.0)
    monkeypatch.setattr("joblib.cpu_count", lambda: 2)
    monkeypatch.setenv("UQGAN_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(Log, "minutes_left", 1e-9)
    with pytest.raises(Stopped, match="--resume goes on"):
        ensemble.fit(task, QUICK, Log(tmp_path / "run"))
    assert any((tmp_path / "other" / "unfinished").iterdir())
    monkeypatch.setattr(Log, "minutes_left", None)
    resumed = ensemble.fit(task, QUICK, Log(tmp_path / "run", resume=True))
    assert same(resumed, ensemble.fit(task, QUICK.model_copy(update={"fresh": True}), Log()))


def test_what_a_recipe_does_not_use_is_refused() -> None:
    with pytest.raises(UsageError, match="Oracle: its recipe uqgan does not use outliers"):
        Method("Oracle", uqgan_recipe, read_one_vs_all, sees_ood=True)
    with pytest.raises(UsageError, match="MC: its recipe cross_entropy does not use dropout"):
        Method("MC", recipe(None), read_entropy, dropout=0.5)
    with pytest.raises(UsageError, match="Ensemble: members = 6: must be within 1 to 5"):
        Method("Ensemble", cross_entropy, read_entropy, members=6)
    with pytest.raises(UsageError, match="MC: passes = 7: its networks have nothing to draw"):
        Method("MC", cross_entropy, read_entropy, passes=7).assemble((2,), 2, QUICK)


class NoisyWeights(Networks):
    """Draws a weight per pass rather than a mask per row."""

    draws = True  # type: ignore[assignment]

    def logits(self, x: Images, n_draws: int) -> DrawnLogits:
        return torch.stack([self.classifier(x * (1 + torch.randn(()))) for _ in range(n_draws)])


def test_weight_draws_differ_from_each_other(task: Task) -> None:
    def networks(*arguments: Any) -> Networks:
        return NoisyWeights(classifier_only(*arguments).classifier)

    method = Method("Bayes", recipe(cross_entropy.fit, networks), read_entropy, passes=5)
    out = method.fit(task, QUICK, Log()).predict(task.test.x[:6], seed=0)
    assert out.spread is not None
    assert (out.spread > 0).all()


class WithNoise(Networks):
    """Makes examples without any autoencoder."""

    def generate(self, y: Labels) -> Images:
        return torch.randn(len(y), 2)


def test_a_gan_of_another_kind_makes_examples_and_is_read(task: Task) -> None:
    def networks(*arguments: Any) -> Networks:
        return WithNoise(classifier_only(*arguments).classifier)

    predictor = Method("GAN", recipe(cross_entropy.fit, networks), read_one_vs_all).fit(task, QUICK, Log())
    made = predictor.generate(torch.tensor([0, 1, 1]), seed=2)
    assert made is not None
    assert made.shape == (3, 2)
    assert predictor.reconstruct(task.test.x[:2], task.test.y[:2]) is None
    assert predictor.predict(task.test.x[:4]).probs.shape == (4, 2)
