"""The Confident Classifier takes the steps that Lee et al. describe."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from uqgan.acceleration import adam
from uqgan.config import Config, load_config, parse
from uqgan.data.dataset import Dataset
from uqgan.data.tasks import Task, load_task
from uqgan.errors import UsageError
from uqgan.log import Log
from uqgan.losses import cross_entropy_loss, fake_loss, real_loss, uniform_loss
from uqgan.methods.confident import JointTraining, fit, networks
from uqgan.models.dcgan import make_gan
from uqgan.training import minimize, set_lr


def n_weights(net: nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())


def config_of(**settings: float) -> Config:
    return load_config("moons", overrides={"confident": {"batch_size": 32} | settings})


@pytest.fixture(scope="module")
def task() -> Task:
    moons, few = load_task("moons"), torch.arange(97)  # three batches of 32 and one sample
    return replace(moons, train=moons.train[few], validation=moons.validation[few])


@pytest.fixture
def joint() -> JointTraining:
    config = config_of(noise=7)
    nets = networks((2,), 3, config, 0.0, None)
    joint = JointTraining(nets, *make_gan((2,), 7, 16), config, print)
    joint.set_learning_rates(0)
    return joint


def weights(net: nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in net.parameters()]


def changed(net: nn.Module, before: list[Tensor]) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("shape", "of_generator", "of_discriminator"),
    [
        ((1, 32, 32), 12_667_776, 11_031_168),
        ((3, 32, 32), 12_670_080, 11_033_472),
        ((3, 64, 64), 12_932_480, 11_163_072),
    ],
)
def test_the_networks_have_the_sizes_of_the_rerun(
    shape: tuple[int, ...], of_generator: int, of_discriminator: int
) -> None:
    """Those of the discriminator with two weights a channel for batch norm, where the rerun had layer norm."""
    G, D = make_gan(shape, 100, 1024)
    assert (n_weights(G), n_weights(D)) == (of_generator, of_discriminator)


def test_on_digits_both_networks_are_small() -> None:
    settings = load_config("digits").confident
    assert sum(map(n_weights, make_gan((1, 32, 32), settings.noise, settings.width))) <= 500_000


@pytest.mark.parametrize("shape", [(2,), (1, 32, 32), (3, 32, 32), (1, 64, 64), (3, 64, 64), (2, 16, 16)])
def test_a_generator_makes_samples_that_its_discriminator_takes(shape: tuple[int, ...]) -> None:
    G, D = make_gan(shape, 5, 16)
    x = G(torch.randn(3, 5))
    assert x.shape == (3, *shape)
    assert D(x).shape == (3, 1)
    if len(shape) == 3:
        assert x.amin() >= 0
        assert x.amax() <= 1


@pytest.mark.parametrize("size", [1, 28, 48])
def test_a_size_that_no_doubling_reaches_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=f"image size = {size}: DCGAN takes 4, 8, 16"):
        make_gan((1, size, size), 5, 16)


def test_the_losses_of_a_discriminator_are_its_log_likelihoods() -> None:
    logits = torch.tensor([[-3.0], [0.0], [50.0]])
    D = logits.double().sigmoid()
    assert_close(real_loss(logits).double(), -D.log().mean())
    assert_close(fake_loss(logits[:2]).double(), -(1 - D[:2]).log().mean())
    assert fake_loss(torch.tensor([[1000.0]])) == 1000


def test_the_objectives_are_those_of_the_paper(joint: JointTraining) -> None:
    x, x_fake, e, y = torch.randn(6, 2), torch.randn(6, 2), torch.randn(6, 7), torch.randint(3, (6,))
    beta = joint.settings.beta

    def divergence(points: Tensor) -> Tensor:
        return (math.log(1 / 3) - joint.C(points).log_softmax(1)).mean(1).mean()

    on_real, on_fake = joint.D(x).sigmoid(), joint.D(x_fake).sigmoid()
    assert_close(joint.discriminator_objective(x, x_fake), -on_real.log().mean() - (1 - on_fake).log().mean())
    made = joint.G(e)
    assert_close(joint.generator_objective(e), -joint.D(made).sigmoid().log().mean() + beta * divergence(made))
    right = joint.C(x).softmax(1)[torch.arange(6), y]
    assert_close(joint.classifier_objective(x, x_fake, y), -right.log().mean() + beta * divergence(x_fake))


def test_the_generator_is_not_at_the_mercy_of_a_sure_discriminator() -> None:
    """The saturating loss, log(1 - D), has no slope where D is sure; this one has its largest."""
    logits = torch.tensor([[-30.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(real_loss(logits), logits)
    assert_close(slope, torch.tensor([[-1.0]]))


def test_each_phase_changes_its_own_network_alone(joint: JointTraining) -> None:
    x, y = torch.randn(8, 2), torch.randint(3, (8,))
    nets = {"C": joint.C, "G": joint.G, "D": joint.D}
    phases = {
        "D": lambda: joint.train_discriminator(x),
        "G": lambda: joint.train_generator(x),
        "C": lambda: joint.train_classifier(x, y),
    }
    for name, train in phases.items():
        before = {key: weights(net) for key, net in nets.items()}
        for net in nets.values():
            net.zero_grad()
        train()
        assert [key for key, net in nets.items() if changed(net, before[key])] == [name]
        reached = [key for key, net in nets.items() if any(weight.grad is not None for weight in net.parameters())]
        assert reached == [name], "no gradient is computed for the others"


def test_batch_norms_are_in_training_mode_in_all_phases() -> None:
    config = parse({"classifier": "lenet", "autoencoder": {"kind": "small"}})
    joint = JointTraining(networks((1, 32, 32), 3, config, 0.0, None), *make_gan((1, 32, 32), 100, 16), config, print)
    seen: list[bool] = []
    for layer in (*joint.G.modules(), *joint.D.modules()):
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_hook(lambda layer, *_: seen.append(layer.training))
    joint.step(torch.rand(4, 1, 32, 32), torch.randint(3, (4,)))
    assert seen == [True] * (3 * 3 + 3 * 3), "three batch norms of G and of D, three passes each"


def test_adam_of_generator_and_discriminator_is_that_of_dcgan(joint: JointTraining) -> None:
    found = [(o.defaults["betas"], o.defaults["weight_decay"]) for o in (joint.opt_C, joint.opt_G, joint.opt_D)]
    assert found == [((0.9, 0.999), 2e-4), ((0.5, 0.999), 0.0), ((0.5, 0.999), 0.0)]


def test_learning_rates_fall_to_a_tenth_at_60_percent_of_the_epochs(joint: JointTraining) -> None:
    joint.settings = config_of(epochs=10, lr=1.0).confident
    found = []
    for epoch in range(10):
        joint.set_learning_rates(epoch)
        found.append({o.param_groups[0]["lr"] for o in (joint.opt_C, joint.opt_G, joint.opt_D)})
    assert found == [{1.0}] * 6 + [{0.1}] * 4


def test_with_beta_0_the_classifier_learns_by_cross_entropy_alone(task: Task) -> None:
    config = config_of(beta=0, epochs=1, lr=1e-3)
    nets, plain = (networks((2,), 2, config, 0.0, None) for _ in range(2))
    plain.load_state_dict(nets.state_dict())
    fit(nets, task, config, Log(), [])
    optimizer = adam(plain.classifier, weight_decay=config.confident.weight_decay)
    set_lr(optimizer, 1e-3)
    for x, y, _ in task.train.batches(32, range(4), seed=0, drop_last=False):
        minimize(optimizer, cross_entropy_loss(plain.classifier(x), y))
    assert_close(nets.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 64, 64)])
def test_pictures_of_every_kind_can_be_trained_on(shape: tuple[int, ...]) -> None:
    tree = {"classifier": "resnet", "autoencoder": {"kind": "resnet"}, "precision": "bf16"}
    config = parse(tree | {"confident": {"epochs": 1, "batch_size": 4, "width": 16}})
    pictures = Dataset(torch.randint(256, (6, *shape), dtype=torch.uint8), torch.randint(3, (6,)))
    task = replace(load_task("moons"), train=pictures, validation=pictures, class_names=("a", "b", "c"))
    nets = networks(shape, 3, config, 0.0, None)
    nets.make_fast(config)
    log = Log()
    fit(nets, task, config, log, [])
    assert [row["step"] for row in log.rows] == [2]


def test_the_divergence_is_not_divided_by_the_number_of_classes_again() -> None:
    logits = torch.zeros(1, 100)
    logits[0, 0] = 50.0
    assert uniform_loss(logits) > 40
