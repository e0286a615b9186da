"""Faster layers that compute the same as a network's plain ones, swapped in place.

No layer elsewhere depends on the device or the compiler.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uqgan.models.layers import DownBlock, Dropout, UpBlock
from uqgan.shapes import Images

MASKS_BY_BYTE = 2 * (torch.arange(256)[:, None] >> torch.arange(8) & 1)
"""Eight elements of a dropout mask, 0 or 2, for each value of a random byte."""


def fast(net: nn.Module) -> None:
    """Swap layers of a network in place for equivalent faster ones: same function, same state-dict keys and shapes.

    Norms are swapped and adjacent layers fused only in the residual blocks, where the order of calls is known.
    """
    for module in net.modules():
        if type(module) is DownBlock:
            _swap_norms(module.main)
            _fuse_pooling(module.main)
        elif type(module) is UpBlock:
            _fuse_upsampling(module.main)
        elif type(module) is Dropout and module.p == 0.5:
            module.__class__ = HalfDropout
        elif type(module) is nn.ConvTranspose2d and module.bias is not None:
            module.__class__ = TransposedConv
        elif type(module) is nn.MaxPool2d and _halves(module):
            module.__class__ = HalvingPool


def _swap_norms(layers: nn.Sequential) -> None:
    for layer in layers:
        if type(layer) is nn.LayerNorm:
            layer.__class__ = ChannelsLastNorm
            for weight in layer.parameters():
                weight.data = weight.data.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _fuse_pooling(layers: nn.Sequential) -> None:
    """Fuse the last convolution with the pooling, unless dropout comes between them."""
    conv, between, pool = list(layers)[-3:]
    if type(conv) is nn.Conv2d and type(between) is nn.Identity and type(pool) is nn.AvgPool2d:
        conv.__class__ = ConvPool
        layers[-1] = nn.Identity()


def _fuse_upsampling(layers: nn.Sequential) -> None:
    for k, (upsample, conv) in enumerate(pairwise(layers)):
        if type(upsample) is nn.Upsample and type(conv) is nn.Conv2d:
            conv.__class__ = UpsampleConv
            layers[k] = nn.Identity()


class ChannelsLastNorm(nn.LayerNorm):
    """Layer norm over [channels, height, width] of images in channels-last format.

    `nn.LayerNorm` would convert the memory format and back. Here channels are the last axis of both images and weights,
    as they are in memory. The compiler gets the formula, which it fuses with adjacent layers.
    """

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            variance, mean = torch.var_mean(x.float(), dim=(1, 2, 3), correction=0, keepdim=True)
            normal = (x.float() - mean) * torch.rsqrt(variance + self.eps)
            return (normal * self.weight + self.bias).to(x.dtype)
        # bf16 is precise enough for predictions; training needs float32.
        dtype = torch.promote_types(x.dtype, torch.float32) if torch.is_grad_enabled() else x.dtype
        images, weight, bias = (each.to(dtype).movedim(-3, -1) for each in (x, self.weight, self.bias))
        with torch.autocast(x.device.type, enabled=False):  # autocast runs layer_norm in float32
            normal = F.layer_norm(images, images.shape[1:], weight, bias, self.eps)
        return normal.to(x.dtype).movedim(-1, -3)


class ConvPool(nn.Conv2d):
    """A 3 × 3 convolution and the mean of every 2 × 2 pixels, as one 4 × 4 convolution with stride 2.

    It needs fewer than half the multiplications, and no full-size intermediate image.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, _sum_of_shifts(self.weight) / 4, self.bias, stride=2, padding=1)


class UpsampleConv(nn.Conv2d):
    """Nearest-neighbour upsampling and a 3 × 3 convolution, as one transposed 4 × 4 convolution with stride 2."""

    def forward(self, x: Tensor) -> Tensor:
        kernel = _sum_of_shifts(self.weight.flip(2, 3)).transpose(0, 1)
        return F.conv_transpose2d(x, kernel, self.bias, stride=2, padding=1)


def _sum_of_shifts(kernel: Tensor) -> Tensor:
    """Sum of a 3 × 3 kernel at its four places within 4 × 4."""
    rows = F.pad(kernel, (0, 0, 0, 1)) + F.pad(kernel, (0, 0, 1, 0))
    return F.pad(rows, (0, 1)) + F.pad(rows, (1, 0))


class TransposedConv(nn.ConvTranspose2d):
    """A transposed convolution that adds its bias separately in CPU training, and is a matrix product for 1 × 1 inputs.

    On a CPU PyTorch takes longer for the gradient of that bias than for all other gradients. The memory format of 1 × 1
    images is ambiguous: on CUDA the weights' gradient comes in another one than the compiler expects.
    """

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        assert self.bias is not None
        assert isinstance(self.padding, tuple)
        if x.shape[2:] == (1, 1) and self._is_product:
            made: Tensor = (x.flatten(1) @ self.weight.flatten(1)).view(len(x), *self.weight.shape[1:])
            return made + self.bias[:, None, None]
        learns = torch.is_grad_enabled() and self.bias.requires_grad
        if x.device.type != "cpu" or not learns or output_size is not None:
            return super().forward(x, output_size)
        shape = self.stride, self.padding, self.output_padding, self.groups, self.dilation
        return F.conv_transpose2d(x, self.weight, None, *shape).add_(self.bias[:, None, None])

    @property
    def _is_product(self) -> bool:
        """Whether the output for a single pixel is its value times the kernel, whatever the stride."""
        return self.groups == 1 and not any((*self.padding, *self.output_padding)) and max(self.dilation) == 1


class HalvingPool(nn.MaxPool2d):
    """2 × 2 max-pooling; for prediction on a CPU as the maximum of adjacent rows, then columns.

    There `nn.MaxPool2d` takes most of a small network's time.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
            pooled: Tensor = super().forward(x)
            return pooled
        height, width = (size // 2 * 2 for size in x.shape[-2:])
        rows = torch.maximum(x[..., :height:2, :width], x[..., 1:height:2, :width])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


def _halves(pool: nn.MaxPool2d) -> bool:
    """Whether a layer is plain 2 × 2 max-pooling with stride 2."""
    shape = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    usual = all(each in (value, (value, value)) for each, value in zip(shape, (2, 2, 0, 1), strict=True))
    return usual and not pool.return_indices and not pool.ceil_mode


class HalfDropout(Dropout):
    """Dropout with p = 0.5 from one random bit per element; a random number per element costs more than a layer."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":
            return x * half_dropout_mask(x)
        if x.ndim == 4 and x.shape[1] % 16 == 0 and torch.compiler.is_compiling():
            return x * compiled_half_dropout_mask(x)
        return super().forward(x)


def half_dropout_mask(x: Tensor) -> Tensor:
    """Dropout mask of zeros and twos with x's shape, dtype and memory format: 64 elements per random number."""
    n = x.numel()
    words = torch.empty(-(-n // 64), dtype=torch.int64).random_(-(2**63), None)
    eights = MASKS_BY_BYTE.to(x.dtype).index_select(0, words.view(torch.uint8).int())
    return eights.flatten()[:n].as_strided(x.shape, torch.empty_like(x).stride())


def compiled_half_dropout_mask(x: Images) -> Tensor:
    """Dropout mask of zeros and twos, by operations that fuse into one GPU kernel: 16 elements per random number."""
    batch, channels, height, width = x.shape
    draw = torch.rand(batch, height, width, channels // 16, 1, device=x.device) * 2**16
    bits = draw.to(torch.int32) >> torch.arange(16, device=x.device, dtype=torch.int32) & 1
    return 2 * bits.reshape(batch, height, width, channels).permute(0, 3, 1, 2).to(x.dtype)
