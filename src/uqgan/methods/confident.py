"""Confident Classifier: be undecided about samples that a GAN generates at the boundary of the data (Lee et al., 2018).

C classifier · G generator · D discriminator; only C is kept (decision 0018).
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from uqgan.acceleration import CompiledCalls, accelerate, adam, prepare
from uqgan.checkpoint import Best, Parts
from uqgan.config import Config
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.losses import cross_entropy_loss, fake_loss, real_loss, uniform_loss
from uqgan.models.dcgan import make_gan
from uqgan.networks import Networks, logits_of_both
from uqgan.networks import classifier_only as networks
from uqgan.shapes import Codes, Images, Labels, Scalar
from uqgan.training import Stage, accuracy_on, frozen, memory_advice, minimize, set_lr

__all__ = ["SETTINGS", "USES", "fit", "networks"]

SETTINGS: tuple[str, ...] = ("confident",)
USES: tuple[str, ...] = ()
GAN_BETAS = (0.5, 0.999)


class JointTraining:
    """Training of discriminator, generator and classifier, in this order on each batch, each by its own objective."""

    def __init__(self, nets: Networks, G: nn.Module, D: nn.Module, config: Config, say: Callable[[str], None]) -> None:
        self.C, self.G, self.D, self.settings = nets.classifier, G, D, config.confident
        self.call = CompiledCalls(next(G.parameters()).device, config.compiles, say)
        one_kernel = config.compile == "always"
        self.opt_C = adam(self.C, weight_decay=self.settings.weight_decay, one_kernel=one_kernel)
        self.opt_G = adam(G, GAN_BETAS, one_kernel=one_kernel)
        self.opt_D = adam(D, GAN_BETAS, one_kernel=one_kernel)

    def step(self, x: Images, y: Labels) -> dict[str, Scalar]:
        # Batch statistics in all phases, as in DCGAN; a single sample has none.
        self.G.train(len(x) > 1)
        self.D.train(len(x) > 1)
        return {
            "discriminator": self.train_discriminator(x),
            "generator": self.train_generator(x),
            "classifier": self.train_classifier(x, y),
        }

    def discriminator_objective(self, x: Images, x_fake: Images) -> Scalar:
        """min_D: distinguish real from generated samples; batch statistics are taken of each separately."""
        return real_loss(self.D(x)) + fake_loss(self.D(x_fake))

    def train_discriminator(self, x: Images) -> Scalar:
        loss = self.call(self.discriminator_objective, x, self.call(self.images, self.noise(x)))
        minimize(self.opt_D, loss)
        return loss.detach()

    def generator_objective(self, e: Codes) -> Scalar:
        """min_G: real to D, and at the boundary of the data, where C is undecided."""
        x_fake = self.G(e)
        return real_loss(self.D(x_fake)) + self.settings.beta * uniform_loss(self.C(x_fake))

    def train_generator(self, x: Images) -> Scalar:
        with frozen(self.C.eval(), self.D):
            loss = self.call(self.generator_objective, self.noise(x))
            minimize(self.opt_G, loss)
        return loss.detach()

    def classifier_objective(self, x: Images, x_fake: Images, y: Labels) -> Scalar:
        """min_C: right about x, undecided about x̃."""
        known, foreign = logits_of_both(self.C, x, x_fake)
        return cross_entropy_loss(known, y) + self.settings.beta * uniform_loss(foreign)

    def train_classifier(self, x: Images, y: Labels) -> Scalar:
        x_fake = self.call(self.images, self.noise(x))
        self.C.train()
        loss = self.call(self.classifier_objective, x, x_fake, y)
        minimize(self.opt_C, loss)
        return loss.detach()

    def noise(self, x: Images) -> Codes:
        """New noise, one row per sample of x."""
        return torch.randn(len(x), self.settings.noise, device=x.device)

    @torch.no_grad()
    def images(self, e: Codes) -> Images:
        """Generated samples, detached."""
        return cast(Tensor, self.G(e))

    def set_learning_rates(self, epoch: int) -> None:
        """A tenth of the initial rate after 60 % of the epochs."""
        falls = 10 * epoch >= 6 * self.settings.epochs
        for optimizer in (self.opt_C, self.opt_G, self.opt_D):
            set_lr(optimizer, self.settings.lr * 0.1**falls)


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Sequence[Tensor]) -> None:
    """Train the classifier together with a GAN, and keep its best weights."""
    settings, device, C = config.confident, task.train.x.device, nets.classifier
    G, D = (net.to(device) for net in make_gan(task.shape, settings.noise, settings.width))
    prepare(G, config.precision, "logits")  # pixels are float32, as statistics and losses are
    prepare(D, config.precision)
    joint, best = JointTraining(nets, G, D, config, log.say), Best(C)
    optimizers = {"opt_C": joint.opt_C, "opt_G": joint.opt_G, "opt_D": joint.opt_D}
    parts: Parts = {"C": C, "G": G, "D": D, "best": best, **optimizers}
    epoch_steps = task.train.steps_per_epoch(settings.batch_size, drop_last=False)
    stage = Stage(log, "confident", settings.epochs * epoch_steps, parts)
    batches = task.train.batches(settings.batch_size, stage.steps, log.seed, drop_last=False, flip=task.flip)
    train_step = accelerate(joint.step, device, log.say)
    with memory_advice("confident.batch_size", settings.batch_size):
        for step, (x, y, _) in zip(stage, batches, strict=False):
            joint.set_learning_rates(step // epoch_steps)
            losses = train_step(x, y)
            if (step + 1) % epoch_steps == 0:
                accuracy = accuracy_on(nets, task.validation, lambda logits: logits.softmax(-1))
                best.offer(accuracy, step)
                stage.record(step, **losses, accuracy=accuracy)
    best.restore()
