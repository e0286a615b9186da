"""Networks with random weights, and the divergence of these from their prior."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.testing import assert_close

from uqgan import training
from uqgan.acceleration import adam
from uqgan.config import BayesConfig, load_config, parse
from uqgan.data.tasks import load_task
from uqgan.errors import UsageError
from uqgan.log import Log
from uqgan.losses import log_scale_mixture, log_variational_density, minibatch_share
from uqgan.methods import METHODS, bayes
from uqgan.methods.bayes import BayesianNetworks, divergence
from uqgan.models.bayesian import to_bayesian
from uqgan.models.classifiers import MLP, LeNet, ResNet
from uqgan.training import minimize

PRIOR = (0.75, 0.1, 5e-4)


def sampled_kl(mean: float, scale: float, prior: tuple[float, float, float], n: int = 200_000) -> tuple[float, float]:
    """Mean over many draws of log q(w) - log p(w), and its standard error."""
    noise = torch.randn(n, dtype=torch.float64)
    s = torch.full_like(noise, scale)
    values = log_variational_density(noise, s) - log_scale_mixture(mean + s * noise, *prior)
    return float(values.mean()), float(values.std()) / math.sqrt(n)


@pytest.mark.parametrize(("mean", "scale"), [(0.0, 0.0067), (0.05, 0.0067), (0.2, 0.1), (0.001, 0.0005), (-1.0, 0.3)])
def test_the_sampled_kl_is_that_of_a_numerical_integration(mean: float, scale: float) -> None:
    def integrand(w: float) -> float:
        q = stats.norm(mean, scale)
        p = sum(part * stats.norm(0, s).pdf(w) for part, s in ((0.75, 0.1), (0.25, 5e-4)))
        return float(q.pdf(w) * (q.logpdf(w) - math.log(p)))

    around = [point for point in (-2e-3, 0.0, 2e-3) if abs(point - mean) < 8 * scale]
    exact, _ = integrate.quad(integrand, mean - 8 * scale, mean + 8 * scale, points=around or None, limit=500)
    estimate, error = sampled_kl(mean, scale, PRIOR)
    assert abs(estimate - exact) < 5 * error + 1e-6


@given(mean=st.floats(-1, 1), scale=st.floats(1e-3, 1), wide=st.floats(0.05, 1))
def test_with_one_component_the_sampled_kl_is_the_closed_form(mean: float, scale: float, wide: float) -> None:
    closed = math.log(wide / scale) + (scale**2 + mean**2) / (2 * wide**2) - 0.5
    estimate, error = sampled_kl(mean, scale, (1.0, wide, 5e-4), 20_000)
    assert abs(estimate - closed) < 6 * error + 1e-6


def test_the_prior_is_a_mixture_of_two_gaussians_even_far_out() -> None:
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.tensor([0.75, 0.25])),
        torch.distributions.Normal(torch.zeros(2), torch.tensor([0.1, 5e-4])),
    )
    w = torch.tensor([0.0, 1e-4, 1e-3, 0.1, -0.5, 3.0])
    assert_close(log_scale_mixture(w, *PRIOR), mixture.log_prob(w))
    assert log_scale_mixture(torch.tensor([1e6]), *PRIOR).isfinite().all()


@pytest.mark.parametrize("n", [1, 2, 79, 500])
def test_the_batches_shares_of_the_kl_halve_and_sum_to_one(n: int) -> None:
    shares = minibatch_share(torch.arange(n), n).double()
    assert_close(shares.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert_close(shares[1:20], shares[:19][: n - 1] / 2)


@pytest.mark.parametrize(
    ("net", "n_weights"),
    [
        (LeNet((1, 32, 32), 5), 122_562),
        (ResNet((3, 32, 32), 5), 1_172_490),
        (ResNet((3, 32, 32), 50), 1_356_900),
        (ResNet((3, 64, 64), 100), 5_544_648),
    ],
    ids=["mnist", "cifar10", "cifar100", "tiny-imagenet"],
)
def test_every_weight_but_those_of_norms_is_random(net: nn.Module, n_weights: int) -> None:
    assert sum(w.numel() for w in to_bayesian(net).parameters()) == n_weights


def test_the_kl_reaches_the_mean_and_the_scale_of_every_random_weight() -> None:
    net = to_bayesian(ResNet((3, 32, 32), 5))
    noise, scales = net.noise(), net.scales()
    divergence(noise, scales, net.weights(noise, scales), BayesConfig()).backward()
    assert len(net.names) == sum(isinstance(layer, nn.Conv2d | nn.Linear) * 2 for layer in net.net.modules()) - 3
    own = dict(net.net.named_parameters())
    for weight in (net.rho, *(own[name] for name in net.names)):
        assert weight.grad is not None
        assert (weight.grad != 0).all()


def test_without_scale_it_is_the_plain_network() -> None:
    plain = MLP((2,), 3)
    x = torch.randn(5, 2)
    wanted = plain(x)
    net = to_bayesian(plain)
    assert not torch.equal(net(x), net(x))
    nn.init.constant_(net.rho, -100.0)
    assert_close(net(x), wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("kind", "shape"), [("mlp", (2,)), ("lenet", (1, 32, 32)), ("resnet", (3, 32, 32))])
def test_draws_in_one_pass_are_those_one_after_another(
    kind: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    autoencoder = {"mlp": "identity", "lenet": "small"}.get(kind, kind)
    config = parse({"classifier": kind, "precision": "fp32", "autoencoder": {"kind": autoencoder}})
    nets = METHODS["bayes"].assemble(shape, 5, config).networks[0]
    nets.make_fast(config)
    x = torch.rand(3, *shape)
    found: list[Tensor] = []
    for rows in (10**6, 0):
        monkeypatch.setattr("uqgan.methods.bayes.BATCHED_ROWS", rows)
        torch.manual_seed(1)
        with torch.no_grad():
            found.append(nets.logits(x, 4))
    assert found[0].shape == (4, 3, 5)
    assert_close(*found, atol=1e-4, rtol=1e-4)
    assert found[0].std(0).min() > 0


def test_weight_decay_leaves_the_scales_alone() -> None:
    nets = METHODS["bayes"].assemble((2,), 2, parse({})).networks[0]
    assert isinstance(nets, BayesianNetworks)
    optimizer = adam(nets.classifier, weight_decay=0.1, undecayed=nets.undecayed)
    decays = {id(w): group["weight_decay"] for group in optimizer.param_groups for w in group["params"]}
    assert decays[id(nets.net.rho)] == 0.0
    assert {decays[id(mean)] for mean in nets.net.net.parameters()} == {0.1}
    assert len(decays) == len(list(nets.parameters()))


def test_training_lowers_the_rate_every_epoch_and_decays_all_weights_but_the_scales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moons, few = load_task("moons"), torch.arange(6)
    task = replace(moons, train=moons.train[few], validation=moons.validation[few])
    settings = {"epochs": 3, "batch_size": 4, "lr": 0.3, "end_lr": 0.03, "weight_decay": 0.1}
    config = load_config("moons", overrides={"bayes": settings})
    nets, rates, decays = bayes.networks((2,), 2, config, 0.0, None), [], set()

    def watched(optimizer: Optimizer, loss: Tensor) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        decays.update((weight, group["weight_decay"]) for group in optimizer.param_groups for weight in group["params"])
        minimize(optimizer, loss)

    monkeypatch.setattr(training, "minimize", watched)
    bayes.fit(nets, task, config, Log(), [])
    assert rates == pytest.approx([0.3, 0.3, 0.21, 0.21, 0.12, 0.12])
    assert decays == {(nets.net.rho, 0.0)} | {(mean, 0.1) for mean in nets.net.net.parameters()}


@pytest.mark.parametrize("net", [nn.BatchNorm1d(2), nn.Sequential(nn.Linear(2, 2)).requires_grad_(False)])
def test_a_network_without_weights_to_draw_is_refused(net: nn.Module) -> None:
    with pytest.raises(UsageError, match=f"{type(net).__name__}: has no linear or convolutional layer to draw from"):
        to_bayesian(net)


def test_a_users_network_without_weights_to_draw_is_called_by_its_name() -> None:
    with pytest.raises(UsageError, match="classifier = BatchNorm1d: has no linear or convolutional layer"):
        METHODS["bayes"].assemble((2,), 2, parse({}), nn.BatchNorm1d(2))


def test_a_weight_of_two_layers_is_drawn_once_for_both() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    drawing = to_bayesian(net)
    assert len(drawing.rho) == 9
    w = torch.randn(3, 3)
    assert_close(drawing.run(torch.eye(3), w.flatten()), (w @ w).T)


def test_frozen_weights_are_not_drawn() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    net[0].requires_grad_(False)
    assert to_bayesian(net).names == ["1.weight", "1.bias"]
