"""A 5 × 5 convolution and max-pooling on cells of 2 × 2 pixels: few channels become many, which processors like."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CellConv(nn.Conv2d):
    """A 5 × 5 convolution, told as a 3 × 3 convolution from cells to cells.

    The channels that come out are four groups, one for each pixel of a cell. The same function of the same weights.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 5)

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        x, weight = as_cells(x), on_cells(self.weight)
        if x.is_cuda:
            more = -x.shape[1] % 8  # a GPU likes channels in eights
            x, weight = F.pad(x, (0, 0, 0, 0, 0, more)), F.pad(weight, (0, 0, 0, 0, 0, more))
        return F.conv2d(x, weight, self.bias.repeat(4))


class CellMax(nn.Module):
    """The greatest of the four pixels of every cell, as `CellConv` gives them; of equal ones the first learns."""

    def forward(self, x: Tensor) -> Tensor:
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
        ctx.save_for_backward(a - b, c - d, first - second)
        return torch.maximum(first, second)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        over_b, over_d, over_second = ctx.saved_tensors
        first = _where_ahead(upstream[0], over_second)
        second = upstream[0] - first
        a, c = _where_ahead(first, over_b), _where_ahead(second, over_d)
        return a, first - a, c, second - c


def _where_ahead(gradient: Tensor, lead: Tensor) -> Tensor:
    """The gradient where the lead is not negative. A CPU does this ten times as fast as `torch.where`."""
    limit = -torch.finfo(lead.dtype).tiny
    return cast(Tensor, torch.ops.aten.threshold_backward(gradient, lead, limit))
