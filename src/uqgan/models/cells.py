"""A 5 × 5 convolution and max-pooling on cells of a few pixels: few channels become many, as processors like them.

An image of cells has a channel for each pixel of a cell and each channel of the image, in this order.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CellConv(nn.Conv2d):
    """A 5 × 5 convolution from cells to cells of the same size. The same function of the same weights.

    What comes out is ordered for pooling: four groups of channels, one for each pixel of 2 × 2.
    """

    def __init__(self, inputs: int, outputs: int, cell: int) -> None:
        super().__init__(inputs, outputs, 5)
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        kernel, bias = on_cells(self.weight, self.cell), self.bias.repeat(self.cell**2)
        if x.device.type != "cpu" or x.requires_grad:
            return F.conv2d(x, kernel, bias)
        size = kernel.shape[2]  # on a CPU one product is faster, if nothing flows back to the patches
        patches = x.permute(0, 2, 3, 1).unfold(1, size, 1).unfold(2, size, 1).permute(0, 1, 2, 4, 5, 3).flatten(3)
        return F.linear(patches, kernel.permute(0, 2, 3, 1).flatten(1), bias).permute(0, 3, 1, 2)


class CellMax(nn.Module):
    """The greatest of every 2 × 2 pixels, from `CellConv`'s to cells half as wide; of equal ones the first learns."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":  # there it melts into its neighbours when it is compiled
            return cast(Tensor, _Greatest.apply(*x.chunk(4, 1)))  # type: ignore[no-untyped-call]
        batch, channels, height, width = x.shape
        abreast = x.permute(0, 2, 3, 1).reshape(batch, height, 4 * width, channels // 4)
        return F.max_pool2d(abreast.permute(0, 3, 1, 2), (1, 4))


def as_cells(x: Tensor, cell: int) -> Tensor:
    """(batch, channels, height, width) to (batch, cell² · channels, height / cell, width / cell), channels last."""
    batch, channels, height, width = x.shape
    rows = x.permute(0, 2, 3, 1).reshape(batch, height // cell, cell, width // cell, cell, channels)
    return rows.transpose(2, 3).reshape(batch, height // cell, width // cell, cell**2 * channels).permute(0, 3, 1, 2)


def on_cells(kernel: Tensor, cell: int) -> Tensor:
    """A kernel, at each of the pixels of a cell, as one kernel of cells."""
    outputs, inputs, size, _ = kernel.shape
    wide = -(-(size + cell - 1) // cell)  # so many cells does a cell see
    before, after = wide * cell - size, cell - 1
    padded = F.pad(kernel, (before, after, before, after))
    places = padded.unfold(2, wide * cell, 1).unfold(3, wide * cell, 1).flip(2, 3)  # …, row, column, rows, columns seen
    # (outputs, inputs, row // 2, row % 2, column // 2, column % 2, cells down, row, cells across, column)
    halves = places.reshape(outputs, inputs, *(cell // 2, 2) * 2, *(wide, cell) * 2)
    ordered = halves.permute(3, 5, 2, 4, 0, 7, 9, 1, 6, 8)
    return ordered.reshape(cell**2 * outputs, cell**2 * inputs, wide, wide)


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
    """The gradient where the lead is positive, in one kernel."""
    return cast(Tensor, torch.ops.aten.threshold_backward(gradient, lead, 0))
