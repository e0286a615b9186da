"""UQGAN: shield every class with generated out-of-class examples (paper, section 3.2).

C classifier · G generator · D critic · A autoencoder, pre-trained and frozen.
"""

import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from uqgan.acceleration import Aside, accelerate, compiled
from uqgan.config import Config
from uqgan.data.dataset import equal_chunks
from uqgan.data.tasks import Task
from uqgan.health import Health, say_warnings
from uqgan.log import Log
from uqgan.losses import (
    block_layout,
    classifier_loss,
    critic_loss,
    out_of_class_loss,
    spread_loss,
)
from uqgan.methods.method import Networks
from uqgan.models.autoencoders import Autoencoder, make_autoencoder
from uqgan.models.classifiers import make_classifier
from uqgan.models.gan import Critic, Generator, Shield
from uqgan.models.own import has_batch_norm
from uqgan.pretraining import pretrain
from uqgan.shapes import Codes, Images, Labels, Prior, Scalar
from uqgan.training import Best, Parts, Stage, accuracy_on, adam, decay, frozen, memory_advice, minimize, set_lr
from uqgan.uncertainty import posterior

GAN_BETAS = (0.0, 0.9)


class Losses(NamedTuple):
    critic: Scalar
    generator: Scalar
    classifier: Scalar


def networks(shape: tuple[int, ...], n_classes: int, config: Config, dropout: float, own: nn.Module | None) -> Networks:
    A = make_autoencoder(config.autoencoder.kind, shape, n_classes, config.autoencoder.dim)
    G = Generator(A.dim, n_classes, config.uqgan.noise)
    return Networks(make_classifier(config.classifier, shape, n_classes, dropout, own), Shield(G, A))


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Tensor | None) -> None:
    assert nets.shield is not None
    C, G, A = nets.classifier, nets.shield.generator, nets.shield.autoencoder
    if config.autoencoder.kind != "identity":
        pretrain(A, task, config, log)
    fit_jointly(C, G, A.eval().requires_grad_(False), task, config, log)


def fit_jointly(C: nn.Module, G: Generator, A: Autoencoder, task: Task, config: Config, log: Log) -> None:
    """Alternate between Eq. 8 for the critic, Eq. 8 for the generator, and Eq. 9 for the classifier."""
    settings, device = config.uqgan, task.train.x.device
    D = Critic(A.dim, task.n_classes).to(device)
    game = Game(C, G, D, A, task.train.class_frequencies(task.n_classes), config, log.say)
    iterate = accelerate(game.iterate, device, log.say)
    best = Best(C)
    parts: Parts = {"A": A, "C": C, "G": G, "D": D, "best": best, **game.optimizers}
    stage = Stage(log, "uqgan", settings.iterations, parts)
    codes, health = encode_all(A, task), Health(C, G, D, A, task, log.seed)
    and_one = range(stage.done, settings.iterations + 1)  # the critic is a batch ahead
    batches = pairwise(task.train.batches(settings.batch_size, and_one, log.seed, flip=task.flip))
    with memory_advice("uqgan.batch_size", settings.batch_size):
        for step, (now, then) in zip(stage, batches, strict=False):
            if step == 0:
                set_lr(game.opt_D, settings.gan_lr)
                game.train_critic(codes[now.view], now.y)
            set_lr(game.opt_C, decay(settings.lr, settings.end_lr, step, settings.iterations))
            for optimizer, at in ((game.opt_G, step), (game.opt_D, step + 1)):
                set_lr(optimizer, decay(settings.gan_lr, settings.gan_end_lr, at, settings.iterations))
            losses = iterate(now.x, now.y, codes[now.view], then.y, codes[then.view])
            if (step + 1) % settings.validate_every == 0 or step + 1 == settings.iterations:
                accuracy = accuracy_on(C, task.validation, partial(posterior, prior=game.prior))
                best.offer(accuracy, step)
                stage.record(step, **losses._asdict(), accuracy=accuracy, **health.measure(step))
    best.restore()
    G.eval()
    say_warnings(log, task.class_names)


class Game:
    """Critic, generator and classifier: each with its objective, in turn on the same batch.

    One iteration is a generator step, then the classifier's on the same batch and the critic's on the next,
    which may run side by side: neither writes what the other reads (both use G, in evaluation mode). The critic's
    first phase comes before the first iteration.
    """

    def __init__(
        self,
        C: nn.Module,
        G: Generator,
        D: Critic,
        A: Autoencoder,
        prior: Prior,
        config: Config,
        say: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.C, self.G, self.D, self.A = C, G.eval(), D, A
        self.prior, self.settings = prior, config.uqgan
        self.apart = has_batch_norm(C)  # it would mix real and generated samples
        self.layout = block_layout(prior, config.uqgan.batch_size) if prior.is_cuda else None
        one_kernel = config.compile == "always"
        self.opt_C = adam(C, one_kernel=one_kernel)
        self.opt_G = adam(G, GAN_BETAS, one_kernel=one_kernel)
        self.opt_D = adam(D, GAN_BETAS, one_kernel=one_kernel)
        for name in ("critic_objective", "generator_objective", "classifier_objective", "codes", "images"):
            setattr(self, name, compiled(getattr(self, name), prior.device, config.compiles, say))
        self.aside = Aside(prior.device)

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        return {"opt_C": self.opt_C, "opt_G": self.opt_G, "opt_D": self.opt_D}

    def iterate(self, x: Images, y: Labels, z: Codes, next_y: Labels, next_z: Codes) -> Losses:
        g_loss = self.train_generator(z, y)
        with self.aside:
            c_loss = self.train_classifier(x, self.images(y), y)
        d_loss = self.train_critic(next_z, next_y)
        self.aside.join()
        return Losses(d_loss, g_loss, c_loss)

    def train_critic(self, z: Codes, y: Labels) -> Scalar:
        z_fake = self.codes(y)
        for _ in range(self.settings.critic_steps):
            loss = self.critic_objective(z, z_fake, y)
            minimize(self.opt_D, loss)
        return loss.detach()

    def train_generator(self, z: Codes, y: Labels) -> Scalar:
        self.G.train()  # batch statistics here only; running ones in the other phases
        with frozen(self.C.eval(), self.D):
            loss = self.generator_objective(z, y)
            minimize(self.opt_G, loss)
        self.G.eval()
        return loss.detach()

    def train_classifier(self, x: Images, x_fake: Images, y: Labels) -> Scalar:
        self.C.train()
        for _ in range(self.settings.classifier_steps):
            loss = self.classifier_objective(x, x_fake, y)
            minimize(self.opt_C, loss)
        return loss.detach()

    def critic_objective(self, z: Codes, z_fake: Codes, y: Labels) -> Scalar:
        """max_D, Eq. 8: tell the codes of class y from the generated ones."""
        return critic_loss(self.D, z, z_fake, y, self.settings.lambda_gp)

    def generator_objective(self, z: Codes, y: Labels) -> Scalar:
        """min_G, Eq. 8: close to the class for D, outside it for C, on all its sides for L_R."""
        z_fake = self.G(y)
        x_fake = self.A.decode(z_fake, y)
        loss = -self.D(z_fake, y).mean() + self.settings.lambda_cl * out_of_class_loss(self.C(x_fake), y)
        if self.settings.lambda_reg:
            loss = loss + self.settings.lambda_reg * spread_loss(z, z_fake, y, self.layout)
        return cast(Tensor, loss)

    def classifier_objective(self, x: Images, x_fake: Images, y: Labels) -> Scalar:
        """min_C, Eq. 9: in-class on x, out-of-class on other classes and on x̃."""
        if self.apart:
            real, fake = self.C(x), self.C(x_fake)
        else:
            real, fake = self.C(torch.cat([x, x_fake])).chunk(2)
        return classifier_loss(real, fake, y, self.prior, self.settings.lambda_real)

    @torch.no_grad()
    def codes(self, y: Labels) -> Codes:
        """z̃ to learn from, not through."""
        return cast(Tensor, self.G(y))

    @torch.no_grad()
    def images(self, y: Labels) -> Images:
        """x̃ to learn from, not through."""
        return self.A.decode(self.G(y), y)


@torch.no_grad()
def encode_all(A: Autoencoder, task: Task) -> Codes:
    """The code of every training sample, then of its mirror image: A is frozen, so once is enough."""
    data = task.train
    views = [data.x, data.x.flip(3)] if task.flip else [data.x]
    chunks = [zip(equal_chunks(x), equal_chunks(data.y), strict=True) for x in views]
    return torch.cat([torch.cat([A.encode(x, y) for x, y in each])[: len(data)] for each in chunks])
