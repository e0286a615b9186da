from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from uqgan.errors import UsageError
from uqgan.models.autoencoders import AUTOENCODERS, make_autoencoder
from uqgan.models.cells import CellConv, CellMax, _Greatest, as_cells
from uqgan.models.classifiers import make_classifier
from uqgan.models.gan import Critic, Generator, Shield
from uqgan.models.layers import (
    Conv,
    ConvPool,
    Dropout,
    ImageNorm,
    ToFewChannels,
    TransposedConv,
    UpConv,
    compiled_coins,
    flipped_coins,
    with_label,
    with_label_planes,
)

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


@pytest.mark.parametrize("compiling", [False, True])
def test_the_image_norm_has_the_values_of_layer_norm_in_any_memory_format(
    compiling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    ours, theirs = ImageNorm(6, 8), nn.LayerNorm([6, 8, 8])
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    theirs.load_state_dict({key: value[0] for key, value in ours.state_dict().items()})
    x = 3 + 2 * torch.randn(4, 6, 8, 8)
    assert_close(ours(x), theirs(x))
    turned = ours.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    assert_close(turned, theirs(x))
    assert turned.is_contiguous(memory_format=torch.channels_last)
    assert ours.weight.is_contiguous(memory_format=torch.channels_last)


def test_an_image_norm_that_only_predicts_comes_close_in_bf16() -> None:
    norm = ImageNorm(6, 8)
    nn.init.normal_(norm.weight)
    x = 3 + 2 * torch.randn(4, 6, 8, 8)
    expected = norm(x)
    with torch.no_grad():
        found = norm(x.bfloat16())
    assert found.dtype == torch.bfloat16
    assert_close(found.float(), expected, rtol=0.02, atol=0.05)


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


def test_the_generator_draws_new_codes_each_time_for_the_class_asked_for() -> None:
    shield = Shield(Generator(2, 3, 8), AUTOENCODERS["identity"]((2,), 3, 2)).eval()
    y = torch.tensor([0, 1, 2])
    assert not torch.equal(shield(y), shield(y))
    torch.manual_seed(0)
    first = shield(y)
    torch.manual_seed(0)
    other = shield(torch.tensor([0, 1, 0]))
    assert_close(first[:2], other[:2])
    assert not torch.equal(first[2], other[2])


def test_the_resnets_refuse_other_sizes_with_a_sentence() -> None:
    with pytest.raises(UsageError, match="image size = 48: the ResNets take 32 or 64 pixels"):
        make_classifier("resnet", (3, 48, 48), 5)


def test_dropout_drops_half_doubles_the_rest_and_repeats_with_its_seed() -> None:
    drop, x = Dropout(0.5), torch.rand(8, 6, 15, 13) + 1
    torch.manual_seed(3)
    first = drop(x)
    kept = first != 0
    assert torch.equal(first[kept], 2 * x[kept])
    assert abs(float(kept.float().mean()) - 0.5) < 0.02
    torch.manual_seed(3)
    assert torch.equal(drop(x), first)
    torch.manual_seed(3)
    again = x.clone().requires_grad_()
    drop(again).sum().backward()
    assert torch.equal(again.grad, 2 * kept.float()), "what was dropped learns nothing"


@pytest.mark.parametrize("coins", [flipped_coins, compiled_coins])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_coins_are_fair_and_independent(
    coins: Callable[[torch.Tensor], torch.Tensor], memory_format: torch.memory_format
) -> None:
    x = torch.zeros(8, 32, 16, 16).contiguous(memory_format=memory_format)
    torch.manual_seed(0)
    flips = coins(x)
    assert set(flips.unique().tolist()) == {0.0, 2.0}
    kept = flips > 0
    assert abs(float(kept.float().mean()) - 0.5) < 0.01
    assert ((kept.float().mean((0, 2, 3)) - 0.5).abs() < 0.05).all(), "each channel on its own"
    for left, right in ((kept[:, :-1], kept[:, 1:]), (kept[..., :-1], kept[..., 1:]), (kept[:-1], kept[1:])):
        assert abs(float((left == right).float().mean()) - 0.5) < 0.01, "neighbours know nothing of each other"


@pytest.mark.parametrize("shape", [(3,), (5, 7), (2, 3, 4, 5), (0, 6, 2, 2)])
def test_coins_come_in_every_shape_and_layout(shape: tuple[int, ...]) -> None:
    for x in (torch.zeros(shape), torch.zeros(shape).transpose(0, -1), torch.zeros(*shape, 3)[..., 1]):
        flips = flipped_coins(x)
        assert (flips.shape, flips.stride()) == (x.shape, torch.empty_like(x).stride())
        assert set(flips.flatten().tolist()) <= {0.0, 2.0}


def test_a_compiled_dropout_takes_coins_in_sixteens(monkeypatch: pytest.MonkeyPatch) -> None:
    flipped: list[torch.Size] = []

    def coins(x: torch.Tensor) -> torch.Tensor:
        flipped.append(x.shape)
        return x

    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr("uqgan.models.layers.compiled_coins", coins)
    for shape in ((2, 16, 4, 4), (2, 6, 4, 4), (2, 16)):
        Dropout(0.5)(torch.ones(shape, device="meta"))
    assert flipped == [(2, 16, 4, 4)]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("cell", [2, 4])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 6), (3, 6), (6, 16)])
def test_a_convolution_of_cells_is_the_plain_one_with_its_pooling(
    inputs: int, outputs: int, cell: int, memory_format: torch.memory_format
) -> None:
    cells, plain = CellConv(inputs, outputs, cell).double(), nn.Conv2d(inputs, outputs, 5).double()
    plain.load_state_dict(cells.state_dict())
    x = torch.randn(3, inputs, 20, 12, dtype=torch.double).contiguous(memory_format=memory_format).requires_grad_()
    ours, theirs = CellMax()(cells(as_cells(x, cell))), torch.nn.functional.max_pool2d(plain(x), 2)
    assert_close(ours, as_cells(theirs, cell // 2))
    found, expected = (
        torch.autograd.grad(y.square().sum(), [x, *net.parameters()]) for y, net in ((ours, cells), (theirs, plain))
    )
    assert_close(found, expected)
    by_patches = CellMax()(cells(as_cells(x.detach(), cell)))
    assert_close(by_patches, ours)
    assert_close(torch.autograd.grad(by_patches.square().sum(), cells.parameters()), expected[1:])


def on_a_gpu(x: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, _Greatest.apply(*x.chunk(4, 1)))  # type: ignore[no-untyped-call]


def test_pooled_cells_are_the_same_on_every_device() -> None:
    x = torch.randint(3, (5, 24, 4, 3)).double().requires_grad_()
    here, there = CellMax()(x), on_a_gpu(x)
    assert torch.equal(here, there)
    found, expected = (torch.autograd.grad(y.square().sum(), x) for y in (here, there))
    assert_close(found, expected)


@pytest.mark.parametrize("pool", [CellMax(), on_a_gpu])
def test_of_equal_pixels_of_a_cell_one_alone_learns(pool: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.zeros(1, 8, 1, 1, requires_grad=True)
    pool(x).sum().backward()
    assert x.grad is not None
    assert_close(x.grad.reshape(4, 2), torch.tensor([[1.0, 1.0], [0, 0], [0, 0], [0, 0]]))


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 6), (3, 8), (6, 16)])
def test_pooling_and_doubling_in_one_convolution_change_no_value(inputs: int, outputs: int) -> None:
    x = torch.randn(2, inputs, 8, 8, dtype=torch.double)
    down, up = ConvPool(inputs, outputs).double(), UpConv(inputs, outputs).double()
    plain = nn.Conv2d(inputs, outputs, 3, padding=1).double()
    plain.load_state_dict(down.state_dict())
    assert_close(down(x), torch.nn.functional.avg_pool2d(plain(x), 2))
    plain = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False).double()
    plain.load_state_dict(up.state_dict())
    assert_close(up(x), plain(torch.nn.functional.interpolate(x, scale_factor=2)))


def test_channels_in_eights_change_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x = Conv(3, 5, stride=2), torch.randn(2, 3, 9, 9)
    expected = conv(x)
    monkeypatch.setattr(Conv, "in_eights", lambda *_: True)
    assert_close(conv(x), expected)


LIKE_TORCH = [
    lambda: (ToFewChannels(8, 1), nn.ConvTranspose2d(8, 1, 3, padding=1)),
    lambda: (ToFewChannels(8, 3), nn.ConvTranspose2d(8, 3, 3, padding=1)),
    lambda: (TransposedConv(8, 6), nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1)),
]


@pytest.mark.parametrize("pair", LIKE_TORCH)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_transposed_convolutions_are_those_of_torch(
    pair: Callable[[], tuple[nn.Module, nn.Module]], memory_format: torch.memory_format
) -> None:
    ours, plain = (net.double() for net in pair())
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(2, 8, 6, 5, dtype=torch.double).contiguous(memory_format=memory_format).requires_grad_()
    assert_close(ours(x), plain(x))
    found, expected = (torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()]) for net in (ours, plain))
    assert_close(found, expected)


def test_a_transposed_convolution_says_the_same_frozen_and_without_gradients() -> None:
    conv, x = TransposedConv(8, 6).bfloat16(), torch.randn(2, 8, 5, 5).bfloat16()
    with torch.no_grad():
        loaded = conv(x)
    assert torch.equal(conv.requires_grad_(False)(x), loaded)


def test_lenet_on_cells_is_lenet() -> None:
    net = make_classifier("lenet", MNIST, 5)
    plain = nn.Sequential(
        *(
            nn.Conv2d(1, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        ),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 5)),
    )
    plain.load_state_dict(dict(zip(plain.state_dict(), net.state_dict().values(), strict=True)))
    x = torch.rand(4, *MNIST)
    assert_close(net(x), plain(x))
