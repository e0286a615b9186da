"""UQGAN: shield every class with generated out-of-class examples (paper, section 3.2).

C classifier · G generator · D critic · A autoencoder, pre-trained and frozen.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from uqgan.acceleration import CompiledCalls, adam, overlapped, prepare
from uqgan.checkpoint import Best, Parts
from uqgan.config import Config
from uqgan.data.dataset import equal_chunks
from uqgan.data.tasks import Task
from uqgan.health import Health, say_warnings
from uqgan.log import Log
from uqgan.losses import classifier_loss, critic_loss, out_of_class_loss
from uqgan.models.autoencoders import CODERS, Autoencoder, make_autoencoder
from uqgan.models.classifiers import make_classifier
from uqgan.models.gan import Critic, Generator
from uqgan.networks import Networks, logits_of_both
from uqgan.pretraining import pretrain
from uqgan.regulariser import REGULARISERS, block_layout
from uqgan.shapes import Codes, Images, Labels, Prior, Scalar
from uqgan.training import Stage, accuracy_on, decay, frozen, memory_advice, minimize, set_lr
from uqgan.uncertainty import posterior

SETTINGS: tuple[str, ...] = ("uqgan", "autoencoder")
USES: tuple[str, ...] = ("dropout",)
GAN_BETAS = (0.0, 0.9)


class ShieldedNetworks(Networks):
    """A classifier with the generator and the autoencoder that shield its classes."""

    def __init__(self, classifier: nn.Module, generator: Generator, autoencoder: Autoencoder) -> None:
        super().__init__(classifier)
        self.generator, self.autoencoder = generator, autoencoder

    def make_fast(self, config: Config) -> None:
        super().make_fast(config)
        prepare(self.autoencoder, config.precision, *CODERS)

    def generate(self, y: Labels) -> Images:
        return self.autoencoder.decode(self.generator(y), y)

    def reconstruct(self, x: Images, y: Labels) -> Images:
        return self.autoencoder.decode(self.autoencoder.encode(x, y), y)


def networks(
    shape: tuple[int, ...], n_classes: int, config: Config, dropout: float, user_classifier: nn.Module | None
) -> ShieldedNetworks:
    A = make_autoencoder(config.autoencoder.kind, shape, n_classes, config.autoencoder.dim)
    G = Generator(A.dim, n_classes, config.uqgan.noise, config.uqgan.generator_width)
    return ShieldedNetworks(make_classifier(config.classifier, shape, n_classes, dropout, user_classifier), G, A)


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Sequence[Tensor]) -> None:
    assert isinstance(nets, ShieldedNetworks)
    if config.autoencoder.kind != "identity":
        pretrain(nets.autoencoder, task, config, log)
    nets.autoencoder.eval().requires_grad_(False)
    fit_jointly(nets, task, config, log)


class JointTraining:
    """Training of critic, generator and classifier, in this order on each batch, each by its own objective."""

    def __init__(
        self, nets: ShieldedNetworks, D: Critic, prior: Prior, config: Config, say: Callable[[str], None]
    ) -> None:
        self.C, self.G, self.D, self.A = nets.classifier, nets.generator.eval(), D, nets.autoencoder
        self.prior, self.settings = prior, config.uqgan
        self.regulariser = REGULARISERS[config.uqgan.regulariser]
        self.layout = block_layout(prior, config.uqgan.batch_size) if prior.is_cuda else None
        self.call = CompiledCalls(prior.device, config.compiles, say)
        one_kernel = config.compile == "always"
        self.opt_C = adam(self.C, one_kernel=one_kernel)
        self.opt_G = adam(self.G, GAN_BETAS, one_kernel=one_kernel)
        self.opt_D = adam(self.D, GAN_BETAS, one_kernel=one_kernel)

    def critic_objective(self, z: Codes, z_fake: Codes, y: Labels) -> Scalar:
        """max_D, Eq. 8: distinguish the codes of class y from generated ones."""
        return critic_loss(self.D, z, z_fake, y, self.settings.lambda_gp)

    def train_critic(self, x: Images, y: Labels, z: Codes) -> Scalar:
        z_fake = self.call(self.codes, y)
        for _ in range(self.settings.critic_steps):
            loss = self.call(self.critic_objective, z, z_fake, y)
            minimize(self.opt_D, loss)
        return loss.detach()

    def generator_objective(self, z: Codes, y: Labels) -> Scalar:
        """min_G, Eq. 8: close to the class for D, outside it for C, in all directions for L_R."""
        z_fake = self.G(y)
        to_critic: Scalar = -self.D(z_fake, y).mean()
        to_classifier = out_of_class_loss(self.C(self.A.decode(z_fake, y)), y)
        to_all_sides = self.regulariser(z, z_fake, y, self.layout)
        return to_critic + self.settings.lambda_cl * to_classifier + self.settings.lambda_reg * to_all_sides

    def train_generator(self, x: Images, y: Labels, z: Codes) -> Scalar:
        self.G.train()  # batch statistics here only; running ones in the other phases
        with frozen(self.C.eval(), self.D):
            loss = self.call(self.generator_objective, z, y)
            minimize(self.opt_G, loss)
        self.G.eval()
        return loss.detach()

    def classifier_objective(self, x: Images, x_fake: Images, y: Labels) -> Scalar:
        """min_C, Eq. 9: in-class on x, out-of-class for the other classes and on x̃."""
        return classifier_loss(*logits_of_both(self.C, x, x_fake), y, self.prior, self.settings.lambda_real)

    def train_classifier(self, x: Images, y: Labels, z: Codes) -> Scalar:
        x_fake, x = self.call(self.images, y), self.real_images(x, y, z)
        self.C.train()
        for _ in range(self.settings.classifier_steps):
            loss = self.call(self.classifier_objective, x, x_fake, y)
            minimize(self.opt_C, loss)
        return loss.detach()

    @torch.no_grad()
    def codes(self, y: Labels) -> Codes:
        """Generated codes, detached."""
        return cast(Tensor, self.G(y))

    @torch.no_grad()
    def images(self, y: Labels) -> Images:
        """Generated samples, detached."""
        return self.A.decode(self.G(y), y)

    @torch.no_grad()
    def real_images(self, x: Images, y: Labels, z: Codes) -> Images:
        """Real samples, of which a share, `decoded_real`, is replaced by reconstructions."""
        n = round(self.settings.decoded_real * len(x))
        return torch.cat([self.A.decode(z[:n], y[:n]), x[n:]]) if n else x

    def set_learning_rates(self, step: int) -> None:
        """Linear decay. The critic is one batch ahead of the generator and the classifier (`overlapped`)."""
        s = self.settings
        set_lr(self.opt_C, decay(s.lr, s.end_lr, step, s.iterations))
        set_lr(self.opt_G, decay(s.gan_lr, s.gan_end_lr, step, s.iterations))
        set_lr(self.opt_D, decay(s.gan_lr, s.gan_end_lr, step + 1, s.iterations))


class CodedBatch(NamedTuple):
    """Samples, their classes, and their codes."""

    x: Images
    y: Labels
    z: Codes


def fit_jointly(nets: ShieldedNetworks, task: Task, config: Config, log: Log) -> None:
    """Alternate between Eq. 8 for the critic, Eq. 8 for the generator, and Eq. 9 for the classifier."""
    settings, device = config.uqgan, task.train.x.device
    C, G, A = nets.classifier, nets.generator, nets.autoencoder
    D = Critic(A.dim, task.n_classes).to(device)
    prior = task.train.class_frequencies(task.n_classes)
    joint = JointTraining(nets, D, prior, config, log.say)
    best = Best(C)
    optimizers = {"opt_C": joint.opt_C, "opt_G": joint.opt_G, "opt_D": joint.opt_D}
    parts: Parts = {"A": A, "C": C, "G": G, "D": D, "best": best, **optimizers}
    stage = Stage(log, "uqgan", settings.iterations, parts)
    iterate = overlapped(joint.train_critic, joint.train_generator, joint.train_classifier, device, log.say)
    codes, health = encode_all(A, task), Health(C, G, D, A, task, log.seed)
    and_one = range(stage.done, settings.iterations + 1)
    batches = task.train.batches(settings.batch_size, and_one, log.seed, flip=task.flip)
    coded = (CodedBatch(x, y, codes[view]) for x, y, view in batches)
    with memory_advice("uqgan.batch_size", settings.batch_size):
        for step, (batch, following) in zip(stage, pairwise(coded), strict=False):
            if step == 0:
                joint.set_learning_rates(-1)
                joint.train_critic(*batch)
            joint.set_learning_rates(step)
            critic, generator, classifier = iterate(batch, following)
            if (step + 1) % settings.validate_every == 0 or step + 1 == settings.iterations:
                accuracy = accuracy_on(nets, task.validation, partial(posterior, prior=prior))
                best.offer(accuracy, step)
                losses = {"critic": critic, "generator": generator, "classifier": classifier}
                stage.record(step, **losses, accuracy=accuracy, **health.measure(step))
    best.restore()
    nets.eval()
    say_warnings(log, task.class_names)


@torch.no_grad()
def encode_all(A: Autoencoder, task: Task) -> Codes:
    """Codes of all training samples, then of their mirror images, computed once as A is frozen."""
    data = task.train
    views = [data.x, data.x.flip(3)] if task.flip else [data.x]
    chunks = [zip(equal_chunks(x), equal_chunks(data.y), strict=True) for x in views]
    return torch.cat([torch.cat([A.encode(x, y) for x, y in each])[: len(data)] for each in chunks])
