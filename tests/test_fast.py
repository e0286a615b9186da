"""The quick layers compute what the plain ones do."""

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import uqgan.models
from uqgan.models import fast as room
from uqgan.models.autoencoders import make_autoencoder
from uqgan.models.classifiers import make_classifier
from uqgan.models.fast import (
    ChannelsLastNorm,
    ConvPool,
    HalfDropout,
    HalvingPool,
    TransposedConv,
    UpsampleConv,
    compiled_half_dropout_mask,
    fast,
    half_dropout_mask,
)
from uqgan.models.gen import make_autoencoder as make_variational_autoencoder
from uqgan.models.layers import DownBlock, Dropout, UpBlock

MNIST, CIFAR, TINY = (1, 32, 32), (3, 32, 32), (3, 64, 64)
CLASSIFIERS = [("mlp", (2,)), ("lenet", MNIST), ("resnet", CIFAR), ("resnet", TINY)]
AUTOENCODERS = [("small", MNIST), ("resnet", CIFAR), ("resnet", TINY)]


def both(net: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A network in float64 with random biases, and its quick copy in channels-last format."""
    net = net.double()
    for name, weight in net.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight, 0.0, 0.1)
    quick = deepcopy(net)
    fast(quick)
    return net, quick.to(memory_format=torch.channels_last)


def assert_same(plain: nn.Module, quick: nn.Module, *inputs: Tensor) -> None:
    """Equal outputs and gradients of all parameters and of the first input, in either memory format."""
    x, *rest = inputs
    results = []
    for net, memory_format in ((plain, torch.contiguous_format), (quick, torch.channels_last)):
        seen = x.contiguous(memory_format=memory_format) if x.ndim == 4 else x.clone()
        seen.requires_grad_()
        torch.manual_seed(5)
        out = net(seen, *rest)
        loss = (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum()
        grads = torch.autograd.grad(loss, [seen, *net.parameters()])
        results.append((out, grads))
    (out, grads), (quick_out, quick_grads) = results
    assert_close(quick_out, out)
    assert_close(quick_grads, grads)
    with torch.no_grad():
        torch.manual_seed(5)
        assert_close(quick(x, *rest), out)


@pytest.mark.parametrize(("kind", "shape"), CLASSIFIERS)
def test_a_quick_classifier_gives_the_same_logits_and_gradients(kind: str, shape: tuple[int, ...]) -> None:
    assert_same(*both(make_classifier(kind, shape, 5)), torch.rand(3, *shape, dtype=torch.double))


@pytest.mark.parametrize(("kind", "shape"), CLASSIFIERS)
def test_so_does_one_with_dropout_given_the_same_masks(
    kind: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def masked(self: nn.Module, x: Tensor) -> Tensor:  # depends on the place of an element, not on the memory format
        return x * (torch.arange(x.numel()).view(x.shape) % 3 > 0)

    monkeypatch.setattr(Dropout, "forward", masked)
    monkeypatch.setattr(HalfDropout, "forward", masked)
    plain, quick = both(make_classifier(kind, shape, 5, 0.5))
    assert sum(isinstance(module, HalfDropout) for module in quick.modules()) > 0
    assert_same(plain, quick, torch.rand(3, *shape, dtype=torch.double))


@pytest.mark.parametrize(("kind", "shape"), AUTOENCODERS)
@pytest.mark.parametrize("training", [True, False])
def test_a_quick_autoencoder_gives_the_same_reconstructions_and_gradients(
    kind: str, shape: tuple[int, ...], training: bool
) -> None:
    plain, quick = both(make_autoencoder(kind, shape, 5, 8))
    x, y = torch.rand(3, *shape, dtype=torch.double), torch.tensor([0, 4, 2])
    assert_same(plain.train(training), quick.train(training), x, y)


@pytest.mark.parametrize("shape", [CIFAR, TINY])
def test_a_quick_decoder_that_starts_from_one_pixel_gives_the_same_images_and_gradients(shape: tuple[int, ...]) -> None:
    decoder = make_variational_autoencoder(shape, dim=6, width=8).decoder
    assert_same(*both(decoder), torch.randn(3, 6, dtype=torch.double))


@pytest.mark.parametrize(
    ("shape", "products"),
    [({}, 1), ({"stride": 2}, 1), ({"padding": 1}, 0), ({"stride": 2, "output_padding": 1}, 0), ({"dilation": 2}, 0)],
)
def test_a_transposed_convolution_of_one_pixel_is_a_product_only_where_it_is_the_same(
    shape: dict[str, int], products: int
) -> None:
    plain, quick = both(nn.ConvTranspose2d(4, 6, 3, **shape))  # type: ignore[arg-type]
    assert_same(plain, quick, torch.randn(3, 4, 1, 1, dtype=torch.double))
    assert quick._is_product == bool(products)


def test_the_layers_that_gain_are_swapped_and_no_others() -> None:
    def swapped(net: nn.Module) -> dict[str, int]:
        fast(net)
        names = [type(module).__name__ for module in net.modules() if type(module).__module__ == room.__name__]
        return {name: names.count(name) for name in sorted(set(names))}

    assert swapped(make_classifier("lenet", MNIST, 5)) == {"HalvingPool": 2}
    assert swapped(make_classifier("lenet", MNIST, 5, 0.5)) == {"HalfDropout": 4, "HalvingPool": 2}
    assert swapped(make_classifier("mlp", (2,), 2, 0.3)) == {}
    assert swapped(make_classifier("resnet", CIFAR, 5)) == {"ChannelsLastNorm": 6, "ConvPool": 3}
    assert swapped(make_classifier("resnet", CIFAR, 5, 0.5)) == {"ChannelsLastNorm": 6, "HalfDropout": 10}
    assert swapped(make_autoencoder("small", MNIST, 5, 8)) == {"TransposedConv": 3}
    assert swapped(make_autoencoder("resnet", CIFAR, 5, 8)) == {
        "ChannelsLastNorm": 6,
        "ConvPool": 3,
        "UpsampleConv": 3,
    }


NETWORKS: list[Callable[[], nn.Module]] = [
    *(lambda kind=kind, shape=shape: make_classifier(kind, shape, 5, 0.5) for kind, shape in CLASSIFIERS[:3]),
    *(lambda kind=kind, shape=shape: make_classifier(kind, shape, 5) for kind, shape in CLASSIFIERS[:3]),
    *(lambda kind=kind, shape=shape: make_autoencoder(kind, shape, 5, 8) for kind, shape in AUTOENCODERS[:2]),
]


@pytest.mark.parametrize("make", NETWORKS)
def test_weights_keep_their_names_shapes_and_values_and_load_both_ways(make: Callable[[], nn.Module]) -> None:
    plain, other = make(), make()
    quick = deepcopy(plain)
    fast(quick)
    before, after = plain.state_dict(), quick.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    quick.load_state_dict(other.state_dict())
    plain.load_state_dict(quick.state_dict())
    assert all(torch.equal(plain.state_dict()[key], value) for key, value in other.state_dict().items())


@pytest.mark.parametrize("make", NETWORKS)
def test_a_second_call_changes_nothing(make: Callable[[], nn.Module]) -> None:
    net = make()
    fast(net)
    modules, layout = list(net.modules()), [weight.stride() for weight in net.parameters()]
    classes = [type(module) for module in modules]
    fast(net)
    assert list(net.modules()) == modules
    assert [type(module) for module in modules] == classes
    assert [weight.stride() for weight in net.parameters()] == layout


class UsersNet(nn.Module):
    """Layers that look like those of the blocks, used one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.LayerNorm([3, 8, 8]), nn.Conv2d(3, 5, 3, padding=1), nn.Identity(), nn.AvgPool2d(2)
        )
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(5, 4, 3, padding=1, padding_mode="reflect"))
        self.back = nn.ConvTranspose2d(4, 4, 3, 2, 1, groups=2)
        self.dilated = nn.Conv2d(4, 6, 3, dilation=2, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        norm, conv, _, pool = self.down
        x = conv(norm(x[:, None])[:, 0])  # images of one channel more than the norm knows
        x = x + x.mean() + self.up(pool(x)).mean()
        return self.dilated(self.back(self.up[1](x), output_size=[16, 16]))


def test_a_users_network_keeps_its_function() -> None:
    plain, quick = both(UsersNet())
    assert_same(plain, quick, torch.rand(2, 3, 8, 8, dtype=torch.double))


@pytest.mark.parametrize("compiling", [False, True])
def test_the_quick_norm_is_layer_norm_in_any_memory_format(compiling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    block = DownBlock(6, 8, 8)
    plain = block.main[0]
    nn.init.normal_(plain.weight)
    nn.init.normal_(plain.bias)
    x = 3 + 2 * torch.randn(4, 6, 8, 8)
    expected = plain(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    fast(block)
    quick = block.main[0]
    assert isinstance(quick, ChannelsLastNorm)
    assert quick.weight.permute(1, 2, 0).is_contiguous()
    for memory_format in (torch.contiguous_format, torch.channels_last):
        assert_close(quick(x.contiguous(memory_format=memory_format)), expected)
    assert quick(x.contiguous(memory_format=torch.channels_last)).is_contiguous(memory_format=torch.channels_last)


def test_the_quick_norm_predicts_in_bf16() -> None:
    block = DownBlock(6, 8, 8)
    nn.init.normal_(block.main[0].weight)
    x = 3 + 2 * torch.randn(4, 6, 8, 8)
    expected = block.main[0](x)
    fast(block)
    with torch.no_grad():
        found = block.main[0](x.bfloat16())
    assert found.dtype == torch.bfloat16
    assert_close(found.float(), expected, rtol=0.02, atol=0.05)


def test_a_transposed_convolution_gives_the_same_frozen_and_without_gradients() -> None:
    conv, x = nn.ConvTranspose2d(8, 6, 3, 2, 1, 1).bfloat16(), torch.randn(2, 8, 5, 5).bfloat16()
    fast(conv)
    assert isinstance(conv, TransposedConv)
    with torch.no_grad():
        expected = conv(x)
    assert torch.equal(conv.requires_grad_(False)(x), expected)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [(2, 2), (28, 28), (7, 10), (6, 5)])
def test_halving_pixels_gives_the_very_values_in_prediction_and_gradients_in_training(
    size: tuple[int, int], dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    plain = nn.MaxPool2d(2)
    quick = deepcopy(plain)
    fast(quick)
    assert type(quick) is HalvingPool
    x = torch.randn(3, 4, *size).to(dtype).contiguous(memory_format=memory_format)
    x[0, 0, 0, 0], x[0, 1, 0, 1] = torch.nan, torch.inf
    with torch.no_grad():
        assert_close(quick(x), plain(x), rtol=0, atol=0, equal_nan=True)
        assert_close(quick(x[0]), plain(x[0]), rtol=0, atol=0, equal_nan=True)
    tied = torch.zeros(1, 1, *size, requires_grad=True)
    (ours,), (theirs,) = (torch.autograd.grad(net(tied).sum(), tied) for net in (quick, plain))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("words", [{"kernel_size": 3}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}])
def test_other_poolings_stay_as_they_are(words: dict[str, Any]) -> None:
    pool = nn.MaxPool2d(**({"kernel_size": 2} | words))
    fast(pool)
    assert type(pool) is nn.MaxPool2d


@pytest.mark.parametrize("mask", [half_dropout_mask, compiled_half_dropout_mask])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_dropout_masks_are_fair_and_independent(
    mask: Callable[[Tensor], Tensor], memory_format: torch.memory_format
) -> None:
    drawn = mask(torch.zeros(8, 32, 16, 16).contiguous(memory_format=memory_format))
    assert set(drawn.unique().tolist()) == {0.0, 2.0}
    kept = drawn > 0
    assert abs(float(kept.float().mean()) - 0.5) < 0.01
    assert ((kept.float().mean((0, 2, 3)) - 0.5).abs() < 0.05).all(), "in each channel"
    for left, right in ((kept[:, :-1], kept[:, 1:]), (kept[..., :-1], kept[..., 1:]), (kept[:-1], kept[1:])):
        assert abs(float((left == right).float().mean()) - 0.5) < 0.01, "neighbours are independent"


@pytest.mark.parametrize("shape", [(3,), (5, 7), (2, 3, 4, 5), (0, 6, 2, 2)])
def test_dropout_masks_come_in_every_shape_and_layout(shape: tuple[int, ...]) -> None:
    for x in (torch.zeros(shape), torch.zeros(shape).transpose(0, -1), torch.zeros(*shape, 3)[..., 1]):
        mask = half_dropout_mask(x)
        assert (mask.shape, mask.stride()) == (x.shape, torch.empty_like(x).stride())
        assert set(mask.flatten().tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("quick", [False, True])
def test_dropout_drops_half_doubles_the_rest_and_repeats_with_its_seed(quick: bool) -> None:
    drop, x = Dropout(0.5).eval(), torch.rand(8, 6, 15, 13) + 1
    if quick:
        fast(drop)
        assert isinstance(drop, HalfDropout)
    torch.manual_seed(3)
    first = drop(x)
    kept = first != 0
    assert torch.equal(first[kept], 2 * x[kept])
    assert abs(float(kept.float().mean()) - 0.5) < 0.02
    torch.manual_seed(3)
    again = x.clone().requires_grad_()
    out = drop(again)
    assert torch.equal(out, first)
    out.sum().backward()
    assert torch.equal(again.grad, 2 * kept.float()), "no gradient where it dropped"


def test_compiled_dropout_takes_its_own_masks_for_multiples_of_16_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[torch.Size] = []

    def mask(x: Tensor) -> Tensor:
        drawn.append(x.shape)
        return x

    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(room, "compiled_half_dropout_mask", mask)
    drop = Dropout(0.5)
    fast(drop)
    for shape in ((2, 16, 4, 4), (2, 6, 4, 4), (2, 16)):
        drop(torch.ones(shape, device="meta"))
    assert drawn == [(2, 16, 4, 4)]


def test_blocks_merge_their_convolutions() -> None:
    for block, merged in ((DownBlock(8, 16, 8), ConvPool), (UpBlock(16, 8), UpsampleConv)):
        fast(block)
        assert sum(isinstance(layer, merged) for layer in block.main) == 1
        assert not any(isinstance(layer, nn.AvgPool2d | nn.Upsample) for layer in block.main)


def test_only_this_room_looks_at_the_device_or_the_compiler() -> None:
    looks = re.compile(r"device\.type|is_cuda|x\.device|torch\.compiler|autograd\.Function")
    files = list(Path(uqgan.models.__file__).parent.glob("*.py"))
    assert [file.stem for file in files if looks.search(file.read_text())] == ["fast"]
