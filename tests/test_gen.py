"""GEN takes the steps that Sensoy et al. describe, and its evidence stays finite."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Dirichlet, Normal, kl_divergence
from torch.optim import Optimizer
from torch.testing import assert_close

import uqgan
from uqgan import training
from uqgan.config import load_config, parse
from uqgan.data.dataset import Dataset
from uqgan.data.tasks import Task, load_task
from uqgan.errors import UsageError
from uqgan.log import Log
from uqgan.losses import dirichlet_kl, standard_normal_kl, wrong_evidence_loss
from uqgan.methods import METHODS, confident, gen
from uqgan.methods.gen import KL_FACTOR, AuxiliaryNetworks, JointTraining, fit, networks
from uqgan.models.gen import code_discriminator, image_discriminator, make_autoencoder
from uqgan.uncertainty import LINEAR_FROM, concentration, evidence, read_dirichlet


def n_weights(net: nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())


@pytest.fixture
def joint() -> JointTraining:
    config = load_config("moons", overrides={"gen": {"dim": 3, "autoencoder_steps": 2, "lr": 5e-4}})
    return JointTraining(networks((2,), 3, config, 0.0, None), AuxiliaryNetworks((2,), config.gen), config, print)


@pytest.mark.parametrize(
    ("shape", "dim", "of_autoencoder", "of_generator", "of_codes", "of_images"),
    [
        ((1, 32, 32), 50, 1_601_440, 5_458, 3_777, 651_571),
        ((3, 32, 32), 50, 1_608_972, 5_458, 3_777, 652_571),
        ((3, 64, 64), 200, 7_152_291, 15_208, 8_577, 4_252_571),
    ],
)
def test_the_networks_have_the_sizes_of_the_rerun(
    shape: tuple[int, ...], dim: int, of_autoencoder: int, of_generator: int, of_codes: int, of_images: int
) -> None:
    auxiliary = AuxiliaryNetworks(shape, parse({"gen": {"dim": dim}}).gen)
    found = [n_weights(net) for net in (auxiliary.A, auxiliary.G, auxiliary.D_code, auxiliary.D_image)]
    assert found == [of_autoencoder, of_generator, of_codes, of_images]


@pytest.mark.parametrize("shape", [(2,), (1, 32, 32), (3, 32, 32), (1, 64, 64), (3, 64, 64)])
def test_codes_become_samples_again_which_both_discriminators_judge(shape: tuple[int, ...]) -> None:
    A, x = make_autoencoder(shape, 4, 8), torch.rand(3, *shape)
    loc, scale = A.encode(x)
    assert loc.shape == scale.shape == (3, 4)
    assert (scale > 0).all()
    made = A.decode(loc)
    assert made.shape == x.shape
    assert len(shape) == 1 or (made.amin() >= 0 and made.amax() <= 1)
    assert image_discriminator(shape)(made).shape == code_discriminator(4)(loc).shape == (3, 1)


def test_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match="image size = 48: GEN takes 32 or 64 pixels"):
        make_autoencoder((1, 48, 48), 4, 8)


def test_evidence_is_the_exponential_up_to_a_limit_and_grows_on_from_there() -> None:
    low = torch.linspace(-20, LINEAR_FROM, 50, dtype=torch.double)
    assert_close(evidence(low), low.exp())
    logits = torch.linspace(-1000, 1000, 4001, dtype=torch.double)
    values = evidence(logits)
    assert (values.diff() >= 0).all()
    assert (values[logits > -100].diff() > 0).all()
    around = torch.tensor([LINEAR_FROM - 1e-9, LINEAR_FROM, LINEAR_FROM + 1e-9], dtype=torch.double, requires_grad=True)
    (slope,) = torch.autograd.grad(evidence(around).sum(), around)
    assert_close(slope, slope[1].expand(3), rtol=1e-6, atol=0)


@given(seed=st.integers(0, 10**6), n_classes=st.integers(2, 100), size=st.floats(0, 6))
def test_the_divergence_of_dirichlets_is_that_of_torch(seed: int, n_classes: int, size: float) -> None:
    torch.manual_seed(seed)
    alpha = 1 + torch.rand(4, n_classes, dtype=torch.double) * 10**size
    expected = kl_divergence(Dirichlet(alpha), Dirichlet(torch.ones_like(alpha)))
    assert_close(dirichlet_kl(alpha), expected, rtol=1e-9, atol=1e-7)
    assert_close(dirichlet_kl(alpha.float()).double(), expected, rtol=1e-3, atol=1e-5)
    assert_close(dirichlet_kl(torch.ones(2, n_classes)), torch.zeros(2))


def test_a_single_wrong_class_has_nothing_to_diverge_from() -> None:
    assert_close(wrong_evidence_loss(torch.tensor([[7.0, 3e5]]), torch.tensor([0])), torch.tensor(0.0))


@given(seed=st.integers(0, 10**6))
def test_wrong_evidence_is_weighed_by_its_share_and_leaves_the_true_class_alone(seed: int) -> None:
    torch.manual_seed(seed)
    logits, y = torch.randn(6, 5, dtype=torch.double, requires_grad=True), torch.randint(5, (6,))
    alpha = concentration(logits)
    loss = wrong_evidence_loss(alpha, y)
    rows = [torch.cat([a[:k], a[k + 1 :]]) for a, k in zip(alpha, y, strict=True)]
    wrong = torch.stack(rows)
    share = 1 - (alpha[torch.arange(6), y] / alpha.sum(1)).mean()
    assert_close(loss, share * kl_divergence(Dirichlet(wrong), Dirichlet(torch.ones_like(wrong))).mean())
    (slope,) = torch.autograd.grad(loss, logits)
    assert (slope[torch.arange(6), y] == 0).all()


@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_objective_and_reading_are_finite_for_any_logits(size: float) -> None:
    logits = (size * torch.randn(8, 100).sign()).requires_grad_()
    loss = wrong_evidence_loss(concentration(logits), torch.randint(100, (8,)))
    (slope,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert slope.isfinite().all()
    assert slope.abs().max() < 1e3
    for one_sided in (logits, torch.full_like(logits, size), torch.full_like(logits, -size)):
        out = read_dirichlet(one_sided.detach()[None], torch.full((100,), 0.01))
        assert_close(out.probs.sum(1), torch.ones(8))
        assert out.epistemic.isfinite().all()


def test_without_evidence_all_classes_are_as_likely() -> None:
    out = read_dirichlet(torch.full((1, 2, 4), -50.0), torch.tensor([0.7, 0.1, 0.1, 0.1]))
    assert_close(out.probs, torch.full((2, 4), 0.25))
    assert_close(out.epistemic, torch.full((2,), 4.0).log())


def test_one_draw_repeated_reads_as_one_draw() -> None:
    logits, prior = torch.randn(1, 5, 3), torch.full((3,), 1 / 3)
    once, thrice = read_dirichlet(logits, prior), read_dirichlet(logits.expand(3, -1, -1), prior)
    assert_close(once.probs, thrice.probs)
    assert_close(once.epistemic, thrice.epistemic)


def test_the_divergence_of_codes_is_that_of_torch() -> None:
    loc, scale = torch.randn(5, 3), torch.rand(5, 3) + 0.1
    expected = kl_divergence(Normal(loc, scale), Normal(torch.zeros(3), torch.ones(3))).sum(1).mean()
    assert_close(standard_normal_kl(loc, scale), expected)


def test_the_objectives_are_those_of_the_paper(joint: JointTraining) -> None:
    x, x_fake, y = torch.randn(6, 2), torch.randn(6, 2), torch.randint(3, (6,))
    known, foreign = joint.C(x).sigmoid(), joint.C(x_fake).sigmoid()
    evidence_loss = wrong_evidence_loss(concentration(joint.C(x)), y)
    expected = -known[torch.arange(6), y].log().mean() - (1 - foreign).log().mean() + evidence_loss
    assert_close(joint.classifier_objective(x, x_fake, y), expected)
    z, z_fake = torch.randn(6, 3), torch.randn(6, 3)
    D = {name: net.forward for name, net in (("code", joint.D_code), ("image", joint.D_image))}
    on_codes = -D["code"](z).sigmoid().log().mean() - (1 - D["code"](z_fake).sigmoid()).log().mean()
    assert_close(joint.code_objective(z, z_fake), on_codes)
    on_images = -D["image"](x).sigmoid().log().mean() - (1 - D["image"](x_fake).sigmoid()).log().mean()
    assert_close(joint.image_objective(x, x_fake), on_images)

    torch.manual_seed(1)
    made = joint.G(z)
    fooled = -D["code"](made).sigmoid().log().mean() - (1 - D["image"](joint.A.decode(made)).sigmoid()).log().mean()
    torch.manual_seed(1)
    assert_close(joint.generator_objective(z), fooled)

    torch.manual_seed(1)
    loc, scale = joint.A.encode(x)
    codes = loc + scale * torch.randn_like(scale)
    told = (joint.A.decode(codes) - x).square().sum(1).mean() - (1 - D["code"](joint.G(codes)).sigmoid()).log().mean()
    torch.manual_seed(1)
    assert_close(joint.autoencoder_objective(x), told + KL_FACTOR * standard_normal_kl(loc, scale))


def test_each_phase_changes_its_own_network_alone(joint: JointTraining) -> None:
    x, y, z, z_fake = torch.randn(8, 2), torch.randint(3, (8,)), torch.randn(8, 3), torch.randn(8, 3)
    nets = {"C": joint.C, "A": joint.A, "G": joint.G, "D_code": joint.D_code, "D_image": joint.D_image}
    phases = {
        "C": lambda: joint.train_classifier(x, y),
        "A": lambda: joint.train_autoencoder(x),
        "D_code": lambda: joint.train_code_discriminator(z, z_fake),
        "D_image": lambda: joint.train_image_discriminator(x, z_fake),
        "G": lambda: joint.train_generator(z),
    }
    for name, train in phases.items():
        before = {key: [weight.detach().clone() for weight in net.parameters()] for key, net in nets.items()}
        for net in nets.values():
            net.zero_grad()
        train()
        for key, net in nets.items():
            pairs = zip(net.parameters(), before[key], strict=True)
            assert any(not torch.equal(a, b) for a, b in pairs) == (key == name)
            assert any(weight.grad is not None for weight in net.parameters()) == (key == name)


def test_each_network_has_the_papers_optimiser_and_number_of_steps(
    joint: JointTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    nets = {"C": joint.C, "A": joint.A, "G": joint.G, "D_code": joint.D_code, "D_image": joint.D_image}
    name_of = {next(net.parameters()): name for name, net in nets.items()}
    steps: list[tuple[str, str, float, float]] = []

    def watched(optimizer: Optimizer, loss: Tensor) -> None:
        (group,) = optimizer.param_groups
        kind, name = type(optimizer).__name__, name_of[group["params"][0]]
        steps.append((name, kind, group["lr"], group["weight_decay"]))
        training.minimize(optimizer, loss)

    monkeypatch.setattr(gen, "minimize", watched)
    joint.step(torch.randn(8, 2), torch.randint(3, (8,)))
    assert steps == [
        ("C", "Adam", 5e-4, 1e-3),
        *[("A", "Adam", 1e-3, 0.0)] * 2,
        ("D_code", "RMSprop", 1e-4, 2e-4),
        ("D_image", "RMSprop", 1e-4, 2e-4),
        ("G", "RMSprop", 1e-4, 0.0),
    ]


def blobs(n_classes: int, n: int) -> Dataset:
    """Points around as many places on a circle as there are classes."""
    y = torch.arange(n) % n_classes
    angle = 2 * torch.pi * y / n_classes
    return Dataset(3 * torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2), y)


@pytest.mark.parametrize("n_classes", [50, 100])
def test_many_classes_are_learnt_with_finite_losses(n_classes: int) -> None:
    names = tuple(str(k) for k in range(n_classes))
    task = replace(
        load_task("moons"), train=blobs(n_classes, 2000), validation=blobs(n_classes, 400), class_names=names
    )
    settings = {"epochs": 2, "batch_size": 64, "autoencoder_steps": 1, "dim": 4, "lr": 3e-3}
    log = Log()
    METHODS["gen-sensoy"].fit(task, load_config("moons", overrides={"fresh": True, "gen": settings}), log)
    assert log.rows[-1]["accuracy"] > 10 / n_classes  # and the log refuses what is not finite


@pytest.mark.parametrize(("n_classes", "shape"), [(100, (3, 32, 32)), (3, (1, 64, 64))])
def test_pictures_of_every_kind_can_be_trained_on(n_classes: int, shape: tuple[int, ...]) -> None:
    tree = {"classifier": "resnet", "autoencoder": {"kind": "resnet"}, "precision": "bf16"}
    config = parse(tree | {"gen": {"epochs": 1, "batch_size": 4, "width": 8, "dim": 5, "autoencoder_steps": 1}})
    pictures = Dataset(torch.randint(256, (6, *shape), dtype=torch.uint8), torch.randint(n_classes, (6,)))
    names = tuple(str(k) for k in range(n_classes))
    task = replace(load_task("moons"), train=pictures, validation=pictures, class_names=names)
    nets = networks(shape, n_classes, config, 0.0, None)
    nets.make_fast(config)
    log = Log()
    fit(nets, task, config, log, [])
    assert [row["step"] for row in log.rows] == [2]


SMALL = {
    "fresh": True,
    "confident": {"epochs": 3, "batch_size": 32, "width": 16},
    "gen": {"epochs": 3, "batch_size": 32, "width": 8, "dim": 4, "autoencoder_steps": 2},
}


def small_task(name: str) -> Task:
    task, few = load_task(name), torch.arange(97)  # three batches of 32 and one sample
    return replace(task, train=task.train[few], validation=task.validation[few[:20]])


class Killed(Exception):
    pass


@pytest.mark.parametrize("task", ["moons", "digits"])
@pytest.mark.parametrize(("method", "recipe"), [("confident", confident), ("gen-sensoy", gen)])
def test_a_run_killed_in_its_last_epoch_goes_on_to_the_same_bytes(
    method: str, recipe: object, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, config = small_task(task), load_config(task, overrides=SMALL)
    uqgan.fit(method, small, config=config, folder=tmp_path / "whole", device="cpu")
    monkeypatch.setattr(training, "SAVE_SECONDS", -1.0)
    validations: list[int] = []

    def killed(*arguments: object) -> float:
        validations.append(len(validations))
        if len(validations) == 3:
            raise Killed
        return training.accuracy_on(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as until_killed:
        until_killed.setattr(recipe, "accuracy_on", killed)
        with pytest.raises(Killed):
            uqgan.fit(method, small, config=config, folder=tmp_path / "killed", device="cpu")
    uqgan.fit(method, small, config=config, folder=tmp_path / "killed", device="cpu", resume=True)
    for file in ("weights.safetensors", "log.jsonl"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_the_autoencoder_learns_in_bf16_and_decodes_perturbed_codes_in_float32() -> None:
    networks_of_images = {"classifier": "lenet", "autoencoder": {"kind": "small"}}
    config = parse(networks_of_images | {"precision": "bf16", "gen": {"dim": 4, "width": 8}})
    auxiliary = AuxiliaryNetworks((1, 32, 32), config.gen)
    names = list(auxiliary.state_dict())
    auxiliary.make_fast(config)
    joint = JointTraining(networks((1, 32, 32), 3, config, 0.0, None), auxiliary, config, print)
    assert list(auxiliary.state_dict()) == names
    learning = list(joint.learning_A.parameters())
    assert all(one is other for one, other in zip(learning, joint.A.parameters(), strict=True))
    z = torch.rand(64, 4)
    nudged = z + 1e-4
    assert (joint.A.decode_logits(nudged) - joint.A.decode_logits(z)).abs().max() > 0
    exact, rough = joint.A.eval().decode_logits(z), joint.learning_A.eval().decode_logits(z)
    assert rough.dtype == exact.dtype == torch.float32
    assert 0 < (rough - exact).abs().max() < 0.05
    before = joint.A.encoder[0].weight.clone()
    joint.train_autoencoder(torch.rand(8, 1, 32, 32))
    assert not torch.equal(joint.A.encoder[0].weight, before)
