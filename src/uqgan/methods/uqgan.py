"""UQGAN: shield every class with generated out-of-class examples (paper, section 3.2).

C classifier · G generator · D critic · A autoencoder, pre-trained and frozen.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from uqgan.acceleration import accelerate, compile_methods
from uqgan.config import AutoencoderConfig, Config, UqganConfig
from uqgan.data.dataset import CHUNK, as_input
from uqgan.data.tasks import Task
from uqgan.health import Health, say_warnings
from uqgan.log import Log, Stopped
from uqgan.losses import (
    block_layout,
    classifier_loss,
    critic_loss,
    out_of_class_loss,
    reconstruction_loss,
    spread_loss,
)
from uqgan.methods.method import Networks
from uqgan.models.autoencoders import Autoencoder, make_autoencoder
from uqgan.models.classifiers import make_classifier
from uqgan.models.gan import Critic, Generator, Shield
from uqgan.shapes import Codes, Images, Labels, Prior, Scalar
from uqgan.training import Best, Parts, Stage, accuracy_on, adam, decay, frozen, memory_advice, minimize, set_lr

GAN_BETAS = (0.0, 0.9)
Trio = tuple[Optimizer, Optimizer, Optimizer]


class Losses(NamedTuple):
    critic: Scalar
    generator: Scalar
    classifier: Scalar


def networks(shape: tuple[int, ...], n_classes: int, config: Config, dropout: float) -> Networks:
    A = make_autoencoder(config.autoencoder.kind, shape, n_classes, config.autoencoder.dim)
    G = Generator(A.dim, n_classes, config.uqgan.noise)
    return Networks(make_classifier(config.classifier, shape, n_classes, dropout), Shield(G, A))


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Tensor | None) -> None:
    assert nets.shield is not None
    C, G, A = nets.classifier, nets.shield.generator, nets.shield.autoencoder
    if config.autoencoder.kind != "identity":
        fit_autoencoder(A, task, config.autoencoder, log)
    fit_jointly(C, G, A.eval().requires_grad_(False), task, config, log)


def fit_jointly(C: nn.Module, G: Generator, A: Autoencoder, task: Task, config: Config, log: Log) -> None:
    """Alternate between Eq. 8 for the critic, Eq. 8 for the generator, and Eq. 9 for the classifier."""
    settings = config.uqgan
    D = Critic(A.dim, task.n_classes).to(task.train.x.device)
    if config.compile:
        compile_methods(D, "forward", "slope")
    prior = task.train.class_frequencies(task.n_classes)
    optimizers = opt_C, opt_G, opt_D = adam(C), adam(G, GAN_BETAS), adam(D, GAN_BETAS)
    best, health = Best(C), Health(C, G, D, A, task, log.seed)
    iterate = accelerate(iteration(C, G, D, A, optimizers, prior, settings), prior.device, log.say)
    parts: Parts = {"C": C, "G": G, "D": D, "opt_C": opt_C, "opt_G": opt_G, "opt_D": opt_D, "best": best}
    stage = Stage(log, "uqgan", settings.iterations, parts)
    batches = task.train.batches(settings.batch_size, stage.steps, log.seed, flip=task.flip)
    with memory_advice("uqgan.batch_size", settings.batch_size):
        for step, (x, y) in zip(stage, batches, strict=False):
            set_lr(opt_C, decay(settings.lr, settings.end_lr, step, settings.iterations))
            for optimizer in (opt_G, opt_D):
                set_lr(optimizer, decay(settings.gan_lr, settings.gan_end_lr, step, settings.iterations))
            losses = iterate(x, y)
            if (step + 1) % settings.validate_every == 0 or step + 1 == settings.iterations:
                accuracy = accuracy_on(C, task.validation)
                best.offer(accuracy, step)
                stage.record(step, **losses._asdict(), accuracy=accuracy, **health.measure(step))
    best.restore()
    G.eval()
    say_warnings(log, task.class_names)


def iteration(
    C: nn.Module, G: Generator, D: Critic, A: Autoencoder, optimizers: Trio, prior: Prior, settings: UqganConfig
) -> Callable[[Images, Labels], Losses]:
    """The paper's iteration on a batch: five critic steps, one of the generator, five of the classifier."""
    opt_C, opt_G, opt_D = optimizers
    layout = block_layout(prior, settings.batch_size) if prior.is_cuda else None

    def iterate(x: Images, y: Labels) -> Losses:
        with torch.no_grad():
            z = A.encode(x, y)

        # max_D, Eq. 8: tell the codes of class y from the generated ones.
        z_fake = generate(G, y)
        for _ in range(settings.critic_steps):
            d_loss = critic_loss(D, z, z_fake, y, settings.lambda_gp)
            minimize(opt_D, d_loss)

        # min_G, Eq. 8: close to the class for D, outside it for C, on all its sides for L_R.
        with frozen(C, D):
            z_fake = G.train()(y)  # batch statistics here only; running ones above and below
            g_loss = (
                -D(z_fake, y).mean()
                + settings.lambda_cl * out_of_class_loss(C(A.decode(z_fake, y)), y)
                + settings.lambda_reg * spread_loss(z, z_fake, y, layout)
            )
            minimize(opt_G, g_loss)

        # min_C, Eq. 9: in-class on x, out-of-class on other classes and on x̃.
        with torch.no_grad():
            x_fake = A.decode(generate(G, y), y)
        for _ in range(settings.classifier_steps):
            real, fake = C(torch.cat([x, x_fake])).chunk(2)
            c_loss = classifier_loss(real, fake, y, prior, settings.lambda_real)
            minimize(opt_C, c_loss)
        return Losses(d_loss.detach(), g_loss.detach(), c_loss.detach())

    return iterate


@torch.no_grad()
def generate(G: Generator, y: Labels) -> Codes:
    """Codes to learn from, not through: running statistics, no gradient."""
    return cast(Tensor, G.eval()(y))


def fit_autoencoder(A: Autoencoder, task: Task, config: AutoencoderConfig, log: Log) -> None:
    """Eq. 6 on the in-distribution data; the weights of least validation loss are kept."""
    epoch_steps = task.train.steps_per_epoch(config.batch_size, drop_last=False)
    optimizer, best = adam(A.train()), Best(A)
    parts: Parts = {"A": A, "optimizer": optimizer, "best": best}
    stage = Stage(log, "autoencoder", config.epochs * epoch_steps, parts)
    batches = task.train.batches(config.batch_size, stage.steps, log.seed, drop_last=False, flip=task.flip)

    def train_step(x: Images, y: Labels) -> Scalar:
        loss = reconstruction_loss(A(x, y), x)
        minimize(optimizer, loss)
        return loss.detach()

    train_step = accelerate(train_step, task.train.x.device, log.say)
    with memory_advice("autoencoder.batch_size", config.batch_size):
        for step, (x, y) in zip(stage, batches, strict=False):
            epoch = step // epoch_steps
            falls = (4 * epoch >= config.epochs) + (2 * epoch >= config.epochs)
            set_lr(optimizer, config.lr * 0.1**falls)
            loss = train_step(x, y)
            if (step + 1) % epoch_steps == 0:
                validation = validate_autoencoder(A, task)
                best.offer(-validation, step)
                stage.record(step, reconstruction=loss, validation=validation)
    if log.stopped:
        raise Stopped(f"{log.stopped}, before there is a classifier ({stage.afterwards})")
    best.restore()


@torch.no_grad()
def validate_autoencoder(A: Autoencoder, task: Task) -> float:
    """Eq. 6 on the validation data, with the batch norm's running statistics."""
    A.eval()
    total = 0.0
    for images, y in zip(torch.split(task.validation.x, CHUNK), torch.split(task.validation.y, CHUNK), strict=True):
        x = as_input(images)
        total += float(reconstruction_loss(A(x, y), x)) * len(y)
    A.train()
    return total / len(task.validation)
