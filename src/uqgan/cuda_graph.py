"""A training step captured as one CUDA graph, which the GPU replays without waiting for Python.

The step runs a few times as a warm-up, is then captured, and replayed from then on. It must therefore not branch on
values of its tensors, and its optimisers must keep all state on the device.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from uqgan.errors import first_line

T = TypeVar("T")
WARM_UP = 3
"""Number of ordinary training steps before the capture."""


class CapturedStep(Generic[T]):
    """A step with tensors at fixed addresses, replayed as one CUDA graph for the largest batch it gets."""

    def __init__(self, step: Callable[..., T], say: Callable[[str], None]) -> None:
        self.step, self.say = step, say
        self.warm_up, self.largest = WARM_UP, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> T:
        if len(inputs[0]) > self.largest:
            self.largest, self.warm_up, self.graph = len(inputs[0]), WARM_UP, None
        if len(inputs[0]) < self.largest:
            return self.step(*inputs)  # such as a smaller last batch
        if self.warm_up > 0:
            self.warm_up -= 1
            return self._on_side_stream(inputs)
        if self.warm_up == 0:
            self.warm_up -= 1
            self._capture(inputs)
        if self.graph is None:
            return self.step(*inputs)
        for static, new in zip(self.inputs, inputs, strict=True):
            static.copy_(new)
        self.graph.replay()
        return self.outputs

    def _on_side_stream(self, inputs: tuple[Tensor, ...]) -> T:
        """Run the step on a side stream, as the warm-up before a capture requires."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self.step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph):
                self.outputs = self.step(*self.inputs)
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # a failed capture leaves its stream current and its random state registered
            torch.cuda.synchronize()
            for generator in torch.cuda.default_generators:
                generator.graphsafe_set_state(generator.clone_state())
            self.say(f"this step runs without a CUDA graph: {first_line(error)}")
        else:
            self.graph = graph
