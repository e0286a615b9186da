from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from uqgan.errors import UsageError
from uqgan.models.autoencoders import make_autoencoder
from uqgan.models.classifiers import make_classifier
from uqgan.models.gan import Critic, Generator
from uqgan.models.layers import with_label, with_label_planes

MNIST, CIFAR, TINY = (1, 32, 32), (3, 32, 32), (3, 64, 64)


def size(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("kind", "shape", "n_classes", "expected"),
    [
        ("mlp", (2,), 2, 527_874),
        ("lenet", MNIST, 5, 61_281),
        ("resnet", CIFAR, 5, 700_933),
        ("resnet", CIFAR, 50, 793_138),
        ("resnet", TINY, 100, 3_263_844),
    ],
)
def test_classifiers_have_the_papers_sizes(kind: str, shape: tuple[int, ...], n_classes: int, expected: int) -> None:
    net = make_classifier(kind, shape, n_classes)
    assert size(net) == expected
    assert net(torch.rand(2, *shape)).shape == (2, n_classes)
    assert size(make_classifier(kind, shape, n_classes, 0.5)) == expected


@pytest.mark.parametrize(
    ("kind", "shape", "n_classes", "dim", "encoder", "decoder"),
    [
        ("small", MNIST, 5, 32, 151_360, 193_185),
        ("resnet", CIFAR, 5, 128, 954_400, 736_675),
        ("resnet", CIFAR, 50, 128, 967_360, 828_835),
        ("resnet", TINY, 100, 128, 3_407_360, 2_811_043),
    ],
)
def test_autoencoders_have_the_papers_sizes(
    kind: str, shape: tuple[int, ...], n_classes: int, dim: int, encoder: int, decoder: int
) -> None:
    A = make_autoencoder(kind, shape, n_classes, dim)
    assert (size(A.encoder), size(A.decoder)) == (encoder, decoder)  # type: ignore[arg-type]
    x, y = torch.rand(2, *shape), torch.tensor([0, n_classes - 1])
    z = A.encode(x, y)
    assert z.shape == (2, dim)
    assert A.decode(z, y).shape == x.shape
    assert 0 <= A.decode(z, y).min() <= A.decode(z, y).max() <= 1


@pytest.mark.parametrize(
    ("dim", "n_classes", "generator", "critic"),
    [
        (32, 5, 805_152, 545_281),
        (128, 5, 829_824, 594_433),
        (128, 50, 875_904, 617_473),
        (128, 100, 927_104, 643_073),
        (2, 2, 794_370, 528_385),
    ],
)
def test_generator_and_critic_have_the_papers_sizes(dim: int, n_classes: int, generator: int, critic: int) -> None:
    assert size(Generator(dim, n_classes, 128)) == generator
    assert size(Critic(dim, n_classes)) == critic


def test_dropout_stays_on_in_evaluation_and_none_is_deterministic() -> None:
    x = torch.rand(3, *MNIST)
    for p, changes in ((0.5, True), (0.0, False)):
        net = make_classifier("lenet", MNIST, 5, p).eval()
        assert torch.equal(net(x), net(x)) != changes


def test_labels_stand_behind_the_code_and_as_planes_behind_the_channels() -> None:
    y = torch.tensor([1, 0])
    assert_close(with_label(torch.zeros(2, 1), y, 2), torch.tensor([[0.0, 0, 1], [0, 1, 0]]))
    planes = with_label_planes(torch.zeros(2, 1, 2, 2), y, 2)
    assert planes.shape == (2, 3, 2, 2)
    assert (planes[0, 2] == 1).all()
    assert planes[0, :2].sum() == 0


def test_the_generator_draws_new_codes_each_time_for_the_requested_class() -> None:
    generator = Generator(2, 3, 8).eval()
    y = torch.tensor([0, 1, 2])
    assert not torch.equal(generator(y), generator(y))
    torch.manual_seed(0)
    first = generator(y)
    torch.manual_seed(0)
    other = generator(torch.tensor([0, 1, 0]))
    assert_close(first[:2], other[:2])
    assert not torch.equal(first[2], other[2])


def test_the_resnets_refuse_other_sizes_with_a_sentence() -> None:
    with pytest.raises(UsageError, match="image size = 48: the ResNets take 32 or 64 pixels"):
        make_classifier("resnet", (3, 48, 48), 5)


@pytest.mark.parametrize(("kind", "shape"), [("lenet", MNIST), ("resnet", CIFAR)])
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_networks_consist_of_plain_layers(kind: str, shape: tuple[int, ...], p: float) -> None:
    nets = make_classifier(kind, shape, 5, p), make_autoencoder("small" if kind == "lenet" else "resnet", shape, 5, 8)
    weighted = [layer for net in nets for layer in net.modules() if list(layer.parameters(recurse=False))]
    assert {type(layer).__module__.rpartition(".")[0] for layer in weighted} == {"torch.nn.modules"}


def test_lenet_drops_before_each_activation_and_not_after_its_last_layer() -> None:
    names = [type(layer).__name__ for layer in make_classifier("lenet", MNIST, 5, 0.5).children()]
    stage, hidden = ["Conv2d", "Dropout", "ReLU", "MaxPool2d"], ["Linear", "Dropout", "ReLU"]
    assert names == [*stage, *stage, "Flatten", *hidden, *hidden, "Linear"]


def test_the_resnet_drops_after_each_convolution_and_not_before_its_last_layer() -> None:
    def names(layers: Iterable[nn.Module]) -> list[str]:
        return [type(layer).__name__ for layer in layers]

    path, *head = make_classifier("resnet", CIFAR, 5, 0.5).children()
    assert names(path.children()) == ["Conv2d", "Dropout", *["DownBlock"] * 3]
    assert names(head) == ["Flatten", "Linear"]
    stage = ["LayerNorm", "LeakyReLU", "Conv2d", "Dropout"]
    for block in list(path.children())[2:]:
        assert names(block.shortcut) == ["AvgPool2d", "Conv2d", "Dropout"]
        assert names(block.main) == [*stage, *stage, "AvgPool2d"]
