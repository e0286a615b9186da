"""A 5 × 5 convolution and max-pooling on cells of 2 × 2 pixels: few channels become many, which a CPU likes."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def by_cells(x: Tensor) -> bool:
    """Where it pays; other devices convolve and pool as usual."""
    return x.device.type == "cpu"


class CellConv(nn.Conv2d):
    """A 5 × 5 convolution, told as a 3 × 3 convolution from cells to cells; the image's sides must be even.

    Four times `outputs` channels come out, a group for each pixel of a cell. The same function of the same weights.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 5)

    def forward(self, x: Tensor) -> Tensor:
        if not by_cells(x):
            return super().forward(x)
        assert self.bias is not None
        return F.conv2d(as_cells(x), on_cells(self.weight), self.bias.repeat(4))


class CellMax(nn.Module):
    """The greatest of every 2 × 2 pixels, as `CellConv` gives them; of equal ones the first learns."""

    def forward(self, x: Tensor) -> Tensor:
        if not by_cells(x):
            return F.max_pool2d(x, 2)
        return cast(Tensor, _Greatest.apply(*x.chunk(4, 1)))  # type: ignore[no-untyped-call]


def as_cells(x: Tensor) -> Tensor:
    """(batch, channels, height, width) to (batch, 4 · channels, height / 2, width / 2), channels last in memory."""
    batch, channels, height, width = x.shape
    rows = x.permute(0, 2, 3, 1).reshape(batch, height // 2, 2, width // 2, 2, channels)
    return rows.transpose(2, 3).reshape(batch, height // 2, width // 2, 4 * channels).permute(0, 3, 1, 2)


def on_cells(kernel: Tensor) -> Tensor:
    """A 5 × 5 kernel, at each of the four pixels of a cell, as a 3 × 3 kernel of cells."""
    outputs, inputs, *_ = kernel.shape
    places = F.pad(kernel, (1, 1, 1, 1)).unfold(2, 6, 1).unfold(3, 6, 1)  # (outputs, inputs, 2, 2, 6, 6)
    cells = places.reshape(outputs, inputs, 2, 2, 3, 2, 3, 2)  # …, row of cells, row in it, the same of columns
    return cells.permute(2, 3, 0, 5, 7, 1, 4, 6).reshape(4 * outputs, 4 * inputs, 3, 3)


class _Greatest(torch.autograd.Function):
    """Of four tensors, by two rounds of two."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        first, second = torch.maximum(a, b), torch.maximum(c, d)
        ctx.save_for_backward(b - a, d - c, second - first)
        return torch.maximum(first, second)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        lead_of_b, lead_of_d, lead_of_second = ctx.saved_tensors
        second = _where_ahead(upstream[0], lead_of_second)
        first = upstream[0] - second
        b, d = _where_ahead(first, lead_of_b), _where_ahead(second, lead_of_d)
        return first - b, b, second - d, d


def _where_ahead(gradient: Tensor, lead: Tensor) -> Tensor:
    """The gradient where the lead is positive. On a CPU `torch.where` takes much longer for the same."""
    return cast(Tensor, torch.ops.aten.threshold_backward(gradient, lead, 0))
