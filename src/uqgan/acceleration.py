"""Where a step runs fast: device, bf16, channels-last, compiled objectives, and one CUDA graph an iteration.

A recipe stays as it is. Its networks are prepared in place, its objectives and its step are wrapped:

- convolutional networks run channels-last, in bf16 where the hardware has it; what they give back is
  float32, so losses, readings and the gradient penalty are;
- on CUDA an objective is compiled with the networks in it, forward and backward;
- on CUDA the step runs a few times to warm up, is then captured as one graph, and replayed from there on.
  For that it must not look at the values of its tensors, and its optimisers keep all state on the device.
  Two parts of a step that share nothing may stand side by side in the graph.
"""

import ctypes
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from uqgan.errors import UsageError

T = TypeVar("T")
Precision = Literal["auto", "bf16", "fp32"]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt."""
WARM_UP = 3
"""Steps before the capture; they train like all others."""


def choose_device(name: str = "auto") -> torch.device:
    """`auto` takes the fastest there is."""
    available: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there()))
    kind = name.partition(":")[0]
    if kind not in available:
        raise UsageError(f"device = {name}: must be auto, cpu, cuda or mps")
    if not available[kind]():
        raise UsageError(f"device = {name}: there is none on this machine (take auto or cpu)")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UsageError(f"device = {name}: must be auto, cpu, cuda or mps") from None


def prepare(net: nn.Module, precision: Precision = "auto", *names: str) -> None:
    """Make a network's methods (`forward` if none is named) run fast, in place.

    Networks without convolutions are left as they are: they are small, and some must be float32.
    """
    if not any(isinstance(module, nn.Conv2d | nn.ConvTranspose2d) for module in net.modules()):
        return
    device = next(net.parameters()).device
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for name in names or ("forward",):
        setattr(net, name, _lowered(getattr(net, name), device, precision))


def compiled(function: Callable[..., T], device: torch.device, on: bool = True) -> Callable[..., T]:
    """The same function, compiled on CUDA; on a CPU that gains nothing.

    It is compiled for the shapes of its first call. Others, such as a last, smaller batch, run as they
    are: to compile for them would take longer than it saves.
    """
    if not on or device.type != "cuda":
        return function
    fast, first = compile_often(function), list[torch.Size]()

    def run(*inputs: Tensor) -> T:
        shapes = [tensor.shape for tensor in inputs]
        first.extend(shapes if not first else ())
        return fast(*inputs) if shapes == first else function(*inputs)

    return run


def compile_often(function: Callable[..., T]) -> Callable[..., T]:
    """`torch.compile` for functions that are made anew for each run in a process: it must not give up on them."""
    torch._dynamo.config.recompile_limit = 512
    return torch.compile(function, dynamic=False)


def has_bf16(device: torch.device) -> bool:
    """Whether the hardware computes in bf16, rather than only storing it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported") if device.type == "cpu" else ()
    return any(getattr(torch.cpu, name, bool)() for name in asked)


def keep_freed_memory() -> None:
    """On a CPU under Linux: freed tensors stay with the process. Asking for them anew each step takes a third of it."""
    if sys.platform != "linux":
        return
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):  # glibc
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            allocator.mallopt(option, 2**31 - 1)


def _lowered(method: Callable[..., Tensor], device: torch.device, precision: Precision) -> Callable[..., Tensor]:
    bf16 = precision == "bf16" or (precision == "auto" and has_bf16(device))

    def run(x: Tensor, *rest: Tensor) -> Tensor:
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return method(x, *rest).float()

    return run


class Aside:
    """Work that may run beside what comes after it: on CUDA on a second stream, until it is joined.

        with aside: ...
        ...
        aside.join()

    What the second stream reads must be kept until then.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __enter__(self) -> None:
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream())
            self._within = torch.cuda.stream(self.stream)
            self._within.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream:
            self._within.__exit__(kind, error, trace)

    def join(self) -> None:
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)


def accelerate(step: Callable[..., T], device: torch.device, say: Callable[[str], None]) -> Callable[..., T]:
    """The same step, captured as a CUDA graph where there is CUDA."""
    return CapturedStep(step, say) if device.type == "cuda" else step


class CapturedStep(Generic[T]):
    """A step whose tensors stay where they are, replayed as one CUDA graph."""

    def __init__(self, step: Callable[..., T], say: Callable[[str], None]) -> None:
        self.step, self.say = step, say
        self.warm_up = WARM_UP
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> T:
        if self.warm_up > 0:
            self.warm_up -= 1
            return self._beside(inputs)
        if self.warm_up == 0:
            self.warm_up -= 1
            self._capture(inputs)
        if self.graph is None or any(a.shape != b.shape for a, b in zip(self.inputs, inputs, strict=True)):
            return self.step(*inputs)  # could not be captured, or a last, smaller batch
        for static, new in zip(self.inputs, inputs, strict=True):
            static.copy_(new)
        self.graph.replay()
        return self.outputs

    def _beside(self, inputs: tuple[Tensor, ...]) -> T:
        """On another stream, as a warm-up for a capture must be."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self.step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.outputs = self.step(*self.inputs)
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.say(f"this step runs without a CUDA graph: {str(error).splitlines()[0]}")
        else:
            self.graph = graph
