"""The recipe does what the paper's plain loop does, and its looked-up codes are those of the pictures shown."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from uqgan.acceleration import adam
from uqgan.config import load_config
from uqgan.data.tasks import load_task
from uqgan.log import Log
from uqgan.losses import classifier_loss, critic_loss, out_of_class_loss
from uqgan.methods.uqgan import GAN_BETAS, JointTraining, ShieldedNetworks, encode_all, fit_jointly, networks
from uqgan.models.autoencoders import make_autoencoder
from uqgan.models.gan import Critic, Generator
from uqgan.regulariser import spread_loss
from uqgan.training import decay, frozen, minimize, set_lr

STEPS = 5


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_recipe_takes_the_steps_of_the_plain_loop(dropout: float) -> None:
    task = load_task("moons")
    few = {"iterations": STEPS, "batch_size": 32, "validate_every": 10**6}
    config = load_config("moons", overrides={"uqgan": few})
    settings, prior = config.uqgan, task.train.class_frequencies(2)

    def start() -> ShieldedNetworks:
        torch.manual_seed(0)
        nets = networks(task.shape, 2, config, dropout, None)
        nets.make_fast(config)
        return nets

    nets, plain = start(), start()
    torch.manual_seed(1)
    fit_jointly(nets, replace(task, validation=task.validation[torch.arange(10)]), config, Log())

    torch.manual_seed(1)
    plain_C, plain_G = plain.classifier, plain.generator
    D = Critic(2, 2)
    opt_C, opt_G, opt_D = adam(plain_C), adam(plain_G, GAN_BETAS), adam(D, GAN_BETAS)
    for step, (x, y, _) in enumerate(task.train.batches(32, range(STEPS), seed=0)):
        set_lr(opt_C, decay(settings.lr, settings.end_lr, step, STEPS))
        for optimizer in (opt_G, opt_D):
            set_lr(optimizer, decay(settings.gan_lr, settings.gan_end_lr, step, STEPS))
        with torch.no_grad():
            z_fake = plain_G.eval()(y)
        for _ in range(settings.critic_steps):
            minimize(opt_D, critic_loss(D, x, z_fake, y, settings.lambda_gp))
        with frozen(plain_C, D):
            z_fake = plain_G.train()(y)
            loss = -D(z_fake, y).mean() + settings.lambda_cl * out_of_class_loss(plain_C(z_fake), y)
            minimize(opt_G, loss + settings.lambda_reg * spread_loss(x, z_fake, y))
        with torch.no_grad():
            x_fake = plain_G.eval()(y)
        for _ in range(settings.classifier_steps):
            real, fake = plain_C(torch.cat([x, x_fake])).chunk(2)
            minimize(opt_C, classifier_loss(real, fake, y, prior, settings.lambda_real))
    for ours, theirs in ((nets.classifier, plain_C), (nets.generator, plain_G)):
        for key, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[key], value), key


@pytest.mark.parametrize("flip", [False, True])
def test_looked_up_codes_are_those_of_the_pictures_shown(flip: bool) -> None:
    digits = load_task("digits")
    task = replace(digits, train=digits.train[torch.arange(50)], flip=flip)
    A = make_autoencoder("small", task.shape, task.n_classes, 8).eval()
    codes = encode_all(A, task)
    assert len(codes) == 50 * (1 + flip)
    for x, y, view in task.train.batches(16, range(3), seed=0, flip=flip):
        assert_close(codes[view], A.encode(x, y))


@pytest.mark.parametrize(("share", "n"), [(0.0, 0), (0.5, 5), (1.0, 10)])
def test_a_share_of_the_real_pictures_is_decoded_as_generated_ones_are(share: float, n: int) -> None:
    digits = load_task("digits")
    task = replace(digits, train=digits.train[torch.arange(20)])
    config = load_config("digits", overrides={"uqgan": {"decoded_real": share, "batch_size": 10}})
    nets = networks(task.shape, task.n_classes, config, 0.0, None)
    A = nets.autoencoder.eval()
    joint = JointTraining(nets, Critic(A.dim, 5), task.train.class_frequencies(5), config, print)
    codes = encode_all(A, task)
    x, y, view = next(iter(task.train.batches(10, range(1), seed=0)))
    seen = joint.real_images(x, y, codes[view])
    assert_close(seen[:n], A.decode(A.encode(x[:n], y[:n]), y[:n]))
    assert torch.equal(seen[n:], x[n:])
    assert not seen.requires_grad


def test_a_generator_of_half_the_width_has_half_the_units_in_every_layer() -> None:
    sizes = [[layer.out_features for layer in Generator(8, 5, 16, width).layers[::3]] for width in (1024, 512)]
    assert sizes == [[1024, 512, 256, 8], [512, 256, 128, 8]]
