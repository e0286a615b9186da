"""GEN: evidence for the known classes, and none for samples decoded from perturbed codes (Sensoy et al., 2020).

C classifier · A variational autoencoder · G generator, which perturbs codes · D_code and D_image discriminators of
codes and of samples; only C is kept (decision 0019).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from uqgan.acceleration import CompiledCalls, accelerate, adam, in_precision, prepare, rmsprop
from uqgan.checkpoint import Best, Parts
from uqgan.config import Config, GenConfig
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.losses import (
    fake_loss,
    foreign_loss,
    in_class_loss,
    real_loss,
    squared_error_loss,
    standard_normal_kl,
    wrong_evidence_loss,
)
from uqgan.models.gen import CODERS, Perturbation, code_discriminator, image_discriminator, make_autoencoder
from uqgan.networks import Networks, logits_of_both
from uqgan.networks import classifier_only as networks
from uqgan.shapes import Codes, Images, Labels, Scalar
from uqgan.training import Stage, accuracy_on, frozen, memory_advice, minimize
from uqgan.uncertainty import concentration, expected_probs

__all__ = ["SETTINGS", "USES", "fit", "networks"]

SETTINGS: tuple[str, ...] = ("gen",)
USES: tuple[str, ...] = ()
KL_FACTOR = 0.1
"""Weight of KL(q(z|x)‖N(0, 1)) in the autoencoder's objective."""


class AuxiliaryNetworks(nn.Module):
    """Networks that are trained together with the classifier and discarded afterwards."""

    def __init__(self, shape: tuple[int, ...], settings: GenConfig) -> None:
        super().__init__()
        self.A = make_autoencoder(shape, settings.dim, settings.width)
        self.G = Perturbation(settings.dim)
        self.D_code, self.D_image = code_discriminator(settings.dim), image_discriminator(shape)

    def make_fast(self, config: Config) -> None:
        # Perturbed codes may differ by 0.001 only, which bf16 would round away.
        prepare(self.A, "fp32", *CODERS)
        prepare(self.D_image, config.precision)


class JointTraining:
    """Training of classifier, autoencoder, both discriminators and generator, in this order on each batch."""

    def __init__(self, nets: Networks, aux: AuxiliaryNetworks, config: Config, say: Callable[[str], None]) -> None:
        settings = self.settings = config.gen
        self.C, self.A, self.G = nets.classifier, aux.A.train(), aux.G
        self.D_code, self.D_image = aux.D_code, aux.D_image
        # A's own steps, which are most of the work, need no such precision.
        self.learning_A = in_precision(self.A, config.precision, *CODERS)
        self.call = CompiledCalls(next(aux.parameters()).device, config.compiles, say)
        one_kernel = config.compile == "always"
        self.opt_C = adam(self.C, lr=settings.lr, weight_decay=settings.weight_decay, one_kernel=one_kernel)
        self.opt_A = adam(self.A, lr=settings.autoencoder_lr, one_kernel=one_kernel)
        self.opt_code = rmsprop(self.D_code, settings.gan_lr, settings.gan_weight_decay)
        self.opt_image = rmsprop(self.D_image, settings.gan_lr, settings.gan_weight_decay)
        self.opt_G = rmsprop(self.G, settings.gan_lr)

    def step(self, x: Images, y: Labels) -> dict[str, Scalar]:
        classifier = self.train_classifier(x, y)
        autoencoder = self.train_autoencoder(x)
        z = self.call(self.codes, x)  # no later phase changes the autoencoder
        z_fake = self.call(self.perturbed, z)
        return {
            "classifier": classifier,
            "autoencoder": autoencoder,
            "code_discriminator": self.train_code_discriminator(z, z_fake),
            "image_discriminator": self.train_image_discriminator(x, z_fake),
            "generator": self.train_generator(z),
        }

    def classifier_objective(self, x: Images, x_fake: Images, y: Labels) -> Scalar:
        """min_C: evidence for the class of x, none for the other classes, and none for any class on x̃."""
        known, foreign = logits_of_both(self.C, x, x_fake)
        return in_class_loss(known, y) + foreign_loss(foreign) + wrong_evidence_loss(concentration(known), y)

    def train_classifier(self, x: Images, y: Labels) -> Scalar:
        x_fake = self.call(self.images, self.call(self.perturbed, self.call(self.codes, x)))
        self.C.train()
        loss = self.call(self.classifier_objective, x, x_fake, y)
        minimize(self.opt_C, loss)
        return loss.detach()

    def autoencoder_objective(self, x: Images) -> Scalar:
        """min_A: codes that reconstruct x, are distributed as N(0, 1), and differ from perturbed ones for D_code."""
        A = self.learning_A
        loc, scale = A.encode(x)
        z = loc + scale * torch.randn_like(scale)
        return (
            squared_error_loss(A.decode(z), x)
            + fake_loss(self.D_code(self.G(z)))
            + KL_FACTOR * standard_normal_kl(loc, scale)
        )

    def train_autoencoder(self, x: Images) -> Scalar:
        with frozen(self.G, self.D_code):
            for _ in range(self.settings.autoencoder_steps):
                loss = self.call(self.autoencoder_objective, x)
                minimize(self.opt_A, loss)
        return loss.detach()

    def code_objective(self, z: Codes, z_fake: Codes) -> Scalar:
        """min_D_code: distinguish codes from perturbed ones."""
        return real_loss(self.D_code(z)) + fake_loss(self.D_code(z_fake))

    def train_code_discriminator(self, z: Codes, z_fake: Codes) -> Scalar:
        loss = self.call(self.code_objective, z, z_fake)
        minimize(self.opt_code, loss)
        return loss.detach()

    def image_objective(self, x: Images, x_fake: Images) -> Scalar:
        """min_D_image: distinguish real samples from those decoded from perturbed codes."""
        return real_loss(self.D_image(x)) + fake_loss(self.D_image(x_fake))

    def train_image_discriminator(self, x: Images, z_fake: Codes) -> Scalar:
        loss = self.call(self.image_objective, x, self.call(self.images, z_fake))
        minimize(self.opt_image, loss)
        return loss.detach()

    def generator_objective(self, z: Codes) -> Scalar:
        """min_G: perturbed codes that are real to D_code, but whose samples are generated to D_image."""
        z_fake = self.G(z)
        return real_loss(self.D_code(z_fake)) + fake_loss(self.D_image(self.A.decode(z_fake)))

    def train_generator(self, z: Codes) -> Scalar:
        with frozen(self.A, self.D_code, self.D_image):
            loss = self.call(self.generator_objective, z)
            minimize(self.opt_G, loss)
        return loss.detach()

    @torch.no_grad()
    def codes(self, x: Images) -> Codes:
        """Codes sampled from q(z|x), detached."""
        loc, scale = self.A.encode(x)
        return loc + scale * torch.randn_like(scale)

    @torch.no_grad()
    def perturbed(self, z: Codes) -> Codes:
        """Perturbed codes, detached."""
        z_fake: Codes = self.G(z)
        return z_fake

    @torch.no_grad()
    def images(self, z: Codes) -> Images:
        """Samples decoded from codes, detached."""
        return self.A.decode(z)


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Sequence[Tensor]) -> None:
    """Train the classifier together with its auxiliary networks, and keep its best weights."""
    settings, device, C = config.gen, task.train.x.device, nets.classifier
    aux = AuxiliaryNetworks(task.shape, settings).to(device)
    aux.make_fast(config)
    joint, best = JointTraining(nets, aux, config, log.say), Best(C)
    gan_optimizers = {"opt_G": joint.opt_G, "opt_code": joint.opt_code, "opt_image": joint.opt_image}
    optimizers = {"opt_C": joint.opt_C, "opt_A": joint.opt_A, **gan_optimizers}
    parts: Parts = {"C": C, "auxiliary": aux, "best": best, **optimizers}
    epoch_steps = task.train.steps_per_epoch(settings.batch_size, drop_last=False)
    stage = Stage(log, "gen", settings.epochs * epoch_steps, parts)
    batches = task.train.batches(settings.batch_size, stage.steps, log.seed, drop_last=False, flip=task.flip)
    train_step = accelerate(joint.step, device, log.say)
    with memory_advice("gen.batch_size", settings.batch_size):
        for step, (x, y, _) in zip(stage, batches, strict=False):
            losses = train_step(x, y)
            if (step + 1) % epoch_steps == 0:
                accuracy = accuracy_on(nets, task.validation, expected_probs)
                best.offer(accuracy, step)
                stage.record(step, **losses, accuracy=accuracy)
    best.restore()
