"""Pieces that several networks share: class conditioning, dropout that stays on, residual blocks."""

from itertools import pairwise, product
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uqgan.errors import UsageError
from uqgan.shapes import Codes, Images, Labels

SIDES = {32: 3, 64: 4}
"""Image sizes that the ResNets take, and how many blocks bring them to 4 × 4."""
COINS = 2 * (torch.arange(256)[:, None] >> torch.arange(8) & 1)
"""What the bits of a byte say, each a zero or a two."""


class Dropout(nn.Module):
    """Element-wise dropout in training and in prediction alike: what makes MC-dropout draws differ."""

    draws = True

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if self.p == 0.5 and x.device.type == "cpu":
            return x * flipped_coins(x)  # a random number for each element takes longer than the network
        if self.p == 0.5 and x.ndim == 4 and x.shape[1] % 16 == 0 and torch.compiler.is_compiling():
            return x * compiled_coins(x)  # a random number for each element takes as long as a convolution
        return F.dropout(x, self.p, training=True)


def draws(net: nn.Module) -> bool:
    """Whether a network says something else each time it is asked."""
    return any(getattr(module, "draws", False) for module in net.modules())


def flipped_coins(x: Tensor) -> Tensor:
    """Zeros and twos of x's shape, dtype and layout, each with probability one half: 64 from one random number."""
    n = x.numel()
    words = torch.empty(-(-n // 64), dtype=torch.int64).random_(-(2**63), None)
    eights = COINS.to(x.dtype).index_select(0, words.view(torch.uint8).int())
    return eights.flatten()[:n].as_strided(x.shape, torch.empty_like(x).stride())


def compiled_coins(x: Images) -> Tensor:
    """The same on a GPU, in operations that melt into one kernel: sixteen from one random number."""
    batch, channels, height, width = x.shape
    draw = torch.rand(batch, height, width, channels // 16, 1, device=x.device) * 2**16
    flips = draw.to(torch.int32) >> torch.arange(16, device=x.device, dtype=torch.int32) & 1
    return 2 * flips.reshape(batch, height, width, channels).permute(0, 3, 1, 2).to(x.dtype)


def dropout(p: float) -> nn.Module:
    """Dropout that stays on, or nothing at all."""
    return Dropout(p) if p > 0 else nn.Identity()


def with_label(z: Codes, y: Labels, n_classes: int) -> Tensor:
    """A code with its label behind it, one-hot."""
    return torch.cat([z, F.one_hot(y, n_classes).to(z.dtype)], 1)


def with_label_planes(x: Images, y: Labels, n_classes: int) -> Images:
    """An image with one constant plane a class behind its channels: 1 for its label, 0 for the others."""
    planes = F.one_hot(y, n_classes).to(x.dtype)[..., None, None]
    return torch.cat([x, planes.expand(-1, -1, *x.shape[2:])], 1)


class ImageNorm(nn.Module):
    """Layer norm over [channels, height, width] with a weight for each of their elements.

    `nn.LayerNorm` would copy channels-last images to and fro. Here channels are seen as the last axis, as they lie in
    memory, and the weights lie alike: a leading axis of 1 lets `Module.to(memory_format=...)` turn them. A compiler
    gets the formula, which it fuses with what stands before and behind.
    """

    def __init__(self, channels: int, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels, size, size))
        self.bias = nn.Parameter(torch.zeros(1, channels, size, size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            variance, mean = torch.var_mean(x.float(), dim=(1, 2, 3), correction=0, keepdim=True)
            normal = (x.float() - mean) * torch.rsqrt(variance + self.eps)
            return (normal * self.weight + self.bias).to(x.dtype)
        kind = torch.promote_types(x.dtype, torch.float32) if torch.is_grad_enabled() else x.dtype
        last, weight, bias = (each.to(kind).permute(0, 2, 3, 1) for each in (x, self.weight, self.bias))
        with torch.autocast(x.device.type, enabled=False):  # it would make all float32
            normal = F.layer_norm(last, last.shape[1:], weight[0], bias[0], self.eps)
        return normal.to(x.dtype).permute(0, 3, 1, 2)


class Conv(nn.Conv2d):
    """A 3 × 3 convolution of any number of channels; a GPU sees them in eights, filled up with zeros, as it likes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, 3, stride, padding=1)

    def in_eights(self, x: Tensor) -> bool:
        return x.is_cuda

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        if not self.in_eights(x):
            return super().forward(x)
        more_in, more_out = -self.in_channels % 8, -self.out_channels % 8
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, more_in, 0, more_out))
        x = F.pad(x, (0, 0, 0, 0, 0, more_in))
        return F.conv2d(x, weight, F.pad(self.bias, (0, more_out)), self.stride, 1)[:, : self.out_channels]


class ConvPool(nn.Conv2d):
    """A 3 × 3 convolution, then the mean of every 2 × 2 pixels: together one 4 × 4 convolution in steps of two.

    The same function of the same weights, with less than half the products and no image of full size between.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, _slid(self.weight) / 4, self.bias, stride=2, padding=1)


class UpConv(nn.Conv2d):
    """Every pixel doubled, then a 3 × 3 convolution: together one transposed 4 × 4 convolution in steps of two."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel = _slid(self.weight.flip(2, 3)).transpose(0, 1)
        return F.conv_transpose2d(x, kernel, stride=2, padding=1)


class TransposedConv(nn.ConvTranspose2d):
    """A transposed 3 × 3 convolution in steps of two.

    On a CPU its bias is learnt apart: PyTorch takes longer for that gradient than for all others.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        assert self.bias is not None
        if x.device.type != "cpu" or not (torch.is_grad_enabled() and self.bias.requires_grad):
            return super().forward(x)
        return F.conv_transpose2d(x, self.weight, None, 2, 1, 1).add_(self.bias[:, None, None])


class ToFewChannels(nn.ConvTranspose2d):
    """A transposed 3 × 3 convolution in steps of one, to one channel or a few: CPUs are slow at those."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        if x.device.type != "cpu" or x.dtype == torch.bfloat16:
            return super().forward(x)
        return cast(Tensor, _ToFewChannels.apply(x, self.weight, self.bias))  # type: ignore[no-untyped-call]


class _ToFewChannels(torch.autograd.Function):
    """One product for all nine taps, then nine shifted sums."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        height, width = x.shape[2:]
        taps = (weight.flatten(1).mT @ x.flatten(2)).reshape(len(x), *weight.shape[1:], height, width)
        total = bias[:, None, None].repeat(len(x), 1, height + 2, width + 2)
        for u, v in product(range(3), range(3)):
            total[..., u : u + height, v : v + width] += taps[:, :, u, v]
        return total[..., 1:-1, 1:-1].contiguous()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        steps, zeros, needed = (1, 1), (0, 0), ctx.needs_input_grad
        return cast(
            tuple[Tensor | None, ...],
            torch.ops.aten.convolution_backward(
                upstream[0], x, weight, [weight.shape[1]], steps, steps, steps, True, zeros, 1, needed
            ),
        )


def _slid(kernel: Tensor) -> Tensor:
    """The sum of a 3 × 3 kernel at the four places it can take in 4 × 4."""
    rows = F.pad(kernel, (0, 0, 0, 1)) + F.pad(kernel, (0, 0, 1, 0))
    return F.pad(rows, (0, 1)) + F.pad(rows, (1, 0))


class DownBlock(nn.Module):
    """Pre-activation residual block that halves the image (layer norm, leaky ReLU, average pooling)."""

    def __init__(self, inputs: int, outputs: int, size: int, p: float = 0.0) -> None:
        super().__init__()
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1), dropout(p))
        self.main = nn.Sequential(
            ImageNorm(inputs, size),
            nn.LeakyReLU(),
            nn.Conv2d(inputs, inputs, 3, padding=1, bias=False),
            dropout(p),
            ImageNorm(inputs, size),
            nn.LeakyReLU(),
            *conv_pool(inputs, outputs, p),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.shortcut(x) + self.main(x))


def conv_pool(inputs: int, outputs: int, p: float) -> list[nn.Module]:
    """A 3 × 3 convolution and pooling, with dropout between them if any."""
    if p > 0:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), dropout(p), nn.AvgPool2d(2)]
    return [ConvPool(inputs, outputs)]


class UpBlock(nn.Module):
    """Pre-activation residual block that doubles the image (batch norm, ReLU, nearest neighbour)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.Upsample(scale_factor=2))  # in any order
        self.main = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            UpConv(inputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.shortcut(x) + self.main(x))


def down_path(channels: int, size: int, p: float = 0.0) -> tuple[nn.Sequential, int]:
    """The stem and the blocks that bring an image to 4 × 4: width 32, doubled by each block but the last.

    Gives the number of channels at its end too.
    """
    if size not in SIDES:
        raise UsageError(f"image size = {size}: the ResNets take {' or '.join(map(str, SIDES))} pixels")
    widths = [32 * 2**k for k in range(SIDES[size])]
    widths.append(widths[-1])
    blocks = [DownBlock(a, b, size >> k, p) for k, (a, b) in enumerate(pairwise(widths))]
    path = nn.Sequential(Conv(channels, widths[0]), dropout(p), *blocks)
    path.apply(init_resnet)
    return path, widths[-1]


def init_resnet(module: nn.Module) -> None:
    """Kaiming for convolutions, Xavier for linear layers, norms near 1, no biases."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)
    elif isinstance(module, ImageNorm | nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
    if isinstance(getattr(module, "bias", None), Tensor):
        nn.init.zeros_(module.bias)  # type: ignore[arg-type]
